//! Messages that wait or are refused: until fds have been looked at, because closes hang, or
//! because they are broken. Must never leave an fd that came with a message without an owner.

use crate::clients::connection::{Connection, Phase, index};
use crate::fds::closing::Reading;
use crate::fds::jobs::NOBODY;
use crate::messages::requests::Breach;
use crate::server::parts::Server;
use crate::server::parts::waiting::{Channel, Refused, Suspended};
use fdbroker_core::{ClientId, Now, RequestId};
use fdbroker_protocol::codec::Message;
use fdbroker_protocol::message::PROTOCOL_VERSION;
use fdbroker_protocol::{ErrorCode, Status};

impl Server {
    /// Takes the client's turns away until fds of its uid are closed, or their time is over.
    pub(super) fn pause(&mut self, client: ClientId, until: Now) {
        let uid = self.connections[index(client)].domain.uid;
        self.waiting.pause(uid, client, until);
    }

    /// Gives paused clients their turns again, if fds of their uid have been closed, or have been
    /// waited for long enough.
    pub(crate) fn resume_paused(&mut self) {
        for (uid, clients) in self.waiting.resume(|uid| self.fds.reading(uid)) {
            self.give_up(uid);
            clients.into_iter().for_each(|client| self.connections.enqueue(client));
        }
    }

    /// A message waits until one of its fds has been looked at; so do messages with fds of the same
    /// uid.
    pub(super) fn suspend(&mut self, client: ClientId, channel: Channel, id: u64, bytes: &[u8]) {
        let Connection { serial, domain, .. } = self.connections[index(client)];
        let until = match self.fds.reading(domain.uid) {
            Reading::Wait(until) => until,
            Reading::Free | Reading::WithoutFds => self.now,
        };
        let message = Suspended { client, serial, channel, id, bytes: bytes.to_vec() };
        self.waiting.suspend(domain.uid, message);
        self.pause(client, until);
    }

    /// The message of `uid` that waited, as the message at hand again; `None`: there was none, or
    /// its client has ended.
    pub(super) fn take_suspended(&mut self, uid: u32) -> Option<Suspended> {
        let suspended = self.waiting.take_suspended(uid)?;
        self.fds.resume(uid);
        let connection = self.connections.find(suspended.client, suspended.serial);
        let is_there = connection.is_some_and(|it| it.phase == Phase::Welcomed);
        if !is_there {
            self.fds.refuse_rest(uid);
        }
        is_there.then_some(suspended)
    }

    /// The look that a message of `uid` waits for, if one does, hangs: the message is refused.
    fn give_up(&mut self, uid: u32) {
        match self.take_suspended(uid) {
            None => {}
            Some(Suspended { channel: Channel::Main, client, id, .. }) => {
                self.answer_hung(client, id, uid);
            }
            // An answer to a recall gets none: the owner counts as silent when the time of the
            // recall is over.
            Some(_) => self.fds.refuse_rest(uid),
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

    /// Refuses the next message, which has fds, while closes of its uid hang. A lane drops it, and
    /// the client is not read from until then.
    pub(super) fn refuse_next(&mut self, client: ClientId, channel: Channel) {
        let connection = &mut self.connections[index(client)];
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
        // An answer to a recall gets none: the owner counts as silent when the time of the recall
        // is over.
        if channel == Channel::Main {
            self.answer_hung(client, id, uid);
        }
    }

    /// Has a lane drop the message, if its client is still there.
    fn drop_refused(&mut self, uid: u32, mut message: Refused) {
        loop {
            let Refused { client, serial, channel } = message;
            let connection = self.connections.find(client, serial);
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
        if self.connections.find(client, serial).is_some() {
            self.connections[index(client)].waits_for_drop = false;
            self.connections.enqueue(client);
        }
    }

    /// Some fds of the message are lost because the broker's table is full. The client is not to
    /// blame.
    pub(super) fn answer_truncated(&mut self, client: ClientId, id: u64) {
        log::error!("the fd table is full: fds of client {} were lost", client.0);
        self.fds.refuse_rest(NOBODY);
        self.reply_failed(client, RequestId(id), ErrorCode::Internal.into());
        self.settle_queues();
    }

    /// Has a lane close the fds of the message that nothing has claimed.
    pub(super) fn refuse_rest(&mut self, client: ClientId) {
        if self.fds.arrived_count() > 0 {
            let connection = self.connections.get(index(client));
            self.fds.refuse_rest(connection.map_or(NOBODY, |connection| connection.domain.uid));
        }
    }

    /// A broken message: said once in the log, answered PROTOCOL, and the connection ends.
    pub(super) fn break_off(&mut self, client: ClientId, id: u64, breach: &Breach) {
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
}
