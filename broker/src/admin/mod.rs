//! Administrators: their connections, which records they choose, the answers to what they ask, the events for those that
//! watch. Must never change what the broker does.

pub mod accounts;
pub mod answers;
pub mod chosen;
pub mod page;
pub mod records;
pub mod side;
pub mod view;
pub mod watch;
