//! A client's turn: reads its messages, a bounded number of them, and hands each to the core. Must
//! never leave an fd that came with a message without an owner, nor go on reading from a client
//! that does not read.

use crate::clients::connection::{Blocked, Phase, index};
use crate::fds::closing::Reading;
use crate::kernel::is_readable;
use crate::limits::{WORK_PER_MESSAGE, WORK_PER_WAKE};
use crate::messages::objects::is_about_objects;
use crate::messages::requests::{self, Breach, Context};
use crate::messages::resolve::write_resolved;
use crate::server::parts::Server;
use crate::server::parts::waiting::{Channel, Suspended};
use crate::server::settle::ending::is_read;
use crate::server::settle::flow::send_to;
use fdbroker_core::{ClientId, Input, RequestId, Ticket};
use fdbroker_protocol::codec::Message;
use fdbroker_protocol::limits::MAX_NEIGHBOURS;
use fdbroker_protocol::{ErrorCode, Kind};
use fdbroker_scm::RecvError;
use std::os::fd::AsFd;

/// What came of an attempt to read.
enum Outcome {
    /// A message was dealt with.
    Served,
    /// There is nothing to read, or nobody to read from.
    Nothing,
    /// The message has fds, and earlier fds of its uid are still being closed, or it is to be dropped.
    Paused,
}

impl Server {
    /// One turn of one client.
    pub(crate) fn serve(&mut self, client: ClientId) {
        let Some(connection) = self.connections.get_mut(index(client)) else { return };
        if connection.has_died || (connection.waits_for_drop && connection.is_main_closed) {
            return self.lose(client);
        }
        if self.calls.debts.is_away(connection.shares_as) {
            // It gets its turn again when it has paid. One that has left does not come for it.
            return if connection.is_main_closed {
                self.lose(client)
            };
        }
        // Answers to recalls first: others wait for them.
        let is_free = self.serve_channel(client, Channel::Event);
        if self.serve_channel(client, Channel::Main) && is_free {
            self.connections.enqueue_rest(client);
        }
    }

    /// `false`: the client is paused.
    fn serve_channel(&mut self, client: ClientId, channel: Channel) -> bool {
        while self.schedule.is_turn_left() {
            let Some(connection) = self.connections.get(index(client)) else { return true };
            let is_ready = match channel {
                Channel::Main => connection.is_main_ready && connection.may_be_read(),
                Channel::Event => connection.is_event_ready,
            };
            if connection.waits_for_drop
                || self.waiting.is_suspended(connection.domain.uid, client)
                || self.calls.debts.is_away(connection.shares_as)
            {
                return false;
            }
            if !is_ready || (channel == Channel::Main && !self.may_read(client)) {
                return true;
            }
            match self.read_one(client, channel) {
                Outcome::Served => {
                    self.schedule.spend(WORK_PER_MESSAGE);
                    self.note_if_all_is_read(client, channel);
                }
                Outcome::Nothing => return true,
                Outcome::Paused => return false,
            }
        }
        true
    }

    /// Most clients wait for their answer before they send again. Asking costs a third of a read that finds nothing; what
    /// comes later comes with an event.
    fn note_if_all_is_read(&mut self, client: ClientId, channel: Channel) {
        let Some(connection) = self.connections.get_mut(index(client)) else { return };
        if channel == Channel::Main
            && !connection.is_main_closed
            && let Some(socket) = &connection.socket
            && fdbroker_scm::queued_bytes(socket.as_fd()).is_ok_and(|bytes| bytes == 0)
        {
            connection.is_main_ready = false;
        }
    }

