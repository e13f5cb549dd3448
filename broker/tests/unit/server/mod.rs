//! The loop under a test's control: turn by turn, so that what is asserted are counts and never
//! times. The clients are in this process and speak the bare protocol.

use crate::cli::Args;
use crate::clients::connection::Blocked;
use crate::clients::in_flight::InFlight;
use crate::clients::shares::Shares;
use crate::fds::jobs::{Calls, CloseFn};
use crate::kernel::KernelFeatures;
use crate::limits::{UNREAD_MESSAGES_PER_CLIENT, WORK_PER_MESSAGE, WORK_PER_WAKE};
use crate::manager::inherited::Inherited;
use crate::manager::notify::Manager;
use crate::node::signals::Signals;
use crate::node::warden::Warden;
use crate::server::parts::Server;
use crate::settings::{Environment, Host, Settings};
use crate::start::{Outside, prepare};
use fdbroker_protocol::codec::Message;
use fdbroker_protocol::message::{
    AcquireHead, Hello, HelloReply, LeaseItem, RegisterHead, RegisterItem, RegisterReplyHead,
    Registered, Role, register_flags,
};
use fdbroker_protocol::{
    ErrorCode, Facts, Handle, Kind, MemoryKind, Resource, Scope, Share, Status, Writer,
};
use fdbroker_scm::{ReceivedFds, RecvError};
use hello::{hello_message, join_message};
use mio::Events;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use std::io::{PipeReader, PipeWriter};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

mod ahead;
mod debts;
mod handover;
#[path = "../../../../tests/common/hello.rs"]
mod hello;
#[path = "../../../../tests/common/here.rs"]
mod here;
mod joining;
mod kept;
mod lanes;

/// What the processes of lanes wait for, which share only fds with a test: its end is the end of
/// the wait, and a word lets one go on.
fn hang() -> (PipeWriter, impl Fn() + Send + Sync + 'static) {
    let (hang, release) = std::io::pipe().unwrap();
    let wait = move || _ = nix::unistd::read(&hang, &mut [0]);
    (release, wait)
}

/// Counts in the processes of lanes: a byte for each.
fn counter() -> (PipeReader, impl Fn() + Send + Sync + 'static) {
    let (count, add) = std::io::pipe().unwrap();
    (count, move || _ = nix::unistd::write(&add, &[1]))
}

fn counted(counter: &PipeReader) -> usize {
    fdbroker_scm::queued_bytes(counter.as_fd()).unwrap()
}

fn calls() -> Calls {
    Calls::real(crate::clients::job::process)
}

struct Bench {
    server: Server,
    events: Events,
    dir: tempfile::TempDir,
}

impl Bench {
    fn new(set: &[&str]) -> Bench {
        Self::with(set, KernelFeatures::ALL, Arc::new(|fd, _| drop(fd)))
    }

