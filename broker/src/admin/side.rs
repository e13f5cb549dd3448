//! The administrators' connections: their places, their turns, their watches. Must never answer a query, nor let
//! administrators that watch take the places of administrators that ask.

use crate::admin::watch::Watch;
use crate::clock;
use crate::kernel;
use crate::kernel::KernelFeatures;
use crate::limits::{ADMIN_IDLE, ADMIN_TURN, MAX_ADMIN_CONNECTIONS, MAX_ADMIN_WATCHES};
use crate::node::listeners::Listener;
use fdbroker_core::{JobKey, Note, Now};
use fdbroker_protocol::admin::EventRecord;
use fdbroker_scm::ReceivedFds;
use fdbroker_scm::{RecvError, SendError};
use nix::errno::Errno;
use slab::Slab;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The administrator's listener and connections.
pub(crate) struct AdminSide {
    listener: Listener,
    is_listener_ready: bool,
    /// A connection waits for which there was no room.
    is_accept_due: bool,
    connections: Slab<AdminConnection>,
    /// All places are taken and a connection waits: when to look again whether one gives way.
    room_at: Option<Now>,
    /// Whose turn it is.
    next: usize,
    /// No room for an fd: no query has one.
    received: ReceivedFds,
    /// Some of the connections watch.
    is_watched: bool,
    /// For what the core has noted; reused.
    notes: Vec<Note>,
    /// The connection that wants to take over, and the format that it reads.
    takeover: Option<(usize, u64)>,
}

struct AdminConnection {
    socket: OwnedFd,
    is_ready: bool,
    /// When it came or last asked.
    used_at: Now,
    /// When it asked for the first time, if it has.
    first_at: Option<Now>,
    /// An answer that the socket did not take; no query is read before it has gone.
    pending: Option<Vec<u8>>,
    /// What it is to be told, if it watches.
    watch: Option<Box<Watch>>,
}

/// A connection's turn.
pub(crate) enum Turn {
    /// It may have sent something, or has room for an answer.
    Serve(usize),
    /// It is to be told what has happened.
    Tell(usize),
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Done,
    /// Until the socket takes it.
    Kept,
    Gone,
}

impl AdminConnection {
    /// One just accepted.
    fn new(socket: OwnedFd, now: Now) -> Self {
        AdminConnection {
            socket,
            is_ready: true,
            used_at: now,
            first_at: None,
            pending: None,
            watch: None,
        }
    }

    /// Until when it keeps its place; `None`: while it is as it is now.
    fn keeps_until(&self) -> Option<Now> {
        let is_idle = !self.is_ready && self.pending.is_none();
        match self.first_at {
            _ if self.watch.is_some() => None,
            _ if is_idle => Some(clock::after(self.used_at, ADMIN_IDLE)),
            Some(first_at) => Some(clock::after(first_at, ADMIN_TURN)),
            // Its first turn comes soon.
            None => None,
        }
    }

    /// It has events to be sent, and room for them as far as is known.
    fn is_watch_due(&self) -> bool {
        self.pending.is_none() && self.watch.as_ref().is_some_and(|watch| watch.is_due())
    }
}

impl AdminSide {
    pub fn new(listener: Listener) -> Self {
        AdminSide {
            listener,
            is_listener_ready: false,
            is_accept_due: false,
            connections: Slab::with_capacity(MAX_ADMIN_CONNECTIONS),
            room_at: None,
            next: 0,
            received: ReceivedFds::with_capacity(0),
            is_watched: false,
            notes: Vec::new(),
            takeover: None,
        }
    }

    pub fn listener(&self) -> &Listener {
        &self.listener
    }

    pub fn listener_mut(&mut self) -> &mut Listener {
        &mut self.listener
    }

    pub fn note_listener(&mut self) {
        self.is_listener_ready = true;
    }

    /// A connection wants to take over, and reads this format.
    pub fn ask_takeover(&mut self, index: usize, format: u64) {
        self.takeover = Some((index, format));
    }

    /// The connection that wants to take over, once.
    pub fn take_takeover(&mut self) -> Option<(usize, u64)> {
        self.takeover.take()
    }

    /// There may be room again.
    pub fn retry_accept(&mut self) {
        if std::mem::take(&mut self.is_accept_due) {
            self.is_listener_ready = true;
        }
    }

    pub fn note(&mut self, index: usize) {
        if let Some(connection) = self.connections.get_mut(index) {
            connection.is_ready = true;
        }
    }

    /// Accepts a connection if one waits and there is a place; its number. An error: there is no room for it.
    pub fn accept(&mut self, features: KernelFeatures, now: Now) -> Result<Option<usize>, Errno> {
        while self.is_listener_ready && self.make_room(now) {
            match kernel::accept(self.listener.as_fd()) {
                Ok(socket) => {
                    kernel::refuse_rights(socket.as_fd(), features);
                    return Ok(Some(self.connections.insert(AdminConnection::new(socket, now))));
                }
                Err(Errno::EINTR | Errno::ECONNABORTED) => {}
                Err(errno) => {
                    self.is_listener_ready = false;
                    if errno != Errno::EAGAIN {
                        self.is_accept_due = true;
                        return Err(errno);
                    }
                }
            }
        }
        Ok(None)
    }

