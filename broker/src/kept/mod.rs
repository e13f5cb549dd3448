//! What is kept outlives this broker, however it ends: its table is a log in one memfd, the fds of
//! groups of objects and of allocations lie in carriers, and the service manager has a duplicate of
//! each of these from the start on. Must never answer a seal before both have the group, nor let
//! the loop wait for the service manager. Without a service manager's store there is none of it.

pub mod carriers;
pub mod found;
pub mod log;
pub mod records;
pub mod store;
mod table;
