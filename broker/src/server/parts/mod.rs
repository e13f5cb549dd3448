//! The daemon while it runs: the parts that the loop works with. Each part keeps its own invariant.
//! Must never do anything by itself.

pub mod chores;
pub mod feedback;
pub mod inbox;
pub mod seals;
pub mod trim;
pub mod waiting;

use crate::admin::rights::Sight;
use crate::admin::side::AdminSide;
use crate::admin::view::{View, Whole};
use crate::clients::calls::Calls;
use crate::clients::connections::Connections;
use crate::clients::door::Door;
use crate::clients::in_flight::InFlight;
use crate::clients::shares::{Pool, Shares};
use crate::clients::waits::Waits;
use crate::clock;
use crate::fds::classify::Classifier;
use crate::fds::closers::Closers;
use crate::fds::table::FdTable;
use crate::handover::state::SavedListener;
use crate::journal::Journal;
use crate::kept::store::CrashStore;
use crate::limits::{IN_FLIGHT_DIVISOR, ahead_sockets, store_entries};
use crate::manager::notify::Manager;
use crate::messages::requests::Scratch;
use crate::node::listeners::Listener;
use crate::node::side::NodeSide;
use crate::node::warden::Warden;
use crate::past::Past;
use crate::readiness::{Source, register};
use crate::server::parts::chores::Schedule;
use crate::server::parts::feedback::Feedback;
use crate::server::parts::inbox::Inbox;
use crate::server::parts::seals::Seals;
use crate::server::parts::trim::Trim;
use crate::server::parts::waiting::Waiting;
use crate::settings::Settings;
use crate::settings::effective::caps_of;
use crate::settings::reload::Rereading;
use fdbroker_core::{ClientId, Config, Core, Now};
use fdbroker_protocol::Writer;
use fdbroker_protocol::limits::AHEAD_FDS;
use mio::Poll;
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;

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
    /// For users that look, each with the number of the clients' listener that it stands beside.
    pub viewers: Vec<(u32, Listener)>,
    pub node: NodeSide,
    pub classifier: Classifier,
    pub core: Core,
    pub poll: Poll,
    pub closers: Closers,
    pub warden: Warden,
    pub manager: Manager,
    pub kept: CrashStore,
}

/// The daemon while it runs. The parts are closed in this order: the lock, which is with the node,
/// last.
pub(crate) struct Server {
    pub(crate) settings: Settings,
    pub(super) rereading: Rereading,
    pub(super) poll: Poll,
    pub(super) now: Now,
    /// Set: the loop ends.
    pub(super) ending: Option<Ending>,
    pub(super) schedule: Schedule,
    pub(super) trim: Trim,
    pub(super) core: Core,
    pub(super) feedback: Feedback,
    pub(super) classifier: Classifier,
    pub(super) fds: FdTable,
    pub(super) door: Door,
    pub(super) connections: Connections,
    pub(super) waiting: Waiting,
    pub(super) seals: Seals,
    pub(super) in_flight: InFlight,
    pub(super) ahead: Pool,
    pub(super) waits: Waits,
    pub(super) calls: Calls,
    /// Clients whose user has paid its debt, to go on.
    pub(super) returning: VecDeque<ClientId>,
    pub(super) journal: Journal,
    pub(super) past: Past,
    pub(super) admin: AdminSide,
    /// Where the broker before served, until these places are this one's.
    pub(super) former_places: Vec<SavedListener>,
    pub(super) warden: Warden,
    pub(super) manager: Manager,
    pub(super) kept: CrashStore,
    pub(super) inbox: Inbox,
    pub(super) scratch: Scratch,
    pub(super) writer: Writer,
    pub(super) node: NodeSide,
}

