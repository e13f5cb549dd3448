//! The integration tests of virtual fds with a stand-in for the layer: the C library's functions of
//! this program are the crate's. tests/virtual_fds has the same with a broker and C programs. Must
//! never change what belongs to the whole process.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod closing;
mod duplicates;
mod faults;
mod pidfds;
mod sending;
#[path = "../../../../tests/common/mod.rs"]
mod shared;
mod support;
