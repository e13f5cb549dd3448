//! Every fd that a client has deposited: the table that owns it, what kind it is, the processes
//! that close it. Must never wait for an fd on the loop's thread.

pub mod carrier;
pub mod classify;
pub mod closers;
pub mod closing;
pub mod files;
pub mod jobs;
mod lane;
pub mod pool;
pub mod rounds;
pub mod slow;
pub mod table;
pub mod tombstones;
