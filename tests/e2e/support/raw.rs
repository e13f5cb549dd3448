//! A client that speaks the protocol by hand, and can send what the library never would.
//! Must never check what it sends. Every wait for an answer is bounded.

pub use super::hello::{hello, join_message, open};
use super::memory::{BLOCK_BYTES, all_seals, memfd};
use super::wait::PATIENCE;
use fdbroker_client::Error;
use fdbroker_protocol::limits::MAX_MESSAGE_BYTES;
use fdbroker_protocol::message::{
    AcquireHead, AllocationItem, GrantItem, HelloReply, LeaseItem, RegisterHead, RegisterItem,
    RegisterReplyHead, Registered, Role,
};
use fdbroker_protocol::{
    AllocationId, ErrorCode, Facts, Handle, Kind, MAX_BATCH, Message, Status, Writer,
};
use fdbroker_scm::{ReceivedFds, RecvError, SendError};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// A received message, with its fds.
#[derive(Debug)]
pub struct Incoming {
    pub bytes: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

impl Incoming {
    pub fn message(&self) -> Message<'_> {
        Message::parse(&self.bytes).expect("the broker sends whole messages")
    }

    pub fn kind(&self) -> Kind {
        self.message().kind
    }

    /// The items of a `granted` message.
    #[track_caller]
    pub fn grants(&self) -> Vec<GrantItem> {
        assert_eq!(self.kind(), Kind::Granted, "{self:?}");
        self.message().grants().expect("grants").0.to_vec()
    }

    /// How many deposit credits there are now, and what became of each item.
    #[track_caller]
    pub fn registered(&self) -> (u32, Vec<Registered>) {
        assert_eq!(self.kind(), Kind::RegisterReply, "{self:?}");
        let message = self.message();
        let (head, items) =
            message.head_and_items::<RegisterReplyHead, Registered>().expect("a register reply");
        (head.deposit_credits.get(), items.to_vec())
    }

    /// What became of each lease or allocation of a request.
    #[track_caller]
    pub fn statuses(&self) -> Vec<Status> {
        assert!(matches!(self.kind(), Kind::LeaseReply | Kind::UnregisterReply), "{self:?}");
        self.message().statuses().expect("statuses").collect()
    }

    /// The status of a `failed` message.
    #[track_caller]
    pub fn failure(&self) -> Status {
        assert_eq!(self.kind(), Kind::Failed);
        self.message().status().expect("a status")
    }
}

/// One connection.
#[derive(Debug)]
pub struct Raw {
    pub socket: OwnedFd,
    /// Set after hello.
    pub welcome: Option<Welcome>,
    next_id: u64,
}

/// What the reply to hello brought.
#[derive(Debug)]
pub struct Welcome {
    pub reply: HelloReply,
    pub events: OwnedFd,
    pub page: OwnedFd,
}

/// A further socket of the client that got this reply, and the broker's answer.
pub fn try_join(path: &Path, reply: &HelloReply, role: Role) -> (OwnedFd, Incoming) {
    let socket = open(path).expect("connect");
    let _ = fdbroker_scm::send(socket.as_fd(), &join_message(reply, role), &[]);
    let answer = receive_from(socket.as_fd(), PATIENCE).expect("an answer");
    (socket, answer)
}

