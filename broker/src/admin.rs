//! The administrator's side: queries, answered in pages; caps changed; acts (`acts`) and watchers (`watch`). Must never
//! hold up grants: one query per wake, a bounded number of slots looked at for it.

use crate::acts::is_act;
use crate::connection::Connection;
use crate::job::JobName;
use crate::kernel;
use crate::limits::{ADMIN_RECORDS_PER_PAGE, ADMIN_SLOTS_SCANNED, MAX_ADMIN_CONNECTIONS};
use crate::listeners::Listener;
use crate::server::{Server, register, watch};
use crate::tokens::Source;
use crate::watch::Watch;
use fdbroker_core::{AllocationView, ClientId, ClientView, JobKey, LeaseView, Note};
use fdbroker_protocol::admin::{
    AccountRecord, Act, AllocationRecord, ClientRecord, Filter, LeaseRecord, NO_OWN_FD, NodeStatus,
    Page, Query, SetLimit, Use,
};
use fdbroker_protocol::codec::{DecodeError, Message};
use fdbroker_protocol::limits::{JOB_NAME_BYTES, MAX_ADMIN_MESSAGE_BYTES, NAME_BYTES};
use fdbroker_protocol::message::{Header, register_flags};
use fdbroker_protocol::{AllocationId, ErrorCode, Kind, Resource, Writer};
use fdbroker_scm::{ReceivedFds, RecvError, SendError};
use nix::errno::Errno;
use slab::Slab;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use zerocopy::{Immutable, IntoBytes};

mod accounts;
mod limits;

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
    /// An answer that the socket did not take; no query is read before it has gone.
    pending: Option<Vec<u8>>,
    /// What it is to be told, if it watches.
    watch: Option<Box<Watch>>,
}

