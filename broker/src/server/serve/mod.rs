//! What clients, administrators and users that look ask for. Must never decide whose turn it is.

pub mod acts;
pub mod admins;
pub mod hello;
pub mod objects;
pub mod refusing;
pub mod reload;
pub mod requests;
pub mod watchers;
