//! Serves administrators: reads their queries, caps, acts and watches, and has each answered. Must never hold up grants: one
//! query per wake, a bounded number of slots looked at for it.

use crate::admin::side::{Sent, Turn};
use crate::readiness::Source;
use crate::readiness::{register, watch};
use crate::server::acts::is_act;
use crate::server::parts::Server;
use fdbroker_protocol::admin::{Act, Query, SetLimit};
use fdbroker_protocol::codec::{DecodeError, Message};
use fdbroker_protocol::{ErrorCode, Kind};

impl Server {
    /// One query of one administrator, in turn.
    pub(crate) fn serve_admins(&mut self) {
        self.accept_admins();
        let (index, is_open) = match self.admin.next_turn() {
            None => (0, true),
            Some(Turn::Serve(index)) => (index, self.serve_admin(index)),
            Some(Turn::Tell(index)) => (index, self.send_events_to_watcher(index)),
        };
        if !is_open {
            // No fds can lie in it: the kernel refuses them, or drops them where they are not
            // received.
            self.admin.end(index);
        }
        if self.admin.is_watched() {
            self.note_watchers();
        }
    }

    fn accept_admins(&mut self) {
        loop {
            let index = match self.admin.accept(self.settings.kernel, self.now) {
                Ok(Some(index)) => index,
                Ok(None) => return,
                Err(errno) => return self.door.shut(errno, self.now),
            };
            let Some(socket) = self.admin.socket(index) else { return };
            if let Err(error) = register(&self.poll, socket, Source::Admin(index)) {
                log::error!("cannot watch an administrator's connection: {error}");
                self.admin.end(index);
            }
        }
    }

    /// `false`: the connection has ended or is to end.
    fn serve_admin(&mut self, index: usize) -> bool {
        if let Some(bytes) = self.admin.take_pending(index) {
            return self.send_admin(index, &bytes) && self.watch_admin(index);
        }
        let length = match self.admin.recv(index, self.inbox.buffer(), self.now) {
            Ok(Some(length)) => length,
            Ok(None) => return true,
            Err(_) => return false,
        };
        let bytes = self.inbox.bytes(length);
        let asked = take_apart(bytes);
        let mut writer = std::mem::take(&mut self.writer);
        let (kind, id, asked) = match asked {
            Ok(asked) => asked,
            Err((id, error)) => {
                log::warn!("administrator: {error}");
                let _ = self.send_admin(index, writer.failed(id, ErrorCode::Protocol.into()));
                self.writer = writer;
                return false;
            }
        };
        let query = match asked {
            Body::Query(query) => query,
            Body::SetLimit(set) => {
                let bytes = self.set_limit(index, &mut writer, id, &set);
                let is_open = self.send_admin(index, bytes);
                self.writer = writer;
                return is_open;
            }
            Body::Act(act) => {
                let bytes = self.answer_act(&mut writer, index, (kind, id), &act);
                let is_open = self.send_admin(index, bytes);
                self.writer = writer;
                return is_open;
            }
        };
        if kind == Kind::AdminTakeover {
            self.writer = writer;
            // When the wake's work is done.
            self.admin.ask_takeover(index, query.value.get());
            return true;
        }
        let bytes = self.view().answer(&mut writer, kind, id, &query);
        let is_open = self.send_admin(index, bytes);
        self.writer = writer;
        is_open
    }

    pub(crate) fn send_admin(&mut self, index: usize, bytes: &[u8]) -> bool {
        match self.admin.send(index, bytes) {
            Sent::Done => true,
            Sent::Kept => self.watch_admin(index),
            Sent::Gone => false,
        }
    }

    /// Watches for room while an answer waits for it.
    fn watch_admin(&self, index: usize) -> bool {
        let Some(socket) = self.admin.socket(index) else { return false };
        watch(&self.poll, socket, Source::Admin(index), self.admin.is_pending(index)).is_ok()
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
