//! The real daemon, spoken to in its own protocol with no library between.

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fdbroker_protocol::message::{
    AcquireHead, HELLO_MAGIC, Hello, HelloReply, LeaseItem, RegisterHead, RegisterItem,
    RegisterReplyHead, Registered, register_flags,
};
use fdbroker_protocol::{
    Handle, Kind, MAX_BATCH, MemoryKind, Message, PROTOCOL_VERSION, Status, Writer,
};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use zerocopy::FromZeros;
use zerocopy::little_endian::{U16, U32, U64};

use crate::wire::Wire;

/// Bytes of one allocation. Nothing is touched, so no memory is used.
const ALLOCATION_BYTES: u64 = 4096;
/// Fds the daemon needs beside those it holds, and as many again for leases under way.
const HEADROOM: usize = 2048;

/// A daemon with allocations registered, and the handles of those that it holds.
pub struct Broker {
    child: Child,
    wire: Wire,
    /// The connection lives as long as its event socket.
    _event: OwnedFd,
    _dir: tempfile::TempDir,
    held: Vec<Handle>,
    next: usize,
    writer: Writer,
}

impl Broker {
    /// Starts the daemon under `limit` fds and registers `registered` allocations.
    pub fn start(registered: usize, limit: usize) -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        let cap = limit - HEADROOM;
        let most_held = cap - HEADROOM;
        let child = start_daemon(dir.path(), cap, most_held);
        let sock = connect_to(&dir.path().join("fdbroker/broker.sock"));
        let mut wire = Wire::new(sock);
        let mut writer = Writer::new();
        let hello = Hello {
            magic: HELLO_MAGIC,
            version_min: U16::new(PROTOCOL_VERSION.into()),
            version_max: U16::new(PROTOCOL_VERSION.into()),
            ..Hello::new_zeroed()
        };
        writer.start(Kind::Hello, 1).push(&hello);
        let (reply, _) = wire.call(writer.finish(0, 0));
        let reply: &HelloReply = parse(reply).body_as().expect("hello reply");
        let credits = reply.deposit_credits.get();
        let event = wire.fds.swap_remove(0);
        let mut broker =
            Broker { child, wire, _event: event, _dir: dir, held: Vec::new(), next: 0, writer };
        broker.register(registered, credits);
        // What the cap leaves held is the most recently registered.
        // (The daemon keeps a few places for deposits.)
        let held = registered.min(most_held - MAX_BATCH);
        broker.held.drain(..registered - held);
        broker
    }

    /// Allocations that the measured grants go over.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    fn register(&mut self, count: usize, mut credits: u32) {
        let memfd = sealed_memfd(count as u64 * ALLOCATION_BYTES);
        while self.held.len() < count {
            let left = count - self.held.len();
            let batch = left.min(credits as usize).min(MAX_BATCH);
            let wanted = u32::try_from((left - batch).min(MAX_BATCH)).expect("at most 253");
            self.writer.start(Kind::Register, 2);
            self.writer.push(&RegisterHead {
                credits_wanted: U32::new(wanted),
                deadline_ms: U32::new(5000),
            });
            for index in self.held.len()..self.held.len() + batch {
                let offset = index as u64 * ALLOCATION_BYTES;
                self.writer.push(&RegisterItem {
                    kind: MemoryKind::Memfd as u8,
                    flags: register_flags::RECALLABLE,
                    size_bytes: U64::new(ALLOCATION_BYTES),
                    fd_offset: U64::new(offset),
                    owner_allocation_id: U64::new(index as u64 + 1),
                    base: U64::new(0x1000_0000 + offset),
                    ..RegisterItem::new_zeroed()
                });
            }
            let sent: Vec<BorrowedFd<'_>> = vec![memfd.as_fd(); batch];
            fdbroker_scm::send_timeout(
                self.wire.sock().as_fd(),
                self.writer.finish(batch, batch),
                &sent,
                Some(Duration::from_secs(20)),
            )
            .expect("the daemon takes deposits");
            let reply = parse(self.wire.answer());
            let (head, items) =
                reply.head_and_items::<RegisterReplyHead, Registered>().expect("register reply");
            credits = head.deposit_credits.get();
            for item in items {
                assert!(item.status.is_ok(), "{}", item.status);
                self.held.push(item.handle);
            }
        }
    }

    /// Acquires `batch` held allocations; gives them back outside the time.
    pub fn round_trip(&mut self, batch: usize) -> Duration {
        self.writer.start(Kind::Acquire, 3);
        self.writer.push(&AcquireHead { deadline_ms: U32::new(5000), flags: U32::ZERO });
        for _ in 0..batch {
            // A stride prime to any count here, so that successive grants are far apart in the registry.
            self.next = (self.next + 7919) % self.held.len();
            self.writer.push(&self.held[self.next].prefix);
        }
        let (reply, took) = self.wire.call(self.writer.finish(batch, 0));
        let (items, _) = parse(reply).grants().expect("granted");
        let leases: Vec<_> = items.iter().map(|item| LeaseItem { lease: item.lease }).collect();
        assert_eq!((leases.len(), self.wire.fds.len()), (batch, batch), "an fd for every handle");
        self.writer.start(Kind::Release, 4).push(&leases[..]);
        let (reply, _) = self.wire.call(self.writer.finish(batch, 0));
        let released = parse(reply).items::<Status>().expect("lease reply");
        assert!(released.iter().all(Status::is_ok));
        took
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        crate::end(&mut self.child);
    }
}

fn start_daemon(dir: &std::path::Path, cap: usize, most_held: usize) -> Child {
    // Room for leases beside what is held, so that no grant has to wait for an eviction.
    let config = dir.join("bench.toml");
    std::fs::write(&config, format!("[caps.node]\nheld_fds = {most_held}\n")).expect("written");
    let (mut ready, ready_end) = std::io::pipe().expect("pipe");
    let mut command = Command::new(env!("CARGO_BIN_EXE_fdbrokerd"));
    command.arg("--private").arg(dir).args(["--ready-fd", "3", "--max-fds", &cap.to_string()]);
    command.arg("--config").arg(&config).env("RUST_LOG", "warn");
    command.stdin(Stdio::null());
    crate::give_fd_3(&mut command, ready_end.as_raw_fd());
    let child = command.spawn().expect("fdbrokerd starts");
    drop(ready_end);
    let mut line = String::new();
    ready.read_to_string(&mut line).expect("readable");
    assert_eq!(line, "READY\n", "the daemon ended before it was ready");
    child
}

fn connect_to(path: &std::path::Path) -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC;
    let sock = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).expect("socket");
    connect(sock.as_raw_fd(), &UnixAddr::new(path).expect("a short path")).expect("connect");
    sock
}

fn sealed_memfd(bytes: u64) -> OwnedFd {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let memfd = memfd_create(c"fdbroker-bench", flags).expect("memfd");
    nix::unistd::ftruncate(&memfd, bytes.cast_signed()).expect("size");
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
    fcntl(&memfd, FcntlArg::F_ADD_SEALS(seals)).expect("seals");
    memfd
}

fn parse(bytes: &[u8]) -> Message<'_> {
    let message = Message::parse(bytes).expect("a message");
    if message.kind == Kind::Failed {
        panic!("the daemon refused: {}", message.body_as::<Status>().expect("status"));
    }
    message
}
