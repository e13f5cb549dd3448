//! New connections: which users may have one, and how long it may wait with its hello. Must never
//! spin when there is no room, nor let one user take all of it.

use crate::clients::connection::client_id;
use crate::clients::lobby::Caller;
use crate::clock;
use crate::fds::jobs::Process;
use crate::kernel::{self, Start};
use crate::limits::{
    ACCEPTS_PER_CHORE, EXPIRIES_PER_WAKE, REFUSED_FDS_PER_UID, TURNED_AWAY_PER_CHORE, ahead_sockets,
};
use crate::readiness::{Source, register};
use crate::server::parts::Server;
use fdbroker_core::{DomainKey, Input, NO_GROUP, Part, Peer, PodKey};
use fdbroker_protocol::{ErrorCode, Resource, Scope, Status};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use std::os::fd::{AsFd, OwnedFd};

impl Server {
    /// Accepts what waits, up to this wake's share.
    pub(super) fn accept_clients(&mut self) {
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
                if socket.is_some_and(|socket| self.admit(socket, number)) {
                    accepted += 1
                } else {
                    turned_away += 1
                }
            }
        }
    }

    /// Takes a connection in; false: it was turned away at the door.
    fn admit(&mut self, socket: OwnedFd, number: usize) -> bool {
        let Ok(peer) = getsockopt(&socket, PeerCredentials) else { return false };
        let (uid, pid) = (peer.uid(), u32::try_from(peer.pid()).unwrap_or(0));
        let domain = DomainKey::new(self.settings.listeners[number].number, uid);
        if let Err(status) = self.check_peer(domain) {
            self.refuse_at_door(socket, domain, pid, status);
            return false;
        }
        let until = clock::after(self.now, self.settings.handshake_timeout);
        self.receive(Caller::new(socket, domain, pid, until));
        true
    }

    /// Keeps a caller in the lobby until its first message has come, and before that, where pods
    /// are told apart, until it is known which one is its.
    pub(super) fn receive(&mut self, caller: Caller) {
        let DomainKey { listener, pod, .. } = caller.domain;
        if pod == PodKey::NONE && self.settings.isolates_pods(listener) {
            self.look_first(caller);
        } else {
            self.connections.receive(caller);
        }
    }

    /// A lane has looked at a caller's process. It still lives, so the pid was never another's.
    pub(super) fn meet_process(&mut self, number: u64, process: Process) {
        let Some(caller) = self.connections.lobby.callers().get(&number) else { return };
        let (pid, features) = (caller.pid, self.settings.kernel);
        let pidfd = kernel::peer_pidfd(caller.socket.as_fd(), pid, caller.domain.uid, features);
        let is_there = pidfd.is_some_and(|pidfd| !kernel::is_readable(pidfd.as_fd()));
        let pod = process.pod.filter(|_| is_there);
        let is_known = pod.is_some() || (process.start != Start::default() && is_there);
        if caller.is_viewer {
            let Some(caller) = self.connections.dismiss(number) else { return };
            return self.view_from(caller, pod, is_known);
        }
        let domain = DomainKey { pod: pod.unwrap_or_default(), ..caller.domain };
        let refused = match pod {
            None => {
                let why = if is_there { process.outside } else { "it has ended" };
                self.log_bad_input(domain.uid, pid, &format_args!("in no pod: {why}"));
                Err(Status::NO_POD)
            }
            Some(_) if !self.connections.has_room_in_lobby(domain) => Err(ErrorCode::Again.into()),
            Some(_) => self.check_shut_out(domain),
        };
        match refused {
            Ok(()) => self.connections.place_caller(number, domain, process),
            Err(status) => {
                let Some(caller) = self.connections.dismiss(number) else { return };
                self.refuse_at_door(caller.socket, domain, pid, status);
            }
        }
    }

    /// Turns away a connection that can be no client.
    pub(super) fn refuse_at_door(
        &mut self,
        socket: OwnedFd,
        domain: DomainKey,
        pid: u32,
        status: Status,
    ) {
        if status.result() == Err(ErrorCode::NoQuota) {
            self.core.count_refused_connection(pid, domain, None, status);
            self.take_notes();
        } else if status != Status::NO_POD {
            self.log_bad_input(domain.uid, pid, &format_args!("refused at connect: {status}"));
        }
        self.turn_away(socket, domain, 0, status);
    }

    /// The facts about the process of connection `number` are there: the core hears of it, and what
    /// it has said is read.
    pub(super) fn take_in(&mut self, number: usize, serial: u64, process: Process) {
        let client = client_id(number);
        if self.connections.find(client, serial).is_none_or(|it| it.is_known) {
            return;
        }
        let connection = &mut self.connections[number];
        (connection.is_known, connection.start) = (true, process.start);
        let (domain, pid) = (connection.domain, connection.pid);
        let Some(socket) = &self.connections[number].socket else { return self.forget(number) };
        let registered = register(&self.poll, socket.as_fd(), Source::Main(number));
        let namespace = self.node.namespace();
        let gid = getsockopt(socket, PeerCredentials)
            .map_or(NO_GROUP, |peer| namespace.known_group(peer.gid()));
        let groups = namespace.other_groups(socket.as_fd());
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
        let used = (self.connections.len() + self.connections.lobby.callers().len()) as u64;
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
    pub(super) fn check_caps(&self, domain: DomainKey) -> Result<(), Status> {
        // The core does not count connections that linger.
        let most = self.settings.most_connections;
        if self.connections.len() >= most as usize {
            return Err(Status::no_quota(Resource::Connections, Scope::Node, most.into(), 0));
        }
        // Nor does it add up the domains of a uid, one for each listener.
        let of_uid = self.connections.of_user(domain);
        let cap = self.core.caps().domain.connections;
        if u64::from(of_uid) >= cap {
            return Err(Status::no_quota(Resource::Connections, Scope::Domain, cap, 0));
        }
        Ok(())
    }

    /// Disconnects those that have not said hello in time, and clients without an event socket.
    pub(super) fn expire_handshakes(&mut self) {
        for _ in 0..EXPIRIES_PER_WAKE {
            let Some(number) = self.connections.lobby.next_expired(self.now) else { break };
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