    fn with(set: &[&str], kernel: KernelFeatures, close: CloseFn) -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let calls = Calls { close, ..calls() };
        Self::in_directory(dir, set, kernel, calls, Inherited::default())
    }

    fn in_directory(
        dir: tempfile::TempDir,
        set: &[&str],
        kernel: KernelFeatures,
        calls: Calls,
        inherited: Inherited,
    ) -> Bench {
        Self::managed(dir, set, kernel, calls, (inherited, Manager::default()))
    }

    fn managed(
        dir: tempfile::TempDir,
        set: &[&str],
        kernel: KernelFeatures,
        calls: Calls,
        (inherited, manager): (Inherited, Manager),
    ) -> Bench {
        let args = Args {
            private: Some(dir.path().into()),
            set: set.iter().map(|one| (*one).to_owned()).collect(),
            ..Args::default()
        };
        // Not this process's own: its limit is the machine's, and its open fds are those of all
        // tests at work.
        let host = Host { hard_fds: 20_000, open_fds: 16, ..Host::of_this_process() };
        let mut settings = Settings::load(&args, &Environment::default(), &host).unwrap();
        settings.kernel = kernel;
        let signals = Signals::block().unwrap();
        let warden = Warden::default();
        let outside =
            Outside { signals, until_eof: None, warden, manager, inherited, arrived: None };
        let server = prepare(settings, outside, calls).unwrap();
        let events = Events::with_capacity(64);
        Bench { server, events, dir }
    }

    /// One turn that does not wait.
    fn turn(&mut self) {
        self.server.turn(&mut self.events, Some(Duration::ZERO)).unwrap();
    }

    /// Turns until nothing is left to do.
    fn rest(&mut self) {
        for _ in 0..1000 {
            self.turn();
            if self.events.is_empty() && self.server.timeout() != Some(Duration::ZERO) {
                return;
            }
        }
        panic!("the loop does not come to rest");
    }

    /// Turns until `holds`; what brings it about is another thread or time.
    fn until(&mut self, holds: impl Fn(&Server) -> bool) {
        for _ in 0..20_000 {
            self.turn();
            if holds(&self.server) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("it does not come about");
    }

    fn raw(&self) -> Peer {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
        let path = self.server.settings.listeners[0].path.clone();
        connect(fd.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        Peer(fd)
    }

    /// A client after its hello, and its event socket.
    fn client(&mut self) -> (Peer, Peer) {
        let (peer, event, _) = self.greeted();
        (peer, event)
    }

    /// The same, and the answer to its hello.
    fn greeted(&mut self) -> (Peer, Peer, HelloReply) {
        let (peer, reply) = self.let_in();
        let event = self.raw();
        event.send(&join_message(&reply, Role::Events), &[]);
        self.rest();
        self.until(|server| server.connections.lobby.callers().is_empty());
        let (bytes, _) = event.recv().unwrap();
        assert_eq!(Message::parse(&bytes).unwrap().kind, Kind::Joined);
        (peer, event, reply)
    }

    /// A client whose event socket has not joined.
    fn let_in(&mut self) -> (Peer, HelloReply) {
        let peer = self.raw();
        peer.send(&hello(), &[]);
        self.rest();
        self.until(|server| server.connections.lobby.callers().is_empty());
        self.until(|server| server.connections.iter().all(|(_, it)| it.is_known));
        self.rest();
        let (bytes, fds) = peer.recv().unwrap();
        let message = Message::parse(&bytes).unwrap();
        assert_eq!((message.kind, fds.len()), (Kind::HelloReply, 1));
        let reply = *message.body_as::<HelloReply>().unwrap();
        (peer, reply)
    }

    fn register(&mut self, peer: &Peer) -> Handle {
        let fd = memfd();
        peer.send(&register(1), &[fd.as_fd()]);
        self.rest();
        let (bytes, _) = peer.recv().unwrap();
        let message = Message::parse(&bytes).unwrap();
        let (_, items) = message.head_and_items::<RegisterReplyHead, Registered>().unwrap();
        assert!(items[0].status.get().is_ok(), "{}", items[0].status.get());
        items[0].handle.get()
    }
}

/// Credit for a whole message of fds from the start.
const WHOLE_MESSAGES: &[&str] = &["limits.base_credits=253", "limits.max_credits=253"];

struct Peer(OwnedFd);

impl Peer {
    fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        fdbroker_scm::send(self.0.as_fd(), bytes, fds).unwrap();
    }

    fn recv(&self) -> Result<(Vec<u8>, Vec<OwnedFd>), RecvError> {
        let mut bytes = vec![0; 65536];
        let mut fds = ReceivedFds::new();
        let received = fdbroker_scm::recv(self.0.as_fd(), &mut bytes, &mut fds)?;
        bytes.truncate(received.len);
        Ok((bytes, fds.drain().collect()))
    }

    fn has_message(&self) -> bool {
        fdbroker_scm::queued_bytes(self.0.as_fd()).is_ok_and(|bytes| bytes > 0)
    }

    /// Messages that wait, read and dropped.
    fn count(&self) -> usize {
        std::iter::from_fn(|| self.recv().ok()).count()
    }

    fn failed(&self) -> Status {
        let (bytes, _) = self.recv().unwrap();
        let message = Message::parse(&bytes).unwrap();
        assert_eq!(message.kind, Kind::Failed);
        message.status().unwrap()
    }
}

