//! The whole daemon on this thread, with real sockets and fds: an input is what up to four clients
//! and an administrator send, as raw bytes or as whole messages with some bytes changed. After each
//! input all hang up, and nothing may be left. Must never wait longer than the closer threads take.

use crate::bytes::Bytes;
use crate::memory;
use fdbroker_protocol::admin::Query;
use fdbroker_protocol::message::*;
use fdbroker_protocol::{Handle, HandlePrefix, Kind, Message, Writer};
use fdbroker_scm::ReceivedFds;
use fdbrokerd::cli::Args;
use fdbrokerd::fuzzing::Daemon;
use fdbrokerd::{Environment, Host, Settings};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use zerocopy::FromZeros;

#[path = "../../../common/hello.rs"]
mod hello;

const CLIENTS: usize = 4;
/// Inputs from one check of every sum and list to the next.
const CHECK_EVERY: u32 = 16;
/// Small and quick: everything is soon full, and nothing takes long.
const SETTINGS: &[&str] = &[
    "caps.node.fds=24",
    "caps.client.fds=16",
    "caps.node.held_fds=6",
    "caps.node.kept_allocations=3",
    "limits.max_slots=32",
    "limits.max_clients=6",
    "limits.max_parked_per_client=3",
    "limits.recall_timeout_ms=20",
    "limits.keep_ttl_ms=1",
    "limits.object_ttl_ms=1",
    "limits.grace_ms=1",
    "limits.max_refused_per_domain=4",
];

thread_local! {
    static BENCH: RefCell<Option<Bench>> = const { RefCell::new(None) };
}

pub fn run(data: &[u8]) {
    BENCH.with_borrow_mut(|bench| {
        let bench = bench.get_or_insert_with(Bench::new);
        let mut bytes = Bytes(data);
        while !bytes.is_empty() {
            bench.act(&mut bytes);
        }
        bench.end();
    });
}

/// A client's sockets.
struct Client {
    main: OwnedFd,
    event: Option<OwnedFd>,
}

