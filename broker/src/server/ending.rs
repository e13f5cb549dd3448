//! Ends connections and the daemon. Must never close a socket on the loop in which a client's fds
//! may lie unread: their close may block for ever.

use crate::clients::connection::{Phase, index};
use crate::fds::table::Reading;
use crate::readiness::Source;
use crate::readiness::watch;
use crate::server::parts::{Retiring, Server};
use fdbroker_core::ClientId;
use fdbroker_protocol::message::GoingAway;
use fdbroker_protocol::{Kind, Status};
use fdbroker_scm::RecvError;
use mio::Poll;
use mio::unix::SourceFd;
use nix::sys::socket::{Shutdown, shutdown};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Messages read from a socket that is to be closed, in search of its end; with more in it, it goes
/// to the refused closer.
const MESSAGES_TO_END: usize = 16;

/// Messages that a socket can have in it: the kernel takes no more than net.unix.max_dgram_qlen, or
/// than fit the sender's buffer (212,992 bytes, some 770 each at least).
const MESSAGES_IN_A_SOCKET: usize = 1024;

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
        if let (Phase::Silent, Some(socket)) = (connection.phase, connection.socket()) {
            // Best effort: it is leaving.
            let _ = fdbroker_scm::send(socket, self.writer.failed(0, status), &[]);
        }
        self.end_connection(client);
    }

    /// Takes the connection's sockets away; its record stays until the core has forgotten the
    /// client.
    pub(crate) fn end_connection(&mut self, client: ClientId) {
        let Some(connection) = self.connections.get_mut(index(client)) else { return };
        if connection.phase == Phase::Gone {
            return;
        }
        if std::mem::replace(&mut connection.phase, Phase::Gone) == Phase::Silent {
            self.lobby.leave(connection.domain);
        }
        let uid = connection.domain.uid;
        let is_read = connection.unread.fds == 0 || self.in_flight.forget_if_read(connection);
        let is_at_end = connection.is_main_at_end;
        if let Some(socket) = connection.socket.take() {
            match is_read {
                true => self.retiring.push(Retiring { socket, uid, is_at_end }),
                false => {
                    let socket = linger(&self.poll, client, socket);
                    self.empty(&socket, uid);
                    self.connections[index(client)].lingering = Some(socket);
                }
            }
        }
        let Some(connection) = self.connections.get_mut(index(client)) else { return };
        let event = connection.event.take();
        self.retiring.extend(event.map(|socket| Retiring { socket, uid, is_at_end: false }));
        connection.pidfd = None;
        connection.hello_reply = None;
        connection.pending.clear();
        connection.pending_event = None;
        connection.blocked = None;
        connection.is_main_ready = false;
        connection.is_event_ready = false;
        connection.has_died = false;
        self.feedback.note_gone(client);
    }

    /// Ends the lingering of a connection whose peer has read what was left in its socket, or has
    /// closed it.
    pub(crate) fn finish_if_read(&mut self, index: usize) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        if !self.in_flight.forget_if_read(connection) {
            return;
        }
        let uid = connection.domain.uid;
        let socket = connection.lingering.take();
        self.retiring.extend(socket.map(|socket| Retiring { socket, uid, is_at_end: false }));
        if connection.is_forgotten {
            self.remove_record(index);
        }
    }

    /// Closes the sockets of ended connections: here when nothing is left in them, else where it
    /// may take its time.
    pub(crate) fn retire_sockets(&mut self, most: usize) {
        for _ in 0..most {
            let Some(Retiring { socket, uid, is_at_end }) = self.retiring.pop() else { return };
            if is_at_end {
                continue;
            }
            // From here on the peer can add nothing.
            let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
            if !self.read_to_end(&socket, uid) {
                let fd = socket.as_raw_fd();
                let _ = self.poll.registry().deregister(&mut SourceFd(&fd));
                self.fds.refuse(socket, uid);
            }
        }
    }

    /// Takes out what the peer has sent: a socket that lingers may have the peer's own end in it, and
    /// then nobody else could ever close that.
    fn empty(&mut self, socket: &OwnedFd, uid: u32) {
        for _ in 0..MESSAGES_IN_A_SOCKET {
            // With too many of its fds on their way to the closers, the kernel drops the others.
            let takes_fds = self.fds.reading(uid) == Reading::Free;
            let result = self.inbox.recv_rest(socket, takes_fds);
            if !self.inbox.fds().is_empty() {
                // There may be a message at hand whose fds are not claimed yet: these are not its.
                self.fds.refuse_all(self.inbox.fds(), uid);
            }
            if !matches!(result, Ok(_) | Err(RecvError::EmptyMessage)) {
                return;
            }
        }
    }

    /// Whether the socket is empty now; what was in it is in the refused closer.
    fn read_to_end(&mut self, socket: &OwnedFd, uid: u32) -> bool {
        // With too many of its fds on their way to the closers, the kernel drops what is left:
        // nothing more may pile up.
        let is_reading_fds = self.fds.reading(uid) == Reading::Free;
        for _ in 0..MESSAGES_TO_END {
            if fdbroker_scm::is_control_next(socket.as_fd()) {
                // Nothing of it comes into the table: it goes with the socket.
                return false;
            }
            let result = self.inbox.recv_rest(socket, true);
            if !self.inbox.fds().is_empty() {
                // There may be more in it than the table has room for: the rest goes with the
                // socket.
                self.fds.begin_message(self.inbox.fds(), uid);
                self.fds.refuse_rest(uid);
                return false;
            }
            match result {
                Ok(_) | Err(RecvError::EmptyMessage) => {}
                Err(RecvError::Eof) => return true,
                Err(_) => break,
            }
        }
        !is_reading_fds
    }

    /// Tells every client that the broker ends. Best effort: their next call finds out anyway.
    pub(crate) fn say_goodbye(&mut self) {
        let body = GoingAway { reason: 1.into(), reserved: 0.into() };
        self.writer.start(Kind::GoingAway, 0).push(&body);
        let bytes = self.writer.finish(0, 0);
        for (_, connection) in &self.connections {
            if let Some(event) = connection.event() {
                let _ = fdbroker_scm::send(event, bytes, &[]);
            }
        }
        self.fds.flush();
    }
}

/// Prepares the socket of an ended connection for being kept until what lies in it has been read. The
/// peer reads it, then the end.
fn linger(poll: &Poll, client: ClientId, socket: OwnedFd) -> OwnedFd {
    let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
    if let Err(error) = watch(poll, socket.as_fd(), Source::Main(index(client)), true) {
        // It is looked at again whenever room in flight is short.
        log::error!("cannot watch an ended connection: {error}");
    }
    socket
}
