//! Ends connections: takes their sockets away, and has them closed later. Must never close one on
//! the loop in which a client's fds may lie unread: their close may block for ever.

use crate::clients::connection::{Phase, client_id, index};
use crate::fds::jobs::Report;
use crate::fds::table::Retiring;
use crate::limits::LEAST_UNREAD_BYTES;
use crate::readiness::{Source, register, watch};
use crate::server::parts::Server;
use fdbroker_core::{ClientId, DomainKey};
use fdbroker_protocol::{ErrorCode, Status};
use mio::Poll;
use nix::sys::socket::{Shutdown, shutdown};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

impl Server {
    /// Ends a connection while effects are applied: the core hears of the end afterwards.
    pub(crate) fn end_with(&mut self, client: ClientId, status: Status) {
        let connection = &self.connections[index(client)];
        log::debug!("disconnecting client {} (pid {}): {status}", client.0, connection.pid);
        let user = connection.shares_as;
        if let (Phase::Silent, Some(socket)) = (connection.phase, connection.socket())
            && !self.calls.debts.has_owed(user)
        {
            // Best effort: it is leaving.
            let bytes = self.writer.failed(0, status);
            let _ = self.calls.time(user, 0, || fdbroker_scm::send(socket, bytes, &[]));
        }
        self.end_connection(client);
    }

    /// Takes the connection's sockets away; its record stays until the core has forgotten the
    /// client.
    pub(crate) fn end_connection(&mut self, client: ClientId) {
        let number = index(client);
        if !self.connections.advance(number, Phase::Gone) {
            return;
        }
        let connection = &mut self.connections[number];
        let (uid, user) = (connection.domain.uid, connection.shares_as);
        let is_at_end = connection.is_main_at_end;
        let is_read = connection.unread.fds == 0 || self.in_flight.forget_if_read(connection);
        let event = connection.event.take();
        if let Some(socket) = connection.socket.take() {
            if is_read || !self.empty(&socket, uid, user) {
                self.retire(number, socket, Report::Retired(number, uid), is_at_end);
            } else {
                watch_end(&self.poll, client, socket.as_fd());
                self.connections[number].lingering = Some(socket);
            }
        }
        if let Some(event) = event {
            self.retire(number, event, Report::RetiredEvent(number, uid), false);
        }
        self.end_ahead(client);
        let connection = &mut self.connections[number];
        if let Some(pidfd) = connection.pidfd.take() {
            // Waits for who wakes all that poll the process: as many as that process likes.
            self.calls.time(user, 0, || drop(pidfd));
        }
        connection.hello_reply = None;
        connection.pending.clear();
        connection.pending_event = None;
        connection.blocked = None;
        connection.is_main_ready = false;
        connection.is_event_ready = false;
        connection.has_died = false;
        if connection.is_known {
            self.feedback.note_gone(client);
        }
    }

    /// Closes a socket of an ended connection, later. The connection stays on record until then.
    pub(crate) fn retire(
        &mut self,
        number: usize,
        socket: OwnedFd,
        report: Report,
        is_at_end: bool,
    ) {
        let connection = &mut self.connections[number];
        connection.retiring += 1;
        if connection.lingering.is_none() {
            // Nobody will tell from now on when the peer has read the rest.
            self.in_flight.forget_unread(connection);
        }
        let (uid, user) = (connection.domain.uid, connection.shares_as);
        self.fds.retire(Retiring { socket, uid, user, report, is_at_end });
    }

    /// Has a lane take out what the peer has sent: a socket that lingers may have the peer's own
    /// end in it, and then nobody else could ever close that. `false`: there is no place for it.
    fn empty(&mut self, socket: &OwnedFd, uid: u32, user: DomainKey) -> bool {
        if !self.calls.debts.has_owed(user) {
            let _ = self.calls.time(user, 0, || shutdown(socket.as_raw_fd(), Shutdown::Both));
            if !fdbroker_scm::is_control_next(socket.as_fd())
                && fdbroker_scm::queued_bytes(socket.as_fd()).is_ok_and(|bytes| bytes == 0)
            {
                return true;
            }
        }
        let duplicate = socket.try_clone();
        let is_there = duplicate.is_ok();
        duplicate.into_iter().for_each(|duplicate| self.fds.empty(duplicate, uid));
        is_there
    }

