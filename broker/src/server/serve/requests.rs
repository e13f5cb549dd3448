//! A client's turn: reads its messages, a bounded number of them, and hands each to the core. Must
//! never leave an fd that came with a message without an owner, nor go on reading from a client
//! that does not read.

use crate::clients::connection::{Connection, Phase, index};
use crate::fds::closing::Reading;
use crate::fds::jobs::NOBODY;
use crate::limits::{WORK_PER_MESSAGE, WORK_PER_WAKE};
use crate::messages::objects::is_about_objects;
use crate::messages::requests::{self, Breach, Context};
use crate::messages::resolve::write_resolved;
use crate::server::parts::Server;
use crate::server::parts::waiting::{Channel, Refused, Suspended};
use crate::server::settle::flow::send_to;
use fdbroker_core::{ClientId, Input, Now, OwnerKey, RequestId, Ticket};
use fdbroker_protocol::codec::Message;
use fdbroker_protocol::limits::MAX_NEIGHBOURS;
use fdbroker_protocol::message::{HELLO_MAGIC, Hello, PROTOCOL_VERSION};
use fdbroker_protocol::{ErrorCode, Kind, LogTopic, Status};
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

    /// Takes the client's turns away until fds of its uid are closed, or their time is over.
    fn pause(&mut self, client: ClientId, until: Now) {
        let Some(connection) = self.connections.get(index(client)) else { return };
        self.waiting.pause(connection.domain.uid, client, until);
    }

    /// Gives paused clients their turns again, if fds of their uid have been closed, or have been waited for long
    /// enough.
    pub(crate) fn resume_paused(&mut self) {
        for (uid, clients) in self.waiting.resume(|uid| self.fds.reading(uid)) {
            self.give_up(uid);
            clients.into_iter().for_each(|client| self.connections.enqueue(client));
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

    /// The message in the buffer waits until one of its fds has been looked at; so do messages with fds of the same uid.
    pub(super) fn suspend(&mut self, client: ClientId, channel: Channel, length: usize) {
        let Connection { serial, domain, .. } = self.connections[index(client)];
        let until = match self.fds.reading(domain.uid) {
            Reading::Wait(until) => until,
            Reading::Free | Reading::WithoutFds => self.now,
        };
        let bytes = self.inbox.bytes(length).to_vec();
        self.waiting.suspend(domain.uid, Suspended { client, serial, channel, bytes });
        self.pause(client, until);
    }

    /// The message of `uid` that waited, as the message at hand again; `None`: there was none, or its client has ended.
    fn take_suspended(&mut self, uid: u32) -> Option<Suspended> {
        let suspended = self.waiting.take_suspended(uid)?;
        self.fds.resume(uid);
        let connection = self.connections.get(index(suspended.client));
        let is_there = connection
            .is_some_and(|it| it.serial == suspended.serial && it.phase == Phase::Welcomed);
        if !is_there {
            self.fds.refuse_rest(uid);
        }
        is_there.then_some(suspended)
    }

    /// The fd that the message of `uid` waited for has been looked at.
    pub(crate) fn go_on_with(&mut self, uid: u32) {
        let Some(Suspended { client, channel, bytes, .. }) = self.take_suspended(uid) else {
            return;
        };
        self.inbox.put(&bytes);
        self.decode(client, channel, bytes.len(), true);
    }

    /// The look that a message of `uid` waits for, if one does, hangs: the message is refused.
    fn give_up(&mut self, uid: u32) {
        let Some(Suspended { client, channel, bytes, .. }) = self.take_suspended(uid) else {
            return;
        };
        match (channel, Message::parse(&bytes)) {
            (Channel::Main, Ok(message)) => self.answer_hung(client, message.id, uid),
            // An answer to a recall gets none: the owner counts as silent when the time of the recall is over.
            _ => self.fds.refuse_rest(uid),
        }
    }

    /// Ends clients with a message that waits: a successor could not go on with it.
    pub(crate) fn end_suspended(&mut self) {
        for uid in self.waiting.suspended_uids() {
            if let Some(Suspended { client, .. }) = self.take_suspended(uid) {
                self.fds.refuse_rest(uid);
                self.lose(client);
            }
        }
    }

    /// Refuses a message because closes of its uid hang, or a look.
    fn answer_hung(&mut self, client: ClientId, id: u64, uid: u32) {
        self.log_bad_client(client, &"its deposits are refused: closes of fds hang");
        let status = self.fds.closing().refusal(uid);
        self.fds.refuse_rest(uid);
        self.reply_failed(client, RequestId(id), status);
        self.settle_queues();
    }

    /// Refuses the next message, which has fds, while closes of its uid hang. A lane drops it, and the client is not read
    /// from until then.
    fn refuse_next(&mut self, client: ClientId, channel: Channel) {
        let Some(connection) = self.connections.get_mut(index(client)) else { return };
        let Some(socket) = connection.socket_of(channel == Channel::Main) else { return };
        let peeked = self.calls.time(connection.shares_as, 0, || self.inbox.peek(socket));
        let Ok(length) = peeked else { return self.lose(client) };
        let message = match Message::parse(self.inbox.bytes(length)) {
            Ok(message) => message,
            Err(error) => return self.break_off(client, 0, &Breach::Decode(error)),
        };
        let id = message.id;
        if connection.phase != Phase::Welcomed {
            return self.break_off(client, id, &Breach::OutOfTurn(message.kind));
        }
        connection.waits_for_drop = true;
        let (uid, serial) = (connection.domain.uid, connection.serial);
        let message = Refused { client, serial, channel };
        if self.waiting.refuse(uid, message) {
            self.drop_refused(uid, message);
        }
        // An answer to a recall gets none: the owner counts as silent when the time of the recall is over.
        if channel == Channel::Main {
            self.answer_hung(client, id, uid);
        }
    }

    /// Has a lane drop the message, if its client is still there.
    fn drop_refused(&mut self, uid: u32, mut message: Refused) {
        loop {
            let Refused { client, serial, channel } = message;
            let connection = self.connections.get(index(client)).filter(|it| it.serial == serial);
            let socket = connection.and_then(|it| it.socket_of(channel == Channel::Main));
            match socket.map(|socket| socket.try_clone_to_owned()) {
                Some(Ok(duplicate)) => return self.fds.drop_next(duplicate, uid),
                // There is no place for a duplicate.
                Some(Err(_)) => self.lose(client),
                None => {}
            }
            let (_, Some(next)) = self.waiting.take_refused(uid) else { return };
            message = next;
        }
    }

    /// A refused message of `uid` has been dropped.
    pub(crate) fn note_dropped(&mut self, uid: u32) {
        let (dropped, next) = self.waiting.take_refused(uid);
        if let Some(next) = next {
            self.drop_refused(uid, next);
        }
        let Some(Refused { client, serial, .. }) = dropped else { return };
        if let Some(connection) = self.connections.get_mut(index(client))
            && connection.serial == serial
        {
            connection.waits_for_drop = false;
            self.connections.enqueue(client);
        }
    }

    /// How many fds the client may send in a message on this channel, if the message at hand has more.
    fn exceeded_credits(&self, client: ClientId, channel: Channel) -> Option<usize> {
        if channel == Channel::Event || self.fds.arrived_count() == 0 {
            return None;
        }
        let credits = usize::try_from(self.core.deposit_credits(client)).unwrap_or(usize::MAX);
        (self.fds.arrived_count() > credits).then_some(credits)
    }

    /// Some fds of the message are lost because the broker's table is full. The client is not to blame.
    fn answer_truncated(&mut self, client: ClientId, id: u64) {
        log::error!("the fd table is full: fds of client {} were lost", client.0);
        self.fds.refuse_rest(NOBODY);
        self.reply_failed(client, RequestId(id), ErrorCode::Internal.into());
        self.settle_queues();
    }

    /// The first message, in the buffer.
    fn take_hello(&mut self, client: ClientId, length: usize) {
        let message = match Message::parse(self.inbox.bytes(length)) {
            Ok(message) => message,
            Err(error) => return self.break_off(client, 0, &Breach::Decode(error)),
        };
        let id = message.id;
        let hello = match check_hello(&message, &self.connections[index(client)]) {
            Ok(hello) => *hello,
            Err(breach) => return self.break_off(client, id, &breach),
        };
        self.connections.advance(index(client), Phase::Greeted);
        self.connections[index(client)].name = hello.name;
        let (own_fds, max_held_fds) = (hello.own_fds.get(), hello.max_held_fds.get());
        let deadline = requests::deadline(self.now, hello.deadline_ms.get());
        // The answer takes as long as a whole turn.
        self.schedule.spend(WORK_PER_WAKE);
        self.identify(client, hello.key.get().into());
        if max_held_fds != 0 {
            self.step(Input::BoundHeld { client, fds: max_held_fds });
        }
        self.step(Input::Hello { client, request: RequestId(id), own_fds, deadline });
        self.refuse_rest(client);
    }

    /// Tells the core by which key the client can be known after a crash. Without a key it cannot be.
    fn identify(&mut self, client: ClientId, random: u64) {
        let Connection { pid, start, .. } = self.connections[index(client)];
        if random != 0 {
            self.step(Input::Identify {
                client,
                key: OwnerKey { pid, started: start.ticks, random },
            });
        }
    }

    /// Has a lane close the fds of the message that nothing has claimed.
    pub(super) fn refuse_rest(&mut self, client: ClientId) {
        if self.fds.arrived_count() > 0 {
            let connection = self.connections.get(index(client));
            self.fds.refuse_rest(connection.map_or(NOBODY, |connection| connection.domain.uid));
        }
    }

    /// A broken message: said once in the log, answered PROTOCOL, and the connection ends.
    pub(crate) fn break_off(&mut self, client: ClientId, id: u64, breach: &Breach) {
        self.log_bad_client(client, breach);
        self.refuse_rest(client);
        let value = match breach {
            Breach::NoVersion { .. } => u64::from(PROTOCOL_VERSION),
            _ => 0,
        };
        let status = Status::with_value(ErrorCode::Protocol, value);
        self.reply_failed(client, RequestId(id), status);
        self.lose(client);
    }

    pub(crate) fn log_bad_client(&mut self, client: ClientId, what: &dyn std::fmt::Display) {
        let Some(connection) = self.connections.get_mut(index(client)) else { return };
        let (uid, pid) = (connection.domain.uid, connection.pid);
        if !std::mem::replace(&mut connection.is_bad_input_logged, true) {
            self.log_bad_input(uid, pid, what);
        }
    }

    pub(crate) fn log_bad_input(&mut self, uid: u32, pid: u32, what: &dyn std::fmt::Display) {
        if self.journal.allows(LogTopic::BadInput, uid, self.now) {
            log::warn!("pid {pid} (uid {uid}): {what}");
        }
    }
}

fn check_hello<'m>(message: &Message<'m>, connection: &Connection) -> Result<&'m Hello, Breach> {
    if message.kind != Kind::Hello || connection.phase != Phase::Silent {
        return Err(Breach::OutOfTurn(message.kind));
    }
    if message.fd_count != 0 {
        let arrived = message.fd_count.into();
        let error = fdbroker_protocol::DecodeError::FdCount { announced: 0, arrived };
        return Err(Breach::Decode(error));
    }
    // Magic and versions keep their place in every version; what follows may be longer or shorter
    // in another.
    let (versions, _) = HelloStart::split(message.body).ok_or(Breach::Magic)?;
    if versions.magic != HELLO_MAGIC {
        return Err(Breach::Magic);
    }
    if !(versions.min..=versions.max).contains(&u16::from(PROTOCOL_VERSION)) {
        return Err(Breach::NoVersion { min: versions.min, max: versions.max });
    }
    if message.id == 0 {
        return Err(Breach::NoId(message.kind));
    }
    message.body_as::<Hello>().map_err(Breach::Decode)
}

/// The part of a hello that every version has.
struct HelloStart {
    magic: [u8; 8],
    min: u16,
    max: u16,
}

impl HelloStart {
    fn split(body: &[u8]) -> Option<(Self, &[u8])> {
        let (magic, rest) = body.split_first_chunk()?;
        let (min, rest) = rest.split_first_chunk()?;
        let (max, rest) = rest.split_first_chunk()?;
        let (min, max) = (u16::from_le_bytes(*min), u16::from_le_bytes(*max));
        Some((HelloStart { magic: *magic, min, max }, rest))
    }
}