    /// The next connection that has something to do.
    pub fn next_turn(&mut self) -> Option<Turn> {
        for _ in 0..MAX_ADMIN_CONNECTIONS {
            let index = self.next;
            self.next = (index + 1) % MAX_ADMIN_CONNECTIONS;
            match self.connections.get(index) {
                Some(connection) if connection.is_ready => return Some(Turn::Serve(index)),
                Some(connection) if connection.is_watch_due() => return Some(Turn::Tell(index)),
                _ => {}
            }
        }
        None
    }

    /// Reads a message into `buffer`; its length. `None`: there is none. An error: the connection is to end.
    pub fn recv(
        &mut self,
        index: usize,
        buffer: &mut [u8],
        now: Now,
    ) -> Result<Option<usize>, RecvError> {
        let connection = &mut self.connections[index];
        match fdbroker_scm::recv(connection.socket.as_fd(), buffer, &mut self.received) {
            Ok(received) => {
                connection.used_at = now;
                connection.first_at.get_or_insert(now);
                Ok(Some(received.len))
            }
            Err(RecvError::WouldBlock) => {
                connection.is_ready = false;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Sends a message, or keeps it: no query of the connection is read before it has gone.
    pub fn send(&mut self, index: usize, bytes: &[u8]) -> Sent {
        let connection = &mut self.connections[index];
        match fdbroker_scm::send(connection.socket.as_fd(), bytes, &[]) {
            Ok(()) => Sent::Done,
            Err(SendError::WouldBlock) => {
                connection.pending = Some(bytes.to_vec());
                connection.is_ready = false;
                Sent::Kept
            }
            Err(_) => Sent::Gone,
        }
    }

    /// The message that is kept, to be sent again.
    pub fn take_pending(&mut self, index: usize) -> Option<Vec<u8>> {
        self.connections[index].pending.take()
    }

    /// Whether a message is kept.
    pub fn is_pending(&self, index: usize) -> bool {
        self.connections[index].pending.is_some()
    }

    /// Whether somebody watches.
    pub fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// An empty list for what the core has noted; to be given back.
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }

    /// Takes the list back, for the next time.
    pub fn keep_notes(&mut self, notes: Vec<Note>) {
        self.notes = notes;
    }

    /// The socket of a connection.
    pub fn socket(&self, index: usize) -> Option<BorrowedFd<'_>> {
        self.connections.get(index).map(|connection| connection.socket.as_fd())
    }

    /// Ends a connection.
    pub fn end(&mut self, index: usize) {
        self.connections.try_remove(index);
    }

    /// Whether there is something to do at once.
    pub fn is_ready(&self) -> bool {
        let may_accept = self.connections.len() < MAX_ADMIN_CONNECTIONS || self.room_at.is_none();
        (self.is_listener_ready && may_accept)
            || self.connections.iter().any(|(_, it)| it.is_ready || it.is_watch_due())
    }

    /// When to look again for a connection that gives way to one that waits.
    pub fn room_at(&self) -> Option<Now> {
        self.room_at
    }

    /// Whether there is a place for one more connection; when all are taken, the one that has asked nothing for longest
    /// ends, of those that may.
    fn make_room(&mut self, now: Now) -> bool {
        self.room_at = None;
        if self.connections.len() < MAX_ADMIN_CONNECTIONS {
            return true;
        }
        // An event tells when another connection comes.
        self.is_listener_ready = kernel::is_readable(self.listener.as_fd());
        if !self.is_listener_ready {
            return false;
        }
        let may_end = |it: &AdminConnection| it.keeps_until().is_some_and(|until| until <= now);
        let old = self.connections.iter().filter(|(_, it)| may_end(it));
        let longest = old.min_by_key(|(_, it)| it.used_at).map(|(index, _)| index);
        match longest {
            Some(index) => {
                log::debug!(
                    "an administrator's connection gives way to another: all places are taken"
                );
                self.connections.remove(index);
            }
            None => {
                // A busy connection may be idle by then.
                self.room_at = Some(clock::after(now, ADMIN_IDLE));
            }
        }
        longest.is_some()
    }

    /// A connection watches from now on; `false`: as many do as may.
    pub fn set_watch(&mut self, index: usize, watch: Watch) -> bool {
        let others =
            self.connections.iter().filter(|(other, it)| *other != index && it.watch.is_some());
        if others.count() >= MAX_ADMIN_WATCHES {
            return false;
        }
        if let Some(connection) = self.connections.get_mut(index) {
            connection.watch = Some(Box::new(watch));
        }
        true
    }

    /// What a watcher is to be told.
    pub fn watch(&mut self, index: usize) -> Option<&mut Watch> {
        self.connections.get_mut(index)?.watch.as_deref_mut()
    }

    /// Tells all watchers of an event; `job`: its client's.
    pub fn tell(&mut self, event: &EventRecord, job: Option<JobKey>) {
        let all = self.connections.iter_mut();
        all.filter_map(|(_, it)| it.watch.as_deref_mut()).for_each(|watch| watch.offer(event, job));
    }

    /// Notes whether there are watchers.
    pub fn count_watches(&mut self) {
        self.is_watched = self.connections.iter().any(|(_, it)| it.watch.is_some());
    }
}
