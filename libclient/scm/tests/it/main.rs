//! The tests of sendmsg and recvmsg on real sockets, against raw system calls (`common`). One
//! program, so that it is compiled and linked once. Must never change what belongs to the whole
//! process: such a test runs in a process of its own (`common::in_own_process`).

mod closing;
mod common;
mod limits;
mod looking;
mod servers;
#[path = "../../../../tests/common/mod.rs"]
mod shared;
mod transfer;
