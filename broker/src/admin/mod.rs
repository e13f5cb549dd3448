//! The administrator's side: queries, answered in pages; caps changed; acts (`acts`) and watchers (`watch`). Must never
//! hold up grants: one query per wake, a bounded number of slots looked at for it.

use crate::admin::acts::is_act;
use crate::kernel;
use crate::limits::{ADMIN_RECORDS_PER_PAGE, ADMIN_SLOTS_SCANNED, MAX_ADMIN_CONNECTIONS};
use crate::readiness::Source;
use crate::server::parts::{Server, register, watch};
use fdbroker_protocol::admin::{
    AccountRecord, Act, AllocationRecord, ClientRecord, LeaseRecord, Page, Query, SetLimit,
};
use fdbroker_protocol::codec::{DecodeError, Message};
use fdbroker_protocol::limits::MAX_ADMIN_MESSAGE_BYTES;
use fdbroker_protocol::message::Header;
use fdbroker_protocol::{ErrorCode, Kind, Writer};
use fdbroker_scm::{RecvError, SendError};
use nix::errno::Errno;
use std::os::fd::AsFd;
use zerocopy::{Immutable, IntoBytes};

mod accounts;
pub mod acts;
mod chosen;
mod limits;
mod records;
mod side;
pub mod watch;

pub(crate) use chosen::{Chosen, Traits};
use side::AdminConnection;
pub(crate) use side::AdminSide;

/// Records of a kind that one answer may have.
const fn records_per_page<R>() -> usize {
    let fit = (MAX_ADMIN_MESSAGE_BYTES - size_of::<Header>() - size_of::<Page>()) / size_of::<R>();
    if fit < ADMIN_RECORDS_PER_PAGE { fit } else { ADMIN_RECORDS_PER_PAGE }
}

/// Pages are few: each costs the asker a round trip.
const _: () = assert!(records_per_page::<AllocationRecord>() >= 128);
const _: () = assert!(records_per_page::<ClientRecord>() >= 128);
const _: () = assert!(records_per_page::<LeaseRecord>() >= 128);
/// Jobs and domains are fewer than clients, and their records longer.
const _: () = assert!(records_per_page::<AccountRecord>() >= 64);

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
                    self.pause_accepting(errno);
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
        let received = match fdbroker_scm::recv(socket, &mut self.buffer, &mut admin.received) {
            Ok(received) => received,
            Err(RecvError::WouldBlock) => {
                connection.is_ready = false;
                return true;
            }
            Err(_) => return false,
        };
        connection.used_at = self.now;
        connection.first_at.get_or_insert(self.now);
        let bytes = &self.buffer[..received.len];
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
        let bytes = self.answer(&mut writer, kind, id, &query);
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

    fn answer<'w>(&self, writer: &'w mut Writer, kind: Kind, id: u64, query: &Query) -> &'w [u8] {
        let Some(chosen) = Chosen::of(query.filter.get(), query.value.get()) else {
            return writer.failed(id, ErrorCode::NotSupported.into());
        };
        let cursor = query.cursor.get();
        let end = cursor.saturating_add(ADMIN_SLOTS_SCANNED);
        let next = |slots: u32| (end < slots).then_some(end);
        match kind {
            Kind::AdminStatus => {
                writer.start(Kind::AdminStatusReply, id).push(&self.node_status());
                writer.finish(0, 0)
            }
            Kind::AdminAllocations => {
                let all = self.core.allocations_within(cursor..end).map(|view| {
                    let is_chosen = self.is_chosen(&chosen, &view);
                    (view.id.slot, is_chosen.then(|| self.allocation_record(&view)))
                });
                let next = next(self.core.allocation_slots());
                write_page(writer, Kind::AdminAllocationsReply, id, all, next)
            }
            Kind::AdminLeases => {
                let all = self.core.leases_within(cursor..end).map(|view| {
                    let (pid, uid) = self.pid_and_uid_of(view.client);
                    let allocation = Some((view.allocation.slot, view.allocation.generation));
                    let job = self.core.job_of(view.client);
                    let is_chosen = chosen.has(Traits { allocation, pid, uid, job });
                    // The low half of a lease's number is its slot.
                    let slot = (view.id.0 & u64::from(u32::MAX)) as u32;
                    (slot, is_chosen.then(|| self.lease_record(&view)))
                });
                write_page(writer, Kind::AdminLeasesReply, id, all, next(self.core.lease_slots()))
            }
            Kind::AdminClients => {
                let all = self.core.clients(cursor).map(|view| {
                    let (pid, uid, job) = (view.pid, view.domain.uid, view.job);
                    let is_chosen =
                        chosen.has(Traits { allocation: None, pid, uid, job }) && !view.gone;
                    (view.id.0, is_chosen.then(|| self.client_record(&view)))
                });
                write_page(writer, Kind::AdminClientsReply, id, all, None)
            }
            Kind::AdminJobs => self.answer_jobs(writer, id, cursor, chosen),
            Kind::AdminLimits => self.answer_limits(writer, id),
            Kind::AdminMetrics => {
                writer.start(Kind::AdminMetricsReply, id).push(&self.metrics.record());
                writer.finish(0, 0)
            }
            Kind::AdminDomains => self.answer_domains(writer, id, cursor, chosen),
            _ => writer.failed(id, ErrorCode::NotSupported.into()),
        }
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

/// One page of records: from each entry its slot and, if it is wanted, its record. `next`: where the next
/// page begins when this one takes all; `None` = nowhere.
fn write_page<R: IntoBytes + Immutable>(
    writer: &mut Writer,
    kind: Kind,
    id: u64,
    all: impl Iterator<Item = (u32, Option<R>)>,
    mut next: Option<u32>,
) -> &[u8] {
    let most = records_per_page::<R>();
    let mut records = Vec::with_capacity(most);
    for (slot, record) in all {
        if records.len() == most {
            next = Some(slot);
            break;
        }
        records.extend(record);
    }
    let page =
        Page { next_cursor: next.unwrap_or(0).into(), done: u32::from(next.is_none()).into() };
    writer.start(kind, id).push(&page).push(&records[..]);
    writer.finish(records.len(), 0)
}