struct Bench {
    daemon: Daemon,
    socket: PathBuf,
    admin_socket: PathBuf,
    good: OwnedFd,
    bad: OwnedFd,
    clients: [Option<Client>; CLIENTS],
    /// The answers to their last hellos.
    replies: [Option<HelloReply>; CLIENTS],
    admin: Option<OwnedFd>,
    handles: Vec<Handle>,
    tokens: Vec<[u8; 16]>,
    leases: Vec<u64>,
    recalls: Vec<RecallItem>,
    inputs: u32,
    next_id: u64,
    writer: Writer,
    _directory: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let args = Args {
            private: Some(directory.path().into()),
            set: SETTINGS.iter().map(|one| (*one).to_owned()).collect(),
            ..Args::default()
        };
        let host = Host { hard_fds: 4096, ..Host::of_this_process() };
        let settings = Settings::load(&args, &Environment::default(), &host).expect("they work");
        let socket = settings.listeners[0].path.clone();
        let admin_socket = settings.admin_socket.clone();
        Bench {
            daemon: Daemon::start(settings).expect("it starts"),
            socket,
            admin_socket,
            good: memory::sealed(),
            bad: memory::unsealed(),
            clients: Default::default(),
            replies: Default::default(),
            admin: None,
            handles: Vec::new(),
            tokens: Vec::new(),
            leases: Vec::new(),
            recalls: Vec::new(),
            inputs: 0,
            next_id: 1,
            writer: Writer::new(),
            _directory: directory,
        }
    }

    fn act(&mut self, bytes: &mut Bytes<'_>) {
        let choice = bytes.u8();
        let client = bytes.below(CLIENTS);
        match choice % 10 {
            0 => {
                let main = dial(&self.socket);
                self.clients[client] = Some(Client { main, event: None });
            }
            1 => drop(self.clients[client].take()),
            2 => self.send_raw(client, bytes),
            3 => self.ask_admin(bytes),
            4 => self.daemon.rest(),
            5 => self.read(client),
            _ => self.send_message(client, bytes),
        }
    }

    /// Any bytes on any socket, with some fds.
    fn send_raw(&mut self, client: usize, bytes: &mut Bytes<'_>) {
        let (where_to, fds) = (bytes.u8(), bytes.u8());
        let block = bytes.block();
        let fds = self.some_fds(fds);
        let Some(client) = &self.clients[client] else { return };
        let socket = match where_to & 1 {
            0 => Some(&client.main),
            _ => client.event.as_ref(),
        };
        if let Some(socket) = socket.filter(|_| !block.is_empty()) {
            // The socket may be full or hung up.
            let _ = fdbroker_scm::send(socket.as_fd(), block, &fds);
        }
    }

    /// A message as a library would send it, except for the bytes that the input changes.
    fn send_message(&mut self, client: usize, bytes: &mut Bytes<'_>) {
        if self.clients[client].is_none() {
            let main = dial(&self.socket);
            self.clients[client] = Some(Client { main, event: None });
        }
        let kind = bytes.u8();
        let count = usize::from(bytes.u8() & 7);
        let id = self.next_id;
        self.next_id += 1;
        let mut writer = std::mem::take(&mut self.writer);
        let fds = self.write(&mut writer, kind, id, count, bytes);
        let mut message = writer.finish(count, fds).to_vec();
        for _ in 0..bytes.u8() & 3 {
            let at = usize::from(bytes.u16()) % message.len();
            message[at] ^= bytes.u8();
        }
        let fds = self.some_fds(if bytes.u8() == 1 { 0xf1 } else { fds as u8 });
        let sender = self.clients[client].as_ref().expect("it is there");
        let is_event = kind % 10 == 9;
        let socket = if is_event { sender.event.as_ref() } else { Some(&sender.main) };
        if let Some(socket) = socket {
            let _ = fdbroker_scm::send(socket.as_fd(), &message, &fds);
        }
        self.writer = writer;
        if bytes.u8() & 1 == 0 {
            self.daemon.rest();
            self.read(client);
        }
    }

    /// Writes a message of `count` items; returns how many fds go with it.
    fn write(
        &mut self,
        writer: &mut Writer,
        kind: u8,
        id: u64,
        count: usize,
        bytes: &mut Bytes<'_>,
    ) -> usize {
        let id = if bytes.u8() == 1 { 0 } else { id };
        match kind % 14 {
            0 => {
                writer.start(Kind::Hello, id).push(&hello());
                return 0;
            }
            1 | 2 => {
                let head = RegisterHead {
                    credits_wanted: u32::from(bytes.u8()).into(),
                    deadline_ms: u32::from(bytes.u8() & 15).into(),
                };
                writer.start(Kind::Register, id).push(&head);
                for _ in 0..count {
                    writer.push(&register_item(bytes));
                }
                return count;
            }
            3 | 4 => {
                let deadline_ms = u32::from(bytes.u8() & 15).into();
                writer.start(Kind::Acquire, id).push(&AcquireHead { deadline_ms, flags: 0.into() });
                for _ in 0..count {
                    let handle = bytes.one_of(&self.handles);
                    let handle = handle.map_or(NO_HANDLE, |handle| handle.prefix);
                    writer.push(&handle.to_bytes());
                }
            }
            5 => {
                let kind = if bytes.bool() { Kind::Release } else { Kind::Mapped };
                writer.start(kind, if bytes.bool() { 0 } else { id });
                for _ in 0..count {
                    let lease = bytes.one_of(&self.leases).unwrap_or(1).into();
                    writer.push(&LeaseItem { lease });
                }
            }
            6 => {
                writer.start(Kind::Unregister, id);
                for _ in 0..count {
                    let handle = bytes.one_of(&self.handles).map(|handle| handle.prefix);
                    let HandlePrefix { slot, generation, .. } = handle.unwrap_or(NO_HANDLE);
                    writer
                        .push(&AllocationItem { slot: slot.into(), generation: generation.into() });
                }
            }
            7 => {
                let head = RegisterHead { credits_wanted: 0.into(), deadline_ms: 0.into() };
                writer.start(Kind::Redeposit, id).push(&head);
                for _ in 0..count {
                    let index = bytes.u8();
                    let handle = self.handles.get(usize::from(index)).copied();
                    let token = self.tokens.get(usize::from(index)).copied();
                    writer.push(&RedepositItem {
                        item: register_item(bytes),
                        handle: handle.unwrap_or(Handle::from_bytes([0; 64])).into(),
                        token: token.unwrap_or_default(),
                    });
                }
            }
            8 => {
                writer.start(Kind::Declare, id);
                for _ in 0..count {
                    let handle = bytes.one_of(&self.handles);
                    let flags = u32::from(bytes.u8() & 1).into();
                    let handle = handle.map_or(NO_HANDLE, |handle| handle.prefix);
                    writer.push(&DeclareItem { handle: handle.into(), flags, reserved: 0.into() });
                }
            }
            9 => {
                let number = bytes.one_of(&self.handles).map_or(0, |handle| handle.virtual_fd);
                let virtual_fd = if bytes.bool() { number } else { number ^ 1 };
                let neighbours = u16::from(bytes.u8()).into();
                let flags = u16::from(bytes.u8() & 3).into();
                writer.start(Kind::Resolve, id).push(&Resolve {
                    virtual_fd: virtual_fd.into(),
                    neighbours,
                    flags,
                });
                return 0;
            }
            10 => {
                writer.start(Kind::Settle, id);
                return 0;
            }
            11 => {
                // As the first message it makes a further socket of some client of this one.
                let role = u32::from(bytes.u8() & 3).into();
                let reply = self.replies[bytes.below(CLIENTS)];
                let (client, secret) =
                    reply.map_or((0, 0), |it| (it.client.get(), it.secret.get()));
                let join = Join { client: client.into(), role, secret: secret.into() };
                writer.start(Kind::Join, id).push(&join);
                return 0;
            }
            12 => {
                writer.start(Kind::Fetch, 0);
                for _ in 0..count {
                    let handle = bytes.one_of(&self.handles).map_or(NO_HANDLE, |it| it.prefix);
                    writer.push(&handle.to_bytes());
                }
            }
            _ => {
                writer.start(Kind::Supply, 0);
                let mut fds = 0;
                for _ in 0..count {
                    let code = u16::from(bytes.u8() & 15);
                    fds += usize::from(code == 0);
                    writer.push(&supply_item(bytes.one_of(&self.recalls), code));
                }
                return fds;
            }
        }
        0
    }

    fn ask_admin(&mut self, bytes: &mut Bytes<'_>) {
        let what = bytes.u8();
        if self.admin.is_none() || what & 128 != 0 {
            self.admin = Some(dial(&self.admin_socket));
        }
        let raw;
        let message = match what & 64 {
            0 => {
                let kinds = match what & 48 {
                    0 => [0x80, 0x82, 0x84, 0x86],
                    16 => [0xa0, 0xa2, 0xa4, 0xa8],
                    _ => [0xb0, 0xb2, 0xb4, 0xb6],
                };
                let kind = kinds[usize::from(what & 3)];
                let kind = Kind::from_number(kind).expect("a query");
                let (cursor, filter, value) = (bytes.u8(), bytes.u8(), bytes.u16());
                let query = Query {
                    cursor: u32::from(cursor).into(),
                    filter: u32::from(filter).into(),
                    value: u64::from(value).into(),
                    // The flags of an act.
                    reserved: u64::from(what >> 2 & 3).into(),
                };
                self.writer.start(kind, 7).push(&query);
                self.writer.finish(0, 0)
            }
            _ => {
                raw = bytes.block();
                raw
            }
        };
        let socket = self.admin.as_ref().expect("it is there").as_fd();
        if !message.is_empty() {
            let _ = fdbroker_scm::send(socket, message, &[]);
        }
        self.daemon.rest();
        while let Some((answer, _)) = receive(socket) {
            Message::parse(&answer).expect("the broker's own messages are whole");
        }
    }

    /// Reads all messages that wait for a client.
    fn read(&mut self, client: usize) {
        let Some(reader) = &self.clients[client] else { return };
        let mut welcome = None;
        while let Some((bytes, fds)) = receive(reader.main.as_fd()) {
            let message = Message::parse(&bytes).expect("the broker's own messages are whole");
            message.check_fds(fds.len()).expect("as many fds as it says");
            match message.kind {
                Kind::HelloReply => {
                    welcome = Some(*message.body_as::<HelloReply>().expect("it is whole"));
                }
                Kind::RegisterReply => {
                    let (_, items) = message
                        .head_and_items::<RegisterReplyHead, Registered>()
                        .expect("the broker's own messages are whole");
                    for item in items.iter().filter(|item| item.status.get().is_ok()) {
                        self.handles.push(item.handle.get());
                        self.tokens.push(item.token);
                    }
                }
                Kind::Granted => {
                    let (items, _) = message.grants().expect("its own messages are whole");
                    let granted = items.iter().filter(|item| item.status.get().is_ok());
                    self.leases.extend(granted.map(|item| item.lease.get()));
                }
                _ => {}
            }
        }
        if let Some(reply) = welcome {
            let event = dial(&self.socket);
            let (client_number, secret) = (reply.client, reply.secret);
            let role = (Role::Events as u32).into();
            let join = Join { client: client_number, role, secret };
            self.writer.start(Kind::Join, 1).push(&join);
            let _ = fdbroker_scm::send(event.as_fd(), self.writer.finish(0, 0), &[]);
            self.replies[client] = welcome;
            self.clients[client].as_mut().expect("it is there").event = Some(event);
            self.daemon.rest();
        }
        let reader = self.clients[client].as_ref().expect("it is there");
        let Some(event) = &reader.event else { return };
        while let Some((bytes, fds)) = receive(event.as_fd()) {
            let message = Message::parse(&bytes).expect("the broker's own messages are whole");
            assert!(fds.is_empty(), "no event has fds");
            if message.kind == Kind::Recall {
                let items = message.items::<RecallItem>().expect("its own messages are whole");
                self.recalls.extend(items);
            }
        }
    }

    /// All hang up, and nothing may be left.
    fn end(&mut self) {
        self.daemon.rest();
        self.inputs += 1;
        if self.inputs.is_multiple_of(CHECK_EVERY) {
            self.daemon.check_invariants();
        }
        self.clients = Default::default();
        self.replies = Default::default();
        self.admin = None;
        self.daemon.forget_all();
        self.handles.clear();
        self.tokens.clear();
        self.leases.clear();
        self.recalls.clear();
        self.next_id = 1;
    }

    /// As many fds as the low bits say. Each high bit makes some of them ones that the broker
    /// refuses.
    fn some_fds(&self, what: u8) -> Vec<BorrowedFd<'_>> {
        let one = |index: u8| match what >> 4 & (1 << (index & 3)) {
            0 => self.good.as_fd(),
            _ => self.bad.as_fd(),
        };
        (0..what & 7).map(one).collect()
    }
}

