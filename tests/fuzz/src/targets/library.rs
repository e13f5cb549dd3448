//! The library against a broker that may say anything: reply to hello, page, replies and events,
//! with real sockets and fds. An input is a script: a fake broker's answers to one request after
//! the other. Then it hangs up, so that no call waits. When the client is dropped no fd may be
//! left. Must never test how long anything takes.

use crate::bytes::Bytes;
use crate::memory;
use fdbroker_client::{
    Access, CacheSettings, Client, Deadline, Deposit, Handle, ImportCache, MemoryKind, RecallAnswer,
};
use fdbroker_protocol::message::*;
use fdbroker_protocol::page::{LIVENESS_OFFSET, PAGE_MAGIC, PAGE_VERSION, PageHeader, page_bytes};
use fdbroker_protocol::{AllocationId, Facts, Kind, Message, NodeKey, Status, Writer};
use fdbroker_scm::ReceivedFds;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept4, bind, connect, listen, socket,
};
use nix::sys::uio::pwrite;
use std::cell::RefCell;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use zerocopy::FromZeros;

const SLOTS: u32 = 8;
const INCARNATION: u64 = 77;
/// The fake broker answers or hangs up at once, so that this time never passes.
const SOON: Duration = Duration::from_secs(30);

thread_local! {
    static FIXED: RefCell<Option<Fixed>> = const { RefCell::new(None) };
}

/// What all inputs share.
struct Fixed {
    listener: OwnedFd,
    path: PathBuf,
    memory: OwnedFd,
    /// The lowest free fd when no client is there.
    lowest: Option<i32>,
    _directory: tempfile::TempDir,
}

/// One answer of the script.
#[derive(Clone, Copy)]
struct Answer<'a> {
    how: u8,
    bytes: Bytes<'a>,
}

pub fn run(data: &[u8]) {
    FIXED.with_borrow_mut(|fixed| {
        let fixed = fixed.get_or_insert_with(Fixed::new);
        let lowest = fixed.lowest_free();
        play(fixed, data);
        let now = fixed.lowest_free();
        // The first input opens fds that stay open.
        if fixed.lowest.is_some() {
            assert_eq!(now, lowest, "an fd is left");
        }
        fixed.lowest = Some(now);
    });
}

fn play(fixed: &Fixed, data: &[u8]) {
    let mut bytes = Bytes(data);
    let calls = bytes.block();
    let page = page(&mut bytes);
    let hello = bytes.block();
    let mut answers = Vec::new();
    while !bytes.is_empty() {
        answers.push(Answer { how: bytes.u8(), bytes: Bytes(bytes.block()) });
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The library connects again when it is refused for lack of room: then it is welcome.
            let (mut hello, mut script) = (hello, answers.iter());
            while let Some(main) = fixed.accept().filter(|_| !is_over.load(Ordering::Acquire)) {
                serve(fixed, main, &page, hello, &mut script);
                hello = &[];
            }
        });
        client(fixed, Bytes(calls));
        is_over.store(true, Ordering::Release);
        fixed.wake();
    });
}

