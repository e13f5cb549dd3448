//! Messages that are none: what a broken or hostile client sends. Each costs its sender the
//! connection, and nobody else anything.

use crate::support::broker::Broker;
use crate::support::memory::{Blocks, assert_bytes};
use crate::support::owner::Owner;
use crate::support::raw::{Raw, hello, receive_from};
use crate::support::wait::{PATIENCE, patience};
use fdbroker_protocol::limits::MAX_MESSAGE_BYTES;
use fdbroker_protocol::message::{
    AcquireHead, Header, Hello, LeaseItem, RegisterHead, RegisterItem, SupplyItem,
};
use fdbroker_protocol::{ErrorCode, Kind, MAX_BATCH, PROTOCOL_VERSION, Writer};
use fdbroker_scm::RecvError;
use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use std::io::IoSlice;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use zerocopy::{FromZeros, IntoBytes};

/// A broker with a client that behaves; it must not notice what the others do.
struct Bystander {
    broker: Broker,
    owner: Owner,
}

impl Bystander {
    fn new() -> Bystander {
        let broker = Broker::start();
        let owner = Owner::of(&broker, "bystander", 1);
        Bystander { broker, owner }
    }

    fn raw(&self) -> Raw {
        Raw::connect(&self.broker.socket())
    }

    /// The sender of each message loses its connection and nobody else theirs.
    #[track_caller]
    fn assert_refused<'a>(self, messages: impl IntoIterator<Item = &'a [u8]>) {
        for message in messages {
            let raw = self.raw();
            raw.send(message, &[]).expect("sent");
            raw.assert_refused();
        }
        self.assert_unharmed();
    }

    #[track_caller]
    fn assert_unharmed(self) {
        let grant = self.owner.client.acquire(&self.owner.handle(0), patience());
        drop(assert_bytes(grant.expect("still served"), 0));
        let Bystander { broker, owner } = self;
        drop(owner);
        broker.assert_nothing_left();
    }
}

/// A message with a body of `body` bytes, all zero, whatever its kind needs.
fn message(kind: u16, count: u16, fd_count: u16, body: usize) -> Vec<u8> {
    let header = Header {
        kind: kind.into(),
        version: PROTOCOL_VERSION,
        flags: 0,
        count: count.into(),
        fd_count: fd_count.into(),
        id: 7.into(),
    };
    let mut bytes = header.as_bytes().to_vec();
    bytes.resize(bytes.len() + body, 0);
    bytes
}

fn any_fd() -> OwnedFd {
    Blocks::new(1).export(0)
}

/// sendmsg(2) as it is, since the library's own refuses to send no bytes.
fn send_empty(socket: BorrowedFd<'_>, fds: &[BorrowedFd<'_>]) {
    let numbers: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let control = [ControlMessage::ScmRights(&numbers)];
    let control = if fds.is_empty() { &[][..] } else { &control[..] };
    let flags = MsgFlags::MSG_NOSIGNAL;
    let iov = [IoSlice::new(&[])];
    sendmsg::<()>(socket.as_raw_fd(), &iov, control, flags, None).expect("sent");
}

#[test]
fn message_when_its_header_is_wrong_then_refused() {
    let short = message(Kind::Acquire as u16, 0, 0, 0);
    let mut other_version = message(Kind::Release as u16, 1, 0, 8);
    other_version[2] = PROTOCOL_VERSION + 1;
    let mut no_id = message(Kind::Register as u16, 0, 0, size_of::<RegisterHead>());
    no_id[8] = 0;
    let many = MAX_BATCH as u16 + 1;
    Bystander::new().assert_refused([
        &short[..1],
        &short[..8],
        &short[..15],
        &message(Kind::Release as u16, 253, 0, MAX_MESSAGE_BYTES),
        &other_version,
        &no_id,
        // More items than a message may have.
        &message(Kind::Release as u16, many, 0, usize::from(many) * 8),
        &message(Kind::Release as u16, u16::MAX, 0, 8),
        // None, where there must be some.
        &message(Kind::Acquire as u16, 0, 0, size_of::<AcquireHead>()),
        &message(Kind::Redeposit as u16, 0, 0, size_of::<RegisterHead>()),
        &message(Kind::Declare as u16, 0, 0, 0),
    ]);
}

