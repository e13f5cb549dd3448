//! One connection to the broker, shared by the threads of a process: requests out, replies to who waits.
//! Must never block without someone able to read, lose a reply's fds, or outlive the broker's word.
//!
//! **Reading: leader and follower.** A thread that waits for its reply either has the reader's role
//! (`Inbox::reading`) or sleeps on its own condition variable. The reader hands every reply to its
//! thread; when it has its own, it gives up the role and wakes one sleeper to take it. A thread that is
//! not asleep looks at the state under the lock before it sleeps, so no wake-up is lost. When replies are
//! owed to nobody (a request given up, a buffer freed) and no thread reads, who serves does: the library thread or,
//! in dispatch mode, whoever waits or dispatches. There the reader watches the event fd as well, and gives up its role
//! to serve, so while any thread waits events are served.
//!
//! **Sending.** Under a short lock, without waiting in it. The broker stops reading a client that does not
//! read its replies; so a thread that finds the socket full gives back the lock and looks whether anyone
//! reads: if not, it takes the role and reads for others until there is room. As every sleeper in
//! `make_room` looks again after `SEND_SLICE`, at any time someone reads, or will within a slice: the
//! broker can always go on, hence so can the send. No lock is held over a wait. The same goes for who waits for one
//! of `max_parked` places: started requests may take them all while no thread waits for their replies.
//!
//! **Lock order**: reader, outbox, inbox, then credits, page and holdings; application code is called under none.

use crate::books::common::{Common, Unregister};
use crate::books::page::PageFacts;
use crate::error::Error;
use crate::limits::{MAX_ABANDONED, MAX_UNREGISTERS_UNDERWAY, SEND_SLICE};
use crate::serve::dispatch::Wait;
use crate::sync::{lock, wait_until};
use crate::wire::credits::Credits;
use crate::wire::handshake::Greeted;
use crate::wire::inbox::Inbox;
use crate::wire::outbox::{OneWay, Outbox, Unregistering};
use crate::wire::poll::shut_down;
use crate::wire::reading::{Reader, Reply};
use fdbroker_protocol::message::HelloReply;
use fdbroker_protocol::{DecodeError, ErrorCode, Kind, MAX_BATCH, Writer};
use fdbroker_scm::SendError;
use nix::poll::PollFlags;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// What the broker said in hello.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub node: u64,
    pub incarnation: u64,
    pub client: u32,
    pub max_batch: usize,
    pub max_parked: usize,
    pub recall_timeout_ms: u32,
}

/// One connection, from hello to its end.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Counts the connections of a client from 1.
    pub epoch: u64,
    pub facts: Facts,
    pub credits: Credits,
    pub common: Arc<Common>,
    pub(crate) socket: OwnedFd,
    pub(crate) events: OwnedFd,
    alive: AtomicBool,
    next_id: AtomicU64,
    pub(crate) inbox: Mutex<Inbox>,
    pub(crate) reader: Mutex<Reader>,
    outbox: Mutex<Outbox>,
    /// Notified when one of `max_parked` places came free and `Inbox::queueing` is not 0.
    room: Condvar,
}

/// The page of a connection that the application does not have yet.
#[derive(Debug)]
pub(crate) struct UnseenPage {
    fd: OwnedFd,
    facts: PageFacts,
}

/// A request to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    /// For error messages.
    pub what: &'a str,
    pub kind: Kind,
    pub answer: Kind,
    /// When the library gives up: the broker's deadline and some grace.
    pub until: Instant,
    /// Deposit credits claimed for it.
    pub deposits: u32,
}

impl Connection {
    /// A connection on greeted sockets, and its page, not shown yet.
    pub fn new(epoch: u64, greeted: Greeted, common: Arc<Common>) -> (Self, UnseenPage) {
        let Greeted { socket, events, page, reply } = greeted;
        let (slots, incarnation) = (reply.page_slots.get(), reply.incarnation.get());
        let page = UnseenPage { fd: page, facts: PageFacts { slots, incarnation } };
        let connection = Connection {
            epoch,
            facts: Facts::from(&reply),
            credits: Credits::new(reply.deposit_credits.get()),
            common,
            socket,
            events,
            alive: AtomicBool::new(true),
            next_id: AtomicU64::new(1),
            inbox: Mutex::default(),
            reader: Mutex::default(),
            outbox: Mutex::default(),
            room: Condvar::new(),
        };
        (connection, page)
    }

