//! New connections: who may have one, and the time it has for its hello. Must never spin when there
//! is no room, nor let one uid take all of it.

use crate::clients::connection::{Connection, Phase, client_id};
use crate::kernel;
use crate::limits::{ACCEPT_RETRY, ACCEPTS_PER_CHORE, EXPIRIES_PER_WAKE, PEER_GROUPS, TRIM_PAUSE};
use crate::readiness::Source;
use crate::readiness::register;
use crate::server::parts::{Handshake, Retiring, Server};
use fdbroker_core::{DomainKey, Input, NO_GROUP, Now, Peer};
use fdbroker_protocol::{ErrorCode, Resource, Scope, Status};
use nix::errno::Errno;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

impl Server {
    /// Accepts what waits, up to this wake's share.
    pub(crate) fn accept_clients(&mut self) {
        if self.accept_paused_until.is_some_and(|until| until > self.now) {
            return;
        }
        if self.accept_paused_until.take().is_some() {
            self.admin.retry_accept();
        }
        for number in 0..self.listeners.len() {
            if self.listeners[number].is_ready {
                self.accept_from(number);
            }
        }
    }

    fn accept_from(&mut self, number: usize) {
        for _ in 0..ACCEPTS_PER_CHORE {
            let state = &mut self.listeners[number];
            match kernel::accept(state.listener.as_fd()) {
                Ok(socket) => {
                    self.is_accept_warned = false;
                    self.admit(socket, number);
                }
                Err(Errno::EAGAIN) => {
                    state.is_ready = false;
                    return;
                }
                Err(Errno::EINTR | Errno::ECONNABORTED) => {}
                Err(errno) => return self.pause_accepting(errno),
            }
        }
    }

    /// There is no room for a connection: it stays queued and readable, and is tried again after a
    /// pause or when a place is free.
    pub(crate) fn pause_accepting(&mut self, errno: Errno) {
        if !std::mem::replace(&mut self.is_accept_warned, true) {
            log::warn!(
                "there is no room for more connections: {errno}; trying every {ACCEPT_RETRY:?}"
            );
        }
        let pause = u64::try_from(ACCEPT_RETRY.as_micros()).unwrap_or(u64::MAX / 2);
        self.accept_paused_until = Some(Now(self.now.0 + pause));
    }

    fn admit(&mut self, socket: OwnedFd, number: usize) {
        let Ok(peer) = getsockopt(&socket, PeerCredentials) else { return };
        let (uid, pid) = (peer.uid(), u32::try_from(peer.pid()).unwrap_or(0));
        if let Err(status) = self.check_peer(uid) {
            self.log_bad_input(uid, pid, &format_args!("refused at connect: {status}"));
            if status.result() == Err(ErrorCode::NoQuota) {
                self.core.count_refused_connection(pid, uid, None, status);
                self.take_notes();
            }
            let bytes = self.writer.failed(0, status);
            let _ = fdbroker_scm::send(socket.as_fd(), bytes, &[]);
            self.retiring.push(Retiring { socket, uid, is_at_end: false });
            return;
        }
        let listener = u32::try_from(number).expect("at most 16 listeners");
        let domain = DomainKey { listener, uid };
        let pidfd = kernel::peer_pidfd(socket.as_fd(), pid, uid, self.settings.kernel);

        let gid = self.group(peer.gid());
        let groups = self.groups(socket.as_fd());
        self.next_serial += 1;
        let serial = self.next_serial;
        let index = self.connections.insert(Connection::new(serial, socket, domain, pid));
        *self.clients_per_uid.entry(uid).or_default() += 1;
        let client = client_id(index);
        let connection = &mut self.connections[index];
        connection.pidfd = pidfd;
        let main = connection.socket.as_ref().expect("just made").as_fd();
        let mut registered = register(&self.poll, main, Source::Main(index));
        if let Some(pidfd) = &connection.pidfd {
            registered = registered
                .and_then(|()| register(&self.poll, pidfd.as_fd(), Source::Process(index)));
        }
        let timeout = u64::try_from(self.settings.handshake_timeout.as_micros());
        let until = Now(self.now.0.saturating_add(timeout.unwrap_or(u64::MAX)));
        self.handshakes.push_back(Handshake { client, serial, until });
        self.prune_handshakes();
        let job = crate::clients::job::of_process(pid);
        let peer = Peer { domain, job, pid, gid, groups: &groups };
        self.step(Input::Connect { client, peer });
        if let Err(error) = registered {
            log::error!("cannot watch a new client: {error}");
            self.disconnect(client, ErrorCode::Internal.into());
        }
    }

