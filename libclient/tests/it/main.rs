//! The integration tests of the library, most of them with a scripted broker (`support`). One
//! program, so that it is compiled and linked once. Must never change what belongs to the whole
//! process: such a test starts a process of its own (`support::child`).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod arena;
mod cache;
mod closed_fds;
mod comeback;
mod cuda;
mod deposits;
mod dispatch;
mod early;
mod exports;
mod gathering;
mod isolated;
mod joining;
mod level_zero;
mod lifetime;
mod memory;
mod object_requests;
mod objects;
mod process;
mod remedies;
mod requests;
mod requests_async;
mod servers;
#[path = "../../../tests/common/mod.rs"]
mod shared;
mod signals;
mod support;
