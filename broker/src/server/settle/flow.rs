//! Sends answers, and bounds what clients leave unread: messages with fds per client, fds in flight
//! to all, replies that a full socket did not take. A client that does not read is served no
//! further: that is a state to wait out. Must never queue without a bound.

use crate::clients::connection::{Blocked, HelloReply, index};
use crate::limits::PENDING_REPLIES_BESIDE_PARKED;
use crate::messages::replies::{self, Welcome};
use crate::readiness::{Source, register, watch};
use crate::server::parts::Server;
use crate::{clock, kernel};
use fdbroker_core::{ClientId, RequestId};
use fdbroker_protocol::{ErrorCode, Status};
use fdbroker_scm::SendError;
use std::os::fd::AsFd;

impl Server {
    /// Sends the message in the writer, which has no fds, to the client's main socket. If that is
    /// full, or messages are kept for it, it is kept behind them: replies stay in order.
    pub(crate) fn send_written(&mut self, client: ClientId) {
        let connection = &mut self.connections[index(client)];
        let Some(socket) = connection.socket.as_ref() else { return };
        let (user, bytes) = (connection.shares_as, self.writer.written());
        if connection.pending.is_empty() && !self.calls.debts.is_away(user) {
            match self.calls.time(user, 0, || fdbroker_scm::send(socket.as_fd(), bytes, &[])) {
                Ok(()) => return,
                Err(SendError::WouldBlock) => {}
                Err(error) => {
                    log::debug!("a reply was not sent: {error}");
                    return self.end_connection(client);
                }
            }
        }
        connection.pending.push_back(bytes.to_vec());
        let parked = self.settings.core.max_parked_per_client as usize;
        if connection.pending.len() > parked + PENDING_REPLIES_BESIDE_PARKED {
            self.end_with(client, ErrorCode::Protocol.into())
        } else {
            self.block(client, Blocked::Unread)
        }
    }

    /// How many of `fds` fds, at least one, may be sent to the client in a message now; if none, it
    /// is blocked.
    pub(crate) fn room_for_fds(&mut self, client: ClientId, fds: usize) -> Result<usize, ()> {
        let connection = &mut self.connections[index(client)];
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
        let connection = &mut self.connections[index(client)];
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
        if why == Blocked::InFlight || former.is_none() {
            connection.blocked = Some(why);
        }
        if why == Blocked::InFlight {
            self.in_flight.wait(client, &mut self.connections, self.now);
        }
    }

    /// Answers hello, or keeps the answer until it can be sent.
    pub(crate) fn send_hello_reply(&mut self, client: ClientId) {
        let connection = &mut self.connections[index(client)];
        let user = connection.shares_as;
        if self.calls.debts.is_away(user) {
            return self.block(client, Blocked::Unread);
        }
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
            Ok(()) => self.in_flight.note_sent(connection, 1),
            Err(SendError::WouldBlock | SendError::TooManyRefs) => {
                connection.hello_reply = Some(reply);
                self.block(client, Blocked::InFlight);
            }
            Err(_) => self.end_connection(client),
        }
    }

    /// Answers hello. The client's event socket is to join.
    pub(super) fn welcome(&mut self, client: ClientId, request: RequestId, deposit_credits: u32) {
        let connection = &mut self.connections[index(client)];
        let Some(socket) = connection.socket() else { return };
        let (pid, uid) = (connection.pid, connection.domain.uid);
        let pidfd = kernel::peer_pidfd(socket, pid, uid, self.settings.kernel);
        let user = connection.shares_as;
        let watched = pidfd.as_ref().map_or(Ok(()), |pidfd| {
            let watch = || register(&self.poll, pidfd.as_fd(), Source::Process(index(client)));
            self.calls.time(user, 0, watch)
        });
        match watched.and_then(|()| kernel::random()) {
            Ok(secret) => {
                (connection.pidfd, connection.secret) = (pidfd, u64::from_ne_bytes(secret));
                connection.hello_reply = Some(HelloReply { request, deposit_credits });
                let until = clock::after(self.now, self.settings.handshake_timeout);
                self.connections.await_events(index(client), until);
                self.send_hello_reply(client);
            }
            Err(error) => {
                log::error!("client {} cannot be let in: {error}", client.0);
                self.reply_failed(client, request, ErrorCode::Internal.into());
                self.end_with(client, ErrorCode::Internal.into());
            }
        }
    }

    /// Answers that a request failed as a whole.
    pub(crate) fn reply_failed(&mut self, client: ClientId, request: RequestId, status: Status) {
        self.waits.end(client, request, 0, self.now, &mut self.connections);
        self.writer.failed(request.0, status);
        self.send_written(client);
    }
}
