//! What the tests share: the daemon, good and bad clients, helper processes, memory, waiting.
#![allow(dead_code, reason = "each test program uses its part")]

pub mod admin;
pub mod broker;
pub mod fuse;
pub mod fuse_server;
#[path = "../../common/hello.rs"]
pub mod hello;
pub mod manager;
pub mod memory;
pub mod objects;
pub mod owner;
pub mod peer;
pub mod rank;
pub mod raw;
pub mod wait;