/// A rank: makes its calls until they are done or the broker is gone.
fn client(fixed: &Fixed, mut calls: Bytes<'_>) {
    let memory = fixed.memory.try_clone().expect("an fd");
    let builder = Client::builder()
        .socket(&fixed.path)
        .name("fuzz")
        .reconnect(false)
        .dispatch(true)
        .on_notice(|notice| drop(format!("{notice:?}")))
        .on_recall(move |recall| match memory.try_clone() {
            Ok(fd) if recall.facts.owner_allocation_id != 3 => {
                Ok(RecallAnswer::unchanged(recall, fd))
            }
            _ => Err(fdbroker_client::ErrorCode::Stale),
        });
    let client = match builder.connect() {
        Ok(client) => client,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let cache = ImportCache::new(&client, CacheSettings::default());
    let (mut grants, mut imports, mut registrations) = (Vec::new(), Vec::new(), Vec::new());
    while !calls.is_empty() && client.is_connected() {
        let what = calls.u8();
        let handles: Vec<Handle> = (0..what >> 6).map(|_| handle(calls.u8())).collect();
        match what & 7 {
            0 => {
                let outcomes = client.acquire_many(&handles, Deadline::after(SOON));
                grants.extend(outcomes.into_iter().flatten().flatten());
            }
            1 => {
                let deposits = vec![Deposit::new(MemoryKind::Memfd, memory::SIZE); handles.len()];
                let fds = vec![fixed.memory.as_fd(); handles.len()];
                let outcomes = client.register_many(&deposits, &fds, Deadline::after(SOON));
                registrations.extend(outcomes.into_iter().flatten().flatten());
            }
            2 => {
                drop(client.unregister_many(
                    registrations.drain(..).map(|it| it.id()),
                    Deadline::after(SOON),
                ))
            }
            3 => grants.truncate(handles.len()),
            4 => imports.extend(grants.pop().map(|grant| grant.import(Access::Read, 0))),
            5 => drop(client.dispatch(Duration::ZERO)),
            6 => {
                let started = client.acquire_start(&handles, Deadline::after(SOON));
                let tested = started.map(|request| request.test());
                drop(tested);
            }
            _ => {
                let imported =
                    handles.first().map(|h| cache.import(h, Access::Read, Deadline::after(SOON)));
                drop(imported);
            }
        }
        assert!(!client.is_current(AllocationId { slot: SLOTS, generation: 1 }));
    }
    let _ = client.dispatch(Duration::ZERO);
}

/// Answers by the script, then hangs up.
fn serve<'a>(
    fixed: &Fixed,
    main: OwnedFd,
    page: &OwnedFd,
    hello: &[u8],
    script: &mut impl Iterator<Item = &'a Answer<'a>>,
) {
    let Some(request) = next_request(main.as_fd()) else { return };
    let mut writer = Writer::new();
    if !hello.is_empty() {
        // Should it be a welcome, the event socket is taken for another connection, and refused.
        let bytes = patched(hello, request.id);
        let fds = vec![page.as_fd(); bytes.len() % 3];
        let _ = fdbroker_scm::send(main.as_fd(), &bytes, &fds);
        return;
    }
    writer.start(Kind::HelloReply, request.id).push(&hello_reply());
    if fdbroker_scm::send(main.as_fd(), writer.finish(0, 1), &[page.as_fd()]).is_err() {
        return;
    }
    let Some(event) = fixed.accept() else { return };
    let Some(join) = next_request(event.as_fd()) else { return };
    let joined = writer.start(Kind::Joined, join.id).finish(0, 0);
    if fdbroker_scm::send(event.as_fd(), joined, &[]).is_err() {
        return;
    }
    while let Some(request) = next_request(main.as_fd()) {
        // A stray reply, or an event, may come before the reply.
        loop {
            let Some(answer) = script.next() else { return };
            if fixed.answer(&main, &event, &request, *answer) {
                break;
            }
        }
    }
}

/// The parts of a request that an answer needs.
struct Request {
    id: u64,
    kind: Kind,
    count: usize,
}

/// The next request that wants an answer; `None` if the library has hung up.
fn next_request(socket: BorrowedFd<'_>) -> Option<Request> {
    let mut buffer = vec![0; 65536];
    let mut fds = ReceivedFds::new();
    loop {
        let received =
            fdbroker_scm::recv_timeout(socket, &mut buffer, &mut fds, Some(SOON)).ok()?;
        let message = Message::parse(&buffer[..received.len]).expect("the library's are whole");
        message.check_fds(fds.len()).expect("as many fds as it says");
        fds.clear();
        if message.id != 0 && message.kind != Kind::Cancel {
            return Some(Request { id: message.id, kind: message.kind, count: message.count });
        }
    }
}

