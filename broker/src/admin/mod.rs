//! Administrators, and users that look: their connections, their rights, which records they choose,
//! the answers to what they ask, the events for those that watch. Must never change what the broker
//! does, nor show more than a connection may see.

pub mod answers;
pub mod chosen;
pub mod comer;
pub mod page;
pub mod records;
pub mod rights;
pub mod side;
pub mod view;
pub mod watch;
