//! Helpers shared with the end-to-end tests, and processes that play parts. Must never do anything
//! by itself.
#![allow(dead_code)] // not all of it is needed here

#[path = "../../e2e/support/admin.rs"]
pub mod admin;
#[path = "../../e2e/support/fuse_server.rs"]
pub mod fuse_server;
#[path = "../../common/hello.rs"]
pub mod hello;
#[path = "../../e2e/support/memory.rs"]
pub mod memory;
pub mod peer;
#[path = "../../e2e/support/raw.rs"]
pub mod raw;
#[path = "../../e2e/support/wait.rs"]
pub mod wait;
