//! Requests over a connection: sent, waited for by many threads at once, and decoded.
//! Must never block without someone able to read, nor lose a reply's fds.
//!
//! **Sending.** Under a short lock, without waiting in it. The broker stops reading a client that
//! does not read its replies; so a thread that finds the socket full gives back the lock and looks
//! whether anyone reads: if not, it takes the role and reads for others until there is room. As
//! every sleeper in `make_room` looks again after `SEND_SLICE`, at any time someone reads, or will
//! within a slice: the broker can always go on, hence so can the send. No lock is held over a wait.
//! The same goes for a thread that waits for one of `max_parked` places: started requests may take
//! them all while no thread waits for their replies.

use super::connection::Connection;
use super::inbox::{Inbox, Parcel, Reader};
use super::reading::{How, Received};
use super::wait::Wait;
use crate::books::due::Teller;
use crate::books::one_way::Unregister;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::interrupt::{ask, is_set, is_signalled, note_signal, now, wait_unasked, wait_until};
use crate::limits::{LIVENESS_LOOK, READ_SLICE, SEALS_PART, SEND_SLICE};
use crate::own_fds::{CLOSED_HERE, Identity};
use crate::sync::lock;
use fdbroker_protocol::{DecodeError, ErrorCode, Kind, MAX_BATCH, Message, Writer};
use fdbroker_scm::SendError;
use nix::poll::PollFlags;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A request to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub what: &'a str,
    pub kind: Kind,
    pub answer: Kind,
    /// When the library gives up: the broker's deadline and some grace.
    pub until: Instant,
    /// Deposit credits claimed for it.
    pub deposits: u32,
    /// The allocations that it ends: the answer counts also when it comes too late for the caller.
    pub ends: &'a [Unregister],
}

impl<'a> Call<'a> {
    /// A request without fds, which ends nothing.
    pub fn new(what: &'a str, kind: Kind, answer: Kind, deadline: Deadline) -> Self {
        Call { what, kind, answer, until: deadline.given_up_at(), deposits: 0, ends: &[] }
    }
}

/// A reply: its message, and the fds that arrived, first to last (fewer than announced when this
/// process's fd table is full).
pub(crate) struct Reply<'a> {
    pub message: Message<'a>,
    pub fds: &'a mut dyn Iterator<Item = OwnedFd>,
}

/// Why a reader stops reading.
enum Turn {
    /// Its reply is in the buffers.
    Mine,
    /// There is something to serve, or a signal has come.
    Events,
    /// Time or the connection is over.
    Over,
}

