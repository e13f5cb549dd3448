//! Sockets for fds that are fetched ahead, one for a client at most. Fds lie unread in them until the client takes them or the
//! broker takes them back; nothing else is ever in them. Must never let there be more of them than [`ahead_sockets`].
//!
//! [`ahead_sockets`]: crate::limits::ahead_sockets

use crate::clock;
use crate::limits::AHEAD_TIME;
use fdbroker_core::{ClientId, DomainKey, Now, Part};
use fdbroker_protocol::AllocationId;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{Shutdown, shutdown};

/// The socket of one client.
#[derive(Debug)]
pub struct AheadSocket {
    /// The end that the broker sends into. Nothing can come out of it.
    pub ours: OwnedFd,
    /// A duplicate of the client's end: what the client has not read is read back by it.
    pub theirs: OwnedFd,
    /// What was sent last, and may lie there still: at most [`AHEAD_FDS`](fdbroker_protocol::limits::AHEAD_FDS).
    pub sent: Vec<AllocationId>,
    /// When it is taken back.
    due: Option<Now>,
}

impl AheadSocket {
    /// An empty one, and the client's end.
    ///
    /// # Errors
    /// Those of socketpair(2), shutdown(2) and fcntl(2).
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let (ours, client_end) = fdbroker_scm::seqpacket_pair()?;
        // The client cannot send: what is read back is always the broker's own.
        shutdown(ours.as_raw_fd(), Shutdown::Read)?;
        let theirs = client_end.try_clone()?;
        Ok((AheadSocket { ours, theirs, sent: Vec::new(), due: None }, client_end))
    }
}

/// How many sockets there are, and when what lies in each is taken back.
#[derive(Debug)]
pub struct Ahead {
    most: u64,
    used: u64,
    /// No entry = none.
    used_by: FxHashMap<DomainKey, u64>,
    /// [`fdbroker_core::Config::share_factor`].
    factor: u64,
    /// At most one entry of each socket.
    due: BTreeSet<(Now, ClientId)>,
}

impl Ahead {
    /// None yet, and at most `most`. `factor`: [`fdbroker_core::Config::share_factor`].
    pub fn new(most: u64, factor: u64) -> Self {
        Ahead { most, used: 0, used_by: FxHashMap::default(), factor, due: BTreeSet::new() }
    }

    /// Whether this broker has any.
    pub fn is_possible(&self) -> bool {
        self.most > 0
    }

    /// Whether a client of `domain` may have one.
    pub fn has_room(&self, domain: DomainKey) -> bool {
        let held = self.used_by.get(&domain).copied().unwrap_or(0);
        Part { held, used: self.used, most: self.most }.room(self.factor) > 0
            && self.used < self.most
    }

    /// A client of `domain` has one from now on.
    pub fn open(&mut self, domain: DomainKey) {
        self.used += 1;
        *self.used_by.entry(domain).or_default() += 1;
    }

    /// A client of `domain` has its socket no more.
    pub fn close(&mut self, domain: DomainKey, client: ClientId, socket: &mut AheadSocket) {
        self.clear(client, socket);
        self.used -= 1;
        let Some(used) = self.used_by.get_mut(&domain) else { return };
        *used -= 1;
        if *used == 0 {
            self.used_by.remove(&domain);
        }
    }

    /// Fds have been sent: they are taken back in a while.
    pub fn note_sent(&mut self, client: ClientId, socket: &mut AheadSocket, now: Now) {
        self.set_due(client, socket, clock::after(now, AHEAD_TIME));
    }

    /// What lies in the socket is taken back then.
    pub fn set_due(&mut self, client: ClientId, socket: &mut AheadSocket, due: Now) {
        if let Some(former) = socket.due.replace(due) {
            self.due.remove(&(former, client));
        }
        self.due.insert((due, client));
    }

    /// Nothing lies in the socket.
    pub fn clear(&mut self, client: ClientId, socket: &mut AheadSocket) {
        socket.sent.clear();
        if let Some(former) = socket.due.take() {
            self.due.remove(&(former, client));
        }
    }

    /// When something is to be taken back.
    pub fn due(&self) -> Option<Now> {
        self.due.first().map(|(due, _)| *due)
    }

    /// A client from which something is to be taken back now.
    pub fn next_due(&self, now: Now) -> Option<ClientId> {
        self.due.first().filter(|(due, _)| *due <= now).map(|(_, client)| *client)
    }

    /// Whether there is none, and nothing to take back.
    #[cfg(test)]
    pub fn is_unused(&self) -> bool {
        self.used == 0 && self.used_by.is_empty() && self.due.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOMAIN: DomainKey = DomainKey { listener: 0, uid: 1000 };
    const OTHER: DomainKey = DomainKey { listener: 0, uid: 1001 };

    #[test]
    fn has_room_when_one_domain_takes_all_that_it_may_then_another_finds_some() {
        let mut ahead = Ahead::new(16, 2);
        while ahead.has_room(DOMAIN) {
            ahead.open(DOMAIN);
        }
        assert!(ahead.used < 16 && ahead.has_room(OTHER));
        let (mut socket, _) = AheadSocket::new().unwrap();
        for client in (0..ahead.used as u32).map(ClientId) {
            ahead.close(DOMAIN, client, &mut socket);
        }
        assert!(ahead.is_unused());
    }

    #[test]
    fn next_due_when_sent_again_then_counted_from_then() {
        let mut ahead = Ahead::new(2, 8);
        let (mut one, _) = AheadSocket::new().unwrap();
        let (mut other, _) = AheadSocket::new().unwrap();
        ahead.note_sent(ClientId(1), &mut one, Now(0));
        ahead.note_sent(ClientId(2), &mut other, Now(1));
        ahead.note_sent(ClientId(1), &mut one, Now(2));
        let first = clock::after(Now(1), AHEAD_TIME);
        assert_eq!(ahead.due(), Some(first));
        assert_eq!((ahead.next_due(Now(0)), ahead.next_due(first)), (None, Some(ClientId(2))));
        ahead.clear(ClientId(2), &mut other);
        assert_eq!(ahead.due(), Some(clock::after(Now(2), AHEAD_TIME)));
        ahead.clear(ClientId(1), &mut one);
        assert_eq!(ahead.due(), None);
    }
}
