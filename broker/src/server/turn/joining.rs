//! The first message of a connection: a hello makes a client of it, a join one more socket of a
//! client that is there. So no message of the broker has to carry a socket. Must never tell a
//! stranger which clients there are.

use crate::clients::connection::{Connection, client_id};
use crate::clients::lobby::Caller;
use crate::limits::ACCEPTS_PER_CHORE;
use crate::readiness::{Source, register};
use crate::server::parts::Server;
use crate::{clock, kernel};
use fdbroker_core::DomainKey;
use fdbroker_protocol::codec::Message;
use fdbroker_protocol::message::{Join, Role};
use fdbroker_protocol::{ErrorCode, Kind};
use fdbroker_scm::RecvError;
use mio::unix::SourceFd;
use nix::sys::socket::{Shutdown, shutdown};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

impl Server {
    /// Meets callers, up to this wake's share.
    pub(super) fn meet_callers(&mut self) {
        for _ in 0..ACCEPTS_PER_CHORE {
            if let Some(caller) = self.connections.lobby.next_ready() {
                self.meet(caller);
            }
        }
    }

    /// Looks at the first message of a caller, and waits for it if it has not come.
    fn meet(&mut self, number: u64) {
        let Some(caller) = self.connections.lobby.callers().get(&number) else { return };
        let user = self.connections.shares_as(caller.domain);
        let Some(caller) = self.connections.lobby.get_mut(number) else { return };
        let socket = caller.socket.as_fd();
        let peeked = self.calls.time(user, 0, || self.inbox.peek(socket));
        if matches!(peeked, Err(RecvError::WouldBlock)) {
            let source = Source::Caller(usize::try_from(number).unwrap_or(usize::MAX));
            if !caller.is_watched && register(&self.poll, socket, source).is_ok() {
                caller.is_watched = true;
            }
            return;
        }
        let kind = |length| Message::parse(self.inbox.bytes(length)).map(|message| message.kind);
        let is_join = peeked.is_ok_and(|length| kind(length) == Ok(Kind::Join));
        let Some(caller) = self.connections.dismiss(number) else { return };
        if caller.is_watched {
            let _ = self.poll.registry().deregister(&mut SourceFd(&caller.socket.as_raw_fd()));
        }
        if is_join { self.join(caller) } else { self.begin_client(caller) }
    }

    /// The caller is a client to be, whatever it says: the core hears of it when the facts about
    /// its process are there.
    fn begin_client(&mut self, caller: Caller) {
        let Caller { socket, domain, pid, process, .. } = caller;
        if let Err(status) = self.check_caps(domain) {
            return self.refuse_at_door(socket, domain, pid, status);
        }
        let until = clock::after(self.now, self.settings.handshake_timeout);
        let number = self.connections.add(socket, domain, pid, until);
        let serial = self.connections[number].serial;
        match process {
            None => self.fds.closers().ask(pid, domain.uid, number, serial),
            Some(process) => self.take_in(number, serial, process),
        }
    }

    /// The caller says that it is a further socket of a client.
    fn join(&mut self, Caller { socket, domain, pid, .. }: Caller) {
        let user = self.connections.shares_as(domain);
        if self.calls.debts.is_away(user) {
            return self.turn_away(socket, domain, 0, ErrorCode::Again.into());
        }
        // A message with fds is not read here: a lane closes them, with the socket.
        let is_plain = !fdbroker_scm::is_control_next(socket.as_fd());
        let received =
            is_plain.then(|| self.calls.time(user, 0, || self.inbox.recv(socket.as_fd())));
        let (id, join) = received
            .and_then(Result::ok)
            .and_then(|it| read_join(self.inbox.bytes(it.len)))
            .map_or((0, Err(ErrorCode::Protocol)), |(id, join)| (id, Ok(join)));
        let socket = match join.and_then(|join| self.find(domain, &join)) {
            Ok((number, Role::Events)) => self.join_events(number, socket, id),
            Ok((number, Role::Ahead)) => self.join_ahead(number, socket, id),
            Err(code) => Err((socket, code)),
        };
        let Err((socket, code)) = socket else { return self.settle_queues() };
        if matches!(code, ErrorCode::Protocol | ErrorCode::NotPermitted) {
            self.log_bad_input(
                domain.uid,
                pid,
                &"a socket cannot join: it names no client of its own",
            );
        }
        self.turn_away(socket, domain, id, code.into());
    }

    /// The client that a socket of `domain` joins. Whatever is wrong has one answer.
    fn find(&self, domain: DomainKey, join: &Join) -> Result<(usize, Role), ErrorCode> {
        let role = Role::from_number(join.role.get()).ok_or(ErrorCode::Protocol)?;
        let number = join.client.get() as usize;
        let is_it = |it: &Connection| {
            let may_join = it.is_joining() || (it.event.is_some() && role == Role::Ahead);
            may_join && it.domain == domain && it.secret == join.secret.get()
        };
        let is_it = self.connections.get(number).is_some_and(is_it);
        is_it.then_some((number, role)).ok_or(ErrorCode::NotPermitted)
    }

    fn join_events(&mut self, number: usize, socket: OwnedFd, id: u64) -> Joining {
        if let Err(error) = register(&self.poll, socket.as_fd(), Source::Event(number)) {
            log::error!("no event socket for client {number}: {error}");
            return Err((socket, ErrorCode::Internal));
        }
        // Owners answer recalls with fds.
        kernel::accept_rights(socket.as_fd(), self.settings.kernel);
        self.welcome_socket(number, &socket, id);
        self.connections.set_event(number, socket);
        self.connections.note_events(client_id(number));
        self.connections.enqueue(client_id(number));
        Ok(())
    }

    fn join_ahead(&mut self, number: usize, socket: OwnedFd, id: u64) -> Joining {
        if !self.ahead.is_possible() {
            return Err((socket, ErrorCode::NotSupported));
        }
        self.close_ahead(client_id(number));
        let connection = &mut self.connections[number];
        if connection.ahead.is_some() || self.ahead.room(connection.shares_as) == 0 {
            return Err((socket, ErrorCode::Again));
        }
        let user = connection.shares_as;
        // The client can send nothing from now on: nobody would read it.
        let _ = self.calls.time(user, 0, || shutdown(socket.as_raw_fd(), Shutdown::Read));
        self.ahead.take(user, 1);
        self.welcome_socket(number, &socket, id);
        self.connections[number].ahead = Some(socket);
        Ok(())
    }

    /// Best effort: a socket that takes no message now takes none later.
    fn welcome_socket(&mut self, number: usize, socket: &OwnedFd, id: u64) {
        let user = self.connections[number].shares_as;
        let bytes = self.writer.start(Kind::Joined, id).finish(0, 0);
        let _ = self.calls.time(user, 0, || fdbroker_scm::send(socket.as_fd(), bytes, &[]));
    }
}

/// What came of a join: an error gives the socket back.
type Joining = Result<(), (OwnedFd, ErrorCode)>;

fn read_join(bytes: &[u8]) -> Option<(u64, Join)> {
    let message = Message::parse(bytes).ok()?;
    let is_plain = message.id != 0 && message.fd_count == 0 && message.count == 0;
    message.body_as::<Join>().ok().filter(|_| is_plain).map(|join| (message.id, *join))
}