impl Fixed {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("broker.sock");
        let kind = SockType::SeqPacket;
        let listener = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None);
        let listener = listener.expect("a socket");
        let address = UnixAddr::new(&path).expect("a short path");
        bind(listener.as_raw_fd(), &address).expect("the directory is ours");
        listen(&listener, Backlog::new(16).expect("small")).expect("it is bound");
        let memory = memory::sealed();
        Fixed { listener, path, memory, lowest: None, _directory: directory }
    }

    fn accept(&self) -> Option<OwnedFd> {
        accept4(&self.listener, SockFlag::SOCK_CLOEXEC).ok()
    }

    /// Wakes the fake broker from its accept at the end.
    fn wake(&self) {
        let flags = SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).expect("a socket");
        let address = UnixAddr::new(&self.path).expect("a short path");
        connect(fd.as_raw_fd(), &address).expect("it listens");
    }

    fn lowest_free(&self) -> i32 {
        self.memory.try_clone().expect("an fd").as_raw_fd()
    }

    /// Sends one answer of the script; true if it is the reply.
    fn answer(
        &self,
        main: &OwnedFd,
        event: &OwnedFd,
        request: &Request,
        answer: Answer<'_>,
    ) -> bool {
        let Answer { how, mut bytes } = answer;
        let (is_event, is_whole) = (how & 1 != 0, how & 2 != 0);
        let is_stray = how & 12 == 12;
        let id = if is_stray { request.id + 1 } else { request.id };
        let (message, fds) = match (is_whole, is_event) {
            (false, _) => (patched(bytes.0, id), usize::from(how >> 4)),
            (true, true) => whole_event(&mut bytes),
            (true, false) => whole_reply(request, id, &mut bytes),
        };
        let socket = if is_event { event } else { main };
        if message.is_empty() {
            return false;
        }
        let _ = fdbroker_scm::send(socket.as_fd(), &message, &vec![self.memory.as_fd(); fds]);
        !is_event && !is_stray
    }
}

/// A broker's reply with values that the input chooses, and how many fds go with it.
fn whole_reply(request: &Request, id: u64, bytes: &mut Bytes<'_>) -> (Vec<u8>, usize) {
    let mut writer = Writer::new();
    let count = request.count;
    let mut fds = 0;
    match request.kind {
        Kind::Acquire => {
            writer.start(Kind::Granted, id);
            let mut with_data = 0;
            for _ in 0..count {
                let what = bytes.u8();
                let mut item = GrantItem::new_zeroed();
                item.fd_index = NO_FD.into();
                match what & 3 {
                    0 => item.status.code = u16::from(what >> 2).into(),
                    _ => {
                        item.lease = u64::from(what).into();
                        item.slot = u32::from(what >> 4).into();
                        item.generation = 1.into();
                        item.facts.size_bytes = memory::SIZE.into();
                        item.facts.kind = 3;
                        item.fd_index = fds.into();
                        item.driver_data_len = if what & 8 != 0 { bytes.u8() } else { 0 };
                        with_data += usize::from(item.driver_data_len != 0);
                        fds += 1;
                    }
                }
                writer.push(&item);
            }
            for _ in 0..with_data {
                writer.push(&[5_u8; 64]);
            }
        }
        Kind::Register => {
            let head = RegisterReplyHead {
                deposit_credits: u32::from(bytes.u8()).into(),
                reserved: [0.into(); 3],
            };
            writer.start(Kind::RegisterReply, id).push(&head);
            for _ in 0..count {
                let mut item = Registered::new_zeroed();
                item.status.code = u16::from(bytes.u8() & 31).into();
                item.handle = handle(bytes.u8()).into();
                writer.push(&item);
            }
        }
        kind => {
            let reply =
                if kind == Kind::Unregister { Kind::UnregisterReply } else { Kind::LeaseReply };
            writer.start(reply, id);
            for _ in 0..count {
                let mut status = Status::OK;
                status.code = (bytes.u8() & 31).into();
                status.value = bytes.u8().into();
                writer.push(&status.to_bytes());
            }
        }
    }
    let mut message = writer.finish(count, fds.into()).to_vec();
    spoil(&mut message, bytes);
    // It must stay the answer: the library would rightly wait for one.
    (patched(&message, id), fds.into())
}

