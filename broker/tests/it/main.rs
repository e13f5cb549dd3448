//! The integration tests of the daemon `fdbrokerd`: the real program behind its real sockets, one
//! broker per test. One program, so that it is compiled and linked once. Must never change what
//! belongs to the whole process: such a test starts a process of its own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod admin;
mod common;
mod config;
mod lifecycle;
mod page;
mod protocol;
#[path = "../../../tests/common/mod.rs"]
mod shared;
#[path = "../../../tests/e2e/support/mod.rs"]
mod support;
mod view;

/// No test here has a helper process.
const PARTS: &[support::peer::Part] = &[];