    fn read_one(&mut self, client: ClientId, channel: Channel) -> Outcome {
        let Some(connection) = self.connections.get_mut(index(client)) else {
            return Outcome::Nothing;
        };
        let (socket, is_ready) = match channel {
            Channel::Main => (&connection.socket, &mut connection.is_main_ready),
            Channel::Event => (&connection.event, &mut connection.is_event_ready),
        };
        let Some(socket) = socket else {
            *is_ready = false;
            return Outcome::Nothing;
        };
        // Only messages with fds wait, or are refused: another client of the uid may be served all the same.
        let user = connection.shares_as;
        let mut has_fds =
            || self.calls.time(user, 0, || fdbroker_scm::is_control_next(socket.as_fd()));
        match self.fds.reading(connection.domain.uid) {
            Reading::Wait(until) if has_fds() => {
                self.pause(client, until);
                return Outcome::Paused;
            }
            Reading::WithoutFds if has_fds() => {
                self.refuse_next(client, channel);
                return Outcome::Paused;
            }
            _ => {}
        }
        connection.read_at = self.now;
        let began = self.calls.begin();
        let received = self.inbox.recv(socket.as_fd());
        self.calls.end(user, began, self.inbox.fds().len());
        match received {
            Ok(received) => self.take_message(client, channel, &received),
            Err(RecvError::WouldBlock) => {
                *is_ready = false;
                return Outcome::Nothing;
            }
            Err(RecvError::EmptyMessage) => {
                self.fds.begin_message(self.inbox.fds(), connection.domain.uid);
                self.break_off(client, 0, &Breach::Empty);
            }
            Err(RecvError::Eof) => {
                connection.is_main_at_end |= channel == Channel::Main;
                self.lose(client);
                // The end of a client takes as long as a whole turn.
                self.schedule.spend(WORK_PER_WAKE);
            }
            Err(error) => {
                log::debug!("client {}: {error}", client.0);
                self.lose(client);
            }
        }
        Outcome::Served
    }

    fn take_message(
        &mut self,
        client: ClientId,
        channel: Channel,
        received: &fdbroker_scm::Message,
    ) {
        if !self.inbox.fds().is_empty() {
            self.schedule.spend(self.inbox.fds().len());
            let uid = self.connections[index(client)].domain.uid;
            self.fds.begin_message(self.inbox.fds(), uid);
        }
        if received.payload_truncated {
            return self.break_off(client, 0, &Breach::TooLong);
        }
        let bytes = self.inbox.bytes(received.len);
        let message = match Message::parse(bytes) {
            Ok(message) => message,
            Err(error) => return self.break_off(client, 0, &Breach::Decode(error)),
        };
        let id = message.id;
        self.schedule.spend(message.count);
        if received.fds_truncated {
            return self.answer_truncated(client, id);
        }
        if let Some(credits) = self.exceeded_credits(client, channel) {
            let breach = Breach::NoCredit { fds: message.fd_count, credits };
            return self.break_off(client, id, &breach);
        }
        if let Err(error) = message.check_fds(self.fds.arrived_count()) {
            return self.break_off(client, id, &Breach::Decode(error));
        }
        let connection = &mut self.connections[index(client)];
        if connection.phase != Phase::Welcomed {
            return self.take_hello(client, received.len);
        }
        if connection.is_hello_unread {
            // The client has most likely read it by now; then another hello of its process may be answered.
            self.in_flight.forget_if_read(connection);
        }
        if message.kind == Kind::Resolve && channel == Channel::Main {
            return self.resolve(client, received.len);
        }
        if message.kind == Kind::Settle && channel == Channel::Main {
            return self.settle_closes(client, received.len);
        }
        let (kind, is_plain) = (message.kind, channel == Channel::Main && message.fd_count == 0);
        if kind == Kind::Fetch && is_plain && !self.may_fetch(client) {
            return;
        }
        if kind == Kind::Acquire {
            self.waits.begin(client, RequestId(id), self.calls.last());
        }
        self.decode(client, channel, received.len, false);
    }

    /// Answers a resolve, which changes nothing.
    fn resolve(&mut self, client: ClientId, length: usize) {
        let message = match Message::parse(self.inbox.bytes(length)) {
            Ok(message) => message,
            Err(error) => return self.break_off(client, 0, &Breach::Decode(error)),
        };
        let (id, identity) = (message.id, self.node.identity());
        let wanted = match requests::check_resolve(&message) {
            Ok(wanted) => (RequestId(id), wanted),
            Err(breach) => return self.break_off(client, id, &breach),
        };
        match write_resolved(&mut self.writer, identity, &self.core, client, wanted) {
            Ok(bytes) => {
                let sent = send_to(&mut self.connections, &mut self.calls, client, bytes);
                self.after_send(client, sent);
            }
            Err(code) => self.reply_failed(client, RequestId(id), code.into()),
        }
        self.schedule.spend(MAX_NEIGHBOURS as usize);
    }

    /// The number of a request that has no items; `None`: it is none, and its client is broken off.
    pub(crate) fn empty_request(&mut self, client: ClientId, length: usize) -> Option<RequestId> {
        let breach = match Message::parse(self.inbox.bytes(length)) {
            Ok(message) => match requests::check_empty_request(&message) {
                Ok(request) => return Some(request),
                Err(breach) => (message.id, breach),
            },
            Err(error) => (0, Breach::Decode(error)),
        };
        self.break_off(client, breach.0, &breach.1);
        None
    }

