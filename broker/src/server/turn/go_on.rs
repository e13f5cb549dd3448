//! Going on with what another broker has handed over: its connections and fds are put where they
//! belong. Must never believe the state, nor close a client's fd on the calling thread; until the
//! loop turns, it must change nothing that the other broker could still need.

use crate::clients::connection::{Blocked, Connection, HelloReply, Phase, Unread, client_id};
use crate::clients::connections::Connections;
use crate::clients::handshakes::Handshake;
use crate::clients::lobby::Caller;
use crate::clients::metrics::Metrics;
use crate::fds::files::{Files, NOT_KNOWN_SINCE};
use crate::fds::jobs::Report;
use crate::fds::table::FdTable;
use crate::handover::RefusedState;
use crate::handover::arrived::{Arrivals, Arrived, broken};
use crate::handover::state::{SavedConnection, State};
use crate::kept::found::Found;
use crate::kernel::Start;
use crate::limits::MAX_TABLE_FDS;
use crate::node::generation_page::GenerationPage;
use crate::node::listeners::Listener;
use crate::node::warden::News;
use crate::readiness::{Source, register, watch};
use crate::server::parts::Server;
use crate::settings::Mode;
use fdbroker_core::{ClientId, Core, Ended, Now, Record, RequestId};
use fdbroker_protocol::{MemoryKind, NodeKey};
use std::collections::HashSet;
use std::io;
use std::os::fd::AsFd;

/// Numbers of connections are indices of a slab: a larger one in a damaged state would have it
/// allocate much.
const MOST_NUMBERS: usize = 1 << 20;

/// Serial numbers of connections so far: at 10,000 a second, 29 million years.
const MOST_SERIALS: u64 = u64::MAX / 2;

impl FdTable {
    /// Puts in the fds of the slots, and the kind of each slot whose owner is to give the fd again.
    fn restore(&mut self, arrived: &mut Arrived) -> Result<(), RefusedState> {
        self.tombstones.restore(std::mem::take(&mut arrived.state.tombstones));
        for saved in std::mem::take(&mut arrived.state.slots) {
            let kind = MemoryKind::from_number(saved.kind);
            let kind = kind.ok_or_else(|| broken("no kind of memory", saved.kind.into()))?;
            let fd = arrived.fds.take_if(saved.fd)?;
            if let Some(double) = self.put(saved.slot, kind, saved.files, fd) {
                arrived.fds.put_back(double);
                return Err(broken("two fds for slot", saved.slot.into()));
            }
        }
        Ok(())
    }
}

impl Server {
    /// Shows this broker as alive, and makes the paths of handed-over sockets its own, to be
    /// removed at its end. How many clients it has.
    ///
    /// # Errors
    /// As for [`GenerationPage::show_alive`].
    pub(crate) fn take_place(&mut self) -> io::Result<usize> {
        self.node.show_alive()?;
        let saved = std::mem::take(&mut self.former_places);
        let ours = self.door.listeners_mut();
        let mut ours: Vec<_> = ours.chain(self.admin.listeners_mut()).collect();
        for saved in saved.iter().filter(|saved| saved.identity.is_some()) {
            for listener in ours.iter_mut().filter(|it| it.path() == saved.path) {
                let is_there = listener.stands_at(saved.identity) || listener.is_kept();
                if listener.identity().is_none() && is_there {
                    listener.own(saved.identity);
                }
            }
        }
        let marks: Vec<_> = ours.iter().filter_map(|listener| listener.mark()).collect();
        self.node.note_sockets(&marks);
        if self.settings.mode == Mode::Service {
            let places = ours.iter().filter_map(|listener| listener.place()).collect();
            self.warden.watch(self.settings.admin_directory(), places);
        }
        Ok(self.connections.len())
    }

    /// What the warden of the sockets' places has to say.
    pub(super) fn hear_warden(&mut self) {
        while let Some((number, news, path)) = self.warden.next_news() {
            let is_mended = matches!(news, News::Mended(..));
            if self.journal.allows_socket(number, is_mended, self.now) {
                news.log(&path);
            }
        }
    }

    /// Has the warden remove the sockets, if there is one.
    pub(super) fn remove_places(&mut self) {
        match self.warden.remove_all() {
            None => return,
            Some(true) => {}
            Some(false) => log::warn!(
                "the sockets are left where they are, for the next broker: a call on their directory does not return"
            ),
        }
        let all = self.admin.listeners_mut().chain(self.door.listeners_mut());
        all.for_each(Listener::end_removed);
    }

    /// Leaves the paths of all sockets as they are: they are a successor's now.
    pub(crate) fn leave_places(&mut self) {
        let all = self.admin.listeners_mut().chain(self.door.listeners_mut());
        all.for_each(Listener::leave);
    }