fn hello() -> Vec<u8> {
    hello_message(&Hello { pid: 0.into(), key: 7.into(), ..hello::hello() })
}

fn register(fds: usize) -> Vec<u8> {
    register_as(MemoryKind::Memfd, fds)
}

fn register_as(kind: MemoryKind, fds: usize) -> Vec<u8> {
    let head = RegisterHead { credits_wanted: 0.into(), deadline_ms: 0.into() };
    let item = RegisterItem {
        facts: Facts::new(kind, 4096).owner_allocation_id(1).into(),
        flags: register_flags::RECALLABLE,
        share: Share::Uid as u8,
        driver_data_len: 0,
        base: 0.into(),
        driver_data: [0; 64],
    };
    let mut writer = Writer::new();
    writer.start(Kind::Register, 2).push(&head).push(&item);
    writer.finish(1, fds).to_vec()
}

fn acquire(id: u64, handle: &Handle, deadline_ms: u32) -> Vec<u8> {
    let head = AcquireHead { deadline_ms: deadline_ms.into(), flags: 0.into() };
    let mut writer = Writer::new();
    writer.start(Kind::Acquire, id).push(&head).push(&handle.prefix.to_bytes());
    writer.finish(1, 0).to_vec()
}

/// A release of a lease that does not exist, with a reply.
fn release(id: u64) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.start(Kind::Release, id).push(&LeaseItem { lease: u64::MAX.into() });
    writer.finish(1, 0).to_vec()
}

fn memfd() -> OwnedFd {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let fd = memfd_create("test", flags).unwrap();
    nix::unistd::ftruncate(&fd, 4096).unwrap();
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
    fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    fd
}

#[test]
fn turn_when_one_client_floods_then_it_gets_its_quota_and_the_other_is_served() {
    let mut bench = Bench::new(&[]);
    let (flood, _a) = bench.client();
    let (other, _b) = bench.client();
    for id in 1..=100 {
        flood.send(&release(id), &[]);
    }
    other.send(&release(1), &[]);

    let mut served = 0;
    while other.count() == 0 {
        bench.turn();
        served += flood.count();
        assert!(served <= WORK_PER_WAKE / WORK_PER_MESSAGE + 1, "{served}");
    }
    bench.rest();
    assert_eq!(flood.count(), 100 - served, "and nothing is forgotten");
}

#[test]
fn turn_when_it_takes_long_then_the_longest_wake_is_counted_and_no_wait() {
    let before = Instant::now();
    let mut bench = Bench::new(&[]);
    assert_eq!(bench.server.waits.longest_wake_us(), 0);
    let (client, _event) = bench.client();
    bench.register(&client);
    let longest = bench.server.waits.longest_wake_us();
    let elapsed = before.elapsed();
    assert!(longest > 0 && u128::from(longest) <= elapsed.as_micros(), "{longest} {elapsed:?}");
    bench.rest();
    let wait = Duration::from_millis(500);
    bench.server.turn(&mut bench.events, Some(wait)).unwrap();
    assert!(u128::from(bench.server.waits.longest_wake_us()) < wait.as_micros());
}

#[test]
fn turn_when_a_client_never_reads_then_its_unread_is_bounded_and_others_are_served() {
    let mut bench = Bench::new(&[]);
    let (slow, _a) = bench.client();
    let (other, _b) = bench.client();
    let handle = bench.register(&other);
    let requests = 3 * UNREAD_MESSAGES_PER_CLIENT as usize;
    for id in 1..=requests {
        slow.send(&acquire(id as u64, &handle, 60_000), &[]);
    }
    bench.rest();
    let blocked = bench.server.connections.iter().filter(|(_, it)| it.blocked.is_some()).count();
    assert_eq!(blocked, 1);

    other.send(&acquire(1, &handle, 0), &[]);
    bench.rest();
    assert_eq!(other.count(), 1, "the other is served");

    let mut answers = Vec::new();
    while answers.len() < requests {
        let now = slow.count();
        assert!(now > 0, "it goes on when it has read: {answers:?}");
        assert!(now <= UNREAD_MESSAGES_PER_CLIENT as usize);
        answers.extend(std::iter::repeat_n((), now));
        bench.rest();
    }
}

