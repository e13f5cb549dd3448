//! Clients that wait go on: those that did not read, those that others had no room for, those with
//! events to come. Must never try more of them at once than its bounds say.

use crate::clients::connection::{Blocked, index};
use crate::limits::{EVENT_TURNS_PER_CHORE, EVENTS_PER_TURN, GRANT_IN_TURN, RESUMED_PER_SWEEP};
use crate::messages::replies;
use crate::readiness::{Source, watch};
use crate::server::parts::Server;
use fdbroker_core::{ClientId, Events, Input};
use fdbroker_protocol::{ErrorCode, MAX_BATCH};
use fdbroker_scm::SendError;
use std::os::fd::AsFd;

impl Server {
    /// Tries to go on with a blocked client: sends what is kept, and serves it again if it has
    /// read.
    pub(super) fn retry(&mut self, client: ClientId) {
        if !self.flush_pending(client) {
            return self.settle_queues();
        }
        let connection = &mut self.connections[index(client)];
        if self.calls.debts.is_away(connection.shares_as) || !self.in_flight.may_send(connection) {
            return;
        }
        let is_in_flight_full = self.in_flight.room(connection, 1) == 0;
        let Some(socket) = connection.socket.as_ref() else { return };
        if connection.blocked == Some(Blocked::InFlight) && is_in_flight_full {
            return;
        }
        if let Err(error) = watch(&self.poll, socket.as_fd(), Source::Main(index(client)), false) {
            log::error!("cannot watch client {}: {error}", client.0);
            return self.disconnect(client, ErrorCode::Internal.into());
        }
        connection.blocked = None;
        self.feedback.note_sendable(client, true);
        self.connections.enqueue(client);
        self.settle_queues();
    }

    /// Sends what was kept. `false`: not all of it, or the client is lost.
    fn flush_pending(&mut self, client: ClientId) -> bool {
        let connection = &self.connections[index(client)];
        if connection.hello_reply.is_some() {
            self.send_hello_reply(client);
        }
        let connection = &mut self.connections[index(client)];
        if connection.hello_reply.is_some() {
            return false;
        }
        let user = connection.shares_as;
        while let Some(bytes) = connection.pending.front() {
            let Some(socket) = connection.socket.as_ref() else { return false };
            if self.calls.debts.is_away(user) {
                return false;
            }
            match self.calls.time(user, 0, || fdbroker_scm::send(socket.as_fd(), bytes, &[])) {
                Ok(()) => drop(connection.pending.pop_front()),
                Err(SendError::WouldBlock) => return false,
                Err(_) => {
                    self.end_connection(client);
                    return false;
                }
            }
        }
        true
    }

    /// Looks whether fds in flight have been read, when somebody waits for that and its time has
    /// come.
    pub(super) fn sweep_in_flight(&mut self) {
        let Some(most) = self.in_flight.begin_sweep(self.now) else { return };
        self.in_flight.look(&mut self.connections, self.now);
        let mut resumed = 0;
        for _ in 0..most {
            let Some(client) = self.in_flight.next_waiting(&mut self.connections) else { break };
            if !self.waits_for_others(client) {
                continue;
            }
            self.retry(client);
            if self.waits_for_others(client) {
                self.in_flight.wait(client, &mut self.connections, self.now)
            } else {
                resumed += 1
            }
            if resumed == RESUMED_PER_SWEEP {
                break;
            }
        }
        self.in_flight.end_sweep(self.now);
    }

    /// Whether the client waits until others have read.
    fn waits_for_others(&self, client: ClientId) -> bool {
        self.connections[index(client)].blocked == Some(Blocked::InFlight)
    }

    /// Tells the core how many fds a grant may have, when that has changed: a whole message of them
    /// takes long when others wait for their turns.
    pub(super) fn tell_most_granted(&mut self) {
        let in_turn =
            if self.connections.turns().has_several() { GRANT_IN_TURN } else { MAX_BATCH };
        if let Some(fds) = self.in_flight.change_most_granted(in_turn) {
            self.step(Input::MostGranted { fds });
        }
    }

    /// Sends the events of each client that has some, one turn each.
    pub(super) fn send_events(&mut self) {
        for _ in 0..self.connections.eventful().min(EVENT_TURNS_PER_CHORE) {
            let Some(client) = self.connections.next_eventful() else { break };
            self.send_events_to(client);
            let connection = &self.connections[index(client)];
            let is_ready = connection.event.is_some() && connection.pending_event.is_none();
            let is_away = self.calls.debts.is_away(connection.shares_as);
            if connection.has_events && is_ready && !is_away {
                self.connections.note_events(client);
            }
        }
        self.settle_queues();
    }

    fn send_events_to(&mut self, client: ClientId) {
        for _ in 0..EVENTS_PER_TURN {
            let connection = &mut self.connections[index(client)];
            // Told when its socket joins.
            let Some(socket) = connection.event.as_ref() else { return };
            let user = connection.shares_as;
            if connection.pending_event.is_some() || self.calls.debts.is_away(user) {
                return;
            }
            let bytes = if connection.refused.is_empty() {
                let Some(events) = self.core.take_events(client) else {
                    connection.has_events = false;
                    return;
                };
                if let Events::Drained(items) = &events {
                    // The next broker is to know that nobody has a lease of them.
                    let page = self.node.page();
                    items.iter().for_each(|item| page.note_drained(item.id, &self.core));
                }
                replies::write_events(&mut self.writer, &events)
            } else {
                replies::write_refused(&mut self.writer, connection.refused.drain(..))
            };
            match self.calls.time(user, 0, || fdbroker_scm::send(socket.as_fd(), bytes, &[])) {
                Ok(()) => {}
                Err(SendError::WouldBlock) => {
                    let source = Source::Event(index(client));
                    let watched = watch(&self.poll, socket.as_fd(), source, true);
                    connection.pending_event = Some(bytes.to_vec());
                    if let Err(error) = watched {
                        log::error!("cannot watch client {}: {error}", client.0);
                        self.end_with(client, ErrorCode::Internal.into());
                    }
                    return;
                }
                Err(_) => return self.end_connection(client),
            }
        }
    }

    /// The event socket takes messages again.
    pub(super) fn flush_event(&mut self, client: ClientId) {
        let connection = &mut self.connections[index(client)];
        let Some(socket) = connection.event.as_ref() else { return };
        let user = connection.shares_as;
        if self.calls.debts.is_away(user) {
            return;
        }
        let Some(bytes) = connection.pending_event.take() else { return };
        match self.calls.time(user, 0, || fdbroker_scm::send(socket.as_fd(), &bytes, &[])) {
            Ok(()) => {
                let source = Source::Event(index(client));
                if let Err(error) = watch(&self.poll, socket.as_fd(), source, false) {
                    log::error!("cannot watch client {}: {error}", client.0);
                    return self.disconnect(client, ErrorCode::Internal.into());
                }
                if connection.has_events {
                    self.connections.note_events(client);
                }
            }
            Err(SendError::WouldBlock) => connection.pending_event = Some(bytes),
            Err(_) => self.lose(client),
        }
    }
}
