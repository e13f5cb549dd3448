//! The daemon while it runs: the parts that the loop works with. Each part keeps its own invariant. Must never do
//! anything by itself.

use crate::admin::side::AdminSide;
use crate::admin::view::View;
use crate::clients::connections::Connections;
use crate::clients::door::Door;
use crate::clients::in_flight::InFlight;
use crate::clients::waits::Waits;
use crate::clock;
use crate::fds::classify::Classifier;
use crate::fds::closers::Closers;
use crate::fds::table::FdTable;
use crate::handover::state::SavedListener;
use crate::limits::IN_FLIGHT_DIVISOR;
use crate::log::BadInput;
use crate::manager::keep_store::KeepStore;
use crate::manager::notify::Manager;
use crate::manager::service::Service;
use crate::messages::replies::Identity;
use crate::messages::requests::Scratch;
use crate::node::generation_page::GenerationPage;
use crate::node::listeners::{DirectoryLock, Listener};
use crate::node::namespace::Namespace;
use crate::node::signals::Signals;
use crate::readiness::Source;
use crate::readiness::register;
use crate::server::chores::Schedule;
use crate::server::feedback::Feedback;
use crate::server::inbox::Inbox;
use crate::server::reload::Rereading;
use crate::server::trim::Trim;
use crate::server::waiting::Waiting;
use crate::settings::Settings;
use fdbroker_core::{Core, Effects, Now};
use fdbroker_protocol::Writer;
use mio::Poll;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Why the loop ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// By a signal: a service manager may start the next one.
    Asked,
    /// Nobody needs this broker any more.
    Alone,
    /// Another one serves already.
    HandedOver,
}

/// What the start has prepared.
pub(crate) struct Parts {
    pub listeners: Vec<Listener>,
    pub admin: Listener,
    pub page: GenerationPage,
    pub identity: Identity,
    pub classifier: Classifier,
    pub signals: Signals,
    pub until_eof: Option<OwnedFd>,
    pub core: Core,
    pub poll: Poll,
    pub closers: Closers,
    pub manager: Manager,
    pub lock: DirectoryLock,
    pub keep_store: KeepStore,
}

/// The daemon while it runs.
pub(crate) struct Server {
    pub settings: Settings,
    pub(super) poll: Poll,
    pub core: Core,
    pub(super) now: Now,
    pub(super) started: Now,
    pub page: GenerationPage,
    pub(super) identity: Identity,
    pub(super) classifier: Classifier,
    pub fds: FdTable,
    pub(super) door: Door,
    pub(super) admin: AdminSide,
    pub connections: Connections,
    pub(super) waits: Waits,
    pub(super) namespace: Namespace,
    pub(super) schedule: Schedule,
    pub(super) waiting: Waiting,
    pub(super) in_flight: InFlight,
    pub(super) trim: Trim,
    pub(super) feedback: Feedback,
    pub(super) bad_input: BadInput,
    /// Where the broker before served, until these places are this one's.
    pub(super) former_places: Vec<SavedListener>,
    pub(super) rereading: Rereading,
    /// Set: the loop ends.
    pub(super) ending: Option<Ending>,
    /// The administrator's connection that wants to take over, and the format it reads.
    pub(super) takeover_asked: Option<(usize, u64)>,
    /// Released with this value, when everything else has ended.
    pub(super) lock: DirectoryLock,
    pub service: Service,
    pub(super) signals: Signals,
    pub(super) until_eof: Option<OwnedFd>,
    pub(super) inbox: Inbox,
    // Buffers, reused.
    pub(super) scratch: Scratch,
    pub(super) writer: Writer,
    pub(super) slots: Vec<u32>,
    pub(super) effects: Effects,
    pub(super) spare_effects: Effects,
}

impl Server {
    pub fn new(settings: Settings, parts: Parts) -> io::Result<Self> {
        let max_clients = settings.core.max_clients as usize;
        let now = clock::now();
        let in_flight = Self::new_in_flight(&settings);
        // The broker of one user has no shares.
        let is_shared = settings.core.share_factor != fdbroker_protocol::NO_CAP;
        let fds = FdTable::new(settings.core.max_slots, settings.table_fds, parts.closers);
        let mut server = Server {
            now,
            started: now,
            core: parts.core,
            poll: parts.poll,
            page: parts.page,
            identity: parts.identity,
            classifier: parts.classifier,
            fds,
            door: Door::new(parts.listeners),
            admin: AdminSide::new(parts.admin),
            connections: Connections::new(max_clients, is_shared),
            waits: Waits::default(),
            namespace: Namespace::of_this_process(),
            schedule: Schedule::default(),
            waiting: Waiting::default(),
            in_flight,
            trim: Trim::default(),
            feedback: Feedback::default(),
            bad_input: BadInput::default(),
            former_places: Vec::new(),
            rereading: Rereading::default(),
            ending: None,
            takeover_asked: None,
            service: Service::new(parts.manager, parts.keep_store, now),
            lock: parts.lock,
            signals: parts.signals,
            until_eof: parts.until_eof,
            inbox: Inbox::new(),
            scratch: Scratch::default(),
            writer: Writer::new(),
            slots: Vec::with_capacity(fdbroker_protocol::MAX_BATCH),
            effects: Effects::default(),
            spare_effects: Effects::default(),
            settings,
        };
        server.register_sources()?;
        Ok(server)
    }

    /// Nothing in flight.
    pub fn new_in_flight(settings: &Settings) -> InFlight {
        let most = settings.table_fds / IN_FLIGHT_DIVISOR;
        InFlight::new(most, settings.most_connections, settings.core.share_factor)
    }

    fn register_sources(&mut self) -> io::Result<()> {
        for (number, listener) in self.door.listeners().enumerate() {
            register(&self.poll, listener.as_fd(), Source::Listener(number))?;
        }
        register(&self.poll, self.admin.listener().as_fd(), Source::AdminListener)?;
        register(&self.poll, self.signals.as_fd(), Source::Signals)?;
        match &self.until_eof {
            Some(fd) => register(&self.poll, fd.as_fd(), Source::UntilEof),
            None => Ok(()),
        }
    }

    /// Whether no client has a turn or an event to come.
    #[cfg(feature = "fuzzing")]
    pub fn is_at_rest(&self) -> bool {
        !self.is_asking() && self.connections.turns().is_empty() && self.connections.eventful() == 0
    }

    /// Whether the facts about a client's process are not there yet.
    #[cfg(feature = "fuzzing")]
    pub fn is_asking(&self) -> bool {
        self.connections.iter().any(|(_, connection)| !connection.is_known)
    }

    /// What administrators are shown.
    pub fn view(&self) -> View<'_> {
        View {
            core: &self.core,
            connections: &self.connections,
            fds: &self.fds,
            metrics: self.waits.metrics(),
            longest_wake_us: self.waits.longest_wake_us(),
            node: self.identity.node,
            incarnation: self.page.incarnation(),
            now: self.now,
            started: self.started,
        }
    }
}