    /// A group that allocations may be shared with; one that this namespace does not know is no group.
    fn group(&self, gid: u32) -> u32 {
        if self.overflow_gid == Some(gid) { NO_GROUP } else { gid }
    }

    /// The other groups of the process at the other end.
    fn groups(&self, socket: BorrowedFd<'_>) -> Vec<u32> {
        let mut groups = kernel::peer_groups(socket, PEER_GROUPS).unwrap_or_else(|error| {
            log::warn!("a client's groups beside its first do not count: {error}");
            Vec::new()
        });
        groups.retain(|gid| self.overflow_gid != Some(*gid));
        groups
    }

    fn check_peer(&self, uid: u32) -> Result<(), Status> {
        if self.overflow_uid == Some(uid) {
            // Every user that this namespace does not know has this uid: they must not share a
            // domain.
            return Err(ErrorCode::NotPermitted.into());
        }
        // Those that linger are counted here and not in the core.
        let most = self.settings.most_connections;
        if self.connections.len() >= most as usize {
            return Err(Status::no_quota(Resource::Connections, Scope::Node, most.into(), 0));
        }
        // The core counts each domain by itself, and not those that linger. A uid comes by all listeners.
        let of_uid = self.clients_per_uid.get(&uid).copied().unwrap_or(0);
        let cap = self.core.caps().domain.connections;
        if u64::from(of_uid) >= cap {
            return Err(Status::no_quota(Resource::Connections, Scope::Domain, cap, 0));
        }
        Ok(())
    }

    /// Nothing of the client is left in the core: its number is free.
    pub(crate) fn forget(&mut self, index: usize) {
        self.end_connection(client_id(index));
        match self.connections.get_mut(index) {
            Some(connection) if connection.lingering.is_some() => connection.is_forgotten = true,
            _ => self.remove_record(index),
        }
    }

    /// Frees the number of a client that nothing is left of.
    pub(crate) fn remove_record(&mut self, index: usize) {
        let Some(connection) = self.connections.try_remove(index) else { return };
        let uid = connection.domain.uid;
        let pause = u64::try_from(TRIM_PAUSE.as_micros()).unwrap_or(u64::MAX / 2);
        self.trim_at.get_or_insert(Now(self.now.0 + pause));
        if let Some(count) = self.clients_per_uid.get_mut(&uid) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.clients_per_uid.remove(&uid);
            }
        }
        // There may be a place again.
        self.accept_paused_until = self.accept_paused_until.map(|_| self.now);
    }

    /// Keeps the list in bounds when connections come and go faster than their time runs out.
    fn prune_handshakes(&mut self) {
        if self.handshakes.len() > 2 * self.settings.core.max_clients as usize {
            let mut handshakes = std::mem::take(&mut self.handshakes);
            handshakes.retain(|handshake| self.is_awaited(handshake));
            self.handshakes = handshakes;
        }
    }

    fn is_awaited(&self, handshake: &Handshake) -> bool {
        let connection = self.connections.get(handshake.client.0 as usize);
        connection.is_some_and(|connection| {
            connection.serial == handshake.serial
                && (connection.phase == Phase::Silent || connection.hello_reply.is_some())
        })
    }

    /// Disconnects clients that have not said hello in time.
    pub(crate) fn expire_handshakes(&mut self) {
        for _ in 0..EXPIRIES_PER_WAKE {
            let Some(handshake) = self.handshakes.front() else { return };
            let client = handshake.client;
            let is_waiting = self.is_awaited(handshake);
            if is_waiting && handshake.until > self.now {
                return;
            }
            self.handshakes.pop_front();
            if is_waiting {
                self.log_bad_client(client, &"no hello in time");
                self.disconnect(client, ErrorCode::Protocol.into());
            }
        }
    }
}
