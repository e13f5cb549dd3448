//! The attackers' connection: messages made by hand and sent without waiting; whatever comes back
//! is thrown away. Must never block: an attacker that waits for the daemon could not be ended.

use crate::support::raw::{hello, join_message};
use fdbroker_protocol::message::{
    AcquireHead, AllocationItem, DeclareItem, Hello, HelloReply, LeaseItem, RedepositItem,
    RegisterHead, RegisterItem, RegisterReplyHead, Registered, Role, SupplyItem,
};
use fdbroker_protocol::{
    AllocationId, ErrorCode, Facts, Handle, Kind, MAX_BATCH, MemoryKind, Message, Writer,
};
use fdbroker_scm::{ReceivedFds, RecvError, SendError};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Set when the test ends this attacker.
static STOPPED: AtomicBool = AtomicBool::new(false);

/// Longest sleep of an attacker before it checks whether it is to end.
const NAP_MS: u16 = 20;

pub fn stopped() -> bool {
    STOPPED.load(Ordering::Relaxed)
}

pub fn stop() {
    STOPPED.store(true, Ordering::Relaxed);
}

pub fn nap() {
    std::thread::sleep(std::time::Duration::from_millis(1));
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Push {
    Sent,
    /// The socket is full.
    Full,
    /// The broker has ended the connection.
    Gone,
}

/// A connection. Replies are read only when asked for.
#[derive(Debug)]
pub struct Conn {
    path: PathBuf,
    pub socket: OwnedFd,
    pub events: Option<OwnedFd>,
    pub page: Option<OwnedFd>,
    /// Deposits that the broker still takes.
    pub credits: u32,
    next_id: u64,
}

/// Buffers for reading, one set per attacker.
pub struct Inbox {
    bytes: Vec<u8>,
    fds: ReceivedFds,
}

impl Inbox {
    pub fn new() -> Inbox {
        Inbox {
            bytes: vec![0; fdbroker_protocol::limits::MAX_MESSAGE_BYTES],
            fds: ReceivedFds::new(),
        }
    }

    /// The next message of a socket, if there is one.
    pub fn read(
        &mut self,
        socket: BorrowedFd<'_>,
    ) -> Result<Option<(Message<'_>, Vec<OwnedFd>)>, ()> {
        match fdbroker_scm::recv(socket, &mut self.bytes, &mut self.fds) {
            Ok(received) => {
                let fds = self.fds.drain().collect();
                Ok(Message::parse(&self.bytes[..received.len]).ok().map(|message| (message, fds)))
            }
            Err(RecvError::WouldBlock) => Ok(None),
            Err(_) => Err(()),
        }
    }
}

/// Connects without hello and without waiting; `None` when the listener's queue is full.
pub fn connect_now(path: &Path) -> Option<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).ok()?;
    let address = UnixAddr::new(path).expect("a short path");
    match connect(socket.as_raw_fd(), &address) {
        Ok(()) => Some(socket),
        Err(Errno::EAGAIN | Errno::ECONNREFUSED | Errno::EMFILE) => None,
        Err(error) => panic!("connect: {error}"),
    }
}

/// Waits a little until a socket is ready.
pub fn await_ready(socket: BorrowedFd<'_>, events: PollFlags) {
    let mut entries = [PollFd::new(socket, events)];
    let _ = poll(&mut entries, PollTimeout::from(NAP_MS));
}

/// A further socket of a client that joins with this message; `None` when it is refused, or it is
/// time to end.
pub fn join_at(path: &Path, join: &[u8], inbox: &mut Inbox) -> Option<OwnedFd> {
    while !stopped() {
        let Some(socket) = connect_now(path) else {
            nap();
            continue;
        };
        push(socket.as_fd(), join, &[]);
        loop {
            match inbox.read(socket.as_fd()) {
                Ok(None) if stopped() => return None,
                Ok(None) => await_ready(socket.as_fd(), PollFlags::POLLIN),
                Ok(Some((message, _))) if message.kind == Kind::Joined => return Some(socket),
                Ok(Some((message, _))) => {
                    let status = message.status().ok()?.result();
                    if status != Err(ErrorCode::Again) {
                        return None;
                    }
                    break nap();
                }
                Err(()) => return None,
            }
        }
    }
    None
}

impl Conn {
    /// A connection that was made elsewhere, for messages alone.
    pub fn of(socket: OwnedFd) -> Conn {
        Conn { next_id: 1 << 32, ..Conn::at(Path::new(""), socket) }
    }