/// The same, once it is let in: others may crowd at the door.
pub fn join(path: &Path, reply: &HelloReply, role: Role) -> OwnedFd {
    loop {
        let (socket, answer) = try_join(path, reply, role);
        match answer.message().kind {
            Kind::Joined => return socket,
            _ => assert_eq!(answer.failure().result(), Err(ErrorCode::Again), "{answer:?}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Raw {
    /// Connects, and does not say hello.
    pub fn silent(path: &Path) -> Raw {
        Raw::of(open(path).expect("connect"))
    }

    /// Takes a connected socket, and does not say hello.
    pub fn of(socket: OwnedFd) -> Raw {
        Raw { socket, welcome: None, next_id: 1 }
    }

    /// Connects and says hello.
    pub fn connect(path: &Path) -> Raw {
        let mut raw = Raw::silent(path);
        let mut answer = raw.request(Kind::Hello, |writer| writer.push(&hello()), 0, &[]);
        assert_eq!(answer.message().kind, Kind::HelloReply, "{answer:?}");
        let reply = *answer.message().body_as::<HelloReply>().expect("a hello reply");
        let page = answer.fds.pop().expect("the page");
        assert!(answer.fds.is_empty(), "and nothing else");
        let events = join(path, &reply, Role::Events);
        raw.welcome = Some(Welcome { reply, events, page });
        raw
    }

    pub fn reply(&self) -> &HelloReply {
        &self.welcome.as_ref().expect("after hello").reply
    }

    /// The page of generations.
    pub fn generations(&self) -> &OwnedFd {
        &self.welcome.as_ref().expect("after hello").page
    }

    pub fn events(&self) -> BorrowedFd<'_> {
        self.welcome.as_ref().expect("after hello").events.as_fd()
    }

    /// A request id that was not used before.
    pub fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Sends bytes as they are.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), SendError> {
        fdbroker_scm::send_timeout(self.socket.as_fd(), bytes, fds, Some(PATIENCE))
    }

    /// Sends a request and awaits its answer.
    #[track_caller]
    pub fn request(
        &mut self,
        kind: Kind,
        body: impl FnOnce(&mut Writer) -> &mut Writer,
        count: usize,
        fds: &[BorrowedFd<'_>],
    ) -> Incoming {
        let id = self.fresh_id();
        let mut writer = Writer::new();
        body(writer.start(kind, id));
        self.send(writer.finish(count, fds.len()), fds).expect("the broker reads");
        let answer = self.receive().expect("an answer");
        assert_eq!(answer.message().id, id, "the answer to another request");
        answer
    }

    /// The next message on the request socket.
    pub fn receive(&self) -> Result<Incoming, RecvError> {
        receive_from(self.socket.as_fd(), PATIENCE)
    }

    /// The next message on the event socket.
    pub fn receive_event(&self) -> Result<Incoming, RecvError> {
        receive_from(self.events(), PATIENCE)
    }

    /// Registers, and asks for credit for the same number again.
    #[track_caller]
    pub fn register(&mut self, items: &[RegisterItem], fds: &[BorrowedFd<'_>]) -> Vec<Registered> {
        let wanted = u32::try_from(items.len()).expect("few");
        let head = RegisterHead { credits_wanted: wanted.into(), deadline_ms: 0.into() };
        let answer =
            self.request(Kind::Register, |writer| writer.push(&head).push(items), items.len(), fds);
        answer.registered().1
    }

    /// Registers so many blocks of memory; their handles.
    #[track_caller]
    pub fn register_blocks(&mut self, count: usize) -> Vec<Handle> {
        let mut handles = Vec::new();
        while handles.len() < count {
            let left = (count - handles.len()).min(MAX_BATCH);
            let credits = self.want_credits(u32::try_from(left).expect("few"));
            let now = left.min(credits as usize);
            let fds: Vec<_> = (0..now).map(|_| memfd(c"block", BLOCK_BYTES, all_seals())).collect();
            let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            for registered in self.register(&vec![block_item(); now], &borrowed) {
                assert!(registered.status.get().is_ok(), "{}", registered.status.get());
                handles.push(registered.handle.get());
            }
        }
        handles
    }

    /// Asks for more deposit credits; returns how many there are now.
    #[track_caller]
    pub fn want_credits(&mut self, wanted: u32) -> u32 {
        let deadline_ms = u32::try_from(PATIENCE.as_millis()).expect("minutes");
        let head = RegisterHead { credits_wanted: wanted.into(), deadline_ms: deadline_ms.into() };
        self.request(Kind::Register, |writer| writer.push(&head), 0, &[]).registered().0
    }

    /// Sends an acquire without awaiting the answer; returns its id.
    pub fn start_acquire(&mut self, handles: &[Handle], deadline_ms: u32) -> u64 {
        let id = self.fresh_id();
        let mut writer = Writer::new();
        put_acquire(writer.start(Kind::Acquire, id), handles, deadline_ms);
        self.send(writer.finish(handles.len(), 0), &[]).expect("the broker reads");
        id
    }

    /// The broker's refusal of an acquire that waits in vain. Unlike the library, this waits for it
    /// however late it is.
    #[track_caller]
    pub fn refusal(&mut self, handle: &Handle) -> Error {
        const DEADLINE_MS: u32 = 50;
        let answer = self.acquire_once(&[*handle], DEADLINE_MS);
        Error::from_status(answer.grants()[0].status.get(), "acquire")
    }

    /// One acquire, whatever is answered.
    #[track_caller]
    pub fn acquire_once(&mut self, handles: &[Handle], deadline_ms: u32) -> Incoming {
        self.request(
            Kind::Acquire,
            |writer| put_acquire(writer, handles, deadline_ms),
            handles.len(),
            &[],
        )
    }

    /// Acquires; returns the items, and the fds in the order of arrival. Asks again for items that
    /// answer AGAIN, as clients must: while other clients wait for their turn, a grant has only a
    /// part of what was asked for.
    #[track_caller]
    pub fn acquire(&mut self, handles: &[Handle]) -> (Vec<GrantItem>, Vec<OwnedFd>) {
        let until = Instant::now() + PATIENCE;
        let deadline_ms = u32::try_from(PATIENCE.as_millis()).expect("minutes");
        let (mut all, mut fds) = (Vec::new(), Vec::new());
        let mut open: Vec<usize> = (0..handles.len()).collect();
        while !open.is_empty() {
            assert!(Instant::now() < until, "{} of {} answer AGAIN", open.len(), handles.len());
            let wanted: Vec<_> = open.iter().map(|index| handles[*index]).collect();
            let (items, more) = grants(self.acquire_once(&wanted, deadline_ms));
            fds.extend(more);
            let is_open = |item: &GrantItem| item.status.get().result() == Err(ErrorCode::Again);
            let answered = open.iter().copied().zip(items);
            let (again, done): (Vec<_>, Vec<_>) = answered.partition(|(_, item)| is_open(item));
            all.extend(done);
            open = again.into_iter().map(|(index, _)| index).collect();
        }
        all.sort_by_key(|(index, _)| *index);
        (all.into_iter().map(|(_, item)| item).collect(), fds)
    }

    /// Releases leases; returns a status for each.
    #[track_caller]
    pub fn release(&mut self, leases: &[u64]) -> Vec<Status> {
        self.lease_request(Kind::Release, leases)
    }

    /// Reports leases as mapped; returns a status for each.
    #[track_caller]
    pub fn mapped(&mut self, leases: &[u64]) -> Vec<Status> {
        self.lease_request(Kind::Mapped, leases)
    }

    #[track_caller]
    fn lease_request(&mut self, kind: Kind, leases: &[u64]) -> Vec<Status> {
        let items: Vec<_> =
            leases.iter().map(|lease| LeaseItem { lease: (*lease).into() }).collect();
        self.request(kind, |writer| writer.push(items.as_slice()), items.len(), &[]).statuses()
    }

    /// Unregisters allocations; returns a status for each.
    #[track_caller]
    pub fn unregister(&mut self, ids: &[AllocationId]) -> Vec<Status> {
        let items: Vec<_> = ids
            .iter()
            .map(|id| AllocationItem { slot: id.slot.into(), generation: id.generation.into() })
            .collect();
        let count = items.len();
        self.request(Kind::Unregister, |it| it.push(items.as_slice()), count, &[]).statuses()
    }

    /// Asserts that the broker answers PROTOCOL and ends the connection.
    #[track_caller]
    pub fn assert_refused(&self) {
        loop {
            match self.receive() {
                Ok(answer) if answer.message().kind == Kind::Failed => {
                    assert_eq!(answer.failure().result(), Err(ErrorCode::Protocol));
                    break;
                }
                Ok(_) => {}
                Err(error) => panic!("no `failed` message came, but: {error}"),
            }
        }
        self.assert_ended();
    }

    /// Asserts that the broker has closed both sockets.
    #[track_caller]
    pub fn assert_ended(&self) {
        assert_at_end(self.socket.as_fd());
        if self.welcome.is_some() {
            assert_at_end(self.events());
        }
    }
}

/// Asserts that a socket is open and nothing has come.
#[track_caller]
pub fn assert_silent(socket: BorrowedFd<'_>) {
    match receive_from(socket, Duration::ZERO) {
        Err(RecvError::TimedOut) => {}
        other => panic!("not silent: {other:?}"),
    }
}

#[track_caller]
pub fn assert_at_end(socket: BorrowedFd<'_>) {
    loop {
        match receive_from(socket, PATIENCE) {
            Ok(_) => {}
            Err(RecvError::Eof) => return,
            Err(error) => panic!("the connection is still open: {error}"),
        }
    }
}

fn put_acquire<'a>(writer: &'a mut Writer, handles: &[Handle], deadline_ms: u32) -> &'a mut Writer {
    writer.push(&AcquireHead { deadline_ms: deadline_ms.into(), flags: 0.into() });
    for handle in handles {
        writer.push(&handle.prefix.to_bytes());
    }
    writer
}

/// The items and fds of a `granted` message.
#[track_caller]
pub fn grants(answer: Incoming) -> (Vec<GrantItem>, Vec<OwnedFd>) {
    (answer.grants(), answer.fds)
}

/// One block of memory, the owner of which says nothing more of it.
pub fn block_item() -> RegisterItem {
    RegisterItem {
        facts: Facts::new(fdbroker_protocol::MemoryKind::Memfd, BLOCK_BYTES as u64)
            .owner_allocation_id(7)
            .into(),
        flags: fdbroker_protocol::message::register_flags::RECALLABLE,
        share: fdbroker_protocol::Share::Uid as u8,
        driver_data_len: 0,
        base: 0.into(),
        driver_data: [0; 64],
    }
}

/// The next message of a socket.
pub fn receive_from(socket: BorrowedFd<'_>, timeout: Duration) -> Result<Incoming, RecvError> {
    let mut bytes = vec![0; MAX_MESSAGE_BYTES];
    let mut fds = ReceivedFds::new();
    let received = fdbroker_scm::recv_timeout(socket, &mut bytes, &mut fds, Some(timeout))?;
    bytes.truncate(received.len);
    Ok(Incoming { bytes, fds: fds.drain().collect() })
}
