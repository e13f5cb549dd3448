//! How a client that speaks the bare protocol begins. Must never check what it says.
#![allow(dead_code, reason = "each test program uses its part")]

use fdbroker_protocol::limits::NAME_BYTES;
use fdbroker_protocol::message::{Hello, HelloReply, Join, Role};
use fdbroker_protocol::{Kind, Writer};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// Connects and sends nothing.
pub fn open(path: &Path) -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(socket)
}

/// A hello like the library's.
pub fn hello() -> Hello {
    Hello::new(std::process::id(), [0; NAME_BYTES])
}

/// The message of a hello.
pub fn hello_message(hello: &Hello) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.start(Kind::Hello, 1).push(hello);
    writer.finish(0, 0).to_vec()
}

/// The message with which a client's further socket joins.
pub fn join_message(reply: &HelloReply, role: Role) -> Vec<u8> {
    let join = Join { client: reply.client, role: (role as u32).into(), secret: reply.secret };
    let mut writer = Writer::new();
    writer.start(Kind::Join, 1).push(&join);
    writer.finish(0, 0).to_vec()
}
