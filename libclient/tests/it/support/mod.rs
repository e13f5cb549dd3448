//! A broker that follows a test's script: a real listener, real fds, the real wire format, no logic
//! of its own. Must never answer by itself.

pub mod child;
pub mod stub;

use fdbroker_client::{Client, ClientBuilder, Deadline, Deposit, Handle, MemoryKind, Notice};
use fdbroker_protocol::limits::MAX_MESSAGE_BYTES;
use fdbroker_protocol::message::*;
use fdbroker_protocol::page::{
    LIVENESS_OFFSET, PAGE_MAGIC, PAGE_VERSION, PageHeader, generation_offset, page_bytes,
};
use fdbroker_protocol::{
    AllocationId, ErrorCode, Facts, HandlePrefixItem, Kind, Message, NodeKey, Status, Writer,
};
use fdbroker_scm::{ReceivedFds, RecvError, SendError};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept4, bind, listen, socket,
};
use nix::sys::uio::pwrite;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// How long a test waits for an event that must come.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How long nothing may come before a test takes it for silence.
pub const SILENCE: Duration = Duration::from_millis(150);

pub const NODE: u64 = 42;
pub const SLOTS: u32 = 1024;
pub const SECRET: u64 = 0x1234_5678_9abc_def0;

pub fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}

pub struct FakeBroker {
    _dir: tempfile::TempDir,
    pub path: PathBuf,
    listener: Option<OwnedFd>,
}

/// The values of hello's reply.
pub struct Terms {
    pub credits: u32,
    pub max_parked: u32,
    pub recall_timeout_ms: u32,
    pub grace_left_ms: u64,
}

impl Default for Terms {
    fn default() -> Self {
        Terms { credits: 8, max_parked: 64, recall_timeout_ms: 2000, grace_left_ms: 600_000 }
    }
}

impl FakeBroker {
    pub fn listen() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("broker.sock");
        let listener = Some(Self::bind(&path));
        FakeBroker { _dir: dir, path, listener }
    }

    fn bind(path: &Path) -> OwnedFd {
        let kind = SockType::SeqPacket;
        let listener = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(listener.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
        listen(&listener, Backlog::new(16).unwrap()).unwrap();
        listener
    }

    pub fn stop(&mut self) {
        std::fs::remove_file(&self.path).unwrap();
        self.listener = None;
    }

    pub fn start(&mut self) {
        self.listener = Some(Self::bind(&self.path));
    }

    /// The next connection, whatever comes over it.
    pub fn accept_silent(&self) -> OwnedFd {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        accept4(self.listener.as_ref().unwrap(), flags).unwrap()
    }

    pub fn accept_raw(&self) -> (OwnedFd, Received) {
        let (fd, hello) = self.accept_any();
        assert_eq!(hello.kind, Kind::Hello);
        (fd, hello)
    }

    /// A further socket of the client that got the reply of [`SECRET`].
    pub fn accept_join(&self, role: Role) -> OwnedFd {
        let (fd, request) = self.accept_any();
        let join = request.message(|message| *message.body_as::<Join>().unwrap());
        let told = (join.client.get(), join.role.get(), join.secret.get());
        assert_eq!(told, (7, role as u32, SECRET));
        let mut writer = Writer::new();
        let bytes = writer.start(Kind::Joined, request.id).finish(0, 0);
        fdbroker_scm::send(fd.as_fd(), bytes, &[]).unwrap();
        fd
    }

    fn accept_any(&self) -> (OwnedFd, Received) {
        let fd = self.accept_silent();
        let first = receive(fd.as_fd(), PATIENCE).unwrap();
        (fd, first)
    }

    /// Refuses a further socket.
    pub fn refuse_join(&self, code: ErrorCode) {
        let (fd, request) = self.accept_any();
        assert_eq!(request.kind, Kind::Join);
        let bytes = Writer::new().failed(request.id, code.into()).to_vec();
        fdbroker_scm::send(fd.as_fd(), &bytes, &[]).unwrap();
    }

    pub fn accept(&self, terms: Terms) -> Peer {
        let (socket, page, hello, incarnation) = self.let_in(terms);
        let events = self.accept_join(Role::Events);
        Peer { socket, events, page, hello, incarnation, next_lease: 1 }
    }

    /// Answers hello; the event socket is still to join.
    pub fn let_in(&self, terms: Terms) -> (OwnedFd, Page, Hello, u64) {
        static INCARNATION: AtomicU64 = AtomicU64::new(1000);
        let (socket, request) = self.accept_raw();
        let hello = request.message(|message| *message.body_as::<Hello>().unwrap());
        let incarnation = INCARNATION.fetch_add(1, Ordering::Relaxed);
        let page = Page::new(incarnation);
        let reply = HelloReply {
            version: u16::from(PROTOCOL_VERSION).into(),
            max_batch: 253.into(),
            deposit_credits: terms.credits.into(),
            node: NODE.into(),
            incarnation: incarnation.into(),
            client: 7.into(),
            page_slots: SLOTS.into(),
            recall_timeout_ms: terms.recall_timeout_ms.into(),
            max_parked: terms.max_parked.into(),
            grace_left_ms: terms.grace_left_ms.into(),
            secret: SECRET.into(),
            reserved: 0.into(),
        };
        let mut writer = Writer::new();
        writer.start(Kind::HelloReply, request.id).push(&reply);
        match fdbroker_scm::send(socket.as_fd(), writer.finish(0, 1), &[page.fd.as_fd()]) {
            // On a busy machine it has given this try up, and comes again.
            Err(SendError::PeerGone) => self.let_in(terms),
            sent => {
                sent.unwrap();
                (socket, page, hello, incarnation)
            }
        }
    }

    /// Connects a client to this broker.
    pub fn client_with(&self, builder: ClientBuilder, terms: Terms) -> (Client, Peer) {
        let builder = builder.socket(&self.path);
        thread::scope(|scope| {
            let client = scope.spawn(|| builder.connect().unwrap());
            let peer = self.accept(terms);
            (client.join().unwrap(), peer)
        })
    }

    pub fn client(&self) -> (Client, Peer) {
        self.client_with(Client::builder(), Terms::default())
    }
}