/// A broker's event with values that the input chooses.
fn whole_event(bytes: &mut Bytes<'_>) -> (Vec<u8>, usize) {
    let mut writer = Writer::new();
    let count = usize::from(bytes.u8() & 7);
    let kinds = [Kind::Recall, Kind::Reclaim, Kind::Revoked, Kind::Drained, Kind::GoingAway];
    let kind = kinds[bytes.below(kinds.len())];
    writer.start(kind, 0);
    let mut push = |size: usize| {
        for _ in 0..count {
            let mut item = vec![0; size];
            let some = bytes.take(size.min(6));
            item[..some.len()].copy_from_slice(some);
            writer.push(&item[..]);
        }
    };
    match kind {
        Kind::Recall => push(size_of::<RecallItem>()),
        Kind::Reclaim => push(size_of::<LeaseItem>()),
        Kind::Revoked => push(size_of::<RevokedItem>()),
        Kind::Drained => push(size_of::<DrainedItem>()),
        _ => drop(writer.push(&GoingAway { reason: 2.into(), reserved: 0.into() })),
    }
    let mut message = writer.finish(if kind == Kind::GoingAway { 0 } else { count }, 0).to_vec();
    spoil(&mut message, bytes);
    (message, 0)
}

/// Changes up to three bytes.
fn spoil(message: &mut [u8], bytes: &mut Bytes<'_>) {
    for _ in 0..bytes.u8() & 3 {
        let at = usize::from(bytes.u16()) % message.len();
        message[at] ^= bytes.u8();
    }
}

/// Any bytes, with the id of a request, so that they answer it.
fn patched(bytes: &[u8], id: u64) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if let Some(field) = bytes.get_mut(8..16) {
        field.copy_from_slice(&id.to_le_bytes());
    }
    bytes
}

/// A broker's page, or one with a changed size or header.
fn page(bytes: &mut Bytes<'_>) -> OwnedFd {
    let how = bytes.u8();
    let fd = memfd_create(c"page", MFdFlags::MFD_CLOEXEC).expect("memfd_create");
    let size = if how & 1 != 0 { u64::from(bytes.u16()) } else { page_bytes(SLOTS) as u64 };
    nix::unistd::ftruncate(&fd, size as i64).expect("a memfd grows");
    let mut header = [0; size_of::<PageHeader>()];
    let mut put = |at: usize, value: &[u8]| header[at..at + value.len()].copy_from_slice(value);
    put(offset_of!(PageHeader, magic), &PAGE_MAGIC.to_ne_bytes());
    put(offset_of!(PageHeader, version), &PAGE_VERSION.to_ne_bytes());
    put(offset_of!(PageHeader, slots), &SLOTS.to_ne_bytes());
    put(offset_of!(PageHeader, incarnation), &INCARNATION.to_ne_bytes());
    put(LIVENESS_OFFSET, &1_u32.to_ne_bytes());
    if how & 2 != 0 {
        spoil(&mut header, bytes);
    }
    let length = header.len().min(size as usize);
    pwrite(&fd, &header[..length], 0).expect("it is long enough");
    fd
}

fn hello_reply() -> HelloReply {
    HelloReply {
        version: u16::from(PROTOCOL_VERSION).into(),
        max_batch: 253.into(),
        deposit_credits: 4.into(),
        node: 42.into(),
        incarnation: INCARNATION.into(),
        client: 7.into(),
        page_slots: SLOTS.into(),
        recall_timeout_ms: 1000.into(),
        max_parked: 8.into(),
        grace_left_ms: 10_000.into(),
        secret: 99.into(),
        reserved: 0.into(),
    }
}

fn handle(which: u8) -> Handle {
    let id = AllocationId { slot: u32::from(which & 7), generation: u32::from(which >> 6) };
    let (kind, size_bytes) = (MemoryKind::Memfd, memory::SIZE);
    let facts = Facts::new(kind, size_bytes).owner_allocation_id(1);
    NodeKey::from_bytes([7; 32]).seal(42, id, &facts)
}
