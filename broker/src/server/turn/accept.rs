//! New connections: which users may have one, and how long it may wait with its hello. Must never spin when there is no
//! room, nor let one user take all of it.

use crate::clients::connection::client_id;
use crate::clients::lobby::Caller;
use crate::clock;
use crate::fds::jobs::{Process, Report};
use crate::fds::table::Retiring;
use crate::kernel;
use crate::limits::{
    ACCEPTS_PER_CHORE, EXPIRIES_PER_WAKE, PEER_GROUPS, REFUSED_FDS_PER_UID, TURNED_AWAY_PER_CHORE,
    ahead_sockets,
};
use crate::node::namespace::Namespace;
use crate::readiness::Source;
use crate::readiness::register;
use crate::server::parts::Server;
use fdbroker_core::{DomainKey, Input, NO_GROUP, Part, Peer};
use fdbroker_protocol::{ErrorCode, Resource, Scope, Status};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

impl Server {
    /// Meets callers, and accepts what waits, up to this wake's share.
    pub(crate) fn accept_clients(&mut self) {
        for _ in 0..ACCEPTS_PER_CHORE {
            if let Some(caller) = self.connections.lobby_mut().next_ready() {
                self.meet(caller);
            }
        }
        if self.door.open(self.now) {
            self.admin.retry_accept();
        }
        for number in 0..self.door.count() {
            let (mut accepted, mut turned_away) = (0, 0);
            while accepted < ACCEPTS_PER_CHORE
                && turned_away < TURNED_AWAY_PER_CHORE
                && self.door.is_ready(number)
            {
                let socket = self.door.accept(number, self.now);
                match socket.is_some_and(|socket| self.admit(socket, number)) {
                    true => accepted += 1,
                    false => turned_away += 1,
                }
            }
        }
    }

    /// Takes a connection in; false: it was turned away at the door.
    fn admit(&mut self, socket: OwnedFd, number: usize) -> bool {
        let Ok(peer) = getsockopt(&socket, PeerCredentials) else { return false };
        let (uid, pid) = (peer.uid(), u32::try_from(peer.pid()).unwrap_or(0));
        let listener = u32::try_from(number).expect("at most 16 listeners");
        let domain = DomainKey { listener, uid };
        if let Err(status) = self.check_peer(domain) {
            self.refuse_at_door(socket, domain, pid, status);
            return false;
        }
        let until = clock::after(self.now, self.settings.handshake_timeout);
        self.connections.receive(Caller::new(socket, domain, pid, until));
        true
    }