    /// Answers a settle, now or when what is being closed is closed.
    fn settle_closes(&mut self, client: ClientId, length: usize) {
        let Some(request) = self.empty_request(client, length) else { return };
        let closing = self.core.closings_of(client);
        match self.connections[index(client)].settles.wait(request, closing) {
            true => self.answer_settled(client),
            false => self.reply_failed(client, request, ErrorCode::Again.into()),
        }
    }

    /// Answers the settles of a client that wait no longer.
    fn answer_settled(&mut self, client: ClientId) {
        while let Some(connection) = self.connections.get_mut(index(client))
            && let Some(request) = connection.settles.take_settled()
        {
            let bytes = self.writer.start(Kind::Settled, request.0).finish(0, 0);
            let sent = send_to(&mut self.connections, &mut self.calls, client, bytes);
            self.after_send(client, sent);
        }
    }

    /// A closer has closed an fd: tells the core, and those who wait for it.
    pub(crate) fn note_closed(&mut self, ticket: Ticket) {
        let client = self.core.client_of(ticket);
        self.step(Input::Closed { ticket });
        let connection = client.and_then(|client| self.connections.get_mut(index(client)));
        if let (Some(client), Some(connection)) = (client, connection) {
            connection.settles.note_closed();
            self.answer_settled(client);
        }
    }

    /// Decodes the message in the buffer and hands it to the core. `has_looked`: a lane has looked at its fd, and an fd that is
    /// still not known is refused.
    fn decode(&mut self, client: ClientId, channel: Channel, length: usize, has_looked: bool) {
        let message = match Message::parse(self.inbox.bytes(length)) {
            Ok(message) => message,
            Err(error) => return self.break_off(client, 0, &Breach::Decode(error)),
        };
        if is_about_objects(message.kind) && channel == Channel::Main {
            return self.serve_objects(client, length, has_looked);
        }
        let id = message.id;
        let mut context = Context {
            client,
            now: self.now,
            node: self.node.identity().node,
            key: &self.node.identity().key,
            core: &self.core,
            fds: &mut self.fds,
            classifier: &mut self.classifier,
            unread: None,
        };
        let decoded = match channel {
            Channel::Main => requests::decode_request(&message, &mut self.scratch, &mut context),
            Channel::Event => requests::decode_event(&message, &mut self.scratch, &mut context),
        };
        let unread = context.unread.filter(|_| !has_looked);
        if unread.is_some_and(|index| self.fds.suspend(index)) {
            return self.suspend(client, channel, length);
        }
        match decoded {
            Ok(input) => {
                let mut effects = self.feedback.take_list();
                self.core.step(self.now, input, &mut effects);
                self.settle(effects);
                let most = self.settings.core.max_parked_per_client as usize;
                self.waits.park(&mut self.connections, most);
                self.refuse_rest(client);
            }
            Err(breach) => self.break_off(client, id, &breach),
        }
    }

    /// The fd that the message of `uid` waited for has been looked at.
    pub(crate) fn go_on_with(&mut self, uid: u32) {
        let Some(Suspended { client, channel, bytes, .. }) = self.take_suspended(uid) else {
            return;
        };
        self.inbox.put(&bytes);
        self.decode(client, channel, bytes.len(), true);
    }

    /// How many fds the client may send in a message on this channel, if the message at hand has more.
    fn exceeded_credits(&self, client: ClientId, channel: Channel) -> Option<usize> {
        if channel == Channel::Event || self.fds.arrived_count() == 0 {
            return None;
        }
        let credits = usize::try_from(self.core.deposit_credits(client)).unwrap_or(usize::MAX);
        (self.fds.arrived_count() > credits).then_some(credits)
    }

    /// Whether the client can be sent fds ahead: it has a socket for them, and has read what was sent before.
    pub(crate) fn may_fetch(&self, client: ClientId) -> bool {
        let connection = self.connections.get(index(client));
        connection.is_some_and(|it| it.blocked.is_none() && it.ahead.as_ref().is_some_and(is_read))
    }

    /// Whether requests of the client may be read: it must have room for what they will bring. If
    /// not, it is blocked.
    pub(crate) fn may_read(&mut self, client: ClientId) -> bool {
        let Some(connection) = self.connections.get_mut(index(client)) else { return true };
        if self.in_flight.may_send(connection) {
            return true;
        }
        if connection.socket().is_some_and(|socket| !is_readable(socket)) {
            // It has sent nothing since: most likely it is about to read its last answer, and then sends more.
            connection.is_main_ready = false;
            return false;
        }
        self.block(client, Blocked::Unread);
        self.settle_queues();
        false
    }
}