pub struct Page {
    pub fd: OwnedFd,
}

impl Page {
    fn new(incarnation: u64) -> Self {
        let fd = memfd_create(c"page", MFdFlags::MFD_CLOEXEC).unwrap();
        nix::unistd::ftruncate(&fd, page_bytes(SLOTS) as i64).unwrap();
        let page = Page { fd };
        page.write(offset_of!(PageHeader, magic), &PAGE_MAGIC.to_ne_bytes());
        page.write(offset_of!(PageHeader, version), &PAGE_VERSION.to_ne_bytes());
        page.write(offset_of!(PageHeader, slots), &SLOTS.to_ne_bytes());
        page.write(offset_of!(PageHeader, incarnation), &incarnation.to_ne_bytes());
        page.set_liveness(1);
        page
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        assert_eq!(pwrite(&self.fd, bytes, offset as i64).unwrap(), bytes.len());
    }

    pub fn set_liveness(&self, word: u32) {
        self.write(LIVENESS_OFFSET, &word.to_ne_bytes());
    }

    pub fn set(&self, id: AllocationId) {
        self.write(generation_offset(id.slot), &id.generation.to_ne_bytes());
    }

    pub fn end(&self, id: AllocationId) {
        self.set(AllocationId { generation: 0, ..id });
    }
}