    /// Turns away a connection that can be no client.
    pub(crate) fn refuse_at_door(
        &mut self,
        socket: OwnedFd,
        domain: DomainKey,
        pid: u32,
        status: Status,
    ) {
        if status.result() == Err(ErrorCode::NoQuota) {
            self.core.count_refused_connection(pid, domain, None, status);
            self.take_notes();
        } else {
            self.log_bad_input(domain.uid, pid, &format_args!("refused at connect: {status}"));
        }
        self.turn_away(socket, domain, 0, status);
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

    /// The facts about the process of connection `number` are there: the core hears of it, and what it has said is read.
    pub(crate) fn take_in(&mut self, number: usize, serial: u64, process: Process) {
        let client = client_id(number);
        let Some(connection) = self.connections.get_mut(number) else { return };
        if connection.serial != serial || connection.is_known {
            return;
        }
        (connection.is_known, connection.start) = (true, process.start);
        let (domain, pid) = (connection.domain, connection.pid);
        let Some(socket) = &self.connections[number].socket else { return self.forget(number) };
        let registered = register(&self.poll, socket.as_fd(), Source::Main(number));
        let namespace = self.node.namespace();
        let gid = getsockopt(socket, PeerCredentials)
            .map_or(NO_GROUP, |peer| known_group(namespace, peer.gid()));
        let groups = other_groups(namespace, socket.as_fd());
        let peer = Peer { domain, job: process.job, pid, gid, groups: &groups };
        self.step(Input::Connect { client, peer });
        if let Err(error) = registered {
            log::error!("cannot watch a new client: {error}");
            self.disconnect(client, ErrorCode::Internal.into());
        }
    }

    fn check_peer(&self, domain: DomainKey) -> Result<(), Status> {
        let uid = domain.uid;
        if self.node.namespace().hides_user(uid) {
            // Every user that this namespace does not know has this uid: they must not share a
            // domain.
            return Err(ErrorCode::NotPermitted.into());
        }
        self.check_shut_out(domain)?;
        // Every socket in the lobby has a place in the table: of a connection to be, of an event
        // socket to come, or ahead.
        let most = u64::from(self.settings.most_connections);
        let joins = self.connections.joining() as u64 + ahead_sockets(self.settings.table_fds);
        let used = (self.connections.len() + self.connections.lobby().callers().len()) as u64;
        if used >= most + joins {
            return Err(Status::no_quota(Resource::Connections, Scope::Node, most, 0));
        }
        // The core does not count sockets of ended connections whose close hangs: they leave some
        // of the connections to others, too.
        let hung = self.fds.closing().sockets(uid);
        let (held, used) = (hung.into(), self.connections.len() as u64);
        let room = Part { held, used, most }.room(self.settings.core.share_factor);
        if hung >= REFUSED_FDS_PER_UID || (hung > 0 && room == 0) {
            return Err(Status::no_quota(Resource::RefusedFds, Scope::Domain, held, 0));
        }
        if !self.connections.has_room_in_lobby(domain) {
            return Err(ErrorCode::Again.into());
        }
        Ok(())
    }

    /// Whether another client of this domain may come, as far as the core does not see to it.
    pub(crate) fn check_caps(&self, domain: DomainKey) -> Result<(), Status> {
        let uid = domain.uid;
        // The core does not count connections that linger.
        let most = self.settings.most_connections;
        if self.connections.len() >= most as usize {
            return Err(Status::no_quota(Resource::Connections, Scope::Node, most.into(), 0));
        }
        // Nor does it add up the domains of a uid, one for each listener.
        let of_uid = self.connections.of_user(uid);
        let cap = self.core.caps().domain.connections;
        if u64::from(of_uid) >= cap {
            return Err(Status::no_quota(Resource::Connections, Scope::Domain, cap, 0));
        }
        Ok(())
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

    /// Disconnects those that have not said hello in time, and clients without an event socket.
    pub(crate) fn expire_handshakes(&mut self) {
        for _ in 0..EXPIRIES_PER_WAKE {
            let Some(number) = self.connections.lobby().next_expired(self.now) else { break };
            let Some(caller) = self.connections.dismiss(number) else { break };
            let (uid, pid) = (caller.domain.uid, caller.pid);
            self.log_bad_input(uid, pid, &"no hello in time");
            self.turn_away(caller.socket, caller.domain, 0, ErrorCode::Protocol.into());
        }
        for _ in 0..EXPIRIES_PER_WAKE {
            match self.connections.pop_handshake(self.now) {
                None => return,
                Some(None) => {}
                Some(Some(client)) => {
                    self.log_bad_client(client, &"no hello, or no event socket, in time");
                    self.disconnect(client, ErrorCode::Protocol.into());
                }
            }
        }
    }
}

/// A group that allocations may be shared with; one that this namespace does not know is no group.
pub(crate) fn known_group(namespace: Namespace, gid: u32) -> u32 {
    if namespace.hides_group(gid) { NO_GROUP } else { gid }
}

/// The other groups of the process at the other end.
pub(crate) fn other_groups(namespace: Namespace, socket: BorrowedFd<'_>) -> Vec<u32> {
    let mut groups = kernel::peer_groups(socket, PEER_GROUPS).unwrap_or_else(|error| {
        log::warn!("a client's groups beside its first do not count: {error}");
        Vec::new()
    });
    groups.retain(|gid| !namespace.hides_group(*gid));
    groups
}
