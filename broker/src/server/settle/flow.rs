//! Bounds on what clients leave unread: messages with fds per client, fds in flight to all, replies
//! and events that a full socket did not take. A client that does not read is served no further;
//! that is a state to wait out. Must never queue without a bound.

use crate::clients::calls::Calls;
use crate::clients::connection::{Blocked, Connection, index};
use crate::clients::connections::Connections;
use crate::kernel::{self, is_readable};
use crate::limits::{
    EVENT_TURNS_PER_CHORE, EVENTS_PER_TURN, GRANT_IN_TURN, PENDING_REPLIES_BESIDE_PARKED,
    RESUMED_PER_SWEEP,
};
use crate::messages::replies::{self, Welcome};
use crate::readiness::Source;
use crate::readiness::watch;
use crate::server::parts::Server;
use fdbroker_core::{ClientId, Events, Input};
use fdbroker_protocol::{ErrorCode, MAX_BATCH};
use fdbroker_scm::SendError;
use std::os::fd::AsFd;

/// What became of a message without fds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The kernel has it, or nobody is there to have it.
    Done,
    /// The socket is full: it is kept.
    Kept,
    /// The peer has closed its end.
    PeerGone,
}

/// Sends a message without fds to a client's main socket.
pub(crate) fn send_to(
    connections: &mut Connections,
    calls: &mut Calls,
    client: ClientId,
    bytes: &[u8],
) -> Sent {
    connections
        .get_mut(index(client))
        .map_or(Sent::Done, |connection| send_or_keep(connection, calls, bytes))
}

/// Sends a message without fds to a connection, or keeps it behind the messages that are kept: replies stay in order.
pub(crate) fn send_or_keep(connection: &mut Connection, calls: &mut Calls, bytes: &[u8]) -> Sent {
    let Some(socket) = connection.socket.as_ref() else { return Sent::Done };
    let user = connection.shares_as;
    if connection.pending.is_empty() && !calls.debts.is_away(user) {
        match calls.time(user, 0, || fdbroker_scm::send(socket.as_fd(), bytes, &[])) {
            Ok(()) => return Sent::Done,
            Err(SendError::WouldBlock) => {}
            Err(error) => {
                log::debug!("a reply was not sent: {error}");
                return Sent::PeerGone;
            }
        }
    }
    connection.pending.push_back(bytes.to_vec());
    Sent::Kept
}

impl Server {
    /// What follows from the outcome of a send.
    pub(crate) fn after_send(&mut self, client: ClientId, sent: Sent) {
        match sent {
            Sent::Done => {}
            Sent::PeerGone => self.end_connection(client),
            Sent::Kept => {
                let most = self.settings.core.max_parked_per_client as usize
                    + PENDING_REPLIES_BESIDE_PARKED;
                let kept = self.connections.get(index(client)).map_or(0, |it| it.pending.len());
                match kept > most {
                    true => self.end_with(client, ErrorCode::Protocol.into()),
                    false => self.block(client, Blocked::Unread),
                }
            }
        }
    }

    /// Whether requests of the client may be read: it must have room for what they will bring. If
    /// not, it is blocked.
    pub(crate) fn may_read(&mut self, client: ClientId) -> bool {
        let Some(connection) = self.connections.get_mut(index(client)) else { return true };
        if self.in_flight.may_send(connection) {
            return true;
        }
        if connection.socket().is_some_and(|socket| !is_readable(socket)) {
            // It has sent nothing since: most likely it is about to read its last answer, and then sends more.
            connection.is_main_ready = false;
            return false;
        }
        self.block(client, Blocked::Unread);
        self.settle_queues();
        false
    }

    /// How many of `fds` fds, at least one, may be sent to the client in a message now; if none, it
    /// is blocked.
    pub(crate) fn room_for_fds(&mut self, client: ClientId, fds: usize) -> Result<usize, ()> {
        let Some(connection) = self.connections.get_mut(index(client)) else { return Ok(fds) };
        if connection.blocked.is_some() {
            return Err(());
        }
        let is_away = self.calls.debts.is_away(connection.shares_as);
        if is_away || !self.in_flight.may_send(connection) {
            self.block(client, Blocked::Unread);
            return Err(());
        }
        let mut room = self.in_flight.room(connection, fds);
        if room < fds {
            self.in_flight.look(&mut self.connections, self.now);
            room = self.in_flight.room(&mut self.connections[index(client)], fds);
        }
        if room == 0 {
            self.block(client, Blocked::InFlight);
            return Err(());
        }
        Ok(room)
    }

    /// Stops serving a client's requests until it has read, or others have.
    pub(crate) fn block(&mut self, client: ClientId, why: Blocked) {
        let Some(connection) = self.connections.get_mut(index(client)) else { return };
        let Some(socket) = connection.socket.as_ref() else { return };
        let former = connection.blocked;
        if former.is_none() {
            self.feedback.note_sendable(client, false);
            // A socket that is writable already is reported again by this, so nothing is missed
            // between the check and now.
            if let Err(error) = watch(&self.poll, socket.as_fd(), Source::Main(index(client)), true)
            {
                log::error!("cannot watch client {}: {error}", client.0);
                return self.end_with(client, ErrorCode::Internal.into());
            }
        }
        let Some(connection) = self.connections.get_mut(index(client)) else { return };
        if why == Blocked::InFlight || former.is_none() {
            connection.blocked = Some(why);
        }
        if why == Blocked::InFlight {
            self.in_flight.wait(client, &mut self.connections, self.now);
        }
    }

