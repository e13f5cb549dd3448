//! Serves administrators, and users that look: reads their queries, caps, acts and watches, and has
//! each answered within the rights of its connection. Must never hold up grants: one query per
//! wake, a bounded number of slots looked at for it.

use crate::admin::comer::Comer;
use crate::admin::rights::Rights;
use crate::admin::side::Turn;
use crate::clients::lobby::Caller;
use crate::limits::VIEWERS_PER_CHORE;
use crate::readiness::{Source, register};
use crate::server::parts::Server;
use crate::server::serve::acts::is_act;
use crate::{clock, kernel};
use fdbroker_core::{DomainKey, PodKey};
use fdbroker_protocol::admin::{Act, Query, SetLimit};
use fdbroker_protocol::codec::{DecodeError, Message};
use fdbroker_protocol::{ErrorCode, Kind, Status};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use std::os::fd::{AsFd, OwnedFd};

impl Server {
    /// One query of one administrator, in turn.
    pub(crate) fn serve_admins(&mut self) {
        self.accept_admins();
        self.accept_viewers();
        let (index, is_open) = match self.admin.next_turn() {
            None => (0, true),
            Some(Turn::Serve(index)) => (index, self.serve_admin(index)),
            Some(Turn::Tell(index)) => (index, self.send_events_to_watcher(index)),
        };
        if !is_open {
            self.end_admin(index);
        }
        if self.admin.is_watched() {
            self.note_watchers();
        }
    }

    fn accept_admins(&mut self) {
        loop {
            let first = self.settings.listeners[0].number;
            let index = match self.admin.accept(self.settings.kernel, first, self.now) {
                Ok(Some(index)) => index,
                Ok(None) => return,
                Err(errno) => return self.door.shut(errno, self.now),
            };
            self.begin_admin(index);
        }
    }

    /// Accepts users that look. Whoever finds no place is told AGAIN: nobody waits in the queue for
    /// a place of others.
    fn accept_viewers(&mut self) {
        for _ in 0..VIEWERS_PER_CHORE {
            if !self.fds.closing().may_turn_away() {
                return;
            }
            let (beside, socket) = match self.admin.accept_viewer() {
                Ok(Some(accepted)) => accepted,
                Ok(None) => return,
                Err(errno) => return self.door.shut(errno, self.now),
            };
            self.receive_viewer(beside, socket);
        }
    }

    /// Takes in a user that looks, once it is known in which pod it is, if that counts: in a pod
    /// nobody monitors the node, since whoever makes the pod chooses its groups.
    fn receive_viewer(&mut self, beside: u32, socket: OwnedFd) {
        let beside = self.settings.listeners[beside as usize].number;
        kernel::refuse_rights(socket.as_fd(), self.settings.kernel);
        let Ok(peer) = getsockopt(&socket, PeerCredentials) else {
            return self.turn_away(socket, DomainKey::NOBODYS, 0, ErrorCode::NotPermitted.into());
        };
        let domain = DomainKey::new(beside, peer.uid());
        let pid = u32::try_from(peer.pid()).unwrap_or(0);
        let until = clock::after(self.now, self.settings.handshake_timeout);
        let caller = Caller { is_viewer: true, ..Caller::new(socket, domain, pid, until) };
        let monitors = self.monitors(beside);
        let may_monitor = monitors.is_some_and(|it| self.groups_of(&caller.socket).contains(&it));
        if !self.settings.isolates_pods(beside) && !may_monitor {
            self.admit_viewer(caller, false);
        } else if self.connections.has_room_in_lobby(domain) {
            self.look_first(caller);
        } else {
            self.turn_away(caller.socket, domain, 0, ErrorCode::Again.into());
        }
    }

    /// Keeps a caller in the lobby until its process has been looked at.
    pub(crate) fn look_first(&mut self, caller: Caller) {
        let (pid, uid) = (caller.pid, caller.domain.uid);
        let number = self.connections.receive(caller.looked_at_first());
        self.fds.closers().ask_for_pod(pid, uid, number);
    }

    /// A lane has looked at the process of a user who looks; `is_known`: its cgroups could be read.
    pub(crate) fn view_from(&mut self, caller: Caller, pod: Option<PodKey>, is_known: bool) {
        let is_isolated = self.settings.isolates_pods(caller.domain.listener);
        let monitors = self.monitors(caller.domain.listener).filter(|_| pod.is_none() && is_known);
        let is_monitor = monitors.is_some_and(|it| self.groups_of(&caller.socket).contains(&it));
        if is_isolated && pod.is_none() && !is_monitor {
            return self.turn_away(caller.socket, caller.domain, 0, Status::NO_POD);
        }
        let own = pod.filter(|_| is_isolated).unwrap_or_default();
        let domain = DomainKey { pod: own, ..caller.domain };
        self.admit_viewer(Caller { domain, ..caller }, is_monitor);
    }

    /// The group of monitors, beside this listener: whoever serves further users by listeners of
    /// their own, such as containers, does not let these monitor the node. In a pod nobody does.
    fn monitors(&self, beside: u32) -> Option<u32> {
        self.settings.monitor_gid.filter(|_| beside == self.settings.listeners[0].number)
    }