/// A received message with its fds.
#[derive(Debug)]
pub struct Received {
    pub kind: Kind,
    pub id: u64,
    pub count: usize,
    pub bytes: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

impl Received {
    pub fn message<T>(&self, read: impl FnOnce(&Message<'_>) -> T) -> T {
        read(&Message::parse(&self.bytes).unwrap())
    }

    pub fn leases(&self) -> Vec<u64> {
        self.message(|m| m.items::<LeaseItem>().unwrap().iter().map(|i| i.lease.get()).collect())
    }

    pub fn acquire(&self) -> (u32, Vec<AllocationId>) {
        assert_eq!(self.kind, Kind::Acquire);
        self.message(|message| {
            let (head, items) = message.head_and_items::<AcquireHead, HandlePrefixItem>().unwrap();
            (head.deadline_ms.get(), items.iter().map(|item| item.get().id()).collect())
        })
    }

    pub fn register(&self) -> (u32, Vec<RegisterItem>) {
        assert_eq!(self.kind, Kind::Register);
        self.message(|message| {
            let (head, items) = message.head_and_items::<RegisterHead, RegisterItem>().unwrap();
            (head.credits_wanted.get(), items.to_vec())
        })
    }

    pub fn redeposit(&self) -> Vec<RedepositItem> {
        assert_eq!(self.kind, Kind::Redeposit);
        self.message(|message| {
            message.head_and_items::<RegisterHead, RedepositItem>().unwrap().1.to_vec()
        })
    }

    /// The allocations of the declared leases, and whether their fds are open.
    pub fn declare(&self) -> Vec<(AllocationId, bool)> {
        assert_eq!(self.kind, Kind::Declare);
        let read =
            |item: &DeclareItem| (item.handle.get().id(), item.flags.get() == declare_flags::OPEN);
        self.message(|message| message.items().unwrap().iter().map(read).collect())
    }

    pub fn unregister(&self) -> Vec<AllocationId> {
        assert_eq!(self.kind, Kind::Unregister);
        let id = |item: &AllocationItem| AllocationId {
            slot: item.slot.get(),
            generation: item.generation.get(),
        };
        self.message(|message| message.items().unwrap().iter().map(id).collect())
    }

    pub fn supply(&self) -> Vec<SupplyItem> {
        assert_eq!(self.kind, Kind::Supply);
        self.message(|message| message.items::<SupplyItem>().unwrap().to_vec())
    }
}

/// The next message; `complete`, which each connection after the first sends once, is left out.
pub fn receive(socket: BorrowedFd<'_>, patience: Duration) -> Result<Received, RecvError> {
    loop {
        let received = receive_any(socket, patience)?;
        if received.kind != Kind::Complete {
            return Ok(received);
        }
    }
}

fn receive_any(socket: BorrowedFd<'_>, patience: Duration) -> Result<Received, RecvError> {
    let mut bytes = vec![0; MAX_MESSAGE_BYTES];
    let mut fds = ReceivedFds::new();
    let got = fdbroker_scm::recv_timeout(socket, &mut bytes, &mut fds, Some(patience))?;
    assert!(!got.fds_truncated && !got.payload_truncated);
    bytes.truncate(got.len);
    let message = Message::parse(&bytes).unwrap();
    message.check_fds(fds.len()).unwrap();
    let (kind, id, count) = (message.kind, message.id, message.count);
    Ok(Received { kind, id, count, fds: fds.drain().collect(), bytes })
}

/// The answer to one handle of an acquire.
#[derive(Clone, Copy)]
pub enum Answer<'a> {
    Grant(BorrowedFd<'a>, u64),
    GrantOf(MemoryKind, BorrowedFd<'a>, u64),
    Refuse(ErrorCode),
}

pub struct Peer {
    pub socket: OwnedFd,
    pub events: OwnedFd,
    pub page: Page,
    pub hello: Hello,
    pub incarnation: u64,
    pub next_lease: u64,
}

impl Peer {
    pub fn recv(&self) -> Received {
        receive(self.socket.as_fd(), PATIENCE).unwrap()
    }

    pub fn recv_kind(&self, kind: Kind) -> Received {
        let received = self.recv();
        assert_eq!(received.kind, kind);
        received
    }

    pub fn recv_event(&self) -> Received {
        receive(self.events.as_fd(), PATIENCE).unwrap()
    }

    /// Checks that nothing comes for a while.
    pub fn assert_silent(&self) {
        match receive(self.socket.as_fd(), SILENCE) {
            Err(RecvError::TimedOut) => {}
            other => panic!("not silent: {other:?}"),
        }
    }

    pub fn assert_eof(&self) {
        let ended = receive(self.socket.as_fd(), PATIENCE);
        assert!(matches!(ended, Err(RecvError::Eof)), "{ended:?}");
    }

    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        fdbroker_scm::send_timeout(self.socket.as_fd(), bytes, fds, Some(PATIENCE)).unwrap();
    }

    pub fn send_event(&self, bytes: &[u8]) {
        fdbroker_scm::send_timeout(self.events.as_fd(), bytes, &[], Some(PATIENCE)).unwrap();
    }

    pub fn fail(&self, id: u64, status: Status) {
        self.send(Writer::new().failed(id, status), &[]);
    }

    /// Answers an acquire; grants get leases from `next_lease` on. A grant's slot is its lease's
    /// number, its generation 1.
    pub fn grant(&mut self, id: u64, answers: &[Answer<'_>]) -> Vec<u64> {
        let mut writer = Writer::new();
        writer.start(Kind::Granted, id);
        let (mut fds, mut leases) = (Vec::new(), Vec::new());
        for answer in answers {
            let mut item = no_grant();
            let answer = match *answer {
                Answer::Grant(fd, size) => Answer::GrantOf(MemoryKind::Memfd, fd, size),
                answer => answer,
            };
            match answer {
                Answer::Grant(..) => unreachable!("of a kind"),
                Answer::Refuse(code) => item.status = Status::error(code).into(),
                Answer::GrantOf(kind, fd, size) => {
                    let lease = self.next_lease;
                    self.next_lease += 1;
                    item.status = Status::OK.into();
                    item.lease = lease.into();
                    item.slot = (lease as u32).into();
                    item.generation = 1.into();
                    item.facts.size_bytes = size.into();
                    item.facts.kind = kind as u8;
                    item.fd_index = (fds.len() as u16).into();
                    item.facts.owner_allocation_id = 99.into();
                    fds.push(fd);
                    leases.push(lease);
                }
            }
            writer.push(&item);
        }
        self.send(writer.finish(answers.len(), fds.len()), &fds);
        leases
    }

    /// Answers a register by OK for all, with slots from `first_slot` on and generation 1.
    pub fn registered(&self, request: &Received, credits: u32, first_slot: u32) {
        let mut writer = Writer::new();
        writer.start(Kind::RegisterReply, request.id);
        writer
            .push(&RegisterReplyHead { deposit_credits: credits.into(), reserved: [0.into(); 3] });
        for slot in first_slot..first_slot + request.count as u32 {
            let handle = handle(slot);
            writer.push(&Registered {
                status: Status::OK.into(),
                handle: handle.into(),
                token: [9; 16],
            });
            self.page.set(handle.id());
        }
        self.send(writer.finish(request.count, 0), &[]);
    }

    /// Answers a redeposit by one code each, in order; those with OK are alive on the page.
    pub fn named(&self, request: &Received, codes: &[Result<(), ErrorCode>]) {
        let items = request.redeposit();
        assert_eq!(items.len(), codes.len());
        let mut writer = Writer::new();
        let head = RegisterReplyHead { deposit_credits: 8.into(), reserved: [0.into(); 3] };
        writer.start(Kind::RegisterReply, request.id).push(&head);
        for (item, code) in items.iter().zip(codes) {
            match code {
                Ok(()) => {
                    if item.item.flags & register_flags::ENDED == 0 {
                        self.page.set(item.handle.get().id());
                    }
                    let (handle, token) = (item.handle, item.token);
                    writer.push(&Registered { status: Status::OK.into(), handle, token });
                }
                Err(code) => {
                    let handle = Handle::from_bytes([0; 64]);
                    let status = Status::error(*code);
                    writer.push(&Registered {
                        status: status.into(),
                        handle: handle.into(),
                        token: [0; 16],
                    });
                }
            }
        }
        self.send(writer.finish(items.len(), 0), &[]);
    }

    /// Answers a declare by one code each, in order, with new leases from `next_lease` on; answers
    /// these leases.
    pub fn declared(&mut self, request: &Received, codes: &[Result<(), ErrorCode>]) -> Vec<u64> {
        let items = request.declare();
        assert_eq!(items.len(), codes.len());
        let mut writer = Writer::new();
        writer.start(Kind::Granted, request.id);
        let mut leases = Vec::new();
        for ((id, _), code) in items.iter().zip(codes) {
            let mut item = no_grant();
            match code {
                Ok(()) => {
                    leases.push(self.next_lease);
                    item.lease = self.next_lease.into();
                    (item.slot, item.generation) = (id.slot.into(), id.generation.into());
                    self.next_lease += 1;
                }
                Err(code) => item.status = Status::error(*code).into(),
            }
            writer.push(&item);
        }
        self.send(writer.finish(items.len(), 0), &[]);
        leases
    }

    pub fn unregistered(&self, request: &Received, drained: bool) {
        let mut writer = Writer::new();
        writer.start(Kind::UnregisterReply, request.id);
        let mut status = Status::OK;
        status.value = drained.into();
        for _ in 0..request.count {
            writer.push(&status.to_bytes());
        }
        self.send(writer.finish(request.count, 0), &[]);
    }

    pub fn recall(&self, items: &[RecallItem]) {
        let mut writer = Writer::new();
        writer.start(Kind::Recall, 0).push(items);
        self.send_event(writer.finish(items.len(), 0));
    }

    pub fn drained(&self, id: AllocationId, owner_allocation_id: u64, base: u64) {
        let item = DrainedItem {
            slot: id.slot.into(),
            generation: id.generation.into(),
            owner_allocation_id: owner_allocation_id.into(),
            base: base.into(),
        };
        let mut writer = Writer::new();
        writer.start(Kind::Drained, 0).push(&item);
        self.send_event(writer.finish(1, 0));
    }
}

pub fn no_grant() -> GrantItem {
    GrantItem {
        facts: Facts::NONE.into(),
        status: Status::OK.into(),
        lease: 0.into(),
        slot: 0.into(),
        generation: 0.into(),
        driver_data_len: 0,
        fd_index: NO_FD.into(),
    }
}

pub fn recall_item(id: AllocationId, owner_allocation_id: u64, base: u64) -> RecallItem {
    RecallItem {
        facts: Facts::new(MemoryKind::Memfd, 4096).owner_allocation_id(owner_allocation_id).into(),
        slot: id.slot.into(),
        generation: id.generation.into(),
        base: base.into(),
        reserved: [0; 3],
    }
}

/// Whether this lease of that allocation was told as revoked, for this reason.
pub fn is_revoked(told: &Notice, wanted: AllocationId, number: u64, why: ErrorCode) -> bool {
    let Notice::Revoked { id, lease, code, .. } = told else { return false };
    (*id, *lease, *code) == (wanted, number, why)
}

/// Whether this was told as drained: the owner's id of it, and no address.
pub fn is_drained(told: &Notice, wanted: AllocationId, owners_id: u64) -> bool {
    let Notice::Drained { id, owner_allocation_id, base, .. } = told else { return false };
    (*id, *owner_allocation_id, *base) == (wanted, owners_id, 0)
}

/// The handle of a slot's generation 1.
pub fn handle(slot: u32) -> Handle {
    let id = AllocationId { slot, generation: 1 };
    let facts = Facts::new(MemoryKind::Memfd, 4096).owner_allocation_id(99);
    NodeKey::from_bytes([7; 32]).seal(NODE, id, &facts)
}

/// A memfd with these bytes in it.
pub fn memory(bytes: &[u8]) -> OwnedFd {
    let fd = memfd_create(c"memory", MFdFlags::MFD_CLOEXEC).unwrap();
    nix::unistd::ftruncate(&fd, 4096).unwrap();
    pwrite(&fd, bytes, 0).unwrap();
    fd
}

pub fn deposit(owner_allocation_id: u64) -> Deposit {
    let mut deposit = Deposit::new(MemoryKind::Memfd, 4096);
    deposit.facts.owner_allocation_id = owner_allocation_id;
    deposit
}

/// Waits until the condition is true.
pub fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let until = std::time::Instant::now() + PATIENCE;
    while !is_true() {
        assert!(std::time::Instant::now() < until, "{what} did not happen");
        thread::sleep(Duration::from_millis(2));
    }
}

/// The read end of a pipe whose write end is sent as "memory": it reads the end when every copy is
/// closed.
pub fn canary() -> (OwnedFd, OwnedFd) {
    nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC | nix::fcntl::OFlag::O_NONBLOCK).unwrap()
}

/// Whether every copy of the pipe's write end is closed.
pub fn is_closed(canary: &OwnedFd) -> bool {
    matches!(nix::unistd::read(canary, &mut [0; 1]), Ok(0))
}
