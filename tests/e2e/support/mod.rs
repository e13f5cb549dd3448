//! What the tests stand on: the daemon, clients good and bad, helper processes, memory, waiting.

pub mod admin;
pub mod broker;
pub mod fuse;
pub mod manager;
pub mod memory;
pub mod owner;
pub mod peer;
pub mod rank;
pub mod raw;
pub mod wait;