    fn groups_of(&self, socket: &OwnedFd) -> Vec<u32> {
        let namespace = self.node.namespace();
        let mut groups = namespace.other_groups(socket.as_fd());
        let own = getsockopt(socket, PeerCredentials).map(|peer| namespace.known_group(peer.gid()));
        groups.extend(own);
        groups
    }

    /// Watches a new connection. One of a payer that owes is not served yet.
    fn begin_admin(&mut self, index: usize) {
        let Some(Comer { payer, .. }) = self.admin.comer(index) else { return };
        if self.calls.debts.is_away(payer) {
            self.admin.set_away(payer, true);
        }
        let Some(socket) = self.admin.socket(index) else { return };
        if let Err(error) = register(&self.poll, socket, Source::Admin(index)) {
            log::error!(
                "cannot watch the connection of an administrator, or of a user that looks: {error}"
            );
            self.end_admin(index);
        }
    }

    /// Takes in a user that looks, in its domain: by the number of the clients' listener beside
    /// which it has come. What it may see does not change from then on.
    fn admit_viewer(&mut self, caller: Caller, may_monitor: bool) {
        let Caller { socket, domain, pid, .. } = caller;
        let uid = domain.uid;
        // All users that this namespace does not know have one uid.
        let refused = match self.node.namespace().hides_user(uid) {
            true => Err(ErrorCode::NotPermitted.into()),
            false => self.check_shut_out(domain),
        };
        if let Err(status) = refused {
            return self.turn_away(socket, domain, 0, status);
        }
        let monitors = self.monitors(domain.listener).filter(|_| may_monitor);
        let rights = Rights::to_view(domain, &self.groups_of(&socket), monitors);
        let payer = self.connections.shares_as(domain);
        let comer = Comer { rights, uid, pid, payer };
        match self.admin.add_viewer(socket, comer, self.now) {
            Err(socket) => self.turn_away(socket, domain, 0, ErrorCode::Again.into()),
            Ok((index, left)) => {
                self.retire_viewer(left);
                self.begin_admin(index);
            }
        }
    }

    /// `false`: the connection has ended or is to end.
    fn serve_admin(&mut self, index: usize) -> bool {
        if let Some(bytes) = self.admin.take_pending(index) {
            let sent = self.admin.send(index, &bytes, &mut self.calls);
            return self.is_open_after(index, sent) && self.watch_admin(index);
        }
        let Some(comer) = self.admin.comer(index) else { return false };
        if self.admin.has_fds(index, &mut self.calls) {
            self.log_viewer(comer, &"no message there has fds");
            return false;
        }
        let length = match self.admin.recv(index, self.inbox.buffer(), &mut self.calls, self.now) {
            Ok(Some(length)) => length,
            Ok(None) => return true,
            Err(_) => return false,
        };
        let (kind, id, body) = match take_apart(self.inbox.bytes(length)) {
            Ok(asked) => asked,
            Err((id, error)) => {
                if comer.rights.may_act {
                    log::warn!("administrator: {error}")
                } else {
                    self.log_viewer(comer, &error)
                }
                self.writer.failed(id, ErrorCode::Protocol.into());
                self.send_admin(index);
                return false;
            }
        };
        let answered = match body {
            _ if !comer.rights.allow(kind) => {
                self.log_viewer(comer, &format_args!("{kind}: not permitted"));
                Err(ErrorCode::NotPermitted)
            }
            Body::SetLimit(set) => self.set_limit(index, id, &set),
            Body::Act(act) => self.answer_act(index, (kind, id), &act),
            Body::Query(query) if kind == Kind::AdminTakeover => {
                // When the wake's work is done.
                self.admin.ask_takeover(index, query.value.get());
                return true;
            }
            Body::Query(query) => {
                let mut writer = std::mem::take(&mut self.writer);
                self.view(comer.rights.sight).answer(&mut writer, kind, id, &query);
                self.writer = writer;
                Ok(())
            }
        };
        if let Err(code) = answered {
            self.writer.failed(id, code.into());
        }
        self.send_admin(index)
    }

    fn log_viewer(&mut self, comer: Comer, what: &dyn std::fmt::Display) {
        self.log_bad_input(comer.uid, comer.pid, &format_args!("looking: {what}"));
    }
}

/// What an administrator has sent.
enum Body {
    Query(Query),
    SetLimit(SetLimit),
    Act(Act),
}

/// Kind, id and body of a message; or the id, and what is wrong.
fn take_apart(bytes: &[u8]) -> Result<(Kind, u64, Body), (u64, DecodeError)> {
    let message = Message::parse(bytes).map_err(|error| (0, error))?;
    let body = match message.kind {
        Kind::AdminSetLimit => message.body_as().map(|set| Body::SetLimit(*set)),
        kind if is_act(kind) => message.body_as().map(|act| Body::Act(*act)),
        _ => message.body_as().map(|query| Body::Query(*query)),
    };
    Ok((message.kind, message.id, body.map_err(|error| (message.id, error))?))
}