impl Connection {
    /// Makes a request and waits for its reply. `write` appends the body and returns the item
    /// count; it is called again when the socket was full. `decode` reads the reply and may take
    /// its fds.
    pub fn call<T>(
        &self,
        call: Call<'_>,
        fds: &[BorrowedFd<'_>],
        write: impl Fn(&mut Writer) -> usize,
        decode: impl FnOnce(Reply<'_>) -> Result<T, DecodeError>,
    ) -> Result<T, Error> {
        let id = self.request(&call, fds, write)?;
        self.reply_soon(id, &call, true, decode)
    }

    /// The first half of a call: sends the request. Its number, for `reply`.
    pub fn request(
        &self,
        call: &Call<'_>,
        fds: &[BorrowedFd<'_>],
        write: impl Fn(&mut Writer) -> usize,
    ) -> Result<u64, Error> {
        let sent = self.begin(call).and_then(|id| {
            self.send(id, call, fds, &write).inspect_err(|_| self.withdraw(id))?;
            Ok(id)
        });
        sent.inspect_err(|_| self.credits.give_back(call.deposits))
    }

    /// Makes a request without waiting for anything; [`Connection::look`] finds its reply. `None`:
    /// it does not fit now.
    pub fn start(
        &self,
        call: &Call<'_>,
        fds: &[BorrowedFd<'_>],
        write: impl Fn(&mut Writer) -> usize,
    ) -> Result<Option<u64>, Error> {
        let enter = |inbox: &mut Inbox, id| inbox.enter_untended(id, call.deposits);
        let started = self.start_entering(call, fds, write, self.spare(call.kind), enter)?;
        if started.is_some() && (self.common.dispatches() || call.deposits > 0) {
            // From now on the event fd is to tell of its reply, or the library thread to read it.
            self.common.wake.kick();
        }
        Ok(started)
    }

    /// Has a started request tell of its reply, or of the end of the connection.
    pub fn tell(&self, id: u64, teller: &Teller) {
        let is_new = lock(&self.inbox).tell(id, teller);
        if is_new {
            self.common.wake.kick();
        }
    }

    /// Has a started request of this kind, which did not fit, tell when a place is free, or the
    /// connection ends. `turn`: since when it waits for one. `false`: there are places.
    pub fn tell_of_place(&self, kind: Kind, turn: &mut Option<u64>, teller: &Teller) -> bool {
        if !self.is_usable() {
            return false;
        }
        let (places, spare) = (self.facts.max_parked, self.spare(kind));
        let mut inbox = lock(&self.inbox);
        if inbox.dead || inbox.has_place(places, spare) {
            return false;
        }
        let turn = *turn.get_or_insert_with(|| self.next_id.fetch_add(1, Ordering::Relaxed));
        let is_first = inbox.queue(turn, spare, teller);
        drop(inbox);
        if is_first {
            // From now on the library thread is to read the replies that free places.
            self.common.wake.kick();
        }
        true
    }

    /// It waits for no place any more. Was it told of one that it has not taken, the next one is.
    pub fn leave_queue(&self, turn: u64) {
        if self.common.process.is_current() {
            let mut inbox = lock(&self.inbox);
            inbox.leave_queue(turn);
            inbox.tell_queued(self.facts.max_parked);
        }
    }

    /// As [`Connection::start`], of one that [`Connection::reply`] waits for later. Until then its
    /// reply may lie unread, unless others wait for its credits, and it keeps its place: so it
    /// never takes the last one.
    pub fn start_attended(
        &self,
        call: &Call<'_>,
        fds: &[BorrowedFd<'_>],
        write: impl Fn(&mut Writer) -> usize,
    ) -> Result<Option<u64>, Error> {
        let enter = |inbox: &mut Inbox, id| inbox.enter(id, call.deposits, call.ends);
        let started = self.start_entering(call, fds, write, 1, enter)?;
        if started.is_some() && call.deposits > 0 && self.credits.is_awaited() {
            // They may have begun to wait when its credits were claimed, and it had not been
            // entered.
            self.common.wake.kick();
        }
        Ok(started)
    }

    /// How many places a started request leaves to others: one that waits for room leaves some to
    /// the seals of this process, which free it.
    fn spare(&self, kind: Kind) -> usize {
        match kind {
            Kind::Register | Kind::ObjectCreate => self.facts.max_parked / SEALS_PART,
            _ => 0,
        }
    }

    /// `spare`: places that it leaves.
    fn start_entering(
        &self,
        call: &Call<'_>,
        fds: &[BorrowedFd<'_>],
        write: impl Fn(&mut Writer) -> usize,
        spare: usize,
        enter: impl FnOnce(&mut Inbox, u64),
    ) -> Result<Option<u64>, Error> {
        let Some(id) = self.try_begin(call, spare, enter)? else { return Ok(None) };
        let sent = self.try_send(id, call, fds, &write);
        if !matches!(sent, Ok(None)) {
            self.withdraw(id);
        }
        Ok(sent?.is_none().then_some(id))
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
            (None, Some(at)) => match inbox.take_parcel(at) {
                Some(parcel) => {
                    self.leave(&mut inbox, at);
                    drop(inbox);
                    self.discard(parcel);
                }
                None => self.give_up(inbox, at, id),
            },
            (None, None) => {}
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
            if now() >= call.until {
                // It may have been woken to read or to ask: the next one is.
                self.pass_on(&mut inbox);
                return Err(self.no_place(call, &inbox));
            }
            inbox = self.await_place(inbox, call.until, &mut wait);
        }
        if inbox.dead {
            return Err(self.lost(call.what));
        }
        inbox.enter(id, call.deposits, call.ends);
        Ok(id)
    }

    /// Waits for one of `max_parked` places, and reads meanwhile unless another thread does: those
    /// whose requests take them need not be waiting.
    fn await_place<'a>(
        &'a self,
        mut inbox: MutexGuard<'a, Inbox>,
        until: Instant,
        wait: &mut Wait,
    ) -> MutexGuard<'a, Inbox> {
        if inbox.reading {
            inbox.queueing += 1;
            inbox = wait_until(&self.room, &self.inbox, inbox, until);
            inbox.queueing -= 1;
            return inbox;
        }
        drop(inbox);
        // A slice: a place may also come free without a reply, by a request that could not be sent.
        let left = until.saturating_duration_since(now());
        self.read_awaiting(PollFlags::empty(), left.min(SEND_SLICE), wait);
        lock(&self.inbox)
    }

    fn no_place(&self, call: &Call<'_>, inbox: &Inbox) -> Error {
        Error::timed_out(format!("{}: all {} requests under way", call.what, inbox.len()))
    }

    /// The same without waiting; `None`: no more than `spare` places are free.
    fn try_begin(
        &self,
        call: &Call<'_>,
        spare: usize,
        enter: impl FnOnce(&mut Inbox, u64),
    ) -> Result<Option<u64>, Error> {
        if !self.is_usable() {
            return Err(self.lost(call.what));
        }
        let mut inbox = lock(&self.inbox);
        if inbox.dead {
            return Err(self.lost(call.what));
        }
        if !inbox.has_place(self.facts.max_parked, spare) {
            return Ok(None);
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        enter(&mut inbox, id);
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
        let mut known = None;
        loop {
            let Some(wanted) = self.try_send(id, call, fds, write)? else { return Ok(()) };
            let known: &Vec<_> =
                known.get_or_insert_with(|| fds.iter().map(|fd| Identity::of(*fd)).collect());
            if now() >= call.until {
                let why = if wanted.is_empty() {
                    "too many fds of this user are in flight"
                } else {
                    "the broker does not read"
                };
                return Err(Error::timed_out(format!("{}: {why}", call.what)));
            }
            self.make_room(wanted, &mut wait);
            if !self.is_usable() {
                return Err(self.lost(call.what));
            }
            if !known.iter().zip(fds).all(|(known, fd)| *known == Identity::of(*fd)) {
                return Err(send_error(call.what, SendError::BadFd));
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
            self.proved_socket().and_then(|socket| {
                let _ = self.flush(&mut outbox, socket);
                let count = write(outbox.writer.start(call.kind, id));
                debug_assert!(count <= MAX_BATCH);
                fdbroker_scm::send(socket, outbox.writer.finish(count, fds.len()), fds)
            })
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
            // Closed between the look and the call.
            Err(_) if self.socket.proved().is_none() => {
                self.kill(CLOSED_HERE);
                Err(self.lost(call.what))
            }
            Err(error) => Err(send_error(call.what, error)),
        }
    }

    /// Waits up to a slice for room on the socket, and reads meanwhile unless another thread does.
    fn make_room(&self, wanted: PollFlags, wait: &mut Wait) {
        if !self.read_awaiting(wanted, SEND_SLICE, wait)
            && wait.poll(Some((self.socket.polled(), wanted)), SEND_SLICE)
        {
            wait.serve();
        }
    }

    /// Waits up to `patience` for something to read (or `wanted`) and reads it for others. `false`:
    /// another thread reads.
    fn read_awaiting(&self, wanted: PollFlags, patience: Duration, wait: &mut Wait) -> bool {
        if !self.take_role() {
            return false;
        }
        let mut reader = lock(&self.reader);
        let socket = (self.socket.polled(), wanted | PollFlags::POLLIN);
        let events = wait.poll(Some(socket), patience);
        self.read_queued(&mut reader);
        drop(reader);
        self.leave_role();
        if events {
            wait.serve()
        } else {
            self.look_at_broker()
        }
        true
    }

    fn withdraw(&self, id: u64) {
        let mut inbox = lock(&self.inbox);
        if let Some(at) = inbox.position(id) {
            self.leave(&mut inbox, at);
        }
    }

    /// The second half of a call: waits for the reply to `id` as leader or follower, and decodes
    /// it.
    pub fn reply<T>(
        &self,
        id: u64,
        call: &Call<'_>,
        decode: impl FnOnce(Reply<'_>) -> Result<T, DecodeError>,
    ) -> Result<T, Error> {
        self.reply_soon(id, call, false, decode)
    }

    /// `was_sent_now`: by a socket that was proved for it.
    fn reply_soon<T>(
        &self,
        id: u64,
        call: &Call<'_>,
        mut was_sent_now: bool,
        decode: impl FnOnce(Reply<'_>) -> Result<T, DecodeError>,
    ) -> Result<T, Error> {
        let mut wait = Wait::on(self);
        let mut has_looked = false;
        let mut inbox = lock(&self.inbox);
        loop {
            let Some(at) = inbox.position(id) else { return Err(self.lost(call.what)) };
            if let Some(parcel) = inbox.take_parcel(at) {
                self.leave(&mut inbox, at);
                drop(inbox);
                return self.open_parcel(call, parcel, decode);
            }
            // A thread that wakes late finds its answer all the same.
            if now() >= call.until && (has_looked || inbox.reading) {
                self.give_up(inbox, at, id);
                return Err(Error::no_answer(call.what));
            }
            if inbox.reading {
                let wake = inbox.sleep(at);
                inbox = wait_unasked(&wake, &self.inbox, inbox, call.until);
                inbox.woke(id);
                was_sent_now = false;
                if is_signalled() {
                    // It may have been woken to read.
                    self.pass_on(&mut inbox);
                    drop(inbox);
                    ask();
                    inbox = lock(&self.inbox);
                }
                continue;
            }
            inbox.reading = true;
            drop(inbox);
            let mut reader = lock(&self.reader);
            let is_proved = std::mem::take(&mut was_sent_now);
            match self.read_until(&mut reader, id, call.until, &mut wait, is_proved) {
                Turn::Mine => {
                    let opened = self.open_read(call, &mut reader, decode);
                    drop(reader);
                    self.finish(id);
                    return opened;
                }
                Turn::Events => {
                    // Out of the role: what is served may need someone to read.
                    drop(reader);
                    self.leave_role();
                    wait.serve();
                    inbox = lock(&self.inbox);
                }
                Turn::Over => {
                    drop(reader);
                    has_looked = true;
                    inbox = lock(&self.inbox);
                    inbox.reading = false;
                }
            }
        }
    }

    /// Looks for the reply to a started request, reads what is there unless another thread does,
    /// and decodes it. `None`: still under way.
    pub fn look<T>(
        &self,
        id: u64,
        call: &Call<'_>,
        decode: impl FnOnce(Reply<'_>) -> Result<T, DecodeError>,
    ) -> Option<Result<T, Error>> {
        if !self.common.process.is_current() {
            return Some(Err(self.lost(call.what)));
        }
        let mut inbox = lock(&self.inbox);
        if let Some(parcel) = inbox.take_answered(id) {
            drop(inbox);
            return Some(self.open_parcel(call, parcel, decode));
        }
        if inbox.position(id).is_none() {
            return Some(Err(self.lost(call.what)));
        }
        if !inbox.reading {
            inbox.reading = true;
            drop(inbox);
            let mut reader = lock(&self.reader);
            if self.read_for(&mut reader, id) {
                let opened = self.open_read(call, &mut reader, decode);
                drop(reader);
                self.finish(id);
                return Some(opened);
            }
            drop(reader);
            self.leave_role();
            inbox = lock(&self.inbox);
        }
        if now() < call.until {
            drop(inbox);
            self.look_at_broker();
            return None;
        }
        // Another thread may have read it meanwhile, or found the end.
        if let Some(at) = inbox.position(id) {
            self.give_up(inbox, at, id);
            return Some(Err(Error::no_answer(call.what)));
        }
        None
    }

    /// The leader has its own reply: out of the inbox and out of the role at once.
    fn finish(&self, id: u64) {
        let mut inbox = lock(&self.inbox);
        inbox.reading = false;
        match inbox.position(id) {
            Some(at) => self.leave(&mut inbox, at),
            None => self.pass_on(&mut inbox),
        }
    }

    /// Reads for everyone until it is someone's turn.
    fn read_until(
        &self,
        reader: &mut Reader,
        id: u64,
        until: Instant,
        wait: &mut Wait,
        is_proved: bool,
    ) -> Turn {
        // The reply to a request just sent is never there yet. But after serving events it is
        // looked for first, lest a flood of them should keep it from being read.
        let mut waits = !wait.take_served();
        // Where nothing but the reply is awaited, the first read itself waits for it.
        let mut reads_waiting = !wait.serves();
        loop {
            let left = until.saturating_duration_since(now());
            let waits_now = waits && !left.is_zero();
            let how = if std::mem::take(&mut reads_waiting) && left > READ_SLICE {
                How::Waiting { is_proved }
            } else {
                let socket = (self.socket.polled(), PollFlags::POLLIN);
                if waits_now && wait.poll(Some(socket), left.min(LIVENESS_LOOK)) {
                    return Turn::Events;
                }
                How::AtOnce
            };
            let waited = matches!(how, How::Waiting { .. });
            match self.read_one(reader, Some(id), how) {
                Received::Mine => return Turn::Mine,
                Received::Other => waits = false,
                // A signal ends it like the end of its slice.
                Received::Nothing if waited && is_set() => {
                    note_signal();
                    return Turn::Events;
                }
                Received::Nothing if left.is_zero() => return Turn::Over,
                Received::Nothing => {
                    // Not again right after serving, which it leads to.
                    if waits_now {
                        self.look_at_broker();
                    }
                    waits = true;
                }
                Received::Dead => return Turn::Over,
            }
        }
    }

    /// Decodes the reply in the reader's buffers.
    fn open_read<T>(
        &self,
        call: &Call<'_>,
        reader: &mut Reader,
        decode: impl FnOnce(Reply<'_>) -> Result<T, DecodeError>,
    ) -> Result<T, Error> {
        let Reader { buf, len, fds } = reader;
        let opened = self.parse(call, &buf[..*len]).and_then(|message| {
            self.settle(call.deposits, &message);
            self.open(call, Reply { message, fds: &mut fds.drain() }, decode)
        });
        fds.clear();
        opened
    }

    /// Decodes a reply that another thread has read; its credits are settled.
    fn open_parcel<T>(
        &self,
        call: &Call<'_>,
        parcel: Parcel,
        decode: impl FnOnce(Reply<'_>) -> Result<T, DecodeError>,
    ) -> Result<T, Error> {
        let message = self.parse(call, &parcel.bytes)?;
        self.open(call, Reply { message, fds: &mut parcel.fds.into_iter() }, decode)
    }

    fn parse<'a>(&self, call: &Call<'_>, bytes: &'a [u8]) -> Result<Message<'a>, Error> {
        Message::parse(bytes).map_err(|error| self.broken(call, &error))
    }

    fn open<T>(
        &self,
        call: &Call<'_>,
        reply: Reply<'_>,
        decode: impl FnOnce(Reply<'_>) -> Result<T, DecodeError>,
    ) -> Result<T, Error> {
        let kind = reply.message.kind;
        if kind == call.answer {
            return decode(reply).map_err(|error| self.broken(call, &error));
        }
        if kind != Kind::Failed {
            return Err(self.broken(call, &DecodeError::Unexpected(kind)));
        }
        let status = reply.message.status();
        let status = status.map_err(|error| self.broken(call, &error))?;
        if status.result() == Err(ErrorCode::NoQuota) {
            self.press();
        }
        Err(Error::from_status(status, call.what))
    }

    fn broken(&self, call: &Call<'_>, error: &DecodeError) -> Error {
        self.kill(&error.to_string());
        Error::new(ErrorCode::Protocol, format!("{}: {error}", call.what))
    }
}

fn send_error(what: &str, error: SendError) -> Error {
    let code = match error {
        SendError::BadFd | SendError::Os(_) => ErrorCode::UnsupportedFd,
        _ => ErrorCode::Internal,
    };
    Error::new(code, format!("{what}: {error}"))
}

/// A reply has as many items as the request.
pub(crate) fn check_count(kind: Kind, got: usize, expected: usize) -> Result<(), DecodeError> {
    if got == expected { Ok(()) } else { Err(DecodeError::Length { kind, got, expected }) }
}
