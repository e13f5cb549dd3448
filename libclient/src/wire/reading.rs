//! Reading the request socket. Every reply finds its thread, or is undone.
//! Must never drop a reply unread: its leases would stay on the ledger.
//!
//! **Reading: leader and follower.** A thread that waits for its reply either has the reader's role
//! (`Inbox::reading`) or sleeps on its own condition variable. The reader hands every reply to its
//! thread; when it has its own, it gives up the role and wakes one sleeper to take it. A thread
//! that is not asleep looks at the state under the lock before it sleeps, so no wake-up is lost.
//! When replies are owed to nobody (a request given up, a buffer freed) and no thread reads, the
//! one that serves does: the library thread or, in dispatch mode, whoever waits or dispatches.
//! There the reader watches the event fd as well, and gives up its role to serve, so while any
//! thread waits events are served.

use super::connection::Connection;
use super::inbox::{Addressee, Owed, Parcel, Reader};
use crate::books::one_way::{OneWay, Unregister};
use crate::own_fds::CLOSED_HERE;
use crate::sync::lock;
use fdbroker_protocol::message::{RegisterReplyHead, Registered};
use fdbroker_protocol::object::ObjectCreated;
use fdbroker_protocol::{DecodeError, Kind, Message};
use fdbroker_scm::{RecvError, SendError};
use std::time::Instant;

/// What became of one attempt to read.
pub(super) enum Received {
    /// The reply waited for is in the reader's buffers.
    Mine,
    /// Something was read and dealt with.
    Other,
    Nothing,
    /// The connection has ended.
    Dead,
}

/// How a message is received.
#[derive(Clone, Copy, Debug)]
pub(super) enum How {
    AtOnce,
    /// Waiting for it. `is_proved`: the socket was looked at a moment ago, for the send.
    Waiting {
        is_proved: bool,
    },
}

impl Connection {
    /// Reads all that is queued, for others; how many. The caller has the reader's role.
    pub(super) fn read_queued(&self, reader: &mut Reader) -> usize {
        let mut count = 0;
        while let Received::Other = self.read_one(reader, None, How::AtOnce) {
            count += 1;
        }
        count
    }

    /// Reads one message, if there is one, and brings it where it belongs.
    pub(super) fn read_one(&self, reader: &mut Reader, mine: Option<u64>, how: How) -> Received {
        let socket = match how {
            How::Waiting { is_proved: true } => Some(self.socket.polled()),
            How::Waiting { is_proved: false } | How::AtOnce => self.socket.proved(),
        };
        let Some(socket) = socket else {
            self.kill(CLOSED_HERE);
            return Received::Dead;
        };
        let received = match how {
            How::AtOnce => fdbroker_scm::recv(socket, &mut reader.buf, &mut reader.fds),
            How::Waiting { .. } => {
                fdbroker_scm::recv_waiting(socket, &mut reader.buf, &mut reader.fds)
            }
        };
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
        let sorted = if received.payload_truncated {
            Err("a reply longer than any of the protocol".to_owned())
        } else {
            self.sort(reader, received.fds_truncated, mine).map_err(|e| e.to_string())
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
                self.pass_on(&mut inbox);
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

    /// Counts the credits of a reply. Called in the order of reading, by the reader alone.
    pub(super) fn settle(&self, deposits: u32, message: &Message<'_>) {
        if message.kind == Kind::RegisterReply
            && let Ok((head, _)) = message.head_and_items::<RegisterReplyHead, Registered>()
        {
            self.credits.answered(deposits, head.deposit_credits.get());
        } else if message.kind == Kind::ObjectCreated
            && let Ok(created) = message.body_as::<ObjectCreated>()
        {
            self.credits.answered(deposits, created.deposit_credits.get());
        } else if deposits > 0 {
            self.credits.failed(deposits);
        }
    }

    /// A reply that was read for a request that no longer wants it. Its credits are settled.
    pub(super) fn discard(&self, parcel: Parcel) {
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
                let granted = items.iter().filter(|item| item.status.get().is_ok());
                self.post_all(granted.map(|item| OneWay::Released(item.lease.get())));
            }
            Kind::RegisterReply => {
                let (_, items) = message.head_and_items::<RegisterReplyHead, Registered>()?;
                let made = items.iter().filter(|item| item.status.get().is_ok());
                self.post_all(made.map(|item| {
                    OneWay::Unregister(Unregister { id: item.handle.get().id(), key: None })
                }));
            }
            Kind::ObjectGot => {
                let grants = message.got()?.grants;
                let granted = grants.iter().filter(|item| item.status.get().is_ok());
                self.post_all(granted.map(|item| OneWay::Released(item.lease.get())));
            }
            Kind::ObjectCreated => {
                self.post(OneWay::Abort(message.body_as::<ObjectCreated>()?.group.get()));
            }
            // Aborts that gathered meanwhile.
            Kind::ObjectReply => {
                self.flush_queued();
            }
            Kind::UnregisterReply => {
                let statuses = message.statuses()?;
                for (unregister, status) in owed.unregisters.iter().zip(statuses) {
                    self.common.holdings.note_heard(unregister.id);
                    // Not drained yet: the broker says so on the event socket when it is.
                    let is_drained = status.is_ok() && status.value == 1;
                    let Some(key) = unregister.key.filter(|_| is_drained) else { continue };
                    self.common.holdings.forget(unregister.id);
                    match self.common.owner_of(key.base).filter(|_| key.base != 0) {
                        Some(owner) => owner.drained(key),
                        None => self.common.note_drained(unregister.id, key),
                    }
                }
                // Those that gathered meanwhile.
                self.flush_queued();
            }
            _ => {}
        }
        Ok(())
    }

    /// Reads what is queued, for everyone, up to the reply to `id`. Whether that is in the buffers.
    pub(super) fn read_for(&self, reader: &mut Reader, id: u64) -> bool {
        loop {
            match self.read_one(reader, Some(id), How::AtOnce) {
                Received::Mine => return true,
                Received::Other => {}
                Received::Nothing | Received::Dead => return false,
            }
        }
    }

    /// Sends what is queued; the thread that serves sends what does not fit now.
    pub fn send_queued(&self) {
        if self.flush_queued() {
            self.common.wake.kick();
        }
    }

    /// Sends what is queued, unless it may wait longer. Whether something waits for room.
    pub fn flush_due(&self) -> bool {
        !lock(&self.outbox).gathering.is_early(Instant::now()) && self.flush_queued()
    }

    /// Sends what is queued, without waiting. Whether something waits for room.
    pub fn flush_queued(&self) -> bool {
        if !self.is_usable() {
            return false;
        }
        let mut outbox = lock(&self.outbox);
        if outbox.is_empty() {
            return false;
        }
        let flushed = self.proved_socket().and_then(|socket| self.flush(&mut outbox, socket));
        drop(outbox);
        if flushed == Err(SendError::PeerGone) {
            self.hear_last_words();
        }
        flushed.is_err()
    }

    /// Reads what is there without waiting; how many replies. `None`: another thread reads, or the
    /// end was read.
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

    /// The broker has closed the connection. What it said before reaches its threads, unless
    /// another thread is reading that already; then the connection ends.
    pub(super) fn hear_last_words(&self) {
        self.read_if_nobody_does();
        self.kill("the broker has closed the connection");
    }
}
