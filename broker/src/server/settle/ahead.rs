//! Fds that are fetched ahead: sends them into the client's socket for them. From then on they are
//! leases of the client, which reads them and gives them back. Must never read from the client's
//! end: a client can make that wait for ever.

use crate::clients::connection::{Phase, client_id, index};
use crate::fds::jobs::Report;
use crate::limits::LEAST_UNREAD_BYTES;
use crate::messages::replies;
use crate::readiness::{Source, register, watch};
use crate::server::parts::Server;
use crate::server::settle::apply::send_slots;
use fdbroker_core::{ClientId, Granted, RequestId};
use std::os::fd::{AsFd, OwnedFd};

impl Server {
    /// Whether the client can be sent fds ahead: it has a socket for them, and has read what was sent before.
    pub(crate) fn may_fetch(&self, client: ClientId) -> bool {
        let connection = self.connections.get(index(client));
        connection.is_some_and(|it| it.blocked.is_none() && it.ahead.as_ref().is_some_and(is_read))
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
        let connection = self.connections.get(index(client));
        let Some(connection) = connection else { return 0 };
        let user = connection.shares_as;
        let Some(ahead) = connection.ahead.as_ref() else { return 0 };
        let core = &self.core;
        let data = |id| core.driver_data(id).map(|(length, bytes)| (length, *bytes));
        for (count, grant) in grants.iter().enumerate() {
            let bytes = replies::write_granted(
                &mut self.writer,
                RequestId(0),
                std::slice::from_ref(grant),
                &mut self.scratch.slots,
                data,
            );
            let slots = &self.scratch.slots;
            if self.calls.debts.is_away(user) {
                return count;
            }
            let send = || send_slots(ahead.as_fd(), bytes, slots, &self.fds);
            if let Err(error) = self.calls.time(user, slots.len(), send) {
                log::debug!("client {} is sent no more fds ahead: {error}", client.0);
                return count;
            }
        }
        grants.len()
    }

    /// Closes the socket of a client unless fds lie in it. Those are in flight, and its place is
    /// taken, until the client reads them or closes its end.
    pub(crate) fn close_ahead(&mut self, client: ClientId) {
        let Some(connection) = self.connections.get_mut(index(client)) else { return };
        let Some(ahead) = connection.ahead.take_if(|ahead| is_read(ahead)) else { return };
        let uid = connection.domain.uid;
        self.ahead.close(connection.shares_as);
        self.retire(index(client), ahead, Report::RetiredEvent(index(client), uid), false);
    }

    /// The same for a client that has ended: its record stays until then.
    pub(crate) fn end_ahead(&mut self, client: ClientId) {
        self.close_ahead(client);
        let connection = self.connections.get(index(client));
        let Some(ahead) = connection.and_then(|it| it.ahead.as_ref()) else { return };
        let source = Source::Ahead(index(client));
        let watched = register(&self.poll, ahead.as_fd(), source)
            .and_then(|()| watch(&self.poll, ahead.as_fd(), source, true));
        if let Err(error) = watched {
            log::error!("cannot watch the socket for fds ahead of an ended connection: {error}");
        }
    }

    /// Something has been read from the socket of an ended client, or it is closed.
    pub(crate) fn note_ahead(&mut self, number: usize) {
        if self.connections.get(number).is_some_and(|it| it.phase == Phase::Gone) {
            self.close_ahead(client_id(number));
        }
    }
}

/// Whether nothing lies in the peer's end of a socket.
fn is_read(ahead: &OwnedFd) -> bool {
    fdbroker_scm::unread_bytes(ahead.as_fd()).is_ok_and(|bytes| bytes < LEAST_UNREAD_BYTES)
}