    /// Shows its page: from now on what lives in it is current.
    pub fn show_page(&self, page: &UnseenPage) -> Result<(), Error> {
        self.common.page.show(self.epoch, page.fd.as_fd(), page.facts)?;
        if !self.is_usable() {
            // Killed meanwhile, and hidden before it was shown.
            self.common.page.hide(self.epoch);
        }
        Ok(())
    }

    /// Whether requests can be made: not lost, and not inherited over a fork.
    pub fn is_usable(&self) -> bool {
        self.alive.load(Ordering::Acquire) && self.common.process.is_current()
    }

    /// Makes a request and waits for its reply. `write` appends the body and returns the item count; it is
    /// called again when the socket was full. `decode` reads the reply and may take its fds.
    pub fn call<T>(
        &self,
        call: Call<'_>,
        fds: &[BorrowedFd<'_>],
        write: impl Fn(&mut Writer) -> usize,
        decode: impl FnOnce(Reply<'_>) -> Result<T, DecodeError>,
    ) -> Result<T, Error> {
        let sent = self.begin(&call).and_then(|id| {
            self.send(id, &call, fds, &write).inspect_err(|_| self.withdraw(id))?;
            Ok(id)
        });
        match sent {
            Ok(id) => self.wait(id, &call, decode),
            Err(error) => {
                self.credits.give_back(call.deposits);
                Err(error)
            }
        }
    }

    /// Makes a request without waiting for anything; [`Connection::look`] finds its reply. `None`: it does not
    /// fit now.
    pub fn start(
        &self,
        call: &Call<'_>,
        write: impl Fn(&mut Writer) -> usize,
    ) -> Result<Option<u64>, Error> {
        let Some(id) = self.try_begin(call)? else { return Ok(None) };
        match self.try_send(id, call, &[], &write) {
            Ok(None) => {
                if self.common.dispatches() {
                    // From now on the event fd is to tell of its reply.
                    self.common.kick();
                }
                Ok(Some(id))
            }
            Ok(Some(_)) => {
                self.withdraw(id);
                Ok(None)
            }
            Err(error) => {
                self.withdraw(id);
                Err(error)
            }
        }
    }

    /// Gives up on a started request: what it brings or has brought is given back.
    pub fn forget(&self, id: u64) {
        // In a forked child the lock may be held by a thread that it does not have.
        if !self.common.process.is_current() {
            return;
        }
        let mut inbox = lock(&self.inbox);
        match (inbox.take_answered(id), inbox.position(id)) {
            (Some(parcel), _) => {
                drop(inbox);
                self.discard(parcel);
            }
            (None, Some(at)) => self.give_up(inbox, at, id),
            (None, None) => {}
        }
    }

    /// Sends a message that nobody waits for; queues it when the socket is full. Never waits.
    pub fn post(&self, message: OneWay) {
        self.post_all([message]);
    }

    /// The same for many.
    pub fn post_all(&self, messages: impl IntoIterator<Item = OneWay>) {
        // Not in a forked child either: the lock may be held by a thread it does not have.
        if !self.is_usable() {
            return;
        }
        let mut outbox = lock(&self.outbox);
        let mut fits = true;
        for message in messages {
            fits &= outbox.push(message);
        }
        let flushed = self.flush(&mut outbox);
        let waits = outbox.wants_room();
        drop(outbox);
        if !fits {
            self.kill("too many one-way messages are queued");
        } else if flushed == Err(SendError::PeerGone) {
            self.kill("the broker has closed the connection");
        } else if waits {
            self.common.kick();
        }
    }

    /// Queues a message that nobody waits for, to go with the next that is sent or with `flush_queued_now`.
    pub fn queue(&self, message: OneWay) {
        if self.is_usable() && !lock(&self.outbox).push(message) {
            self.kill("too many one-way messages are queued");
        }
    }

    /// Sends what is queued; the library thread sends what does not fit now.
    pub fn flush_queued_now(&self) {
        if self.flush_queued() {
            self.common.kick();
        }
    }

    /// Freed buffers whose unregister was ever posted, and of these sent.
    pub fn unregisters(&self) -> (u64, u64) {
        lock(&self.outbox).unregisters()
    }

    /// Sends what is queued, without waiting. Whether something still waits for room.
    pub fn flush_queued(&self) -> bool {
        if !self.is_usable() {
            return false;
        }
        let mut outbox = lock(&self.outbox);
        if outbox.is_empty() {
            return false;
        }
        let flushed = self.flush(&mut outbox);
        let waits = outbox.wants_room();
        drop(outbox);
        if flushed == Err(SendError::PeerGone) {
            self.hear_last_words();
        }
        waits
    }

    /// Ends the connection: waiting calls answer NOT_CONNECTED, nothing is current, who serves
    /// sees to the rest. Once; later calls do nothing.
    pub fn kill(&self, reason: &str) {
        if !self.alive.swap(false, Ordering::AcqRel) {
            return;
        }
        log::info!("connection {} to the broker has ended: {reason}", self.epoch);
        self.common.page.hide(self.epoch);
        self.common.holdings.unlink(self.epoch);
        {
            let mut inbox = lock(&self.inbox);
            inbox.close();
            self.room.notify_all();
        }
        self.credits.close();
        // Wakes whoever polls, and lets the broker release everything now, whoever still has the fds.
        shut_down(self.socket.as_fd());
        shut_down(self.events.as_fd());
        self.common.kick();
    }

    /// Reads what is there without waiting; how many replies. `None`: another thread reads, or the end was read.
    pub fn read_if_nobody_does(&self) -> Option<usize> {
        if !self.take_role() {
            return None;
        }
        let mut reader = lock(&self.reader);
        let read = self.read_queued(&mut reader);
        drop(reader);
        self.leave_role();
        Some(read)
    }

    /// Whether who serves should read: replies will come that no thread waits for, or something is `stuck` in
    /// a full socket, which may need this side to read first.
    pub fn needs_a_reader(&self, stuck: bool) -> bool {
        let inbox = lock(&self.inbox);
        (stuck || self.is_for_who_serves(&inbox)) && !inbox.reading
    }

    /// Whether replies will come that no thread waits for. Those to started requests are read by their tests; in
    /// dispatch mode the event fd is to tell of them, too.
    fn is_for_who_serves(&self, inbox: &Inbox) -> bool {
        inbox.is_owed() || (self.common.dispatches() && inbox.has_untended())
    }

    pub(crate) fn lost(&self, what: &str) -> Error {
        match self.common.process.is_current() {
            true => Error::not_connected(format!("{what}: the connection to the broker is lost")),
            false => Error::not_connected(format!(
                "{what}: this process was forked from the one that connected; connect anew"
            )),
        }
    }

    fn begin(&self, call: &Call<'_>) -> Result<u64, Error> {
        if !self.is_usable() {
            return Err(self.lost(call.what));
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let mut wait = Wait::on(self);
        let mut inbox = lock(&self.inbox);
        while inbox.len() >= self.facts.max_parked && !inbox.dead {
            if Instant::now() >= call.until {
                // It may have been woken to read or to ask: the next one is.
                self.pass_on(&mut inbox);
                return Err(self.no_place(call, &inbox));
            }
            inbox = self.await_place(inbox, call.until, &mut wait);
        }
        if inbox.dead {
            return Err(self.lost(call.what));
        }
        inbox.enter(id, call.deposits);
        Ok(id)
    }

    /// Waits for one of `max_parked` places, and reads meanwhile unless another thread does: those whose
    /// requests take them need not be waiting.
    fn await_place<'a>(
        &'a self,
        mut inbox: MutexGuard<'a, Inbox>,
        until: Instant,
        wait: &mut Wait,
    ) -> MutexGuard<'a, Inbox> {
        if inbox.reading {
            inbox.queueing += 1;
            inbox = wait_until(&self.room, inbox, until);
            inbox.queueing -= 1;
            return inbox;
        }
        drop(inbox);
        // A slice: a place may also come free without a reply, by a request that could not be sent.
        let left = until.saturating_duration_since(Instant::now());
        self.read_awaiting(PollFlags::empty(), left.min(SEND_SLICE), wait);
        lock(&self.inbox)
    }

    fn no_place(&self, call: &Call<'_>, inbox: &Inbox) -> Error {
        Error::timed_out(format!("{}: all {} requests under way", call.what, inbox.len()))
    }

    /// The same without waiting; `None`: all places are taken.
    fn try_begin(&self, call: &Call<'_>) -> Result<Option<u64>, Error> {
        if !self.is_usable() {
            return Err(self.lost(call.what));
        }
        let mut inbox = lock(&self.inbox);
        if inbox.dead {
            return Err(self.lost(call.what));
        }
        // One given up on stays with the broker until it is answered: else a loop of starts and cancels would
        // come to owe without a bound.
        if inbox.len() + inbox.abandoned() >= self.facts.max_parked {
            return Ok(None);
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        inbox.enter_untended(id);
        Ok(Some(id))
    }

    fn send(
        &self,
        id: u64,
        call: &Call<'_>,
        fds: &[BorrowedFd<'_>],
        write: &impl Fn(&mut Writer) -> usize,
    ) -> Result<(), Error> {
        let mut wait = Wait::on(self);
        loop {
            let Some(wanted) = self.try_send(id, call, fds, write)? else { return Ok(()) };
            if Instant::now() >= call.until {
                let why = match wanted.is_empty() {
                    true => "too many fds of this user are in flight",
                    false => "the broker does not read",
                };
                return Err(Error::timed_out(format!("{}: {why}", call.what)));
            }
            self.make_room(wanted, &mut wait);
            if !self.is_usable() {
                return Err(self.lost(call.what));
            }
        }
    }

    /// Sends without waiting. `Some`: it did not fit; what to poll for, empty when no event tells.
    fn try_send(
        &self,
        id: u64,
        call: &Call<'_>,
        fds: &[BorrowedFd<'_>],
        write: &impl Fn(&mut Writer) -> usize,
    ) -> Result<Option<PollFlags>, Error> {
        let sent = {
            let mut outbox = lock(&self.outbox);
            // What was queued goes first; if it does not fit, this will not either, or needs not.
            let _ = self.flush(&mut outbox);
            let count = write(outbox.writer.start(call.kind, id));
            debug_assert!(count <= MAX_BATCH);
            fdbroker_scm::send(self.socket.as_fd(), outbox.writer.finish(count, fds.len()), fds)
        };
        match sent {
            Ok(()) => Ok(None),
            Err(SendError::WouldBlock) => Ok(Some(PollFlags::POLLOUT)),
            // No event tells when fewer fds are in flight: look again after a slice.
            Err(SendError::TooManyRefs) => Ok(Some(PollFlags::empty())),
            Err(SendError::PeerGone) => {
                self.hear_last_words();
                Err(self.lost(call.what))
            }
            Err(error) => Err(send_error(call.what, error)),
        }
    }

    /// Waits up to a slice for room on the socket, and reads meanwhile unless another thread does.
    fn make_room(&self, wanted: PollFlags, wait: &mut Wait) {
        if !self.read_awaiting(wanted, SEND_SLICE, wait)
            && wait.poll(Some((self.socket.as_fd(), wanted)), SEND_SLICE)
        {
            wait.serve();
        }
    }

    /// Waits up to `patience` for something to read (or `wanted`) and reads it for others. `false`: another
    /// thread reads.
    fn read_awaiting(&self, wanted: PollFlags, patience: Duration, wait: &mut Wait) -> bool {
        if !self.take_role() {
            return false;
        }
        let mut reader = lock(&self.reader);
        let socket = (self.socket.as_fd(), wanted | PollFlags::POLLIN);
        let events = wait.poll(Some(socket), patience);
        self.read_queued(&mut reader);
        drop(reader);
        self.leave_role();
        if events {
            wait.serve();
        }
        true
    }

    /// The broker has closed the connection. What it said before reaches whom it is for, unless another thread
    /// is reading that already; then the connection ends.
    fn hear_last_words(&self) {
        self.read_if_nobody_does();
        self.kill("the broker has closed the connection");
    }

    fn withdraw(&self, id: u64) {
        let mut inbox = lock(&self.inbox);
        if let Some(at) = inbox.position(id) {
            self.leave(&mut inbox, at);
        }
    }

    /// Takes a request out of the inbox and lets the next in, as reader and as asker.
    pub(crate) fn leave(&self, inbox: &mut Inbox, at: usize) {
        inbox.leave(at);
        self.pass_on(inbox);
    }

    /// Gives up on a request: its reply is owed, and read by whoever reads.
    pub(crate) fn give_up(&self, mut inbox: MutexGuard<'_, Inbox>, at: usize, id: u64) {
        inbox.abandon(at);
        let broken = inbox.abandoned() > MAX_ABANDONED;
        self.pass_on(&mut inbox);
        drop(inbox);
        match broken {
            true => self.kill("the broker owes too many replies"),
            false => self.post(OneWay::Cancel(id)),
        }
    }

    /// Takes the reader's role if nobody has it.
    pub(crate) fn take_role(&self) -> bool {
        let mut inbox = lock(&self.inbox);
        let free = !inbox.reading && !inbox.dead;
        inbox.reading |= free;
        free
    }

    /// Gives up the reader's role.
    pub(crate) fn leave_role(&self) {
        let mut inbox = lock(&self.inbox);
        inbox.reading = false;
        self.pass_on(&mut inbox);
    }

    /// Sees to it that someone reads who waits, and that someone asks who queues.
    pub(crate) fn pass_on(&self, inbox: &mut Inbox) {
        if !inbox.reading && !inbox.wake_a_reader() && self.is_for_who_serves(inbox) {
            self.common.kick();
        }
        // Who queues reads, too, when nobody else does.
        let may_go_on = inbox.len() < self.facts.max_parked || !inbox.reading;
        if inbox.queueing > 0 && may_go_on {
            self.room.notify_one();
        }
    }

    fn flush(&self, outbox: &mut Outbox) -> Result<(), SendError> {
        if outbox.is_empty() {
            return Ok(());
        }
        outbox.flush(self.socket.as_fd(), &mut &*self)
    }
}

impl Unregistering for &Connection {
    fn begin(&mut self) -> Option<u64> {
        let inbox = lock(&self.inbox);
        let may = !inbox.dead && inbox.unregistering() < MAX_UNREGISTERS_UNDERWAY;
        may.then(|| self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    fn expect(&mut self, id: u64, items: Vec<Unregister>) {
        lock(&self.inbox).owe(id, items);
        // Nobody may be reading: who serves then does.
        self.common.kick();
    }

    fn withdraw(&mut self, id: u64) {
        let _ = lock(&self.inbox).addressee(id);
    }
}

impl From<&HelloReply> for Facts {
    fn from(reply: &HelloReply) -> Self {
        Facts {
            node: reply.node.get(),
            incarnation: reply.incarnation.get(),
            client: reply.client.get(),
            max_batch: usize::from(reply.max_batch.get()).clamp(1, MAX_BATCH),
            max_parked: (reply.max_parked.get() as usize).max(1),
            recall_timeout_ms: reply.recall_timeout_ms.get(),
        }
    }
}

fn send_error(what: &str, error: SendError) -> Error {
    let code = match error {
        SendError::BadFd | SendError::Os(_) => ErrorCode::UnsupportedFd,
        _ => ErrorCode::Internal,
    };
    Error::new(code, format!("{what}: {error}"))
}
