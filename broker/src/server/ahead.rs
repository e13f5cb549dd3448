//! Fds that are fetched ahead: sends them into the client's socket for them, and takes back what the client has not read when its
//! time is over or its memory has ended. Must never read an fd back that is not the broker's own, nor close one on the loop.

use crate::clients::ahead::AheadSocket;
use crate::clients::connection::{client_id, index};
use crate::clock;
use crate::fds::closing::Reading;
use crate::limits::{AHEAD_TIME, LEAST_UNREAD_BYTES};
use crate::messages::replies;
use crate::server::apply::send_slots;
use crate::server::parts::Server;
use fdbroker_core::{ClientId, Granted, Input, LeaseId, RequestId};
use fdbroker_protocol::codec::Message;
use fdbroker_protocol::limits::AHEAD_FDS;
use fdbroker_protocol::{ErrorCode, Kind};
use std::os::fd::AsFd;

impl Server {
    /// Answers a request for a socket. One that the client has already is replaced.
    pub(crate) fn open_ahead(&mut self, client: ClientId, length: usize) {
        let Some(request) = self.empty_request(client, length) else { return };
        self.end_ahead(client);
        if let Err(code) = self.send_ahead_socket(client, request) {
            self.reply_failed(client, request, code.into());
            self.settle_queues();
        }
    }

    fn send_ahead_socket(&mut self, client: ClientId, request: RequestId) -> Result<(), ErrorCode> {
        if !self.ahead.is_possible() {
            return Err(ErrorCode::NotSupported);
        }
        let Some(connection) = self.connections.get_mut(index(client)) else { return Ok(()) };
        let Some(socket) = connection.socket.as_ref() else { return Ok(()) };
        let socket = socket.as_fd();
        if !self.ahead.has_room(connection.shares_as) || !connection.pending.is_empty() {
            return Err(ErrorCode::Again);
        }
        let (ahead, client_end) = AheadSocket::new().map_err(|_| ErrorCode::Again)?;
        let bytes = self.writer.start(Kind::AheadSocketReply, request.0).finish(0, 1);
        let sent = fdbroker_scm::send_grant(socket, bytes, &[client_end.as_fd()]);
        sent.map_err(|_| ErrorCode::Again)?;
        self.in_flight.note_sent(connection, 1);
        self.ahead.open(connection.shares_as);
        connection.ahead = Some(Box::new(ahead));
        Ok(())
    }

    /// Whether the client can be sent fds ahead: it has a socket for them, and has read what was sent before.
    pub(crate) fn may_fetch(&mut self, client: ClientId) -> bool {
        let Some(connection) = self.connections.get_mut(index(client)) else { return false };
        let Some(ahead) = connection.ahead.as_mut() else { return false };
        let unread = fdbroker_scm::unread_bytes(ahead.ours.as_fd());
        let is_read = unread.is_ok_and(|bytes| bytes < LEAST_UNREAD_BYTES);
        if is_read {
            self.ahead.clear(client, ahead);
        }
        is_read && connection.blocked.is_none()
    }

    /// Sends what the core grants ahead, one message each. What cannot be sent is given back.
    pub(crate) fn send_ahead(&mut self, client: ClientId, grants: &[Granted]) {
        let sent = self.send_each_ahead(client, grants);
        if sent < grants.len() {
            let leases = grants[sent..].iter().map(|grant| grant.lease).collect();
            self.feedback.note_cut(client, leases);
        }
        if sent > 0 && self.admin.is_watched() {
            self.note_grants(client, &grants[..sent]);
        }
    }

