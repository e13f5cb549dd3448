//! Reading the request socket: the reader's side of `connection`. Every reply finds its thread, or is undone.
//! Must never drop a reply unread: its leases would stay on the ledger.

use crate::books::common::{OwnerKey, Unregister};
use crate::error::Error;
use crate::serve::dispatch::Wait;
use crate::sync::{lock, wait_until};
use crate::wire::connection::{Call, Connection};
use crate::wire::inbox::{Addressee, Owed, Parcel};
use crate::wire::outbox::OneWay;
use fdbroker_protocol::limits::MAX_MESSAGE_BYTES;
use fdbroker_protocol::message::{RegisterReplyHead, Registered};
use fdbroker_protocol::{DecodeError, ErrorCode, Kind, Message, Status};
use fdbroker_scm::{ReceivedFds, RecvError};
use nix::poll::PollFlags;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

/// The buffers of the thread that reads.
#[derive(Debug)]
pub(crate) struct Reader {
    buf: Box<[u8]>,
    len: usize,
    fds: ReceivedFds,
}

impl Default for Reader {
    fn default() -> Self {
        let buf = vec![0; MAX_MESSAGE_BYTES].into_boxed_slice();
        Reader { buf, len: 0, fds: ReceivedFds::new() }
    }
}

/// A reply: its message, and the fds that arrived, first to last (fewer than announced when this
/// process's fd table is full).
pub(crate) struct Reply<'a> {
    pub message: Message<'a>,
    pub fds: &'a mut dyn Iterator<Item = OwnedFd>,
}

/// What became of one attempt to read.
enum Received {
    /// The reply waited for is in the reader's buffers.
    Mine,
    /// Something was read and dealt with.
    Other,
    /// Nothing is there.
    Nothing,
    /// The connection has ended.
    Dead,
}

/// Why a reader stops reading.
enum Turn {
    /// Its reply is in the buffers.
    Mine,
    /// There is something to serve.
    Events,
    /// Time or the connection is over.
    Over,
}

impl Connection {
    /// Waits for the reply to `id` as leader or follower, and decodes it.
    pub(crate) fn wait<T>(
        &self,
        id: u64,
        call: &Call<'_>,
        decode: impl FnOnce(Reply<'_>) -> Result<T, DecodeError>,
    ) -> Result<T, Error> {
        let mut wait = Wait::on(self);
        let mut inbox = lock(&self.inbox);
        loop {
            let Some(at) = inbox.position(id) else { return Err(self.lost(call.what)) };
            if let Some(parcel) = inbox.take_parcel(at) {
                self.leave(&mut inbox, at);
                drop(inbox);
                return self.open_parcel(call, parcel, decode);
            }
            if Instant::now() >= call.until {
                self.give_up(inbox, at, id);
                return Err(Error::timed_out(call.what));
            }
            if inbox.reading {
                let wake = inbox.sleep(at);
                inbox = wait_until(&wake, inbox, call.until);
                inbox.woke(id);
                continue;
            }
            inbox.reading = true;
            drop(inbox);
            let mut reader = lock(&self.reader);
            match self.read_until(&mut reader, id, call.until, &mut wait) {
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
                    inbox = lock(&self.inbox);
                    inbox.reading = false;
                }
            }
        }
    }

    /// Looks for the reply to a started request, reads what is there unless another thread does, and decodes
    /// it. `None`: still under way.
    pub(crate) fn look<T>(
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
        if Instant::now() < call.until {
            return None;
        }
        // Another thread may have read it meanwhile, or found the end.
        if let Some(at) = inbox.position(id) {
            self.give_up(inbox, at, id);
            return Some(Err(Error::timed_out(call.what)));
        }
        None
    }

    /// Reads what is queued, for everyone, up to the reply to `id`. Whether that is in the buffers.
    fn read_for(&self, reader: &mut Reader, id: u64) -> bool {
        loop {
            match self.read_one(reader, Some(id)) {
                Received::Mine => return true,
                Received::Other => {}
                Received::Nothing | Received::Dead => return false,
            }
        }
    }

    /// Reads all that is queued, for others; how many. The caller has the reader's role.
    pub(crate) fn read_queued(&self, reader: &mut Reader) -> usize {
        let mut count = 0;
        while let Received::Other = self.read_one(reader, None) {
            count += 1;
        }
        count
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
    fn read_until(&self, reader: &mut Reader, id: u64, until: Instant, wait: &mut Wait) -> Turn {
        // Before the first read: the reply to a request just sent is never there yet. But after serving events,
        // lest a flood of them should keep it from being read.
        let mut waits = !wait.take_served();
        loop {
            if waits {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Turn::Over;
                }
                if wait.poll(Some((self.socket.as_fd(), PollFlags::POLLIN)), left) {
                    return Turn::Events;
                }
            }
            match self.read_one(reader, Some(id)) {
                Received::Mine => return Turn::Mine,
                Received::Other => waits = false,
                Received::Nothing => waits = true,
                Received::Dead => return Turn::Over,
            }
        }
    }

