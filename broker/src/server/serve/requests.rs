//! A client's turn: reads its messages, a bounded number of them, and hands each to the core. Must
//! never leave an fd that came with a message without an owner, nor go on reading from a client
//! that does not read.

use crate::clients::connection::{Blocked, Phase, index};
use crate::fds::closing::Reading;
use crate::kernel::is_readable;
use crate::limits::{WORK_PER_MESSAGE, WORK_PER_WAKE};
use crate::messages::objects::{self, is_about_objects};
use crate::messages::requests::{self, Breach, Context};
use crate::messages::resolve::{find, write_resolved};
use crate::server::parts::Server;
use crate::server::parts::waiting::{Channel, Suspended};
use crate::server::settle::ending::is_read;
use fdbroker_core::{Body, ClientId, Input, RequestId, Ticket};
use fdbroker_protocol::codec::Message;
use fdbroker_protocol::limits::MAX_NEIGHBOURS;
use fdbroker_protocol::{AllocationId, ErrorCode, Kind, LogTopic, MAX_BATCH, Status};
use fdbroker_scm::RecvError;
use std::os::fd::AsFd;

/// What came of an attempt to read.
enum Outcome {
    /// A message was dealt with.
    Served,
    /// There is nothing to read, or nobody to read from.
    Nothing,
    /// The message has fds, and earlier fds of its uid are still being closed, or it is to be
    /// dropped.
    Paused,
}

/// A message that a client has sent, taken apart once.
struct Said<'m> {
    client: ClientId,
    channel: Channel,
    bytes: &'m [u8],
    message: Message<'m>,
    /// A lane has looked at its fd: an fd that is still not known is refused.
    has_looked: bool,
}

