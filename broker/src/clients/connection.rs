//! One client's connection: its sockets, what it has not read yet, what waits to be sent. Holds
//! state; must never talk to the core.

use crate::clients::metrics::Asked;
use crate::clients::settles::Settles;
use crate::clients::turns::Who;
use crate::kernel::Start;
use crate::limits::{IN_FLIGHT_FDS_PER_CLIENT, UNREAD_MESSAGES_PER_CLIENT};
use fdbroker_core::{ClientId, DomainKey, Now, RequestId};
use fdbroker_protocol::limits::NAME_BYTES;
use fdbroker_protocol::{AllocationId, Status};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// How far a connection is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Accepted; nothing but hello is taken.
    #[default]
    Silent,
    /// Its hello is with the core.
    Greeted,
    /// Welcomed: requests are taken.
    Welcomed,
    /// Ended; the core still tears down what it had.
    Gone,
}

/// Why a client is served no requests for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Blocked {
    /// It has not read what it was sent; its socket tells when it has.
    Unread,
    /// Too many fds are in flight to all clients; no event tells when that ends.
    InFlight,
}

/// A hello reply that could not be sent yet.
#[derive(Debug)]
pub struct HelloReply {
    /// The request that it answers.
    pub request: RequestId,
    /// How many fds the client may deposit.
    pub deposit_credits: u32,
}

#[derive(Debug, Default)]
pub struct Connection {
    /// Tells this connection from earlier ones of the same number.
    pub serial: u64,
    /// Requests and replies. `None`: the connection has ended.
    pub socket: Option<OwnedFd>,
    /// The main socket of an ended connection, kept until its peer has read the fds in it or closed
    /// its end: until then the kernel counts these fds as in flight.
    pub lingering: Option<OwnedFd>,
    /// The core has forgotten the client; the record stays for `lingering` and `retiring`.
    pub is_forgotten: bool,
    /// Sockets that are to be closed.
    pub retiring: u32,
    /// The broker's end of the event socket, once that has joined.
    pub event: Option<OwnedFd>,
    /// With it the client's further sockets join.
    pub secret: u64,
    /// When its time for hello, or for its event socket, is over.
    pub expires: Now,
    /// A pidfd of its process, if the kernel gives one.
    pub pidfd: Option<OwnedFd>,
    /// Listener, uid and pod.
    pub domain: DomainKey,
    /// The domain that it shares with: of its user, where the uid is a subordinate one, or its pod.
    pub shares_as: DomainKey,
    /// Of its process, as the broker's PID namespace numbers it; 0: it is in another one.
    pub pid: u32,
    /// The core knows it: what /proc says of its process is there. Nothing is read from it before.
    pub is_known: bool,
    /// When its process was started, and its name.
    pub start: Start,
    /// For display, as it said in hello.
    pub name: [u8; NAME_BYTES],
    /// How far it is.
    pub phase: Phase,
    /// The main socket may have more to read.
    pub is_main_ready: bool,
    /// The event socket may have more to read.
    pub is_event_ready: bool,
    /// The peer of the main socket has closed it; the end stands behind what is left to read.
    pub is_main_closed: bool,
    /// It is in the list of turns.
    pub is_queued: bool,
    /// The main socket is empty and its peer has closed it: nothing can come any more.
    pub is_main_at_end: bool,
    /// A lane drops its next message: nothing behind it is read.
    pub waits_for_drop: bool,
    /// A seal of it waits for a lane: its requests are not read until that is answered.
    pub waits_for_seal: bool,
    /// Its process has died: its turn ends it. A thousand may die at once.
    pub has_died: bool,
    /// The core has events for it.
    pub has_events: bool,
    /// It is in the list of clients with events.
    pub is_event_queued: bool,
    /// It is in the list of clients that wait for fds in flight.
    pub is_in_flight_queued: bool,
    /// A line about its bad input has been written.
    pub is_bad_input_logged: bool,
    /// When a message of it was read last.
    pub read_at: Now,
    /// What it has not read.
    pub unread: Unread,
    /// Why it is not served.
    pub blocked: Option<Blocked>,
    /// Its acquires that are parked, and since when; at most `max_parked_per_client`.
    pub asked: Vec<Asked>,
    /// Its requests that wait for closes.
    pub settles: Settles,
    /// The broker's end of its socket for fds that are fetched ahead. After its end: until these
    /// are read.
    pub ahead: Option<OwnedFd>,
    /// Replies without fds that its socket did not take.
    pub pending: VecDeque<Vec<u8>>,
    /// Fds of its supplies that were refused, and why; it is still to be told.
    pub refused: Vec<(AllocationId, Status)>,
    /// The event message that its event socket did not take.
    pub pending_event: Option<Vec<u8>>,
    /// The hello reply that could not be sent.
    pub hello_reply: Option<HelloReply>,
}

/// Messages with fds that were sent and are maybe not read. Each send adds to the count; it is 0
/// again when the kernel says that the client has read all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unread {
    pub messages: u32,
    /// In all of these messages.
    pub fds: u64,
}

impl Unread {
    /// Whether another message with fds may be sent without asking the kernel.
    pub fn has_room(&self) -> bool {
        self.messages < UNREAD_MESSAGES_PER_CLIENT && self.fds < IN_FLIGHT_FDS_PER_CLIENT
    }

    pub fn add(&mut self, fds: usize) {
        self.messages += 1;
        self.fds += fds as u64;
    }
}

impl Connection {
    pub fn bare(serial: u64, domain: DomainKey, pid: u32) -> Self {
        Connection { serial, domain, shares_as: domain, pid, ..Self::default() }
    }

    /// The user and process that it shares its turns with.
    pub fn who(&self) -> Who {
        Who { user: (self.shares_as.uid, self.shares_as.pod), pid: self.pid }
    }

    /// The main socket, until it is gone.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// The event socket, once it has joined and until it is gone.
    pub fn event(&self) -> Option<BorrowedFd<'_>> {
        self.event.as_ref().map(AsFd::as_fd)
    }

    /// The main socket, or the event socket, while it is there.
    pub fn socket_of(&self, is_main: bool) -> Option<BorrowedFd<'_>> {
        if is_main { self.socket() } else { self.event() }
    }

    /// Whether a socket of an ended connection is still open.
    pub fn has_sockets_left(&self) -> bool {
        self.lingering.is_some() || self.retiring > 0 || self.ahead.is_some()
    }

    /// Whether there is something to read that may be read now.
    pub fn is_serviceable(&self) -> bool {
        self.has_died || self.is_event_ready || (self.is_main_ready && self.may_be_read())
    }

    /// Whether it is let in, and its event socket has not joined.
    pub fn is_joining(&self) -> bool {
        self.phase == Phase::Welcomed && self.event.is_none()
    }

    /// Whether its requests may be read.
    pub fn may_be_read(&self) -> bool {
        self.blocked.is_none() && !self.waits_for_seal
    }
}

/// Slab index of a client.
pub fn index(client: ClientId) -> usize {
    client.0 as usize
}

/// Client number of a slab index. The slab is bounded by `max_clients`, a u32.
pub fn client_id(index: usize) -> ClientId {
    ClientId(u32::try_from(index).expect("bounded by max_clients"))
}
