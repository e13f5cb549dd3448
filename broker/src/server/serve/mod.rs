//! What clients, administrators and users that look ask for. Must never decide whose turn it is.

pub mod acts;
pub mod admins;
pub mod caps;
pub mod kept;
pub mod objects;
pub mod reload;
pub mod requests;