#[test]
fn message_when_without_bytes_then_refused_and_its_fds_are_closed() {
    let bystander = Bystander::new();
    let fd = any_fd();
    for fds in [&[][..], &[fd.as_fd()]] {
        let raw = bystander.raw();
        send_empty(raw.socket.as_fd(), fds);
        raw.assert_refused();
    }
    bystander.assert_unharmed();
}

#[test]
fn message_when_its_body_is_too_short_or_long_then_refused() {
    let register = size_of::<RegisterHead>();
    let bodies = [
        (Kind::Register, 0, register - 1),
        (Kind::Register, 0, register + 1),
        (Kind::Register, 1, register),
        (Kind::Unregister, 1, 7),
        (Kind::Unregister, 2, 8),
        (Kind::Acquire, 0, size_of::<AcquireHead>() - 1),
        (Kind::Acquire, 1, size_of::<AcquireHead>() + 31),
        (Kind::Acquire, 1, size_of::<AcquireHead>() + 33),
        (Kind::Release, 1, size_of::<LeaseItem>() + 1),
        (Kind::Mapped, 3, size_of::<LeaseItem>() * 2),
        (Kind::Cancel, 0, 1),
    ];
    let messages: Vec<_> =
        bodies.iter().map(|(kind, count, body)| message(*kind as u16, *count, 0, *body)).collect();
    Bystander::new().assert_refused(messages.iter().map(Vec::as_slice));
}

#[test]
fn message_when_not_for_the_broker_then_refused() {
    // Unknown; the broker's own; the event socket's; the administrator's; a second hello.
    let kinds = [
        0,
        0xffff,
        Kind::HelloReply as u16,
        Kind::Join as u16,
        Kind::Granted as u16,
        Kind::Failed as u16,
        Kind::Recall as u16,
        Kind::Supply as u16,
        Kind::AdminStatus as u16,
    ];
    let mut messages: Vec<_> = kinds.iter().map(|kind| message(*kind, 0, 0, 0)).collect();
    let mut second = message(Kind::Hello as u16, 0, 0, 0);
    second.extend_from_slice(hello().as_bytes());
    messages.push(second);
    Bystander::new().assert_refused(messages.iter().map(Vec::as_slice));
}

#[test]
fn message_when_before_hello_then_refused() {
    let bystander = Bystander::new();
    let acquire = message(Kind::Acquire as u16, 0, 0, 8);
    for bytes in [acquire, b"x".to_vec(), vec![0xff; MAX_MESSAGE_BYTES]] {
        let raw = Raw::silent(&bystander.broker.socket());
        raw.send(&bytes, &[]).expect("sent");
        raw.assert_refused();
    }
    bystander.assert_unharmed();
}

/// The answer to a hello that was changed.
fn answer_to_hello(broker: &Broker, change: impl FnOnce(&mut Hello)) -> (Raw, ErrorCode, u64) {
    let mut raw = Raw::silent(&broker.socket());
    let mut hello = hello();
    change(&mut hello);
    let answer = raw.request(Kind::Hello, |writer| writer.push(&hello), 0, &[]);
    let status = answer.failure();
    (raw, status.result().expect_err("refused"), status.value)
}

#[test]
fn hello_when_its_magic_is_wrong_then_refused() {
    let bystander = Bystander::new();
    let (raw, code, _) = answer_to_hello(&bystander.broker, |hello| hello.magic[7] = b'?');
    assert_eq!(code, ErrorCode::Protocol);
    raw.assert_ended();
    bystander.assert_unharmed();
}

