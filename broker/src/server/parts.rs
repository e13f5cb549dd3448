//! The daemon while it runs: what the loop has at hand. Must never do anything by itself.

use crate::admin::side::AdminSide;
use crate::admin::view::View;
use crate::clients::connections::Connections;
use crate::clients::door::Door;
use crate::clients::handshakes::Handshakes;
use crate::clients::in_flight::InFlight;
use crate::clients::metrics::{Asked, Metrics};
use crate::clients::turns::Turns;
use crate::clock;
use crate::fds::classify::Classifier;
use crate::fds::closers::{Closers, Report};
use crate::fds::table::FdTable;
use crate::handover::state::SavedListener;
use crate::limits::IN_FLIGHT_DIVISOR;
use crate::log::BadInput;
use crate::manager::keep_store::KeepStore;
use crate::manager::notify::Manager;
use crate::messages::replies::Identity;
use crate::messages::requests::Scratch;
use crate::node::generation_page::GenerationPage;
use crate::node::listeners::{DirectoryLock, Listener};
use crate::node::namespace::Namespace;
use crate::node::signals::Signals;
use crate::readiness::Source;
use crate::readiness::register;
use crate::server::suspended::Suspended;
use crate::settings::Settings;
use fdbroker_core::{ClientId, Core, Effects, LeaseId, Now, RequestId};
use fdbroker_protocol::Writer;
use fdbroker_protocol::limits::MAX_MESSAGE_BYTES;
use fdbroker_scm::ReceivedFds;
use mio::Poll;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

/// A grant that could not be sent, by its place in the effects of the pass.
pub(crate) struct Unsent {
    pub client: ClientId,
    pub request: RequestId,
    pub range: Range<usize>,
    pub deadline: Now,
    pub seq: u64,
}

/// A socket to close.
pub(crate) struct Retiring {
    pub socket: OwnedFd,
    /// Whose fds may lie in it.
    pub uid: u32,
    /// It is known that nothing does, nor can any more.
    pub is_at_end: bool,
}

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
    pub poll: Poll,
    pub core: Core,
    pub now: Now,
    pub started: Now,
    pub page: GenerationPage,
    pub identity: Identity,
    pub classifier: Classifier,
    pub fds: FdTable,
    pub keep_store: KeepStore,
    pub door: Door,
    pub admin: AdminSide,
    pub connections: Connections,
    pub metrics: Metrics,
    /// The acquire that is with the core.
    pub asked: Option<(ClientId, Asked)>,
    pub handshakes: Handshakes,
    pub namespace: Namespace,
    /// Clients with something to read.
    pub ready: Turns,
    /// Work of the turn at hand.
    pub work: usize,
    /// The amount of it at which the turn of the client at hand is over.
    pub turn_ends_at: usize,
    /// Ready clients that wait until fds of their uid have been closed, by uid.
    pub paused: HashMap<u32, HashSet<ClientId>>,
    pub paused_until: Option<Now>,
    /// Messages that wait until one of their fds has been looked at, by uid; the fd table has their fds.
    pub suspended: HashMap<u32, Suspended>,
    /// Uids whose closes take long, as the core knows them, and when they are looked at again.
    pub slow: Vec<u32>,
    pub next_slow: Option<Now>,
    /// Clients with events to send.
    pub eventful: VecDeque<ClientId>,
    /// Clients that wait for fds in flight to be read by whomever.
    pub waiting_in_flight: VecDeque<ClientId>,
    pub next_sweep: Option<Now>,
    pub last_refresh: Option<Now>,
    /// The number of the client last looked at for what it has read.
    pub last_refreshed: usize,
    pub in_flight: InFlight,
    /// What the core knows of it.
    pub most_granted: usize,
    /// When memory that ended clients have used goes back to the system.
    pub trim_at: Option<Now>,
    /// What the next pass hands to the core.
    pub gone: Vec<ClientId>,
    pub unsent: Vec<Unsent>,
    /// Leases of grants that were cut to what may be in flight.
    pub cut: Vec<(ClientId, Vec<LeaseId>)>,
    pub sendable: Vec<(ClientId, bool)>,
    /// Sockets to close.
    pub retiring: Vec<Retiring>,
    pub reports: Vec<Report>,
    /// Wakes since the last that had time for a chore.
    pub wakes_without_chore: u32,
    /// Which of [`Chore::ALL`] is next.
    pub next_chore: usize,
    pub is_report_waiting: bool,
    pub bad_input: BadInput,
    /// Where the broker before served, until these places are this one's.
    pub former_places: Vec<SavedListener>,
    /// Set: the loop ends.
    pub ending: Option<Ending>,
    /// The administrator's connection that wants to take over, and the format it reads.
    pub takeover_asked: Option<(usize, u64)>,
    /// Released with this value, when everything else has ended.
    pub lock: DirectoryLock,
    pub manager: Manager,
    /// When the service manager is to hear that the loop turns.
    pub next_alive: Option<Now>,
    /// When the service manager may have room for what it had none for.
    pub next_keep: Option<Now>,
    pub signals: Signals,
    pub until_eof: Option<OwnedFd>,
    // Buffers, reused.
    pub buffer: Box<[u8]>,
    pub received: ReceivedFds,
    /// Room for none: the kernel drops them.
    pub no_fds: ReceivedFds,
    /// Whether the client whose turn it is may send fds.
    pub is_reading_fds: bool,
    /// Fds that its next message may have.
    pub fd_room: usize,
    /// Until when its messages with fds wait.
    pub no_fds_until: Option<Now>,
    pub scratch: Scratch,
    pub writer: Writer,
    pub slots: Vec<u32>,
    pub effects: Effects,
    pub spare_effects: Effects,
}