impl AdminConnection {
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
        (self.is_listener_ready && self.connections.len() < MAX_ADMIN_CONNECTIONS)
            || self.connections.iter().any(|(_, it)| it.is_ready || it.is_watch_due())
    }

    /// A connection watches from now on.
    pub fn set_watch(&mut self, index: usize, watch: Watch) {
        if let Some(connection) = self.connections.get_mut(index) {
            connection.watch = Some(Box::new(watch));
        }
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
        if !self.admin.is_ready() {
            return;
        }
        while self.admin.is_listener_ready && self.admin.connections.len() < MAX_ADMIN_CONNECTIONS {
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
        let connection = AdminConnection { socket, is_ready: true, pending: None, watch: None };
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
                    let job = self.job_of(Some(view.client));
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

    /// Whether an allocation is one of those.
    pub(crate) fn is_chosen(&self, chosen: &Chosen, view: &AllocationView) -> bool {
        chosen.has(Traits {
            allocation: Some((view.id.slot, view.id.generation)),
            pid: self.pid_of(view.owner),
            uid: view.domain.uid,
            job: self.job_of(view.owner),
        })
    }

    pub(crate) fn node_status(&self) -> NodeStatus {
        let totals = self.core.totals();
        let usage = |resource| {
            let (now, peak, cap) = totals.usage(resource);
            Use { now: now.into(), peak: peak.into(), cap: cap.into() }
        };
        let counters = totals.counters;
        NodeStatus {
            pid: std::process::id().into(),
            clients: counters.clients.into(),
            domains: totals.domains.into(),
            parked: totals.parked.into(),
            node: self.identity.node.into(),
            incarnation: self.page.incarnation().into(),
            uptime_ms: (self.now.0.saturating_sub(self.started.0) / 1000).into(),
            fds: usage(Resource::Fds),
            held_fds: usage(Resource::HeldFds),
            held_bytes: usage(Resource::HeldBytes),
            open_leases: usage(Resource::OpenLeases),
            mapped_leases: usage(Resource::MappedLeases),
            allocations: usage(Resource::Allocations),
            own_fds: usage(Resource::OwnFds),
            pinned_bytes: usage(Resource::PinnedBytes),
            table_fds: usage(Resource::TableFds),
            held_now: totals.held_now.into(),
            closing_now: totals.closing_now.into(),
            grants: counters.grants.into(),
            registrations: counters.registrations.into(),
            evictions: counters.evictions.into(),
            recalls: counters.recalls.into(),
            recalls_silent: counters.recalls_silent.into(),
            parkings: counters.parkings.into(),
            refusals: counters.refusals.into(),
            kept_allocations: usage(Resource::KeptAllocations),
            reclaims: counters.reclaims.into(),
            jobs: totals.jobs.into(),
            draining: u32::from(self.core.is_draining()).into(),
        }
    }

    pub(crate) fn allocation_record(&self, view: &AllocationView) -> AllocationRecord {
        let recallable = if view.recallable { register_flags::RECALLABLE } else { 0 };
        let flags = recallable | if view.keep { register_flags::KEEP } else { 0 };
        let files = self.fds.files(view.id.slot);
        let files_ms = match files.since_us {
            0 => u64::MAX,
            since_us => self.now.0.saturating_sub(since_us) / 1000,
        };
        let fd = self.fds.held(view.id.slot).and_then(|fd| u32::try_from(fd.as_raw_fd()).ok());
        AllocationRecord {
            slot: view.id.slot.into(),
            generation: view.id.generation.into(),
            state: (view.state as u32).into(),
            kind: view.kind as u8,
            share: view.share as u8,
            flags,
            owner_gone: view.owner.is_none().into(),
            size_bytes: view.size_bytes.into(),
            fd_offset: view.fd_offset.into(),
            owner_allocation_id: view.owner_allocation_id.into(),
            base: view.base.into(),
            device: view.device.into(),
            owner_pid: self.pid_of(view.owner).into(),
            owner_uid: view.domain.uid.into(),
            open_leases: view.open_leases.into(),
            mapped_leases: view.mapped_leases.into(),
            waiters: view.waiters.into(),
            inode: files.inode.into(),
            owner_name: self.name_of(view.owner),
            job: self.job_of(view.owner).map_or(0, |job| job.0).into(),
            job_name: self.job_name(self.job_of(view.owner)),
            fd: fd.unwrap_or(NO_OWN_FD).into(),
            reserved: 0.into(),
            files_ms: files_ms.into(),
            former_inodes: files.former.map(|former| former.inode.into()),
        }
    }

    fn lease_record(&self, view: &LeaseView) -> LeaseRecord {
        let (pid, uid) = self.pid_and_uid_of(view.client);
        LeaseRecord {
            lease: view.id.0.into(),
            slot: view.allocation.slot.into(),
            generation: view.allocation.generation.into(),
            state: if view.mapped { 2 } else { 1 }.into(),
            ended: u32::from(view.ended).into(),
            client: view.client.0.into(),
            pid: pid.into(),
            uid: uid.into(),
            owner_pid: self.pid_of(view.owner).into(),
            size_bytes: view.size_bytes.into(),
            age_ms: (self.now.0.saturating_sub(view.since.0) / 1000).into(),
            name: self.name_of(Some(view.client)),
            job: self.job_of(Some(view.client)).map_or(0, |job| job.0).into(),
            job_name: self.job_name(self.job_of(Some(view.client))),
        }
    }

    fn client_record(&self, view: &ClientView) -> ClientRecord {
        let now = |resource| view.account.now(resource).into();
        ClientRecord {
            client: view.id.0.into(),
            pid: view.pid.into(),
            uid: view.domain.uid.into(),
            silent: u32::from(view.silent).into(),
            fds: now(Resource::Fds),
            held_fds: now(Resource::HeldFds),
            held_bytes: now(Resource::HeldBytes),
            open_leases: now(Resource::OpenLeases),
            mapped_leases: now(Resource::MappedLeases),
            allocations: now(Resource::Allocations),
            parked: view.parked.into(),
            listener: view.domain.listener.into(),
            name: self.name_of(Some(view.id)),
            job: view.job.map_or(0, |job| job.0).into(),
            job_name: self.job_name(view.job),
        }
    }

    fn connection_of(&self, client: Option<ClientId>) -> Option<&Connection> {
        self.connections.get(client?.0 as usize)
    }

    fn pid_of(&self, client: Option<ClientId>) -> u32 {
        self.connection_of(client).map_or(0, |connection| connection.pid)
    }

    pub(crate) fn pid_and_uid_of(&self, client: ClientId) -> (u32, u32) {
        let connection = self.connection_of(Some(client));
        connection.map_or((0, u32::MAX), |connection| (connection.pid, connection.domain.uid))
    }

    pub(crate) fn name_of(&self, client: Option<ClientId>) -> [u8; NAME_BYTES] {
        self.connection_of(client).map_or([0; NAME_BYTES], |connection| connection.name)
    }

    pub(crate) fn job_of(&self, client: Option<ClientId>) -> Option<JobKey> {
        self.connection_of(client).and_then(|connection| connection.job)
    }

    fn job_name(&self, job: Option<JobKey>) -> [u8; JOB_NAME_BYTES] {
        job.map_or(JobName::NONE, |job| self.job_names.get(job)).bytes()
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

/// What a query asks for.
#[derive(Clone, Copy)]
pub(crate) struct Chosen {
    pub filter: Filter,
    pub value: u64,
}

/// What a record can be chosen by; `None`, and pid 0, where it has no such.
#[derive(Clone, Copy)]
pub(crate) struct Traits {
    pub allocation: Option<(u32, u32)>,
    pub pid: u32,
    pub uid: u32,
    pub job: Option<JobKey>,
}

impl Chosen {
    /// `None`: there is no such filter.
    pub fn of(filter: u32, value: u64) -> Option<Self> {
        Some(Chosen { filter: Filter::from_number(filter)?, value })
    }

    /// The allocation that it names, if it is for one.
    pub fn allocation(&self) -> Option<AllocationId> {
        let (slot, generation) = (self.value as u32, (self.value >> 32) as u32);
        (self.filter == Filter::Allocation).then_some(AllocationId { slot, generation })
    }

    pub fn has(&self, of: Traits) -> bool {
        match self.filter {
            Filter::None => true,
            Filter::Allocation => of.allocation.is_some_and(|(slot, generation)| {
                u64::from(slot) | u64::from(generation) << 32 == self.value
            }),
            Filter::Pid => u64::from(of.pid) == self.value,
            Filter::Uid => u64::from(of.uid) == self.value,
            Filter::Job => of.job.is_some_and(|job| job.0 == self.value),
        }
    }
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