    /// Gives up what was taken over: all fds go to the closers, and the core begins anew.
    pub(crate) fn begin_anew(&mut self, core: Core, key: NodeKey, page: GenerationPage) {
        self.core = core;
        self.core.set_watched(true);
        self.node.begin_anew(key, page);
        self.waits.restore(self.now, Metrics::default());
        self.journal = self.journal.emptied();
        self.fds.close_all_held();
        for connection in self.connections.drain() {
            let Connection { socket, lingering, event, ahead, domain, .. } = connection;
            for socket in [socket, lingering, event, ahead].into_iter().flatten() {
                self.fds.close_socket(socket, domain.uid, Report::Refused(domain.uid));
            }
        }
        for Caller { socket, domain, .. } in self.connections.lobby.clear() {
            self.fds.close_socket(socket, domain.uid, Report::Refused(domain.uid));
        }
        self.feedback.forget_sendable();
        self.in_flight = Server::new_in_flight(&self.settings);
        self.ahead = Server::new_ahead(&self.settings);
        self.fds.flush();
    }

    /// What the records of a broker that was killed say of files is known from now on: of what its
    /// owner may name again, and of what has ended, for `fdbroker audit`.
    pub(crate) fn know_former(&mut self) {
        for (id, record, file) in self.node.page().former() {
            let Record { kind, size_bytes, domain, owner, .. } = record;
            if self.core.allocation(id).is_some() {
                // Clients may have leases of earlier files, but for memfds.
                let since_us = if kind == MemoryKind::Memfd { 0 } else { NOT_KNOWN_SINCE };
                self.fds.put(id.slot, kind, Files { since_us, ..Files::of(file) }, None);
            }
            if let Some(code) = self.core.end_of(id) {
                let (pid, job, is_leased) = (owner.pid, None, false);
                let ended = Ended { id, kind, size_bytes, domain, pid, job, code, is_leased };
                self.fds.tombstones.add(&ended, Files::of(file), self.now);
            }
        }
    }

    /// Brings the crash store and the core together. After a crash the core has what was live of
    /// `found`, and its fds are the store's; after a planned restart all fds are here already, and
    /// the store's duplicates go, as does `left`.
    pub(crate) fn settle_kept(&mut self, found: Vec<Found>, mut left: Arrivals) {
        let unused = self.kept.settle(found, &self.core, &mut self.fds);
        unused.into_iter().for_each(|fd| left.put_back(fd));
        left.close_by(self.fds.closers());
    }

    /// Takes over connections and fds. Nothing is read, written or told to anybody yet.
    pub(crate) fn go_on(&mut self, arrived: &mut Arrived) -> Result<(), RefusedState> {
        let most = self.settings.most_connections as usize;
        check_numbers(&arrived.state, most, self.node.page().slots())?;
        self.waits.restore(Now(arrived.state.started_us), arrived.state.metrics);
        self.past.restore(&std::mem::take(&mut arrived.state.past));
        self.journal.restore(&std::mem::take(&mut arrived.state.journal));
        self.calls.debts.restore(&arrived.state.debts);
        self.former_places = std::mem::take(&mut arrived.state.listeners);
        self.former_places.append(&mut arrived.state.administration);
        self.fds.restore(arrived)?;
        let mut result = Ok(());
        let mut connections = Vec::new();
        for saved in std::mem::take(&mut arrived.state.connections) {
            let index = saved.index as usize;
            let mut connection = Connection::bare(saved.serial, saved.domain, saved.pid);
            result = connection.restore(saved, &mut arrived.fds);
            connections.push((index, connection));
            if result.is_err() {
                break;
            }
        }
        let handshakes = std::mem::take(&mut arrived.state.handshakes).into_iter();
        let handshakes = handshakes.map(|saved| Handshake {
            client: ClientId(saved.client),
            serial: saved.serial,
            until: Now(saved.until_us),
        });
        // Also after an error: this thread must not close the fds that they have so far.
        self.connections.restore(connections, arrived.state.next_serial, handshakes);
        result?;
        for saved in std::mem::take(&mut arrived.state.callers) {
            let (pid, until) = (saved.pid, Now(saved.until_us));
            let socket = arrived.fds.take(saved.socket)?;
            self.receive(Caller::new(socket, saved.domain, pid, until));
        }
        check_against_core(&self.core, &mut self.connections, &self.fds)?;
        let indices: Vec<usize> = self.connections.iter().map(|(index, _)| index).collect();
        for index in indices {
            self.restore_place(index)
                .map_err(|source| RefusedState::Os { what: "watch a client", source })?;
        }
        Ok(())
    }

    /// Watches one connection's fds and puts it into the lists that it belongs to.
    fn restore_place(&mut self, index: usize) -> io::Result<()> {
        let client = client_id(index);
        let connection = &mut self.connections[index];
        self.in_flight.restore(connection);
        let is_waiting = connection.blocked.is_some() || connection.lingering.is_some();
        if let Some(main) = connection.socket.as_ref().or(connection.lingering.as_ref()) {
            register(&self.poll, main.as_fd(), Source::Main(index))?;
            if is_waiting {
                watch(&self.poll, main.as_fd(), Source::Main(index), true)?;
            }
        }
        if let Some(event) = &connection.event {
            register(&self.poll, event.as_fd(), Source::Event(index))?;
            if connection.pending_event.is_some() {
                watch(&self.poll, event.as_fd(), Source::Event(index), true)?;
            }
        }
        if let Some(pidfd) = &connection.pidfd {
            register(&self.poll, pidfd.as_fd(), Source::Process(index))?;
        }
        if connection.ahead.is_some() {
            self.ahead.take(connection.shares_as, 1);
        }
        // What lies in its sockets is served in its turn.
        connection.is_main_ready = connection.socket.is_some();
        connection.is_event_ready = connection.event.is_some();
        let blocked = connection.blocked;
        if connection.phase == Phase::Welcomed {
            self.connections.note_events(client);
        }
        if blocked.is_some() {
            self.feedback.note_sendable(client, false);
        }
        if blocked == Some(Blocked::InFlight) {
            self.in_flight.wait(client, &mut self.connections, self.now);
        }
        if self.connections[index].phase == Phase::Gone {
            self.end_ahead(client);
        }
        self.connections.enqueue(client);
        Ok(())
    }
}