/// What it asks for.
enum Asked<'s, 'm> {
    Plain(Input<'s>),
    OfObjects(objects::Asked<'m>),
}

impl Server {
    /// One turn of one client.
    pub(crate) fn serve(&mut self, client: ClientId) {
        let connection = &mut self.connections[index(client)];
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
            let connection = &self.connections[index(client)];
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

    /// Most clients wait for their answer before they send again. Asking costs a third of a read
    /// that finds nothing; what comes later comes with an event.
    fn note_if_all_is_read(&mut self, client: ClientId, channel: Channel) {
        let connection = &mut self.connections[index(client)];
        if channel == Channel::Main
            && !connection.is_main_closed
            && let Some(socket) = &connection.socket
            && fdbroker_scm::queued_bytes(socket.as_fd()).is_ok_and(|bytes| bytes == 0)
        {
            connection.is_main_ready = false;
        }
    }

    fn read_one(&mut self, client: ClientId, channel: Channel) -> Outcome {
        let connection = &mut self.connections[index(client)];
        let (socket, is_ready) = match channel {
            Channel::Main => (&connection.socket, &mut connection.is_main_ready),
            Channel::Event => (&connection.event, &mut connection.is_event_ready),
        };
        let Some(socket) = socket else {
            *is_ready = false;
            return Outcome::Nothing;
        };
        // Only messages with fds wait, or are refused: another client of the uid may be served all
        // the same.
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
            Ok(received) => {
                let bytes = self.inbox.take();
                self.take_message(client, channel, &received, &bytes[..received.len]);
                self.inbox.put_back(bytes);
            }
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

    /// Deals with a message, of which `bytes` are taken out of the inbox: it is parsed here alone.
    fn take_message(
        &mut self,
        client: ClientId,
        channel: Channel,
        received: &fdbroker_scm::Message,
        bytes: &[u8],
    ) {
        if !self.inbox.fds().is_empty() {
            self.schedule.spend(self.inbox.fds().len());
            let uid = self.connections[index(client)].domain.uid;
            self.fds.begin_message(self.inbox.fds(), uid);
        }
        let (id, taken) = match Message::parse(bytes) {
            _ if received.payload_truncated => (0, Err(Breach::TooLong)),
            Ok(message) => {
                let said = Said { client, channel, bytes, message, has_looked: false };
                (message.id, self.take(&said, received.fds_truncated))
            }
            Err(error) => (0, Err(error.into())),
        };
        if let Err(breach) = taken {
            self.break_off(client, id, &breach);
        }
    }

    fn take(&mut self, said: &Said<'_>, is_truncated: bool) -> Result<(), Breach> {
        let Said { client, channel, ref message, .. } = *said;
        self.schedule.spend(message.count);
        if is_truncated {
            self.answer_truncated(client, message.id);
            return Ok(());
        }
        if let Some(credits) = self.exceeded_credits(client, channel) {
            return Err(Breach::NoCredit { fds: message.fd_count, credits });
        }
        message.check_fds(self.fds.arrived_count())?;
        if self.connections[index(client)].phase != Phase::Welcomed {
            return self.take_hello(client, message);
        }
        match (message.kind, channel) {
            (Kind::Resolve, Channel::Main) => return self.resolve(client, message),
            (Kind::Settle, Channel::Main) => return self.settle_closes(client, message),
            (Kind::Fetch, Channel::Main) if message.fd_count == 0 && !self.may_fetch(client) => {
                return Ok(());
            }
            (Kind::Acquire, _) => {
                self.waits.begin(client, RequestId(message.id), self.calls.last());
            }
            _ => {}
        }
        self.decode(said)
    }

    /// Answers a resolve, which changes nothing but for the fds that are to go ahead: the first is
    /// there when the answer is read, or none is; the others do not keep the answer waiting.
    fn resolve(&mut self, client: ClientId, message: &Message<'_>) -> Result<(), Breach> {
        let (wanted, is_ahead) = requests::check_resolve(message)?;
        let request = RequestId(message.id);
        let mut all = std::mem::take(&mut self.scratch.wanted);
        let found = find(self.node.identity(), &self.core, client, wanted, &mut all);
        let is_ahead = is_ahead && found.is_ok() && self.may_fetch(client);
        let (first, others) = all.split_at(usize::from(is_ahead));
        if is_ahead {
            self.step(Body::AcquireAhead { wanted: first }.by(client, RequestId::ONE_WAY));
        }
        // Looked at before the client can have read it.
        let ahead = self.connections.get(index(client)).and_then(|it| it.ahead.as_ref());
        let is_there = is_ahead && ahead.is_some_and(|ahead| !is_read(ahead));
        match found {
            Ok(()) => {
                let identity = self.node.identity();
                let (writer, to) = (&mut self.writer, (client, request));
                write_resolved(writer, identity, &self.core, to, &all);
                self.send_written(client);
            }
            Err(code) => self.reply_failed(client, request, code.into()),
        }
        if is_there {
            self.step(Body::AcquireAhead { wanted: others }.by(client, RequestId::ONE_WAY));
            // As a fetch of as many.
            self.schedule.spend(all.len());
        }
        self.scratch.wanted = all;
        self.schedule.spend(MAX_NEIGHBOURS as usize);
        Ok(())
    }

    /// Answers a settle, now or when what is being closed is closed.
    fn settle_closes(&mut self, client: ClientId, message: &Message<'_>) -> Result<(), Breach> {
        let request = requests::check_empty_request(message)?;
        let closing = self.core.closings_of(client);
        if self.connections[index(client)].settles.wait(request, closing) {
            self.answer_settled(client)
        } else {
            self.reply_failed(client, request, ErrorCode::Again.into())
        }
        Ok(())
    }

    /// Answers the settles of a client that wait no longer.
    fn answer_settled(&mut self, client: ClientId) {
        while let Some(request) = self.connections[index(client)].settles.take_settled() {
            self.writer.start(Kind::Settled, request.0).finish(0, 0);
            self.send_written(client);
        }
    }

    /// A closer has closed an fd: tells the core, and those who wait for it.
    pub(crate) fn note_closed(&mut self, ticket: Ticket) {
        let client = self.core.client_of(ticket);
        self.step(Input::Closed { ticket });
        // It may have been the last thing of a client that had gone.
        if let Some(client) = client
            && let Some(connection) = self.connections.get_mut(index(client))
        {
            connection.settles.note_closed();
            self.answer_settled(client);
        }
    }

    /// Takes a message apart and hands it to the core.
    fn decode(&mut self, said: &Said<'_>) -> Result<(), Breach> {
        let Said { client, channel, bytes, ref message, has_looked } = *said;
        let mut context = Context {
            client,
            now: self.now,
            node: self.node.identity().node,
            key: &self.node.identity().key,
            core: &self.core,
            fds: &mut self.fds,
            classifier: &mut self.classifier,
            unread: None,
            refused: Vec::new(),
        };
        let (scratch, context) = (&mut self.scratch, &mut context);
        let asked = match channel {
            Channel::Event => requests::decode_event(message, scratch, context).map(Asked::Plain),
            Channel::Main if is_about_objects(message.kind) => {
                objects::decode(message, scratch, context).map(Asked::OfObjects)
            }
            Channel::Main => requests::decode_request(message, scratch, context).map(Asked::Plain),
        };
        let unread = context.unread.filter(|_| !has_looked);
        let refused = std::mem::take(&mut context.refused);
        if unread.is_some_and(|index| self.fds.suspend(index)) {
            self.suspend(client, channel, message.id, bytes);
            return Ok(());
        }
        match asked? {
            Asked::OfObjects(asked) => self.serve_objects(client, &asked),
            Asked::Plain(input) => {
                let mut effects = self.feedback.take_list();
                self.core.step(self.now, input, &mut effects);
                self.settle(effects);
                let most = self.settings.core.max_parked_per_client as usize;
                self.waits.park(&mut self.connections, most);
                self.refuse_rest(client);
                self.tell_refused(client, refused);
            }
        }
        Ok(())
    }

    /// Fds that an owner has supplied are not what was asked for: it hears why. Of those beyond
    /// what one message tells, the log alone does.
    fn tell_refused(&mut self, client: ClientId, refused: Vec<(AllocationId, Status)>) {
        let connection = self.connections.get_mut(index(client));
        let Some(connection) = connection.filter(|_| !refused.is_empty()) else { return };
        for (id, status) in refused {
            let AllocationId { slot, generation } = id;
            let (pid, uid) = (connection.pid, connection.domain.uid);
            if self.journal.allows(LogTopic::BadInput, uid, self.now) {
                log::warn!(
                    "pid {pid} (uid {uid}) answers a recall of allocation {slot}.{generation} with another fd: {status}"
                );
            }
            if connection.refused.len() < MAX_BATCH {
                connection.refused.push((id, status));
            }
        }
        self.connections.note_events(client);
    }

    /// The fd that the message of `uid` waited for has been looked at.
    pub(crate) fn go_on_with(&mut self, uid: u32) {
        let Some(Suspended { client, channel, bytes, .. }) = self.take_suspended(uid) else {
            return;
        };
        let message = Message::parse(&bytes).expect("it was parsed before it had to wait");
        let said = Said { client, channel, bytes: &bytes, message, has_looked: true };
        if let Err(breach) = self.decode(&said) {
            self.break_off(client, message.id, &breach);
        }
    }

    /// How many fds the client may send in a message on this channel, if the message at hand has
    /// more.
    fn exceeded_credits(&self, client: ClientId, channel: Channel) -> Option<usize> {
        if channel == Channel::Event || self.fds.arrived_count() == 0 {
            return None;
        }
        let credits = usize::try_from(self.core.deposit_credits(client)).unwrap_or(usize::MAX);
        (self.fds.arrived_count() > credits).then_some(credits)
    }

    /// Whether the client can be sent fds ahead: it has a socket for them, and has read what was
    /// sent before.
    pub(crate) fn may_fetch(&self, client: ClientId) -> bool {
        let connection = &self.connections[index(client)];
        connection.blocked.is_none() && connection.ahead.as_ref().is_some_and(is_read)
    }

    /// Whether requests of the client may be read: it must have room for what they will bring. If
    /// not, it is blocked.
    pub(crate) fn may_read(&mut self, client: ClientId) -> bool {
        let connection = &mut self.connections[index(client)];
        if self.in_flight.may_send(connection) {
            return true;
        }
        if connection.socket().is_some_and(|socket| !is_readable(socket)) {
            // It has sent nothing since: most likely it is about to read its last answer, and then
            // sends more.
            connection.is_main_ready = false;
            return false;
        }
        self.block(client, Blocked::Unread);
        self.settle_queues();
        false
    }
}
