//! fdbroker's logic: registry, LRU, ledger, leases, policy. A pure state machine: must never do IO,
//! read a clock, know an OS type, or contain unsafe code.
//!
//! [`Core::step`] takes one input and appends what the daemon is to do to the effects; [`Core::poll`] does
//! what time or leftover work asks for, when [`Core::poll_timeout`] says; [`Core::take_events`]
//! gives one message for a client's event socket.
#![forbid(unsafe_code)]

pub mod api;
mod books;
pub mod limits;
mod looking;
mod moves;
mod requests;
mod step;
pub mod work;

pub use api::config::*;
pub use api::deposit::*;
pub use api::effect::*;
pub use api::former::*;
pub use api::ids::*;
pub use api::job_name::JobName;
pub use api::objects::*;
pub use api::request::*;
pub use api::subordinate::{SubordinateRange, SubordinateUids};
pub use books::check::RestoreError;
pub use books::ledger::Account;
pub use books::shares::Part;
pub use fdbroker_protocol::Caps;
pub use looking::saved::Saved;
pub use looking::view::{AllocationView, ClientView, DomainView, JobView, LeaseView, Totals};

use std::collections::BTreeMap;

use books::clients::Clients;
use books::closings::Closings;
use books::continuity::Continuity;
use books::files::Files;
use books::items::Item;
use books::leases::Leases;
use books::ledger::{Blocked, Ledger};
use books::notes::Notes;
use books::objects::Objects;
use books::parked::Parked;
use books::queues::Waiting;
use books::recalls::Recalls;
use books::registry::Registry;
use books::rooms::Rooms;
use books::timers::Timers;
use fdbroker_protocol::ByCounter;
use moves::allowances::Allowances;

/// The broker's state. See the crate's page.
#[derive(Debug)]
pub struct Core {
    /// Its caps are those in the beginning; the ledger has those in force.
    config: Config,
    ledger: Ledger,
    clients: Clients,
    allocations: Registry,
    continuity: Continuity,
    leases: Leases,
    recalls: Recalls,
    closings: Closings,
    /// Allocations that the request at hand wants: out of the order of eviction, so that none makes room for another.
    aside: Vec<u32>,
    files: Files,
    /// Parked requests by arrival number. At most `max_clients` x `max_parked_per_client`.
    parked: BTreeMap<u64, Parked>,
    /// Of these, those that wait for room or a reader.
    rooms: Rooms,
    /// Which of the parked requests wait for which allocation.
    waiting: Waiting,
    allowances: Allowances,
    /// What the items of the acquire at hand come to.
    items: Vec<Item>,
    /// Accounts in the way of the request at hand, beside the first one.
    also_blocked: Vec<Blocked>,
    /// Most fds granted in one answer.
    most_granted: usize,
    /// The time of the step.
    now: Now,
    /// The account behind which the look at those who wait for leases to come back goes on.
    reclaim_from: Option<Option<Blocked>>,
    /// Where the look at accounts above their caps goes on: how many kinds of scopes are done, and the next scope.
    drain_from: Option<(usize, u32)>,
    /// The administrator wants the broker empty; clients ever connected then: later ones deposit nothing.
    draining: Option<u64>,
    timers: Timers,
    /// Clients that this step has made events for.
    eventful: Vec<ClientId>,
    arrivals: u64,
    counters: ByCounter<u64>,
    notes: Notes,
    objects: Objects,
}

impl Core {
    /// An empty broker.
    ///
    /// # Errors
    /// When a number of the configuration cannot work; the message says which and why.
    pub fn new(mut config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        config.bound_caps();
        Ok(Core {
            ledger: Ledger::new(config.caps(), config.table_fds),
            clients: Clients::new(config.max_domains, config.subordinate_uids.clone()),
            allocations: Registry::new(config.max_slots, config.first_generation),
            continuity: Continuity::default(),
            leases: Leases::default(),
            recalls: Recalls::default(),
            closings: Closings::default(),
            aside: Vec::new(),
            files: Files::default(),
            parked: BTreeMap::new(),
            rooms: Rooms::default(),
            waiting: Waiting::default(),
            allowances: Allowances::default(),
            items: Vec::new(),
            also_blocked: Vec::new(),
            most_granted: fdbroker_protocol::MAX_BATCH,
            now: Now(0),
            reclaim_from: None,
            drain_from: None,
            draining: None,
            timers: Timers::default(),
            eventful: Vec::new(),
            arrivals: 0,
            counters: ByCounter::default(),
            notes: Notes::default(),
            objects: Objects::default(),
            config,
        })
    }
}