impl Connection {
    /// Puts in what another broker had. On an error it has some of it.
    fn restore(&mut self, saved: SavedConnection, fds: &mut Arrivals) -> Result<(), RefusedState> {
        let is_gone = saved.phase == Phase::Gone;
        if is_gone == saved.socket.is_some() || (!is_gone && saved.lingering.is_some()) {
            return Err(broken("sockets and phase differ of client", saved.index.into()));
        }
        if let Some(reply) = saved.hello_reply {
            self.hello_reply = Some(HelloReply {
                request: RequestId(reply.request),
                deposit_credits: reply.deposit_credits,
            });
        }
        self.socket = fds.take_if(saved.socket)?;
        self.lingering = fds.take_if(saved.lingering)?;
        self.event = fds.take_if(saved.event)?;
        self.secret = saved.secret;
        self.ahead = fds.take_if(saved.ahead)?;
        self.pidfd = fds.take_if(saved.pidfd)?;
        self.is_known = true;
        self.start = match saved.phase {
            // Its process may not have been looked at.
            Phase::Silent => Start::of(self.pid).unwrap_or_default(),
            _ => saved.start,
        };
        self.is_forgotten = saved.is_forgotten;
        self.name = saved.name;
        self.phase = saved.phase;
        self.is_bad_input_logged = saved.is_bad_input_logged;
        self.unread = Unread { messages: saved.unread_messages, fds: saved.unread_fds };
        self.blocked = saved.blocked;
        self.pending = saved.pending.into();
        self.pending_event = saved.pending_event;
        Ok(())
    }
}

/// Checks, before anything else, the numbers by which memory is allocated or tables are indexed.
fn check_numbers(state: &State, most: usize, slots: u32) -> Result<(), RefusedState> {
    let found = state.connections.len();
    if found > most {
        return Err(RefusedState::Clients { found, most });
    }
    if state.next_serial > MOST_SERIALS {
        return Err(broken("too large a serial number", state.next_serial));
    }
    let mut indices = HashSet::new();
    for saved in &state.connections {
        let index = saved.index as usize;
        if index >= MOST_NUMBERS || !indices.insert(index) {
            return Err(broken("too large a number or two connections with it:", index as u64));
        }
        if saved.serial > state.next_serial {
            return Err(broken("too large a serial number", saved.serial));
        }
        if saved.unread_fds.max(saved.unread_messages.into()) > MAX_TABLE_FDS {
            return Err(broken("too much is unread of client", saved.index.into()));
        }
    }
    match state.slots.iter().find(|saved| saved.slot >= slots) {
        Some(saved) => Err(broken("no place in the page for slot", saved.slot.into())),
        None => Ok(()),
    }
}

/// Core and daemon must agree on the clients and on the fds that are held.
fn check_against_core(
    core: &Core,
    connections: &mut Connections,
    fds: &FdTable,
) -> Result<(), RefusedState> {
    let known: Vec<_> = core.clients(0).map(|view| (view.id, view.record.gone)).collect();
    for (client, gone) in &known {
        let connection = connections.get(client.0 as usize);
        let is_there = match connection {
            None => false,
            Some(connection) if *gone => !connection.is_forgotten,
            Some(connection) => connection.phase != Phase::Gone,
        };
        if !is_there {
            return Err(broken("no connection of client", client.0.into()));
        }
    }
    let known: HashSet<_> = known.into_iter().map(|(id, _)| id).collect();
    let mut left = Vec::new();
    for (index, connection) in &mut *connections {
        if known.contains(&client_id(index)) {
            continue;
        }
        if connection.phase != Phase::Gone {
            return Err(broken("nothing is known of client", index as u64));
        }
        // Torn down already; only what lies unread may be left of it.
        connection.is_forgotten = true;
        if !connection.has_sockets_left() {
            left.push(index);
        }
    }
    for index in left {
        connections.remove(index);
    }
    let held = core.allocations(0..u32::MAX).filter(|view| view.record.is_held());
    let mut count = 0;
    for view in held {
        count += 1;
        if fds.held(view.id.slot).is_none() {
            return Err(broken("no fd of slot", view.id.slot.into()));
        }
    }
    if fds.slots().filter(|(_, _, fd)| fd.is_some()).count() == count {
        Ok(())
    } else {
        Err(broken("more fds than allocations", count as u64))
    }
}