#[test]
fn hello_when_no_version_in_common_then_told_the_brokers() {
    let bystander = Bystander::new();
    for (least, most) in [(PROTOCOL_VERSION + 1, 9), (0, 0), (9, 1u16)] {
        let (raw, code, value) = answer_to_hello(&bystander.broker, |hello| {
            hello.version_min = u16::from(least).into();
            hello.version_max = most.into();
        });
        assert_eq!((code, value), (ErrorCode::Protocol, PROTOCOL_VERSION.into()));
        raw.assert_ended();
    }
    // Whatever version its header has.
    let raw = Raw::silent(&bystander.broker.socket());
    let newer = PROTOCOL_VERSION + 1;
    let version_min = u16::from(newer).into();
    let other = Hello { version_min, version_max: 9.into(), ..hello() };
    let mut bytes = [&message(Kind::Hello as u16, 0, 0, 0), other.as_bytes()].concat();
    bytes[2] = newer;
    raw.send(&bytes, &[]).expect("sent");
    let status = raw.receive().expect("an answer").failure();
    assert_eq!(status.value, PROTOCOL_VERSION.into());
    bystander.assert_unharmed();
}

#[test]
fn message_when_fds_and_their_count_differ_then_refused_and_closed() {
    let bystander = Bystander::new();
    let fd = any_fd();
    let one = size_of::<RegisterHead>() + size_of::<RegisterItem>();
    let two = one + size_of::<RegisterItem>();
    let cases: [(Vec<u8>, usize); 9] = [
        // Announced more than sent, and fewer.
        (message(Kind::Register as u16, 1, 1, one), 0),
        (message(Kind::Register as u16, 1, 1, one), 2),
        (message(Kind::Register as u16, 1, 0, one), 1),
        (message(Kind::Register as u16, 1, 253, one), 1),
        // As announced, but not one per item.
        (message(Kind::Register as u16, 2, 1, two), 1),
        (message(Kind::Register as u16, 0, 1, size_of::<RegisterHead>()), 1),
        // With messages that take none.
        (message(Kind::Redeposit as u16, 0, 1, size_of::<RegisterHead>()), 1),
        (message(Kind::Release as u16, 1, 1, 8), 1),
        (message(Kind::Release as u16, 1, 0, 8), 253),
    ];
    for (bytes, count) in &cases {
        let raw = bystander.raw();
        raw.send(bytes, &vec![fd.as_fd(); *count]).expect("sent");
        raw.assert_refused();
    }
    bystander.assert_unharmed();
}

#[test]
fn register_when_it_has_more_fds_than_credits_then_refused_and_closed() {
    let bystander = Bystander::new();
    let raw = bystander.raw();
    let credits = raw.reply().deposit_credits.get();
    let count = u16::try_from(credits + 1).expect("few");
    let fd = any_fd();
    let body = size_of::<RegisterHead>() + usize::from(count) * size_of::<RegisterItem>();
    let bytes = message(Kind::Register as u16, count, count, body);
    raw.send(&bytes, &vec![fd.as_fd(); usize::from(count)]).expect("sent");
    let answer = raw.receive().expect("an answer");
    assert_eq!(answer.failure().result(), Err(ErrorCode::Protocol));
    assert_eq!(bystander.broker.status().uses.allocations.now.get(), 1, "the bystander's");
    drop(raw);
    bystander.assert_unharmed();
}

#[test]
fn event_socket_when_it_carries_garbage_then_both_sockets_end() {
    let bystander = Bystander::new();
    let fd = any_fd();
    let cases: [(Vec<u8>, usize); 5] = [
        (vec![0; 3], 0),
        (message(Kind::Acquire as u16, 0, 0, 8), 0),
        (message(Kind::Supply as u16, 1, 1, size_of::<SupplyItem>()), 0),
        (message(Kind::Supply as u16, 1, 0, size_of::<SupplyItem>() - 1), 0),
        (message(Kind::Supply as u16, 2, 1, 2 * size_of::<SupplyItem>()), 1),
    ];
    for (bytes, count) in &cases {
        let raw = bystander.raw();
        let fds = vec![fd.as_fd(); *count];
        fdbroker_scm::send(raw.events(), bytes, &fds).expect("sent");
        raw.assert_ended();
    }
    bystander.assert_unharmed();
}

