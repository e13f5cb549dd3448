//! One connection to the broker, shared by the threads of a process: its state, its end, and what
//! nobody waits for. Must never wait, nor outlive the broker's word. `reading` reads replies,
//! `call` makes requests.
//!
//! **Lock order**: reader, outbox, inbox, then credits, page and holdings; application code is
//! called under none. Under `ahead` no other lock is taken.

use super::ahead::AheadEnd;
use super::credits::Credits;
use super::gathering::Fate;
use super::handshake::{Greeted, Place};
use super::inbox::{Inbox, Reader};
use super::joining::Membership;
use super::outbox::Outbox;
use super::poll::{let_reads_wait, shut_down};
use crate::books::common::Common;
use crate::books::holdings::LostRegistration;
use crate::books::one_way::{Line, OneWay, Unregister};
use crate::books::page::{PageFacts, Standing};
use crate::error::Error;
use crate::interrupt::Condvar;
use crate::limits::{MAX_ABANDONED, MAX_ABORTS_UNDERWAY, MAX_UNREGISTERS_UNDERWAY, READ_SLICE};
use crate::own_fds::{CLOSED_HERE, OwnFd};
use crate::sync::lock;
use fdbroker_protocol::MAX_BATCH;
use fdbroker_protocol::message::HelloReply;
use fdbroker_scm::SendError;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Instant;

/// What a program reads that has closed the fds of a connection.
const CONNECTS_ANEW: &str = "this program has closed the library's fds; the library connects anew as soon as an fd is free and the \
     broker answers: call again, and leave alone what the program has not opened";

/// Why the connections of a client end with it.
pub(crate) const ENDED_HERE: &str = "this program has ended its client, or dropped it";

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
    /// The socket that it was connected to.
    pub place: Place,
    pub membership: Membership,
    pub socket: OwnFd,
    pub events: OwnFd,
    /// When it was found that the program has closed its fds.
    closed_here: OnceLock<Instant>,
    /// What the next broker says to this client, while it does not let it in.
    refusal: Mutex<Option<Box<str>>>,
    alive: AtomicBool,
    /// Why it has ended.
    why_ended: OnceLock<Box<str>>,
    pub(super) next_id: AtomicU64,
    pub(super) inbox: Mutex<Inbox>,
    pub(super) reader: Mutex<Reader>,
    pub(super) outbox: Mutex<Outbox>,
    pub(super) ahead: Mutex<AheadEnd>,
    /// Notified when one of `max_parked` places came free and `Inbox::queueing` is not 0.
    pub(super) room: Condvar,
}

/// The page of a connection that the application does not have yet.
#[derive(Debug)]
pub(crate) struct UnseenPage {
    fd: OwnFd,
    facts: PageFacts,
}

impl UnseenPage {
    /// How its broker stands.
    pub fn standing(&self) -> Standing {
        self.fd.proved().map_or(Standing::Serves, Standing::by_page)
    }
}

impl Connection {
    /// A connection on greeted sockets, and its page, not shown yet.
    ///
    /// # Errors
    /// LOCAL_FD_LIMIT.
    pub fn new(
        epoch: u64,
        greeted: Greeted,
        common: Arc<Common>,
    ) -> Result<(Self, UnseenPage), Error> {
        let Greeted { socket, events, page, reply, place, membership } = greeted;
        let_reads_wait(socket.polled(), READ_SLICE);
        let (slots, incarnation) = (reply.page_slots.get(), reply.incarnation.get());
        let page = UnseenPage { fd: OwnFd::kept(page)?, facts: PageFacts { slots, incarnation } };
        let connection = Connection {
            epoch,
            facts: Facts::from(&reply),
            credits: Credits::new(reply.deposit_credits.get(), common.wake.clone()),
            common,
            place,
            membership,
            socket,
            events,
            closed_here: OnceLock::new(),
            refusal: Mutex::default(),
            alive: AtomicBool::new(true),
            why_ended: OnceLock::new(),
            next_id: AtomicU64::new(1),
            inbox: Mutex::default(),
            reader: Mutex::default(),
            outbox: Mutex::default(),
            ahead: Mutex::default(),
            room: Condvar::new(),
        };
        Ok((connection, page))
    }

