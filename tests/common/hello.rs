//! How a client that speaks the bare protocol begins. Must never check what it says.
#![allow(dead_code, reason = "each test program uses its part")]

use fdbroker_protocol::limits::NAME_BYTES;
use fdbroker_protocol::message::{HELLO_MAGIC, Hello, HelloReply, Join, Role};
use fdbroker_protocol::{Kind, PROTOCOL_VERSION, Writer};
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
    Hello {
        magic: HELLO_MAGIC,
        version_min: u16::from(PROTOCOL_VERSION).into(),
        version_max: u16::from(PROTOCOL_VERSION).into(),
        flags: 0.into(),
        own_fds: 0.into(),
        pid: std::process::id().into(),
        name: [0; NAME_BYTES],
        deadline_ms: 0.into(),
        key: 0.into(),
        max_held_fds: 0.into(),
        reserved: 0.into(),
    }
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
