//! The administrator's side: queries, answered in pages; caps changed; acts (`acts`) and watchers (`watch`). Must never
//! hold up grants: one query per wake, a bounded number of slots looked at for it.

use crate::admin::side::AdminConnection;
use crate::kernel;
use crate::limits::MAX_ADMIN_CONNECTIONS;
use crate::readiness::Source;
use crate::readiness::{register, watch};
use crate::server::acts::is_act;
use crate::server::parts::Server;
use fdbroker_protocol::admin::{Act, Query, SetLimit};
use fdbroker_protocol::codec::{DecodeError, Message};
use fdbroker_protocol::{ErrorCode, Kind};
use fdbroker_scm::{RecvError, SendError};
use nix::errno::Errno;
use std::os::fd::AsFd;

impl Server {
    /// One query of one administrator, in turn.
    pub(crate) fn serve_admins(&mut self) {
        while self.admin.is_listener_ready && self.admin.make_room(self.now) {
            self.accept_admin();
        }
        for _ in 0..MAX_ADMIN_CONNECTIONS {
            let index = self.admin.next;
            self.admin.next = (index + 1) % MAX_ADMIN_CONNECTIONS;
            let Some(connection) = self.admin.connections.get(index) else { continue };
            let is_open = if connection.is_ready {
                self.serve_admin(index)
            } else if connection.is_watch_due() {
                self.send_events_to_watcher(index)
            } else {
                continue;
            };
            if !is_open {
                // No fds can lie in it: the kernel refuses them, or drops them where they are not
                // received.
                self.admin.connections.remove(index);
            }
            break;
        }
        if self.admin.is_watched {
            self.note_watchers();
        }
    }

    fn accept_admin(&mut self) {
        let socket = match kernel::accept(self.admin.listener.as_fd()) {
            Ok(socket) => socket,
            Err(Errno::EINTR | Errno::ECONNABORTED) => return,
            Err(errno) => {
                self.admin.is_listener_ready = false;
                if errno != Errno::EAGAIN {
                    self.admin.is_accept_due = true;
                    self.door.shut(errno, self.now);
                }
                return;
            }
        };
        kernel::refuse_rights(socket.as_fd(), self.settings.kernel);
        let connection = AdminConnection {
            socket,
            is_ready: true,
            used_at: self.now,
            first_at: None,
            pending: None,
            watch: None,
        };
        let index = self.admin.connections.insert(connection);
        let socket = self.admin.connections[index].socket.as_fd();
        if let Err(error) = register(&self.poll, socket, Source::Admin(index)) {
            log::error!("cannot watch an administrator's connection: {error}");
            self.admin.connections.remove(index);
        }
    }

    /// `false`: the connection has ended or is to end.
    fn serve_admin(&mut self, index: usize) -> bool {
        let admin = &mut self.admin;
        let connection = &mut admin.connections[index];
        if let Some(bytes) = connection.pending.take() {
            return self.send_admin(index, &bytes) && self.watch_admin(index);
        }
        let socket = connection.socket.as_fd();
        let received = match fdbroker_scm::recv(socket, self.inbox.buffer(), &mut admin.received) {
            Ok(received) => received,
            Err(RecvError::WouldBlock) => {
                connection.is_ready = false;
                return true;
            }
            Err(_) => return false,
        };
        connection.used_at = self.now;
        connection.first_at.get_or_insert(self.now);
        let bytes = self.inbox.bytes(received.len);
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
            self.takeover_asked = Some((index, query.value.get()));
            return true;
        }
        let bytes = self.view().answer(&mut writer, kind, id, &query);
        let is_open = self.send_admin(index, bytes);
        self.writer = writer;
        is_open
    }

    pub(crate) fn send_admin(&mut self, index: usize, bytes: &[u8]) -> bool {
        let connection = &mut self.admin.connections[index];
        match fdbroker_scm::send(connection.socket.as_fd(), bytes, &[]) {
            Ok(()) => true,
            Err(SendError::WouldBlock) => {
                connection.pending = Some(bytes.to_vec());
                connection.is_ready = false;
                self.watch_admin(index)
            }
            Err(_) => false,
        }
    }

    /// Watches for room while an answer waits for it.
    fn watch_admin(&self, index: usize) -> bool {
        let connection = &self.admin.connections[index];
        let is_write_wanted = connection.pending.is_some();
        let source = Source::Admin(index);
        watch(&self.poll, connection.socket.as_fd(), source, is_write_wanted).is_ok()
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
