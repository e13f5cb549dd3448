//! Ends connections and the daemon. Must never close a socket on the loop in which a client's fds
//! may lie unread: their close may block for ever.

use crate::clients::connection::{Connection, Phase, index};
use crate::fds::jobs::Report;
use crate::fds::table::Retiring;
use crate::node::listeners::Listener;
use crate::readiness::Source;
use crate::readiness::watch;
use crate::server::parts::Server;
use fdbroker_core::{ClientId, DomainKey};
use fdbroker_protocol::message::GoingAway;
use fdbroker_protocol::{Kind, LogTopic, Status};
use fdbroker_scm::RecvError;
use mio::Poll;
use mio::unix::SourceFd;
use nix::sys::socket::{Shutdown, shutdown};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Messages read from a socket that is to be closed, in search of its end. A lane closes a socket with more in it.
const MESSAGES_TO_END: usize = 16;

impl Server {
    /// The client's process or socket has ended, or it is to end at once.
    pub(crate) fn lose(&mut self, client: ClientId) {
        self.end_connection(client);
        self.settle_queues();
    }

    /// Ends a connection and says why, if the client has been told nothing yet.
    pub(crate) fn disconnect(&mut self, client: ClientId, status: Status) {
        self.end_with(client, status);
        self.settle_queues();
    }

    /// Ends a connection while effects are applied: the core hears of the end afterwards.
    pub(crate) fn end_with(&mut self, client: ClientId, status: Status) {
        let Some(connection) = self.connections.get(index(client)) else { return };
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
        let Some(connection) = self.connections.get_mut(number) else { return };
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
        let Some(connection) = self.connections.get_mut(number) else { return };
        connection.pidfd = None;
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

    /// Ends the lingering of a connection whose peer has read what was left in its socket, or has
    /// closed it.
    pub(crate) fn finish_if_read(&mut self, index: usize) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        if !self.in_flight.forget_if_read(connection) {
            return;
        }
        let uid = connection.domain.uid;
        if let Some(socket) = connection.lingering.take() {
            self.retire(index, socket, Report::Retired(index, uid), false);
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
        let Some(connection) = self.connections.get_mut(number) else { return };
        connection.retiring += 1;
        if connection.lingering.is_none() {
            // Nobody will tell from now on when the peer has read the rest.
            self.in_flight.forget_unread(connection);
        }
        let (uid, user) = (connection.domain.uid, connection.shares_as);
        self.fds.retire(Retiring { socket, uid, user, report, is_at_end });
    }

    /// The socket of this report is closed.
    pub(crate) fn note_closed_socket(&mut self, report: Report) {
        let (Report::Retired(number, _) | Report::RetiredEvent(number, _)) = report else { return };
        let Some(connection) = self.connections.get_mut(number) else { return };
        connection.retiring -= 1;
        if connection.is_forgotten && !connection.has_sockets_left() {
            self.remove_record(number);
        }
    }

    /// Closes the sockets of ended connections: here when nothing is left in them, else where it
    /// may take its time.
    pub(crate) fn retire_sockets(&mut self, most: usize) {
        for _ in 0..most {
            let Some(retiring) = self.fds.next_retiring() else { return };
            let Retiring { socket, uid, user, report, is_at_end } = retiring;
            if !self.calls.debts.has_owed(user) {
                // From here on the peer can add nothing.
                let end = || shutdown(socket.as_raw_fd(), Shutdown::Both);
                let _ = self.calls.time(user, 0, end);
                if is_at_end || self.is_read_to_end(&socket, uid, user) {
                    self.calls.time(user, 0, || drop(socket));
                    self.note_closed_socket(report);
                    continue;
                }
            }
            let fd = socket.as_raw_fd();
            // A socket that was turned away is not registered.
            let _ = self.poll.registry().deregister(&mut SourceFd(&fd));
            self.fds.close_socket(socket, uid, report);
            let is_full =
                matches!(report, Report::TurnedAway(_)) && !self.fds.closing().may_turn_away();
            if is_full && self.journal.allows(LogTopic::BadInput, uid, self.now) {
                log::warn!(
                    "no connection is accepted until sockets with fds in them that were turned away, of uid {uid} and \
                     maybe others, are closed"
                );
            }
        }
    }

    /// Has a lane take out what the peer has sent: a socket that lingers may have the peer's own end in it, and
    /// then nobody else could ever close that. `false`: there is no place for it.
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

    /// Whether the socket is empty now. Messages with fds stay in it: it is to be closed with them.
    fn is_read_to_end(&mut self, socket: &OwnedFd, uid: u32, user: DomainKey) -> bool {
        for _ in 0..MESSAGES_TO_END {
            if self.calls.debts.has_owed(user) || fdbroker_scm::is_control_next(socket.as_fd()) {
                return false;
            }
            match self.calls.time(user, 0, || self.inbox.recv(socket.as_fd())) {
                Ok(_) | Err(RecvError::EmptyMessage) if self.inbox.fds().is_empty() => {}
                // A lane that empties the same socket has taken the message that was peeked at. This is the message behind it.
                Ok(_) | Err(RecvError::EmptyMessage) => {
                    self.fds.begin_message(self.inbox.fds(), uid);
                    self.fds.refuse_rest(uid);
                    return false;
                }
                Err(RecvError::Eof) => return true,
                Err(_) => return false,
            }
        }
        false
    }

    /// Tells every client that the broker ends, and ends their connections: a lane that hangs may
    /// keep the sockets open. Best effort: their next call finds out anyway. Never of a broker
    /// whose sockets another one has.
    pub(crate) fn say_goodbye(&mut self) {
        let body = GoingAway { reason: 1.into(), reserved: 0.into() };
        self.writer.start(Kind::GoingAway, 0).push(&body);
        let bytes = self.writer.finish(0, 0);
        for (_, connection) in &self.connections {
            let is_away = self.calls.debts.is_away(connection.shares_as);
            if let Some(event) = connection.event().filter(|_| !is_away) {
                let _ = fdbroker_scm::send(event, bytes, &[]);
            }
            let Connection { socket, lingering, event, ahead, .. } = connection;
            [socket, lingering, event, ahead].into_iter().flatten().for_each(shut_down);
        }
        self.connections.lobby().callers().values().for_each(|caller| shut_down(&caller.socket));
        self.admin.shut_down();
    }

    /// Leaves the node to another broker, and the rest to the end of the process: a close may hang
    /// for ever, and lanes end after this process, so that the last close of all is theirs.
    pub fn leave(self) {
        let Server { mut door, mut admin, connections, fds, kept, node, .. } = self;
        door.listeners_mut().chain(admin.listeners_mut()).for_each(Listener::end);
        std::mem::forget((door, admin, connections, fds, kept));
        // The liveness word and the lock.
        drop(node);
    }
}

fn shut_down(socket: &OwnedFd) {
    let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
}

/// Watches the socket of an ended connection that is kept until what lies in it has been read. The peer reads it, then the
/// end.
fn watch_end(poll: &Poll, client: ClientId, socket: BorrowedFd<'_>) {
    if let Err(error) = watch(poll, socket, Source::Main(index(client)), true) {
        // The sweep looks at it again whenever room in flight is short.
        log::error!("cannot watch an ended connection: {error}");
    }
}
