//! The service manager: what it is told, what it hands to a new process, and its store, which has
//! the fds of kept allocations. Must never let the loop wait for it.

pub mod inherited;
pub mod keep_book;
pub mod keep_store;
pub mod notify;
pub mod service;