    /// Tries to go on with a blocked client: sends what is kept, and serves it again if it has
    /// read.
    pub(crate) fn retry(&mut self, client: ClientId) {
        if !self.flush_pending(client) {
            return self.settle_queues();
        }
        let Some(connection) = self.connections.get_mut(index(client)) else { return };
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
        let Some(connection) = self.connections.get_mut(index(client)) else { return false };
        if connection.hello_reply.is_some() {
            self.send_hello_reply(client);
        }
        let Some(connection) = self.connections.get_mut(index(client)) else { return false };
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
    pub(crate) fn sweep_in_flight(&mut self) {
        let Some(most) = self.in_flight.begin_sweep(self.now) else { return };
        self.in_flight.look(&mut self.connections, self.now);
        let mut resumed = 0;
        for _ in 0..most {
            let Some(client) = self.in_flight.next_waiting(&mut self.connections) else { break };
            if !self.waits_for_others(client) {
                continue;
            }
            self.retry(client);
            match self.waits_for_others(client) {
                true => self.in_flight.wait(client, &mut self.connections, self.now),
                false => resumed += 1,
            }
            if resumed == RESUMED_PER_SWEEP {
                break;
            }
        }
        self.in_flight.end_sweep(self.now);
    }

    /// Whether the client waits until others have read.
    fn waits_for_others(&self, client: ClientId) -> bool {
        let connection = self.connections.get(index(client));
        connection.is_some_and(|it| it.blocked == Some(Blocked::InFlight))
    }

    /// Tells the core how many fds a grant may have, when that has changed: a whole message of them takes long when others wait
    /// for their turns.
    pub(crate) fn tell_most_granted(&mut self) {
        let in_turn =
            if self.connections.turns().has_several() { GRANT_IN_TURN } else { MAX_BATCH };
        if let Some(fds) = self.in_flight.change_most_granted(in_turn) {
            self.step(Input::MostGranted { fds });
        }
    }

    /// Answers hello, or keeps the answer until it can be sent.
    pub(crate) fn send_hello_reply(&mut self, client: ClientId) {
        let Some(connection) = self.connections.get_mut(index(client)) else { return };
        let (who, user) = (connection.who(), connection.shares_as);
        if self.calls.debts.is_away(user) {
            return self.block(client, Blocked::Unread);
        }
        if !self.in_flight.has_room_for_hello(who) {
            self.in_flight.look(&mut self.connections, self.now);
            if !self.in_flight.has_room_for_hello(who) {
                return self.block(client, Blocked::InFlight);
            }
        }
        let Some(connection) = self.connections.get_mut(index(client)) else { return };
        let Some(socket) = connection.socket.as_ref() else { return };
        let Some(reply) = connection.hello_reply.take() else { return };
        kernel::accept_rights(socket.as_fd(), self.settings.kernel);
        let welcome = Welcome {
            now: self.now,
            client: client.0,
            request: reply.request,
            deposit_credits: reply.deposit_credits,
            secret: connection.secret,
        };
        let bytes =
            replies::write_hello_reply(&mut self.writer, &self.node, &self.settings.core, &welcome);
        let page = self.node.page().reader();
        let send = || fdbroker_scm::send_grant(socket.as_fd(), bytes, &[page]);
        match self.calls.time(user, 1, send) {
            Ok(()) => {
                self.in_flight.note_sent(connection, 1);
                self.in_flight.note_hello(connection);
            }
            Err(SendError::WouldBlock | SendError::TooManyRefs) => {
                connection.hello_reply = Some(reply);
                self.block(client, Blocked::InFlight);
            }
            Err(_) => self.end_connection(client),
        }
    }

    /// Sends the events of each client that has some, one turn each.
    pub(crate) fn send_events(&mut self) {
        for _ in 0..self.connections.eventful().min(EVENT_TURNS_PER_CHORE) {
            let Some(client) = self.connections.next_eventful() else { break };
            self.send_events_to(client);
            let Some(connection) = self.connections.get(index(client)) else { continue };
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
            let Some(connection) = self.connections.get_mut(index(client)) else { return };
            // Told when its socket joins.
            let Some(socket) = connection.event.as_ref() else { return };
            let user = connection.shares_as;
            if connection.pending_event.is_some() || self.calls.debts.is_away(user) {
                return;
            }
            let Some(events) = self.core.take_events(client) else {
                connection.has_events = false;
                return;
            };
            if let Events::Drained(items) = &events {
                // The next broker is to know that nobody has a lease of them.
                items.iter().for_each(|item| self.node.page().note_drained(item.id, &self.core));
            }
            let bytes = replies::write_events(&mut self.writer, &events);
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
    pub(crate) fn flush_event(&mut self, client: ClientId) {
        let Some(connection) = self.connections.get_mut(index(client)) else { return };
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
