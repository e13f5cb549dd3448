//! The real daemon, spoken to in its own protocol with no library between.
#![allow(dead_code, reason = "each benchmark uses its part")]

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fdbroker_protocol::message::{
    AcquireHead, HelloReply, LeaseItem, RegisterHead, RegisterItem, RegisterReplyHead, Registered,
    Role, register_flags,
};
use fdbroker_protocol::{Facts, Handle, Kind, MAX_BATCH, MemoryKind, Message, Writer};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use zerocopy::FromZeros;
use zerocopy::little_endian::{U32, U64};

use super::wire::Wire;

#[path = "../../../tests/common/hello.rs"]
mod hello;

/// Bytes of one allocation. Nothing is touched, so no memory is used.
const ALLOCATION_BYTES: u64 = 4096;
/// Fds of the client's own process.
const HEADROOM: usize = 2048;

/// A connection of a client.
pub struct Connection {
    pub wire: Wire,
    pub writer: Writer,
    /// The connection lives as long as its event socket.
    _event: Wire,
    /// Fds that it may deposit.
    pub credits: u32,
    /// Leases that it has not given back.
    pub leases: Vec<LeaseItem>,
}

/// A daemon with allocations registered, and the handles of those that it holds.
pub struct Broker {
    child: Child,
    owner: Connection,
    dir: tempfile::TempDir,
    held: Vec<Handle>,
    next: usize,
    registered: usize,
    /// Memory of the daemon without allocations, in bytes.
    resident_before: u64,
}

impl Connection {
    fn open(dir: &std::path::Path) -> Self {
        let mut wire = Wire::new(super::connect_to(&dir.join("fdbroker/broker.sock")));
        wire.send(&hello::hello_message(&hello::hello()));
        let reply: &HelloReply = parse(wire.answer()).body_as().expect("hello reply");
        let credits = reply.deposit_credits.get();
        let mut event = Wire::new(super::connect_to(&dir.join("fdbroker/broker.sock")));
        event.send(&hello::join_message(reply, Role::Events));
        assert_eq!(parse(event.answer()).kind, Kind::Joined);
        Connection { wire, writer: Writer::new(), _event: event, credits, leases: Vec::new() }
    }

    fn acquire<'a>(&mut self, handles: impl ExactSizeIterator<Item = &'a Handle>) -> &[u8] {
        let count = handles.len();
        self.writer.start(Kind::Acquire, 3);
        self.writer.push(&AcquireHead { deadline_ms: U32::new(5000), flags: U32::ZERO });
        for handle in handles {
            self.writer.push(&handle.prefix.to_bytes());
        }
        self.writer.finish(count, 0)
    }

    /// Asks for one allocation.
    pub fn ask(&mut self, handle: &Handle) {
        let request = self.acquire([handle].into_iter()).to_vec();
        self.wire.send(&request);
    }

    /// Takes the answer to [`Connection::ask`], and closes the fd.
    pub fn take(&mut self) {
        let (reply, fds) = self.wire.answer_closed();
        let (items, _) = parse(reply).grants().expect("granted");
        assert_eq!((items.len(), fds), (1, 1), "an fd for the handle");
        self.leases.push(LeaseItem { lease: items[0].lease });
    }

    /// Gives the leases of all that was taken back.
    pub fn release(&mut self) {
        for leases in self.leases.chunks(MAX_BATCH) {
            self.writer.start(Kind::Release, 4).push(leases);
            let (reply, ..) = self.wire.call(self.writer.finish(leases.len(), 0));
            let mut released = parse(reply).statuses().expect("lease reply");
            assert!(released.all(|status| status.is_ok()));
        }
        self.leases.clear();
    }
}