fn is_waiting(server: &Server) -> bool {
    server.connections.iter().any(|(_, it)| it.blocked == Some(Blocked::InFlight))
}

/// A bench where each connection may leave two fds unread and none beside, and two clients that
/// have read all.
fn tight_bench() -> (Bench, [(Peer, Peer); 2], Vec<Handle>) {
    let mut bench = Bench::new(&[]);
    let clients = [bench.client(), bench.client()];
    let handles = (0..4).map(|_| bench.register(&clients[0].0)).collect();
    for (_, connection) in &mut bench.server.connections {
        bench.server.in_flight.forget_if_read(connection);
    }
    bench.server.in_flight = InFlight::new(Shares::new(0, 1, 8));
    (bench, clients, handles)
}

#[test]
fn grant_when_its_share_in_flight_is_used_up_then_waits_for_it_and_others_are_served() {
    let (mut bench, [(first, _a), (second, _b)], handles) = tight_bench();
    for id in 1..=3 {
        first.send(&acquire(id, &handles[0], 60_000), &[]);
    }
    bench.rest();
    assert!(is_waiting(&bench.server));
    second.send(&acquire(1, &handles[0], 60_000), &[]);
    bench.rest();
    assert_eq!(second.count(), 1, "the other has its own share");

    assert_eq!(first.count(), 2);
    bench.until(|server| !is_waiting(server));
    bench.rest();
    assert_eq!(first.count(), 1);
}

#[test]
fn grant_when_only_some_of_it_may_be_in_flight_then_the_rest_says_again_and_costs_no_lease() {
    let (mut bench, [(client, _a), _b], handles) = tight_bench();
    let head = AcquireHead { deadline_ms: 0.into(), flags: 0.into() };
    let mut writer = Writer::new();
    writer.start(Kind::Acquire, 9).push(&head);
    for handle in &handles {
        writer.push(&handle.prefix.to_bytes());
    }
    client.send(writer.finish(handles.len(), 0), &[]);
    bench.rest();
    let (bytes, fds) = client.recv().unwrap();
    let message = Message::parse(&bytes).unwrap();
    let (grants, _) = message.grants().unwrap();
    let codes: Vec<_> = grants.iter().map(|grant| grant.status.get().result().err()).collect();
    let again = Some(ErrorCode::Again);
    assert_eq!(codes, [None, None, again, again]);
    assert_eq!(fds.len(), 2);
    assert_eq!(bench.server.core.totals().node.now(Resource::OpenLeases), 2);
}

#[test]
fn connection_when_it_ends_with_fds_unread_then_counted_until_the_peer_has_read_or_closed() {
    for is_read in [true, false] {
        let (mut bench, [(client, _a), (other, _b)], handles) = tight_bench();
        client.send(&acquire(1, &handles[0], 0), &[]);
        client.send(&[0], &[]);
        bench.rest();
        assert_eq!(bench.server.connections.len(), 2, "it lingers");
        assert_eq!(bench.server.core.totals().node.now(Resource::Connections), 1);
        if is_read {
            assert_eq!(client.count(), 2, "the grant and why it ended");
            assert!(matches!(client.recv(), Err(RecvError::Eof)));
        } else {
            drop(client)
        }
        bench.rest();
        assert_eq!(bench.server.connections.len(), 1);
        other.send(&release(1), &[]);
        bench.rest();
        assert_eq!(other.count(), 1);
    }
}

