//! What the tests share: the daemon, good and bad clients, helper processes, memory, waiting.

pub mod admin;
pub mod broker;
pub mod fuse;
pub mod fuse_server;
pub mod manager;
pub mod memory;
pub mod objects;
pub mod owner;
pub mod peer;
pub mod rank;
pub mod raw;
pub mod wait;