    /// From now on the books are kept over it: all that is in them waits to be named. What has
    /// ended for want of a way to name it.
    pub fn begin_books(self: &Arc<Self>) -> Vec<LostRegistration> {
        let line: Weak<dyn Line> = Arc::<Self>::downgrade(self);
        let lost = self.common.holdings.begin(self.epoch, line, &self.common.unexportable());
        if !self.is_usable() {
            // Lost before it was entered: nobody else takes it out.
            self.common.holdings.unlink(self.epoch);
        }
        lost
    }

    /// Shows its page: from now on what lives in it is current.
    pub fn show_page(&self, page: &UnseenPage) -> Result<(), Error> {
        let lost = || Error::not_connected(CLOSED_HERE);
        let fd = page.fd.proved().ok_or_else(lost)?;
        self.common.page.show(self.epoch, fd, page.facts)?;
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

    /// What is awaited has not come. If that is because the broker is gone, the thread that serves
    /// sees to it.
    pub fn look_at_broker(&self) {
        if self.common.page.standing(self.epoch) != Standing::Serves {
            self.common.wake.kick();
        }
    }

    /// Sends a message that nobody waits for; queues it when it may wait or the socket is full.
    /// Never waits.
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
        let now = Instant::now();
        let fate = messages.into_iter().map(|message| outbox.push(message, now)).max();
        let (mut calls, mut flushed) = (false, Ok(()));
        match fate {
            Some(Fate::Goes) => {
                let socket = self.proved_socket();
                flushed = socket.and_then(|socket| self.flush(&mut outbox, socket));
            }
            Some(Fate::Waits) => calls = outbox.gathering.calls(now),
            Some(Fate::Overflows) | None => {}
        }
        drop(outbox);
        if fate == Some(Fate::Overflows) {
            self.kill("too many one-way messages are queued");
        } else if flushed == Err(SendError::PeerGone) {
            self.kill("the broker has closed the connection");
        } else if calls || flushed.is_err() {
            // The thread that serves sends them, in time or when there is room.
            self.common.wake.kick();
        }
    }