#[test]
fn supply_when_nobody_asked_for_it_then_its_fds_are_closed() {
    let bystander = Bystander::new();
    let raw = bystander.raw();
    let fd = any_fd();
    let mut item = SupplyItem::new_zeroed();
    item.slot = bystander.owner.id(0).slot.into();
    item.generation = bystander.owner.id(0).generation.into();
    item.facts.size_bytes = 4096.into();
    let mut writer = Writer::new();
    writer.start(Kind::Supply, 0).push(&[item; 5]);
    fdbroker_scm::send(raw.events(), writer.finish(5, 5), &[fd.as_fd(); 5]).expect("sent");
    drop(raw);
    bystander.assert_unharmed();
}

#[test]
fn administrators_socket_when_it_carries_garbage_then_only_that_connection_ends() {
    let bystander = Bystander::new();
    let fd = any_fd();
    for bytes in [
        vec![1],
        message(Kind::AdminStatus as u16, 0, 0, 23),
        message(Kind::Acquire as u16, 0, 0, 8),
        message(0xffff, 0, 0, 24),
        vec![0; MAX_MESSAGE_BYTES],
    ] {
        let admin = bystander.broker.admin();
        fdbroker_scm::send(admin.socket.as_fd(), &bytes, &[]).expect("sent");
        // An answer may come first; the end must.
        while receive_from(admin.socket.as_fd(), PATIENCE)
            .map_err(|error| assert_eq!(error, RecvError::Eof))
            .is_ok()
        {}
    }
    let admin = bystander.broker.admin();
    let query = message(Kind::AdminStatus as u16, 0, 1, 24);
    // Kernels from 6.16 on refuse it here already.
    let _ = fdbroker_scm::send(admin.socket.as_fd(), &query, &[fd.as_fd()]);
    drop(admin);
    bystander.assert_unharmed();
}

#[test]
fn messages_when_random_then_the_daemon_lives_and_nothing_is_left() {
    let bystander = Bystander::new();
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let fd = any_fd();
    let kinds = [0x01, 0x10, 0x12, 0x14, 0x20, 0x22, 0x24, 0x26, 0x28, 0x41];
    let mut raw = bystander.raw();
    for _ in 0..500 {
        let kind = kinds[(next() % kinds.len() as u64) as usize];
        let mut bytes = message(kind, (next() % 4) as u16, (next() % 2) as u16, 0);
        let random_body = (0..next() % 40).flat_map(|_| next().to_le_bytes());
        bytes.extend(random_body.collect::<Vec<_>>());
        let fds = vec![fd.as_fd(); (next() % 3) as usize];
        if raw.send(&bytes, &fds).is_err() {
            raw = bystander.raw();
        }
    }
    drop(raw);
    bystander.assert_unharmed();
}

#[test]
fn generation_page_when_a_client_tries_to_write_it_then_it_cannot() {
    let bystander = Bystander::new();
    let raw = bystander.raw();
    let page = raw.generations();
    assert_eq!(nix::unistd::write(page, &[1]), Err(Errno::EBADF));
    assert_eq!(nix::unistd::ftruncate(page, 0), Err(Errno::EINVAL));
    let length = NonZeroUsize::new(4096).expect("not zero");
    let (protection, flags) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED);
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let mapped = unsafe { mmap(None, length, protection, flags, page, 0) };
    assert_eq!(mapped.err(), Some(Errno::EACCES));
    drop(raw);
    bystander.assert_unharmed();
}