const NO_HANDLE: HandlePrefix = HandlePrefix {
    magic: [0; 4],
    version: 0,
    kind: 0,
    flags: 0,
    node: 0,
    slot: 0,
    generation: 0,
    mac: 0,
};

fn hello() -> Hello {
    Hello { pid: 1.into(), key: 7.into(), ..hello::hello() }
}

fn register_item(bytes: &mut Bytes<'_>) -> RegisterItem {
    let what = bytes.u8();
    let size_bytes = if what & 64 != 0 { memory::SIZE } else { memory::SIZE / 2 };
    let mut item = RegisterItem::new_zeroed();
    item.facts.kind = 3;
    item.flags = (what & 3) | (what >> 5 & 1) * register_flags::VIRTUAL_FD;
    item.share = what >> 2 & 3;
    item.driver_data_len = if what & 128 != 0 { 5 } else { 0 };
    item.facts.size_bytes = size_bytes.into();
    item.facts.owner_allocation_id = u64::from(what >> 4 & 1).into();
    item.base = (u64::from(what >> 4 & 3) * 2048).into();
    item
}

fn supply_item(recall: Option<RecallItem>, code: u16) -> SupplyItem {
    let recall = recall.unwrap_or_else(RecallItem::new_zeroed);
    SupplyItem {
        facts: recall.facts,
        slot: recall.slot,
        generation: recall.generation,
        code: code.into(),
        reserved: 0,
    }
}

/// The next waiting message, with its fds.
fn receive(socket: BorrowedFd<'_>) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
    thread_local! {
        static BUFFERS: RefCell<(Vec<u8>, ReceivedFds)> =
            RefCell::new((vec![0; 65536], ReceivedFds::new()));
    }
    BUFFERS.with_borrow_mut(|(bytes, fds)| {
        let received = fdbroker_scm::recv(socket, bytes, fds).ok()?;
        assert!(!received.payload_truncated, "longer than any message");
        Some((bytes[..received.len].to_vec(), fds.drain().collect()))
    })
}

fn dial(path: &Path) -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).expect("a socket");
    let address = UnixAddr::new(path).expect("a short path");
    // A full backlog refuses it; the socket then stays unconnected.
    let _ = connect(fd.as_raw_fd(), &address);
    fd
}