    /// Closes the socket of a client unless fds lie in it. Those are in flight, and its place is
    /// taken, until the client reads them or closes its end.
    pub(crate) fn close_ahead(&mut self, client: ClientId) {
        let connection = &mut self.connections[index(client)];
        let Some(ahead) = connection.ahead.take_if(|ahead| is_read(ahead)) else { return };
        let uid = connection.domain.uid;
        self.ahead.give_back(connection.shares_as, 1);
        self.retire(index(client), ahead, Report::RetiredEvent(index(client), uid), false);
    }

    /// The same for a client that has ended: its record stays until then.
    pub(crate) fn end_ahead(&mut self, client: ClientId) {
        self.close_ahead(client);
        let Some(ahead) = &self.connections[index(client)].ahead else { return };
        let source = Source::Ahead(index(client));
        let watched = register(&self.poll, ahead.as_fd(), source)
            .and_then(|()| watch(&self.poll, ahead.as_fd(), source, true));
        if let Err(error) = watched {
            log::error!("cannot watch the socket for fds ahead of an ended connection: {error}");
        }
    }

    /// Tells the peer of a socket why, and closes it later.
    pub(crate) fn turn_away(
        &mut self,
        socket: OwnedFd,
        domain: DomainKey,
        id: u64,
        status: Status,
    ) {
        let (uid, user) = (domain.uid, self.connections.shares_as(domain));
        if self.calls.debts.has_owed(user) {
            return self.fds.turn_away(socket, uid, status);
        }
        let bytes = self.writer.failed(id, status);
        let _ = self.calls.time(user, 0, || fdbroker_scm::send(socket.as_fd(), bytes, &[]));
        let report = Report::TurnedAway(uid);
        self.fds.retire(Retiring { socket, uid, user, report, is_at_end: false });
    }

    /// Whether the user's connections were ended for its long calls a while ago: the status says
    /// for how many seconds it gets none.
    pub(crate) fn check_shut_out(&self, domain: DomainKey) -> Result<(), Status> {
        let until = self.calls.debts.shut_out_until(self.connections.shares_as(domain));
        let left = until.map(|until| until.0.saturating_sub(self.now.0).div_ceil(1_000_000));
        left.map_or(Ok(()), |left| Err(Status::with_value(ErrorCode::NotPermitted, left)))
    }

    /// Nothing of the client is left in the core: its number is free.
    pub(crate) fn forget(&mut self, index: usize) {
        self.end_connection(client_id(index));
        match self.connections.get_mut(index) {
            Some(connection) if connection.has_sockets_left() => connection.is_forgotten = true,
            _ => self.remove_record(index),
        }
    }

    /// Frees the number of a client of which nothing is left.
    pub(crate) fn remove_record(&mut self, index: usize) {
        if self.connections.remove(index).is_some() {
            self.trim.note(self.now);
            self.door.try_again(self.now);
        }
    }
}

/// Watches the socket of an ended connection that is kept until what lies in it has been read. The
/// peer reads it, then the end.
fn watch_end(poll: &Poll, client: ClientId, socket: BorrowedFd<'_>) {
    if let Err(error) = watch(poll, socket, Source::Main(index(client)), true) {
        // The sweep looks at it again whenever room in flight is short.
        log::error!("cannot watch an ended connection: {error}");
    }
}

/// Whether nothing lies in the peer's end of a socket.
pub(crate) fn is_read(ahead: &OwnedFd) -> bool {
    fdbroker_scm::unread_bytes(ahead.as_fd()).is_ok_and(|bytes| bytes < LEAST_UNREAD_BYTES)
}