    /// Reads one message, if there is one, and brings it where it belongs.
    fn read_one(&self, reader: &mut Reader, mine: Option<u64>) -> Received {
        let received = fdbroker_scm::recv(self.socket.as_fd(), &mut reader.buf, &mut reader.fds);
        let received = match received {
            Ok(received) => received,
            Err(RecvError::WouldBlock) => return Received::Nothing,
            Err(error) => {
                reader.fds.clear();
                self.kill(&error.to_string());
                return Received::Dead;
            }
        };
        reader.len = received.len;
        let sorted = match received.payload_truncated {
            true => Err("a reply longer than any of the protocol".to_owned()),
            false => self.sort(reader, received.fds_truncated, mine).map_err(|e| e.to_string()),
        };
        sorted.unwrap_or_else(|error| {
            reader.fds.clear();
            self.kill(&error);
            Received::Dead
        })
    }

    fn sort(
        &self,
        reader: &mut Reader,
        fds_truncated: bool,
        mine: Option<u64>,
    ) -> Result<Received, DecodeError> {
        let Reader { buf, len, fds } = reader;
        let message = Message::parse(&buf[..*len])?;
        if !(fds_truncated && fds.len() < usize::from(message.fd_count)) {
            message.check_fds(fds.len())?;
        }
        if mine == Some(message.id) {
            return Ok(Received::Mine);
        }
        let mut inbox = lock(&self.inbox);
        match inbox.addressee(message.id) {
            Addressee::Waiting(at, deposits) => {
                self.settle(deposits, &message);
                let fds = fds.drain().collect();
                inbox.deliver(at, Parcel { bytes: buf[..*len].to_vec(), fds });
                // Its place may be free now.
                self.pass_on(&mut inbox);
            }
            Addressee::Late(owed) => {
                drop(inbox);
                self.settle(owed.deposits, &message);
                self.undo(&message, &owed)?;
                fds.clear();
            }
            Addressee::Unknown => {
                let is_dead = inbox.dead;
                drop(inbox);
                // What was asked for before the connection ended is not known any more.
                if !is_dead {
                    log::warn!(
                        "the broker sent a {} for no request ({})",
                        message.kind,
                        message.id
                    );
                }
                self.undo(&message, &Owed::default())?;
                fds.clear();
            }
        }
        Ok(Received::Other)
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
        let status = reply.message.body_as::<Status>();
        let status = *status.map_err(|error| self.broken(call, &error))?;
        Err(Error::from_status(status, call.what))
    }

    fn broken(&self, call: &Call<'_>, error: &DecodeError) -> Error {
        self.kill(&error.to_string());
        Error::new(ErrorCode::Protocol, format!("{}: {error}", call.what))
    }

    /// Counts the credits of a reply. Called in the order of reading, by the reader alone.
    fn settle(&self, deposits: u32, message: &Message<'_>) {
        if message.kind == Kind::RegisterReply
            && let Ok((head, _)) = message.head_and_items::<RegisterReplyHead, Registered>()
        {
            self.credits.answered(deposits, head.deposit_credits.get());
        } else if deposits > 0 {
            self.credits.failed(deposits);
        }
    }

    /// A reply that was read for someone who no longer wants it. Its credits are settled.
    pub(crate) fn discard(&self, parcel: Parcel) {
        let undone =
            Message::parse(&parcel.bytes).and_then(|message| self.undo(&message, &Owed::default()));
        if let Err(error) = undone {
            self.kill(&error.to_string());
        }
    }

    /// A reply that nobody waits for: gives back what it gives. Its fds are closed by the caller.
    fn undo(&self, message: &Message<'_>, owed: &Owed) -> Result<(), DecodeError> {
        match message.kind {
            Kind::Granted => {
                let (items, _) = message.grants()?;
                let granted = items.iter().filter(|item| item.status.is_ok());
                self.post_all(granted.map(|item| OneWay::Released(item.lease.get())));
            }
            Kind::RegisterReply => {
                let (_, items) = message.head_and_items::<RegisterReplyHead, Registered>()?;
                let made = items.iter().filter(|item| item.status.is_ok());
                self.post_all(made.map(|item| {
                    OneWay::Unregister(Unregister { id: item.handle.id(), key: None })
                }));
            }
            Kind::UnregisterReply => {
                let statuses = message.items::<Status>()?;
                let ended = statuses.iter().map(|status| status.is_ok() && status.value.get() == 1);
                let keys = owed.unregisters.iter().map(|unregister| unregister.key);
                keys.zip(ended).for_each(|(key, drained)| self.tell_owner(key, drained));
                // Those that gathered meanwhile.
                self.flush_queued();
            }
            _ => {
                owed.unregisters.iter().for_each(|one| self.tell_owner(one.key, false));
            }
        }
        Ok(())
    }

    fn tell_owner(&self, key: Option<OwnerKey>, drained: bool) {
        if let Some(key) = key
            && let Some(owner) = self.common.owner_of(key.base)
        {
            owner.unregistered(key, drained);
        }
    }
}