    /// A connection of a process that may be another one, before hello.
    pub fn at(path: &Path, socket: OwnedFd) -> Conn {
        Conn { path: path.to_owned(), socket, events: None, page: None, credits: 0, next_id: 0 }
    }

    /// Connected, before hello; `None` when it is time to end.
    pub fn silent(path: &Path) -> Option<Conn> {
        while !stopped() {
            if let Some(socket) = connect_now(path) {
                return Some(Conn::at(path, socket));
            }
            nap();
        }
        None
    }

    /// Connected and welcome; `None` when it is time to end.
    pub fn welcome(path: &Path, inbox: &mut Inbox) -> Option<Conn> {
        while !stopped() {
            let mut conn = Conn::silent(path)?;
            conn.push_hello(&hello());
            if conn.await_welcome(inbox) {
                return Some(conn);
            }
            nap();
        }
        None
    }

    pub fn push_hello(&mut self, hello: &Hello) -> Push {
        let mut writer = Writer::new();
        writer.start(Kind::Hello, 1).push(hello);
        self.push(writer.finish(0, 0), &[])
    }

    /// Waits for the answer to hello. `false`: refused, or it is time to end.
    pub fn await_welcome(&mut self, inbox: &mut Inbox) -> bool {
        while !stopped() {
            match inbox.read(self.socket.as_fd()) {
                Ok(None) => await_ready(self.socket.as_fd(), PollFlags::POLLIN),
                Err(()) => return false,
                Ok(Some((message, mut fds))) => {
                    let Ok(reply) = message.body_as::<HelloReply>() else { return false };
                    self.credits = reply.deposit_credits.get();
                    let join = join_message(reply, Role::Events);
                    self.page = fds.pop();
                    self.events = join_at(&self.path, &join, inbox);
                    return self.events.is_some();
                }
            }
        }
        false
    }