#[test]
fn silent_connection_when_its_time_is_over_then_ended() {
    let mut bench = Bench::new(&["limits.handshake_timeout_ms=1"]);
    let silent = bench.raw();
    bench.turn();
    assert_eq!(bench.server.connections.lobby.callers().len(), 1);
    bench.until(|server| server.connections.lobby.callers().is_empty());
    bench.rest();
    assert_eq!(silent.failed().result(), Err(ErrorCode::Protocol));
    assert!(matches!(silent.recv(), Err(RecvError::Eof)));
}

#[test]
fn connect_when_a_uid_is_at_its_cap_of_connections_then_refused_by_name() {
    let mut bench = Bench::new(&["caps.domain.connections=2"]);
    let _clients = [bench.client(), bench.client()];
    let third = bench.raw();
    third.send(&hello(), &[]);
    bench.rest();
    let status = third.failed();
    assert_eq!(status.result(), Err(ErrorCode::NoQuota));
    assert_eq!(status, Status::no_quota(Resource::Connections, Scope::Domain, 2, 0));
    drop(_clients);
    bench.rest();
    bench.client();
}

#[test]
fn client_when_it_leaves_then_nothing_of_it_is_left() {
    let mut bench = Bench::new(&[]);
    let before = bench.server.core.totals();
    for _ in 0..3 {
        let (client, _event) = bench.client();
        let handle = bench.register(&client);
        client.send(&acquire(1, &handle, 0), &[]);
        bench.rest();
    }
    let is_done = |server: &Server| {
        server.connections.is_empty() && server.core.totals().gauges.closing_fds == 0
    };
    bench.until(is_done);
    let after = bench.server.core.totals();
    assert_eq!(after.node.now(Resource::Fds), before.node.now(Resource::Fds));
    assert_eq!(after.table.0, before.table.0);
    assert!(bench.server.connections.is_nobody_counted());
    assert!(bench.server.in_flight.is_pool_unused());
}

#[test]
fn event_when_its_socket_is_full_then_kept_and_sent_in_the_end() {
    let mut bench = Bench::new(&[]);
    let (owner, events) = bench.client();
    let (holder, holder_events) = bench.client();
    // The socket takes 278 messages. The broker is in this process: each is one more of its fds.
    let handles: Vec<Handle> = (0..320).map(|_| bench.register(&owner)).collect();
    for handle in &handles {
        holder.send(&acquire(1, handle, 0), &[]);
        bench.rest();
        assert_eq!(holder.count(), 1);
    }
    // Each unregister ends one allocation: one revoked notice at a time, more than the holder's
    // socket takes.
    for handle in &handles {
        let mut writer = Writer::new();
        let (slot, generation) = (handle.prefix.slot, handle.prefix.generation);
        writer.start(Kind::Unregister, 3);
        writer.push(&fdbroker_protocol::message::AllocationItem {
            slot: slot.into(),
            generation: generation.into(),
        });
        owner.send(writer.finish(1, 0), &[]);
        bench.rest();
        assert_eq!(owner.count(), 1);
    }
    let mut revoked = 0;
    loop {
        match holder_events.recv() {
            Ok((bytes, _)) => revoked += Message::parse(&bytes).unwrap().count,
            Err(RecvError::WouldBlock) if revoked < handles.len() => bench.rest(),
            Err(_) => break,
        }
    }
    assert_eq!(revoked, handles.len());
    drop(events);
}

#[test]
fn client_when_no_pidfd_can_be_had_then_served_and_its_end_is_seen() {
    for list in ["peer_pidfd", "peer_pidfd,pidfd_open", "pass_rights,dupfd_query"] {
        let kernel = KernelFeatures::without(list).unwrap();
        let mut bench = Bench::with(&[], kernel, Arc::new(|fd, _| drop(fd)));
        let (client, _event) = bench.client();
        let has_pidfd = bench.server.connections.iter().all(|(_, it)| it.pidfd.is_some());
        assert_eq!(has_pidfd, list != "peer_pidfd,pidfd_open", "{list}");
        bench.register(&client);
        drop(client);
        bench.until(|server| server.connections.is_empty());
    }
}