    /// A grant message is about to be handed over, item by item: what is reported as mapped
    /// meanwhile goes together, when the result is dropped.
    pub fn hand_over(&self) -> HandingOver<'_> {
        if self.is_usable() {
            lock(&self.outbox).gathering.begin_handing_over();
        }
        HandingOver(self)
    }

    /// The broker is short of what this client gives back: that goes at once for a while.
    pub fn press(&self) {
        if self.is_usable() {
            lock(&self.outbox).gathering.press(Instant::now());
            self.send_queued();
        }
    }

    /// The library thread is there to send what waits, until it looks away; when it is to look.
    pub fn attend(&self) -> Option<Instant> {
        lock(&self.outbox).gathering.attend()
    }

    /// See [`Line::look_away`].
    pub fn look_away(&self) {
        if self.is_usable() {
            lock(&self.outbox).gathering.look_away();
            self.send_queued();
        }
    }

    /// Freed buffers whose unregister was ever posted, and of these sent.
    pub fn unregisters(&self) -> (u64, u64) {
        lock(&self.outbox).unregisters()
    }

    /// Ends the connection: waiting calls answer NOT_CONNECTED, nothing is current, the thread that
    /// serves sees to the rest. Once; later calls do nothing.
    pub fn kill(&self, reason: &str) {
        if !self.alive.load(Ordering::Acquire) {
            return;
        }
        let sockets = [&self.socket, &self.events].map(OwnFd::proved);
        let reason = if sockets.iter().all(Option::is_some) {
            reason
        } else {
            self.closed_here.get_or_init(Instant::now);
            CLOSED_HERE
        };
        // Before the end shows: a call that it ends says why.
        let reason = self.why_ended.get_or_init(|| reason.into());
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
        self.close_ahead();
        // Wakes whoever polls, and lets the broker release everything now, whoever still has the
        // fds.
        sockets.into_iter().flatten().for_each(shut_down);
        self.common.wake.kick();
    }

    /// When it was found that the program has closed its fds, if it has.
    pub fn closed_here(&self) -> Option<Instant> {
        self.closed_here.get().copied()
    }

    /// Looks whether its fds are there, and ends it otherwise.
    pub fn look_at_fds(&self) {
        if self.is_usable() && [&self.socket, &self.events].iter().any(|fd| fd.proved().is_none()) {
            self.kill(CLOSED_HERE);
        }
    }

    /// To send by. Without it nobody reads what is sent, and the reader finds the reason.
    pub(super) fn proved_socket(&self) -> Result<BorrowedFd<'_>, SendError> {
        self.socket.proved().ok_or(SendError::PeerGone)
    }

    /// The connection has ended, and the fds that were sent ahead with it.
    pub(super) fn close_ahead(&self) {
        let former = std::mem::replace(&mut *lock(&self.ahead), AheadEnd::Without(None));
        // Not under the lock: it closes what lies in the socket.
        drop(former);
    }

    /// Whether the thread that serves should read: replies will come that no thread waits for, or
    /// something is `stuck` in a full socket, which may need this side to read first.
    pub fn needs_a_reader(&self, stuck: bool) -> bool {
        let inbox = lock(&self.inbox);
        (stuck || self.is_for_the_server(&inbox)) && !inbox.reading
    }

    /// Whether replies will come that no thread waits for, or whose credits others wait for. Those
    /// to started requests are read by their tests, unless they bring back credits that others may
    /// wait for, or are to be told of; in dispatch mode the event fd is to tell of them, too.
    fn is_for_the_server(&self, inbox: &Inbox) -> bool {
        let is_untended = if self.common.dispatches() {
            inbox.has_untended()
        } else {
            inbox.has_untended_deposits() || inbox.has_told()
        };
        let are_credits_awaited = inbox.has_unattended_deposits() && self.credits.is_awaited();
        inbox.is_owed() || is_untended || are_credits_awaited
    }

    /// The error of a call that the connection was lost for.
    pub fn lost(&self, what: &str) -> Error {
        if !self.common.process.is_current() {
            return Error::forked(what);
        }
        let why = self.why_ended.get().map_or_else(String::new, |why| format!(" ({why})"));
        let lost = format!("{what}: the connection to the broker is lost{why}");
        let error = Error::not_connected(lost);
        if self.why_ended.get().is_some_and(|why| **why == *ENDED_HERE) {
            return error.because("make another client");
        }
        match (self.closed_here(), &*lock(&self.refusal)) {
            (Some(_), _) => error.because(CONNECTS_ANEW),
            (None, Some(refusal)) => error.because(refusal.clone()),
            (None, None) => error,
        }
    }

    /// It is lost, and this came of the last try to connect anew.
    pub fn note_try(&self, error: &Error) {
        let refusal = error.status.map(|_| Box::from(error.to_string()));
        let mut noted = lock(&self.refusal);
        if let (Some(refusal), None) = (&refusal, &*noted) {
            log::warn!("{refusal}; it is tried again");
        }
        *noted = refusal;
    }

    /// Takes a request out of the inbox and lets the next in, as reader and as asker.
    pub(super) fn leave(&self, inbox: &mut Inbox, at: usize) {
        inbox.leave(at);
        self.pass_on(inbox);
    }

    /// Gives up on a request: its reply is owed, and read by whoever reads.
    pub(super) fn give_up(&self, mut inbox: MutexGuard<'_, Inbox>, at: usize, id: u64) {
        inbox.abandon(at);
        let broken = inbox.abandoned() > MAX_ABANDONED;
        self.pass_on(&mut inbox);
        drop(inbox);
        if broken {
            self.kill("the broker owes too many replies")
        } else {
            self.post(OneWay::Cancel(id))
        }
    }

    /// Takes the reader's role if nobody has it.
    pub(super) fn take_role(&self) -> bool {
        let mut inbox = lock(&self.inbox);
        let free = !inbox.reading && !inbox.dead;
        inbox.reading |= free;
        free
    }

    /// Gives up the reader's role.
    pub(super) fn leave_role(&self) {
        let mut inbox = lock(&self.inbox);
        inbox.reading = false;
        self.pass_on(&mut inbox);
    }

    /// Sees to it that one of those that wait reads, and that those that queue ask.
    pub(super) fn pass_on(&self, inbox: &mut Inbox) {
        if !inbox.reading && !inbox.wake_a_reader() && self.is_for_the_server(inbox) {
            self.common.wake.kick();
        }
        // One that queues reads, too, when nobody else does.
        let may_go_on = inbox.len() < self.facts.max_parked || !inbox.reading;
        if inbox.queueing > 0 && may_go_on {
            self.room.notify_one();
        }
        inbox.tell_queued(self.facts.max_parked);
    }

    /// Sends what is queued, without waiting. Unregisters gather while enough of them are under
    /// way. `socket`: this connection's, proved a moment ago.
    pub(super) fn flush(
        &self,
        outbox: &mut Outbox,
        socket: BorrowedFd<'_>,
    ) -> Result<(), SendError> {
        outbox.flush(socket)?;
        let is_full = |inbox: &Inbox| inbox.abandoned() >= MAX_ABORTS_UNDERWAY;
        while outbox.next_abort().is_some()
            && self.owe(Vec::new(), is_full, |id| outbox.send_abort(socket, id))?
        {}
        let is_full = |inbox: &Inbox| inbox.unregistering() >= MAX_UNREGISTERS_UNDERWAY;
        loop {
            let items = outbox.next_unregisters();
            let is_over = items.is_empty();
            if is_over || !self.owe(items, is_full, |id| outbox.send_unregisters(socket, id))? {
                return Ok(());
            }
        }
    }

    /// Sends what the broker answers and nobody waits for; `false`: too much of it is under way.
    fn owe(
        &self,
        ends: Vec<Unregister>,
        is_full: impl FnOnce(&Inbox) -> bool,
        send: impl FnOnce(u64) -> Result<(), SendError>,
    ) -> Result<bool, SendError> {
        let mut inbox = lock(&self.inbox);
        if inbox.dead || is_full(&inbox) {
            return Ok(false);
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        // Before the send: the reply may be read by another thread.
        inbox.owe(id, ends);
        drop(inbox);
        send(id).inspect_err(|_| drop(lock(&self.inbox).addressee(id)))?;
        // Nobody may be reading: the thread that serves then does.
        self.common.wake.kick();
        Ok(true)
    }
}

/// A grant message being handed over; see [`Connection::hand_over`].
#[derive(Debug)]
#[must_use = "it ends with the drop"]
pub(crate) struct HandingOver<'a>(&'a Connection);

impl Drop for HandingOver<'_> {
    fn drop(&mut self) {
        // In a forked child the lock may be held by a thread that it does not have.
        if !self.0.is_usable() {
            return;
        }
        let mut outbox = lock(&self.0.outbox);
        let count = outbox.len();
        let fate = outbox.gathering.end_handing_over(count, Instant::now());
        drop(outbox);
        if fate == Fate::Goes {
            self.0.send_queued();
        }
    }
}

impl Line for Connection {
    fn post_all(&self, messages: &mut dyn Iterator<Item = OneWay>) {
        self.post_all(messages);
    }

    fn look_away(&self) {
        self.look_away();
    }

    fn kill(&self, reason: &str) {
        self.kill(reason);
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