impl Server {
    pub fn new(settings: Settings, parts: Parts) -> io::Result<Self> {
        let max_clients = settings.core.max_clients as usize;
        let now = clock::now();
        let in_flight = Self::new_in_flight(&settings);
        let fds = FdTable::new(settings.core.max_slots, parts.closers);
        let mut server = Server {
            now,
            started: now,
            core: parts.core,
            poll: parts.poll,
            page: parts.page,
            identity: parts.identity,
            classifier: parts.classifier,
            fds,
            keep_store: parts.keep_store,
            door: Door::new(parts.listeners),
            admin: AdminSide::new(parts.admin),
            connections: Connections::new(max_clients),
            metrics: Metrics::default(),
            asked: None,
            handshakes: Handshakes::default(),
            namespace: Namespace::of_this_process(),
            ready: Turns::default(),
            work: 0,
            turn_ends_at: 0,
            paused: HashMap::new(),
            paused_until: None,
            suspended: HashMap::new(),
            slow: Vec::new(),
            next_slow: None,
            eventful: VecDeque::new(),
            waiting_in_flight: VecDeque::new(),
            next_sweep: None,
            last_refresh: None,
            last_refreshed: 0,
            most_granted: fdbroker_protocol::MAX_BATCH,
            in_flight,
            trim_at: None,
            gone: Vec::new(),
            unsent: Vec::new(),
            cut: Vec::new(),
            sendable: Vec::new(),
            retiring: Vec::new(),
            reports: Vec::new(),
            wakes_without_chore: 0,
            next_chore: 0,
            is_report_waiting: false,
            bad_input: BadInput::default(),
            former_places: Vec::new(),
            ending: None,
            next_keep: Some(now),
            takeover_asked: None,
            next_alive: parts.manager.watchdog_interval().map(|_| now),
            manager: parts.manager,
            lock: parts.lock,
            signals: parts.signals,
            until_eof: parts.until_eof,
            buffer: vec![0; MAX_MESSAGE_BYTES].into_boxed_slice(),
            received: ReceivedFds::new(),
            no_fds: ReceivedFds::with_capacity(0),
            is_reading_fds: true,
            fd_room: 0,
            no_fds_until: None,
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

    /// What administrators are shown.
    pub fn view(&self) -> View<'_> {
        View {
            core: &self.core,
            connections: &self.connections,
            fds: &self.fds,
            metrics: &self.metrics,
            node: self.identity.node,
            incarnation: self.page.incarnation(),
            now: self.now,
            started: self.started,
        }
    }
}
