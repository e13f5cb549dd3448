//! The administrator's side: queries, answered in pages; caps changed; acts (`acts`) and watchers (`watch`). Must never
//! hold up grants: one query per wake, a bounded number of slots looked at for it.

use crate::acts::is_act;
use crate::kernel;
use crate::limits::{
    ADMIN_IDLE, ADMIN_RECORDS_PER_PAGE, ADMIN_SLOTS_SCANNED, MAX_ADMIN_CONNECTIONS,
    MAX_ADMIN_WATCHES,
};
use crate::listeners::Listener;
use crate::server::{Server, register, watch};
use crate::tokens::Source;
use crate::watch::Watch;
use fdbroker_core::{Note, Now};
use fdbroker_protocol::admin::{
    AccountRecord, Act, AllocationRecord, ClientRecord, LeaseRecord, Page, Query, SetLimit,
};
use fdbroker_protocol::codec::{DecodeError, Message};
use fdbroker_protocol::limits::MAX_ADMIN_MESSAGE_BYTES;
use fdbroker_protocol::message::Header;
use fdbroker_protocol::{ErrorCode, Kind, Writer};
use fdbroker_scm::{ReceivedFds, RecvError, SendError};
use nix::errno::Errno;
use slab::Slab;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use zerocopy::{Immutable, IntoBytes};

mod accounts;
mod chosen;
mod limits;
mod records;

pub(crate) use chosen::{Chosen, Traits};

/// Records of a kind that one answer may have.
const fn records_per_page<R>() -> usize {
    let fit = (MAX_ADMIN_MESSAGE_BYTES - size_of::<Header>() - size_of::<Page>()) / size_of::<R>();
    if fit < ADMIN_RECORDS_PER_PAGE { fit } else { ADMIN_RECORDS_PER_PAGE }
}

/// Pages are few: each costs the asker a round trip.
const _: () = assert!(records_per_page::<AllocationRecord>() >= 128);
const _: () = assert!(records_per_page::<ClientRecord>() >= 128);
const _: () = assert!(records_per_page::<LeaseRecord>() >= 128);
const _: () = assert!(records_per_page::<AccountRecord>() >= 128);

/// The administrator's listener and connections.
pub(crate) struct AdminSide {
    listener: Listener,
    is_listener_ready: bool,
    /// A connection waits that there was no room for.
    is_accept_due: bool,
    connections: Slab<AdminConnection>,
    /// All places are taken and a connection waits: when one may be idle for long enough to give way.
    room_at: Option<Now>,
    /// Whose turn it is.
    next: usize,
    /// Room for none: no query carries fds.
    received: ReceivedFds,
    /// Some of them watch.
    pub is_watched: bool,
    /// For what the core has noted; reused.
    pub notes: Vec<Note>,
}

struct AdminConnection {
    socket: OwnedFd,
    is_ready: bool,
    /// When it came or last asked.
    used_at: Now,
    /// An answer that the socket did not take; no query is read before it has gone.
    pending: Option<Vec<u8>>,
    /// What it is to be told, if it watches.
    watch: Option<Box<Watch>>,
}

impl AdminConnection {
    /// It asks nothing, waits for nothing and is told nothing.
    fn is_idle(&self) -> bool {
        !self.is_ready && self.pending.is_none() && self.watch.is_none()
    }

    /// It has events to be sent, and room for them as far as is known.
    fn is_watch_due(&self) -> bool {
        self.pending.is_none() && self.watch.as_ref().is_some_and(|watch| watch.is_due())
    }
}

impl AdminSide {
    pub fn new(listener: Listener) -> Self {
        AdminSide {
            listener,
            is_listener_ready: false,
            is_accept_due: false,
            connections: Slab::with_capacity(MAX_ADMIN_CONNECTIONS),
            room_at: None,
            next: 0,
            received: ReceivedFds::with_capacity(0),
            is_watched: false,
            notes: Vec::new(),
        }
    }

    pub fn listener(&self) -> &Listener {
        &self.listener
    }

    pub fn listener_mut(&mut self) -> &mut Listener {
        &mut self.listener
    }

    pub fn note_listener(&mut self) {
        self.is_listener_ready = true;
    }

    /// There may be room again.
    pub fn retry_accept(&mut self) {
        if std::mem::take(&mut self.is_accept_due) {
            self.is_listener_ready = true;
        }
    }

    pub fn note(&mut self, index: usize) {
        if let Some(connection) = self.connections.get_mut(index) {
            connection.is_ready = true;
        }
    }

    /// The socket of a connection.
    pub fn socket(&self, index: usize) -> Option<BorrowedFd<'_>> {
        self.connections.get(index).map(|connection| connection.socket.as_fd())
    }

    /// Ends a connection.
    pub fn end(&mut self, index: usize) {
        self.connections.try_remove(index);
    }

    /// Whether there is something to do at once.
    pub fn is_ready(&self) -> bool {
        let may_accept = self.connections.len() < MAX_ADMIN_CONNECTIONS || self.room_at.is_none();
        (self.is_listener_ready && may_accept)
            || self.connections.iter().any(|(_, it)| it.is_ready || it.is_watch_due())
    }

    /// When to look again for a connection that gives way to one that waits.
    pub fn room_at(&self) -> Option<Now> {
        self.room_at
    }

    /// Whether there is a place for one more connection; when all are taken, the one that has asked nothing for longest
    /// ends, if that is long enough.
    fn make_room(&mut self, now: Now) -> bool {
        self.room_at = None;
        if self.connections.len() < MAX_ADMIN_CONNECTIONS {
            return true;
        }
        // It is told when another comes.
        self.is_listener_ready = kernel::is_readable(self.listener.as_fd());
        if !self.is_listener_ready {
            return false;
        }
        let idle = self.connections.iter().filter(|(_, it)| it.is_idle());
        let longest = idle.min_by_key(|(_, it)| it.used_at).map(|(index, it)| (index, it.used_at));
        let patience = u64::try_from(ADMIN_IDLE.as_micros()).unwrap_or(u64::MAX);
        let until = longest.map_or(now, |(_, used_at)| used_at).0.saturating_add(patience);
        match longest {
            Some((index, _)) if until <= now.0 => {
                self.connections.remove(index);
                true
            }
            _ => {
                self.room_at = Some(Now(until));
                false
            }
        }
    }

    /// A connection watches from now on; `false`: as many do as may.
    pub fn set_watch(&mut self, index: usize, watch: Watch) -> bool {
        let others =
            self.connections.iter().filter(|(other, it)| *other != index && it.watch.is_some());
        if others.count() >= MAX_ADMIN_WATCHES {
            return false;
        }
        if let Some(connection) = self.connections.get_mut(index) {
            connection.watch = Some(Box::new(watch));
        }
        true
    }

    /// What a watcher is to be told.
    pub fn watch(&mut self, index: usize) -> Option<&mut Watch> {
        self.connections.get_mut(index)?.watch.as_deref_mut()
    }

    /// The same of all.
    pub fn watches(&mut self) -> impl Iterator<Item = &mut Watch> {
        self.connections.iter_mut().filter_map(|(_, connection)| connection.watch.as_deref_mut())
    }

    /// Notes whether there are watchers, and says so.
    pub fn count_watches(&mut self) -> bool {
        self.is_watched = self.connections.iter().any(|(_, it)| it.watch.is_some());
        self.is_watched
    }
}

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