impl Broker {
    /// Starts the daemon under `limit` fds, and registers `registered` allocations. It holds as
    /// many of them as leave `room` for connections and leases.
    pub fn start(registered: usize, limit: usize, room: usize) -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        let cap = limit - HEADROOM;
        let most_held = cap - room;
        let child = start_daemon(dir.path(), cap, most_held);
        let owner = Connection::open(dir.path());
        let resident_before = resident_bytes(&child);
        let mut broker =
            Broker { child, owner, dir, held: Vec::new(), next: 0, registered, resident_before };
        broker.register(registered);
        // What the cap leaves held is the most recently registered.
        // (The daemon keeps a few places for deposits.)
        let held = registered.min(most_held - MAX_BATCH);
        broker.held.drain(..registered - held);
        broker
    }

    /// Connects one more client.
    pub fn connect(&self) -> Connection {
        Connection::open(self.dir.path())
    }

    /// Allocations that the measured grants go over.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Memory that the daemon has taken since it started, for each registered allocation.
    pub fn bytes_per_allocation(&self) -> f64 {
        (self.resident_bytes() - self.resident_before) as f64 / self.registered as f64
    }

    /// Memory of the daemon.
    pub fn resident_bytes(&self) -> u64 {
        resident_bytes(&self.child)
    }

    /// Fds open in the daemon.
    pub fn open_fds(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("it runs").count()
    }

    /// The next one of those that are held, far from the one before in the registry.
    pub fn next(&mut self) -> Handle {
        // A stride prime to any count here.
        self.next = (self.next + 7919) % self.held.len();
        self.held[self.next]
    }

    fn register(&mut self, count: usize) {
        let memfd = sealed_memfd(count as u64 * ALLOCATION_BYTES);
        let owner = &mut self.owner;
        while self.held.len() < count {
            let left = count - self.held.len();
            let batch = left.min(owner.credits as usize).min(MAX_BATCH);
            let wanted = u32::try_from((left - batch).min(MAX_BATCH)).expect("at most 253");
            owner.writer.start(Kind::Register, 2);
            owner.writer.push(&RegisterHead {
                credits_wanted: U32::new(wanted),
                deadline_ms: U32::new(5000),
            });
            for index in self.held.len()..self.held.len() + batch {
                let offset = index as u64 * ALLOCATION_BYTES;
                owner.writer.push(&RegisterItem {
                    facts: Facts::new(MemoryKind::Memfd, ALLOCATION_BYTES)
                        .fd_offset(offset)
                        .owner_allocation_id(index as u64 + 1)
                        .into(),
                    flags: register_flags::RECALLABLE,
                    base: U64::new(0x1000_0000 + offset),
                    ..RegisterItem::new_zeroed()
                });
            }
            let sent: Vec<BorrowedFd<'_>> = vec![memfd.as_fd(); batch];
            fdbroker_scm::send_timeout(
                owner.wire.sock().as_fd(),
                owner.writer.finish(batch, batch),
                &sent,
                Some(Duration::from_secs(20)),
            )
            .expect("the daemon takes deposits");
            let reply = parse(owner.wire.answer());
            let (head, items) =
                reply.head_and_items::<RegisterReplyHead, Registered>().expect("register reply");
            owner.credits = head.deposit_credits.get();
            for item in items {
                assert!(item.status.get().is_ok(), "{}", item.status.get());
                self.held.push(item.handle.get());
            }
        }
    }

    /// Acquires `batch` held allocations and closes their fds; gives the leases back outside the
    /// time.
    pub fn round_trip(&mut self, batch: usize) -> Duration {
        let handles: Vec<Handle> = (0..batch).map(|_| self.next()).collect();
        let request = self.owner.acquire(handles.iter()).to_vec();
        let (reply, fds, took) = self.owner.wire.call(&request);
        let (items, _) = parse(reply).grants().expect("granted");
        assert_eq!((items.len(), fds), (batch, batch), "an fd for every handle");
        self.owner.leases.extend(items.iter().map(|item| LeaseItem { lease: item.lease }));
        self.owner.release();
        took
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        super::end(&mut self.child);
    }
}

fn resident_bytes(child: &Child) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/statm", child.id())).expect("it runs");
    let pages: u64 = text.split(' ').nth(1).and_then(|it| it.parse().ok()).expect("a number");
    pages * 4096
}

fn start_daemon(dir: &std::path::Path, cap: usize, most_held: usize) -> Child {
    // Room for leases beside what is held, so that no grant has to wait for an eviction.
    let config = dir.join("bench.toml");
    std::fs::write(&config, format!("[caps.node]\nheld_fds = {most_held}\n")).expect("written");
    let (mut ready, ready_end) = std::io::pipe().expect("pipe");
    let mut command = Command::new(env!("CARGO_BIN_EXE_fdbrokerd"));
    command.arg("--private").arg(dir).args(["--ready-fd", "3", "--max-fds", &cap.to_string()]);
    command.arg("--config").arg(&config).env("FDBROKER_LOG", "warn");
    command.stdin(Stdio::null());
    super::give_fd_3(&mut command, ready_end.as_raw_fd());
    let child = command.spawn().expect("fdbrokerd starts");
    drop(ready_end);
    let mut line = String::new();
    ready.read_to_string(&mut line).expect("readable");
    assert_eq!(line, "READY\n", "the daemon ended before it was ready");
    child
}

fn sealed_memfd(bytes: u64) -> OwnedFd {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let memfd = memfd_create(c"fdbroker-bench", flags).expect("memfd");
    nix::unistd::ftruncate(&memfd, bytes.cast_signed()).expect("size");
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
    fcntl(&memfd, FcntlArg::F_ADD_SEALS(seals)).expect("seals");
    memfd
}

/// The answer of the daemon, which must not be a refusal.
pub fn parse(bytes: &[u8]) -> Message<'_> {
    let message = Message::parse(bytes).expect("a message");
    if message.kind == Kind::Failed {
        panic!("the daemon refused: {}", message.status().expect("status"));
    }
    message
}
