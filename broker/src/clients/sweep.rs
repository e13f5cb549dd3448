//! Clients that wait until others have read the fds sent to them: no event tells when. Must never look at more than a
//! bounded number of them at once, nor at the same ones again and again.

use crate::clients::connection::index;
use crate::clients::connections::Connections;
use crate::clients::in_flight::InFlight;
use crate::clock;
use crate::limits::{IN_FLIGHT_LOOKS_PER_SWEEP, IN_FLIGHT_SWEEP};
use fdbroker_core::{ClientId, Now};
use std::collections::VecDeque;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// Each client once: its connection says whether it is here.
    queue: VecDeque<ClientId>,
    next: Option<Now>,
    last_look: Option<Now>,
    /// The number of the client looked at last.
    last_number: usize,
}

impl InFlight {
    /// When the next sweep is.
    pub fn due(&self) -> Option<Now> {
        self.sweep.next
    }

    /// Has the client tried again with the next sweep.
    pub fn wait(&mut self, client: ClientId, connections: &mut Connections, now: Now) {
        let Some(connection) = connections.get_mut(index(client)) else { return };
        if !std::mem::replace(&mut connection.is_in_flight_queued, true) {
            self.sweep.queue.push_back(client);
        }
        self.sweep.next.get_or_insert(clock::after(now, IN_FLIGHT_SWEEP));
    }

    /// Begins a sweep if it is time to; how many clients it may try.
    pub fn begin_sweep(&mut self, now: Now) -> Option<usize> {
        self.sweep.next.take_if(|due| *due <= now)?;
        Some(IN_FLIGHT_LOOKS_PER_SWEEP.min(self.sweep.queue.len()))
    }

    /// The next client to be tried again.
    pub fn next_waiting(&mut self, connections: &mut Connections) -> Option<ClientId> {
        let client = self.sweep.queue.pop_front()?;
        if let Some(connection) = connections.get_mut(index(client)) {
            connection.is_in_flight_queued = false;
        }
        Some(client)
    }

    /// The sweep is over: another one follows if clients are left.
    pub fn end_sweep(&mut self, now: Now) {
        if !self.sweep.queue.is_empty() {
            self.sweep.next = Some(clock::after(now, IN_FLIGHT_SWEEP));
        }
    }

    /// Asks the kernel which clients have read, at most once per sweep's time. In turn: many clients that do not read must
    /// not cost the others their time.
    pub fn look(&mut self, connections: &mut Connections, now: Now) {
        if self.sweep.last_look.is_some_and(|last| clock::after(last, IN_FLIGHT_SWEEP) > now) {
            return;
        }
        self.sweep.last_look = Some(now);
        let (last, mut looks) = (self.sweep.last_number, 0);
        for is_behind_last in [true, false] {
            for (number, connection) in &mut *connections {
                if (number > last) != is_behind_last || connection.unread.fds == 0 {
                    continue;
                }
                self.forget_if_read(connection);
                (self.sweep.last_number, looks) = (number, looks + 1);
                if looks == IN_FLIGHT_LOOKS_PER_SWEEP {
                    return;
                }
            }
        }
    }
}
