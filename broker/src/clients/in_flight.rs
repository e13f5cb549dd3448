//! Fds that lie unread in clients' sockets, and the clients that wait until others have read
//! theirs: no event tells when. Must never look at more than a bounded number of clients at once,
//! nor at the same ones again and again.

use crate::clients::connection::{Connection, index};
use crate::clients::connections::Connections;
use crate::clients::shares::Shares;
use crate::clock;
use crate::limits::{IN_FLIGHT_LOOKS_PER_SWEEP, IN_FLIGHT_SWEEP, LEAST_UNREAD_BYTES};
use fdbroker_core::{ClientId, Now};
use fdbroker_protocol::MAX_BATCH;
use std::collections::VecDeque;
use std::os::fd::AsFd;

#[derive(Debug)]
pub struct InFlight {
    shares: Shares,
    /// Fds that a grant may have, as the core knows it.
    most_granted: usize,
    /// Clients that wait, each once: its connection says whether it is here.
    waiting: VecDeque<ClientId>,
    next_sweep: Option<Now>,
    last_look: Option<Now>,
    /// The number of the client looked at last.
    last_number: usize,
}

impl InFlight {
    /// Nothing in flight, of what `shares` allow.
    pub fn new(shares: Shares) -> Self {
        InFlight {
            shares,
            most_granted: MAX_BATCH,
            waiting: VecDeque::new(),
            next_sweep: None,
            last_look: None,
            last_number: 0,
        }
    }

    /// How many of `fds` fds may be in flight to the client now, as far as is known; whether it has
    /// read those sent before is asked when that matters: a client that reads always has its share.
    pub fn room(&mut self, connection: &mut Connection, fds: usize) -> usize {
        let most = fds as u64;
        let mut room = self.shares.room(connection.shares_as, connection.unread.fds, most);
        if room < most && connection.unread.fds > 0 && self.forget_if_read(connection) {
            room = self.shares.room(connection.shares_as, 0, most);
        }
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    /// Whether the client may be sent another message with fds. Asks the kernel only when the count
    /// says no.
    pub fn may_send(&mut self, connection: &mut Connection) -> bool {
        connection.unread.has_room() || self.forget_if_read(connection)
    }

    /// The client was sent a message with so many fds.
    pub fn note_sent(&mut self, connection: &mut Connection, fds: usize) {
        self.shares.add(connection.shares_as, connection.unread.fds, fds as u64);
        connection.unread.add(fds);
    }

    /// What another broker has sent to the client is unread.
    pub fn restore(&mut self, connection: &Connection) {
        self.shares.add(connection.shares_as, 0, connection.unread.fds);
    }

    /// How many fds a grant may have from now on, at most `most`, if that has changed: the core is
    /// to hear it. What could not be sent would have to be given back item by item.
    pub fn change_most_granted(&mut self, most: usize) -> Option<usize> {
        let fds = self.shares.most_in_a_grant().min(most);
        (std::mem::replace(&mut self.most_granted, fds) != fds).then_some(fds)
    }

    /// Asks the kernel whether a client has read all; if so, nothing of it is unread any more.
    pub fn forget_if_read(&mut self, connection: &mut Connection) -> bool {
        let socket = connection.socket.as_ref().or(connection.lingering.as_ref());
        let is_read = match socket.map(|socket| fdbroker_scm::unread_bytes(socket.as_fd())) {
            // No socket, no unread message.
            None => true,
            Some(Ok(bytes)) if bytes < LEAST_UNREAD_BYTES => true,
            Some(_) => false,
        };
        if is_read {
            self.forget_unread(connection);
        }
        is_read
    }

    /// Nothing of a client is unread any more.
    pub fn forget_unread(&mut self, connection: &mut Connection) {
        self.shares.remove(connection.shares_as, std::mem::take(&mut connection.unread).fds);
    }

    /// When the next sweep is.
    pub fn due(&self) -> Option<Now> {
        self.next_sweep
    }

    /// Has the client tried again with the next sweep.
    pub fn wait(&mut self, client: ClientId, connections: &mut Connections, now: Now) {
        let connection = &mut connections[index(client)];
        if !std::mem::replace(&mut connection.is_in_flight_queued, true) {
            self.waiting.push_back(client);
        }
        self.next_sweep.get_or_insert(clock::after(now, IN_FLIGHT_SWEEP));
    }

    /// Begins a sweep if it is time to; how many clients it may try.
    pub fn begin_sweep(&mut self, now: Now) -> Option<usize> {
        self.next_sweep.take_if(|due| *due <= now)?;
        Some(IN_FLIGHT_LOOKS_PER_SWEEP.min(self.waiting.len()))
    }

    /// The next client to be tried again.
    pub fn next_waiting(&mut self, connections: &mut Connections) -> Option<ClientId> {
        loop {
            let client = self.waiting.pop_front()?;
            // One may have gone since.
            if let Some(connection) = connections.get_mut(index(client)) {
                connection.is_in_flight_queued = false;
                return Some(client);
            }
        }
    }

    /// The sweep is over: another one follows if clients are left.
    pub fn end_sweep(&mut self, now: Now) {
        if !self.waiting.is_empty() {
            self.next_sweep = Some(clock::after(now, IN_FLIGHT_SWEEP));
        }
    }

    /// Asks the kernel which clients have read, at most once per sweep's time. In turn: many
    /// clients that do not read must not cost the others their time.
    pub fn look(&mut self, connections: &mut Connections, now: Now) {
        if self.last_look.is_some_and(|last| clock::after(last, IN_FLIGHT_SWEEP) > now) {
            return;
        }
        self.last_look = Some(now);
        let (last, mut looks) = (self.last_number, 0);
        for is_behind_last in [true, false] {
            for (number, connection) in &mut *connections {
                if (number > last) != is_behind_last || connection.unread.fds == 0 {
                    continue;
                }
                self.forget_if_read(connection);
                (self.last_number, looks) = (number, looks + 1);
                if looks == IN_FLIGHT_LOOKS_PER_SWEEP {
                    return;
                }
            }
        }
    }

    /// Whether nothing is taken from the pool.
    #[cfg(test)]
    pub fn is_pool_unused(&self) -> bool {
        self.shares.is_unused()
    }
}