    pub fn push(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Push {
        push(self.socket.as_fd(), bytes, fds)
    }

    /// Reads and throws away all that has come, but notes deposit credits. `false`: the connection
    /// has ended.
    pub fn drain(&mut self, inbox: &mut Inbox, mut see: impl FnMut(&Message<'_>)) -> bool {
        loop {
            match inbox.read(self.socket.as_fd()) {
                Ok(None) => return true,
                Err(()) => return false,
                Ok(Some((message, _))) => {
                    if message.kind == Kind::RegisterReply
                        && let Ok((head, _)) =
                            message.head_and_items::<RegisterReplyHead, Registered>()
                    {
                        self.credits = head.deposit_credits.get();
                    }
                    see(&message);
                }
            }
        }
    }

    /// Waits until a message has come, the connection has ended, or it is time to end.
    pub fn drain_some(&mut self, inbox: &mut Inbox, mut see: impl FnMut(&Message<'_>)) -> bool {
        let mut any = false;
        while !stopped() && !any {
            await_ready(self.socket.as_fd(), PollFlags::POLLIN);
            if !self.drain(inbox, |message| {
                any = true;
                see(message)
            }) {
                return false;
            }
        }
        true
    }

    /// Throws away all that has come on the event socket.
    pub fn drain_events(&mut self, inbox: &mut Inbox) {
        let Some(events) = &self.events else { return };
        while matches!(inbox.read(events.as_fd()), Ok(Some(_))) {}
    }

    /// The same, also when it is time to end: for attacks that must reach a number.
    pub fn drain_some_until_told(
        &mut self,
        inbox: &mut Inbox,
        mut see: impl FnMut(&Message<'_>),
    ) -> bool {
        let mut any = false;
        while !any {
            await_ready(self.socket.as_fd(), PollFlags::POLLIN);
            let is_alive = self.drain(inbox, |message| {
                any = true;
                see(message);
            });
            if !is_alive {
                return false;
            }
        }
        true
    }

    pub fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id + 1
    }

    /// Asks for as many credits as a message can use, and waits for some; the broker says how many
    /// there are.
    pub fn want_credits(&mut self, inbox: &mut Inbox) -> bool {
        let mut is_asked = false;
        while !stopped() && (!is_asked || self.credits == 0) {
            let bytes = self.register(&[], MAX_BATCH as u32);
            if self.push(&bytes, &[]) == Push::Gone || !self.drain_some(inbox, |_| {}) {
                return false;
            }
            is_asked = true;
        }
        !stopped()
    }

    /// Registers blocks of `memfd` and waits for their handles; fewer come when a cap is full.
    pub fn share(
        &mut self,
        inbox: &mut Inbox,
        memfd: BorrowedFd<'_>,
        items: &[RegisterItem],
    ) -> Vec<Registered> {
        let mut all = Vec::new();
        let mut left = items;
        while !left.is_empty() && self.want_credits(inbox) {
            let (piece, rest) = left.split_at(left.len().min(self.credits as usize).min(MAX_BATCH));
            left = rest;
            let bytes = self.register(piece, MAX_BATCH as u32);
            self.push(&bytes, &vec![memfd; piece.len()]);
            let mut come = Vec::new();
            let is_alive = self.drain_some(inbox, |message| {
                if let Ok((_, items)) = message.head_and_items::<RegisterReplyHead, Registered>() {
                    come.extend(items.iter().filter(|item| item.status.get().is_ok()).copied());
                }
            });
            if come.is_empty() || !is_alive {
                break;
            }
            all.append(&mut come);
        }
        all
    }

    // --- messages --------------------------------------------------------------------------------

    pub fn register(&mut self, items: &[RegisterItem], wanted: u32) -> Vec<u8> {
        let head = RegisterHead { credits_wanted: wanted.into(), deadline_ms: 1000.into() };
        let mut writer = Writer::new();
        writer.start(Kind::Register, self.fresh_id()).push(&head).push(items);
        writer.finish(items.len(), items.len()).to_vec()
    }

    pub fn redeposit(&mut self, items: &[RedepositItem]) -> Vec<u8> {
        let head = RegisterHead { credits_wanted: 0.into(), deadline_ms: 0.into() };
        let mut writer = Writer::new();
        writer.start(Kind::Redeposit, self.fresh_id()).push(&head).push(items);
        writer.finish(items.len(), 0).to_vec()
    }

    pub fn declare(&mut self, items: &[DeclareItem]) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.start(Kind::Declare, self.fresh_id()).push(items);
        writer.finish(items.len(), 0).to_vec()
    }

    pub fn unregister(&mut self, ids: &[AllocationId]) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.start(Kind::Unregister, self.fresh_id());
        for id in ids {
            writer.push(&AllocationItem { slot: id.slot.into(), generation: id.generation.into() });
        }
        writer.finish(ids.len(), 0).to_vec()
    }

    pub fn acquire(&mut self, handles: &[Handle], deadline_ms: u32) -> Vec<u8> {
        let mut writer = Writer::new();
        let head = AcquireHead { deadline_ms: deadline_ms.into(), flags: 0.into() };
        writer.start(Kind::Acquire, self.fresh_id()).push(&head);
        handles.iter().for_each(|handle| {
            writer.push(&handle.prefix.to_bytes());
        });
        writer.finish(handles.len(), 0).to_vec()
    }

    /// Gives leases back, without an answer.
    pub fn release(&mut self, leases: &[u64]) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.start(Kind::Release, 0);
        for lease in leases {
            writer.push(&LeaseItem { lease: (*lease).into() });
        }
        writer.finish(leases.len(), 0).to_vec()
    }

    pub fn cancel(&mut self, id: u64) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.start(Kind::Cancel, id).push::<[u8]>(&[]);
        writer.finish(0, 0).to_vec()
    }
}

/// A supply message, as it is sent on the event socket.
pub fn supply(items: &[SupplyItem], fds: usize) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.start(Kind::Supply, 0).push(items);
    writer.finish(items.len(), fds).to_vec()
}

/// Sends without waiting.
pub fn push(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Push {
    match fdbroker_scm::send(socket, bytes, fds) {
        Ok(()) => Push::Sent,
        Err(SendError::WouldBlock | SendError::TooManyRefs) => Push::Full,
        Err(_) => Push::Gone,
    }
}

/// A block of memory to register, at an address of its own.
pub fn block(index: usize) -> RegisterItem {
    RegisterItem {
        facts: Facts::new(MemoryKind::Memfd, 4096).owner_allocation_id(index as u64).into(),
        flags: fdbroker_protocol::message::register_flags::RECALLABLE,
        share: fdbroker_protocol::Share::Uid as u8,
        driver_data_len: 0,
        base: (0x1000_0000_0000 + index as u64 * 4096).into(),
        driver_data: [0; 64],
    }
}

pub fn to_line(handles: &[Handle]) -> String {
    handles.iter().map(Handle::to_string).collect::<Vec<_>>().join(" ")
}

/// Reads handles back from such a line.
pub fn from_line(line: &str) -> Vec<Handle> {
    let words = line.split_ascii_whitespace();
    words.map(|word| word.parse().expect("a handle")).collect()
}