impl Server {
    pub fn new(settings: Settings, parts: Parts) -> io::Result<Self> {
        let Config { max_slots, share_factor, .. } = settings.core;
        // The broker of one user has no shares.
        let is_shared = share_factor != fdbroker_protocol::NO_CAP;
        let now = clock::now();
        let mut server = Server {
            rereading: Rereading::default(),
            poll: parts.poll,
            now,
            ending: None,
            schedule: Schedule::default(),
            trim: Trim::default(),
            core: parts.core,
            feedback: Feedback::default(),
            classifier: parts.classifier,
            fds: FdTable::new(max_slots, settings.table_fds, share_factor, parts.closers),
            door: Door::new(parts.listeners),
            connections: Connections::new(
                settings.core.max_clients as usize,
                is_shared,
                settings.core.subordinate_uids.clone(),
            ),
            waiting: Waiting::default(),
            seals: Seals::default(),
            in_flight: Self::new_in_flight(&settings),
            ahead: Self::new_ahead(&settings),
            waits: Waits::new(now),
            calls: Calls::new(is_shared),
            returning: VecDeque::new(),
            journal: Journal::new(is_shared),
            past: Past::default(),
            admin: AdminSide::new(parts.admin, parts.viewers),
            former_places: Vec::new(),
            warden: parts.warden,
            manager: parts.manager,
            kept: parts.kept,
            inbox: Inbox::new(),
            scratch: Scratch::default(),
            writer: Writer::new(),
            node: parts.node,
            settings,
        };
        // The journal tells of what happens, also when no administrator watches.
        server.core.set_watched(true);
        server.register_sources()?;
        Ok(server)
    }

    /// Nothing in flight.
    pub fn new_in_flight(settings: &Settings) -> InFlight {
        let ahead = ahead_sockets(settings.table_fds) * AHEAD_FDS as u64;
        let most = settings.table_fds / IN_FLIGHT_DIVISOR - ahead;
        InFlight::new(Shares::new(most, settings.most_connections, settings.core.share_factor))
    }

    /// No client has a socket for fds ahead.
    pub fn new_ahead(settings: &Settings) -> Pool {
        Pool::new(ahead_sockets(settings.table_fds), settings.core.share_factor)
    }

    fn register_sources(&mut self) -> io::Result<()> {
        for (number, listener) in self.door.listeners().enumerate() {
            register(&self.poll, listener.as_fd(), Source::Listener(number))?;
        }
        for (number, listener) in self.admin.listeners().enumerate() {
            register(&self.poll, listener.as_fd(), Source::AdminListener(number))?;
        }
        register(&self.poll, self.node.signals(), Source::Signals)?;
        if let Some(warden) = self.warden.socket() {
            register(&self.poll, warden, Source::Warden)?;
        }
        match self.node.until_eof() {
            Some(fd) => register(&self.poll, fd, Source::UntilEof),
            None => Ok(()),
        }
    }

    /// Whether no client has a turn or an event to come.
    #[cfg(feature = "fuzzing")]
    pub fn is_at_rest(&self) -> bool {
        let is_idle = self.connections.turns().is_empty() && !self.connections.lobby.is_ready();
        !self.is_asking() && is_idle && self.connections.eventful() == 0
    }

    /// Whether the facts about a client's process are not there yet.
    #[cfg(feature = "fuzzing")]
    pub fn is_asking(&self) -> bool {
        self.connections.iter().any(|(_, connection)| !connection.is_known)
    }

    /// For the fuzzer: what it judges.
    #[cfg(feature = "fuzzing")]
    pub fn core(&mut self) -> &mut Core {
        &mut self.core
    }

    /// Whether nothing is left of any connection.
    #[cfg(feature = "fuzzing")]
    pub fn is_without_connections(&self) -> bool {
        self.connections.is_empty() && self.connections.lobby.callers().is_empty()
    }

    /// Entries that the service manager's store lacks for what may be kept.
    pub fn store_short(&self) -> u64 {
        self.manager.entries_short_of(store_entries(self.settings.table_fds))
    }

    /// What is shown to whoever sees so much.
    pub fn view(&self, sight: Sight) -> View<'_> {
        let whole = Whole {
            core: &self.core,
            connections: &self.connections,
            fds: &self.fds,
            metrics: self.waits.metrics(),
            longest_wake_us: self.waits.longest_wake_us(),
            journal: &self.journal,
            debts: &self.calls.debts,
            warden: &self.warden,
            past: &self.past,
            identity: self.node.identity(),
            listeners: &self.settings.listeners,
            configured: caps_of(&self.settings),
            config_file: self.settings.file_of_next_start(),
            store_short: self.store_short(),
            ends_with_broker: !self.kept.is_there(),
            is_config_refused: self.settings.refused.is_some(),
            incarnation: self.node.page().incarnation(),
            now: self.now,
            started: self.waits.started(),
        };
        View::new(whole, sight)
    }
}
