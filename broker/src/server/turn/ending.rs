//! What is left of connections, and the end of the daemon. Must never close a socket on the loop in
//! which a client's fds may lie unread: their close may block for ever.

use crate::clients::connection::{Connection, Phase, client_id};
use crate::fds::jobs::Report;
use crate::fds::table::Retiring;
use crate::node::listeners::Listener;
use crate::server::parts::Server;
use fdbroker_core::DomainKey;
use fdbroker_protocol::message::GoingAway;
use fdbroker_protocol::{Kind, LogTopic};
use fdbroker_scm::RecvError;
use mio::unix::SourceFd;
use nix::sys::socket::{Shutdown, shutdown};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

impl Server {
    /// Something has been read from the socket of an ended client, or it is closed.
    pub(super) fn note_ahead(&mut self, number: usize) {
        if self.connections.get(number).is_some_and(|it| it.phase == Phase::Gone) {
            self.close_ahead(client_id(number));
        }
    }

    /// Ends the lingering of a connection whose peer has read what was left in its socket, or has
    /// closed it.
    pub(super) fn finish_if_read(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if !self.in_flight.forget_if_read(connection) {
            return;
        }
        let uid = connection.domain.uid;
        if let Some(socket) = connection.lingering.take() {
            self.retire(index, socket, Report::Retired(index, uid), false);
        }
    }

    /// The socket of this report is closed.
    pub(super) fn note_closed_socket(&mut self, report: Report) {
        let (Report::Retired(number, _) | Report::RetiredEvent(number, _)) = report else { return };
        let connection = &mut self.connections[number];
        connection.retiring -= 1;
        if connection.is_forgotten && !connection.has_sockets_left() {
            self.remove_record(number);
        }
    }

    /// Closes the sockets of ended connections: here when nothing is left in them, else where it
    /// may take its time.
    pub(super) fn retire_sockets(&mut self, most: usize) {
        for _ in 0..most {
            let Some(retiring) = self.fds.next_retiring() else { return };
            let Retiring { socket, uid, user, report, is_at_end } = retiring;
            // While a lane has a duplicate, a close here does not end its watch: events would name
            // the next client of this number. A socket that was turned away is not registered.
            let _ = self.poll.registry().deregister(&mut SourceFd(&socket.as_raw_fd()));
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

    /// Whether the socket is empty now. Messages with fds stay in it: it is to be closed with them.
    fn is_read_to_end(&mut self, socket: &OwnedFd, uid: u32, user: DomainKey) -> bool {
        for _ in 0..MESSAGES_TO_END {
            if self.calls.debts.has_owed(user) || fdbroker_scm::is_control_next(socket.as_fd()) {
                return false;
            }
            match self.calls.time(user, 0, || self.inbox.recv(socket.as_fd())) {
                Ok(_) | Err(RecvError::EmptyMessage) if self.inbox.fds().is_empty() => {}
                // A lane that empties the same socket has taken the message that was peeked at.
                // This is the message behind it.
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
    pub(super) fn say_goodbye(&mut self) {
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
        self.connections.lobby.callers().values().for_each(|caller| shut_down(&caller.socket));
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

/// Messages read from a socket that is to be closed, in search of its end. A lane closes a socket
/// with more in it.
const MESSAGES_TO_END: usize = 16;