    fn send_each_ahead(&mut self, client: ClientId, grants: &[Granted]) -> usize {
        let Some(connection) = self.connections.get_mut(index(client)) else { return 0 };
        let Some(ahead) = connection.ahead.as_mut() else { return 0 };
        let core = &self.core;
        let data = |id| core.driver_data(id).map(|(length, bytes)| (length, *bytes));
        for grant in grants {
            let bytes = replies::write_granted(
                &mut self.writer,
                RequestId(0),
                std::slice::from_ref(grant),
                &mut self.scratch.slots,
                data,
            );
            let slots = &self.scratch.slots;
            if let Err(error) = send_slots(ahead.ours.as_fd(), bytes, slots, &self.fds) {
                log::debug!("client {} is sent no more fds ahead: {error}", client.0);
                break;
            }
            ahead.sent.extend(grant.wanted);
        }
        let sent = ahead.sent.len();
        if sent > 0 {
            self.ahead.note_sent(client, ahead, self.now);
        }
        sent
    }

    /// Takes back what one client has not read in time.
    pub(crate) fn take_back_due(&mut self) {
        let Some(client) = self.ahead.next_due(self.now) else { return };
        let Some(connection) = self.connections.get_mut(index(client)) else { return };
        let Some(ahead) = connection.ahead.as_mut() else { return };
        let later = match self.fds.reading(connection.domain.uid) {
            Reading::Free => return self.take_back(client),
            // Closes of the user hang: more of them would take the places of others.
            Reading::Wait(until) if until > self.now => until,
            _ => clock::after(self.now, AHEAD_TIME),
        };
        self.ahead.set_due(client, ahead, later);
    }

    /// The client is about to be told that memory has ended: if it has an fd of it unread, that is taken back.
    pub(crate) fn take_back_ended(&mut self, client: ClientId) {
        let Some(connection) = self.connections.get(index(client)) else { return };
        let Some(ahead) = connection.ahead.as_ref() else { return };
        let has_ended = ahead.sent.iter().any(|id| !self.core.is_live(*id));
        if has_ended && self.fds.reading(connection.domain.uid) == Reading::Free {
            self.take_back(client);
        }
    }

    /// Takes back all that a client has not read.
    fn take_back(&mut self, client: ClientId) {
        let Some(connection) = self.connections.get_mut(index(client)) else { return };
        let Some(ahead) = connection.ahead.as_mut() else { return };
        self.ahead.clear(client, ahead);
        let mut leases = Vec::new();
        for _ in 0..AHEAD_FDS {
            let Ok(received) = self.inbox.recv(ahead.theirs.as_fd()) else { break };
            self.fds.take_back(self.inbox.fds(), connection.domain.uid);
            leases.extend(lease_in(self.inbox.bytes(received.len)));
        }
        if !leases.is_empty() {
            self.step(Input::Release { client, request: None, leases: &leases });
        }
    }

    /// Takes back all that a client has not read, and closes its socket.
    fn end_ahead(&mut self, client: ClientId) {
        self.take_back(client);
        self.close_ahead(client);
    }

    /// Closes the socket of a client that is served no more. A lane takes out what lies in it.
    pub(crate) fn close_ahead(&mut self, client: ClientId) {
        let Some(connection) = self.connections.get_mut(index(client)) else { return };
        let Some(mut ahead) = connection.ahead.take() else { return };
        self.ahead.close(connection.shares_as, client, &mut ahead);
        let AheadSocket { ours, theirs, .. } = *ahead;
        // First: then nothing comes behind what is taken out. Nothing can lie in it.
        drop(ours);
        if fdbroker_scm::queued_bytes(theirs.as_fd()).is_ok_and(|bytes| bytes == 0) {
            return;
        }
        self.fds.empty(theirs, connection.domain.uid);
    }

    /// Takes everything back, and closes all sockets: a successor has none of them.
    pub(crate) fn end_all_ahead(&mut self) {
        let with_ahead = self.connections.iter().filter(|(_, it)| it.ahead.is_some());
        let numbers: Vec<usize> = with_ahead.map(|(number, _)| number).collect();
        for number in numbers {
            self.end_ahead(client_id(number));
        }
    }
}

/// The lease in a message that the broker has sent ahead.
fn lease_in(bytes: &[u8]) -> Option<LeaseId> {
    let message = Message::parse(bytes).ok()?;
    let (items, _) = message.grants().ok()?;
    Some(LeaseId(items.first()?.lease.get()))
}
