//! The owners. Each keeps its own invariant, in a file of its own; what is read of several of them
//! is here, too. Must never change two owners: that is a move.

pub(crate) mod addresses;
pub(crate) mod allocation;
pub(crate) mod allowances;
pub(crate) mod charges;
pub(crate) mod check;
pub(crate) mod clients;
pub(crate) mod closings;
pub(crate) mod continuity;
pub(crate) mod files;
pub(crate) mod gpus;
pub(crate) mod leases;
pub(crate) mod ledger;
pub(crate) mod lists;
pub(crate) mod notes;
pub(crate) mod objects;
pub(crate) mod order;
pub(crate) mod parked;
pub(crate) mod queues;
pub(crate) mod reading;
pub(crate) mod recalls;
pub(crate) mod registry;
pub(crate) mod rooms;
pub(crate) mod rounds;
pub(crate) mod shares;
pub(crate) mod slots;
pub(crate) mod timers;

pub(crate) use allocation::{Allocation, AllocationList, Orphan, State};
pub(crate) use charges::{
    CONNECTION, NAMED_GPU, PLACES, PROMISED_LEASE, RECALLED_PLACE, REFUSED_FD, lease_charge,
};
pub(crate) use clients::Client;
pub(crate) use closings::Closing;
pub(crate) use continuity::Grace;
pub(crate) use leases::Lease;
pub(crate) use ledger::{
    Account, Blocked, Charge, Charged, FOR_CREDIT, FOR_HELD, FOR_LEASE, LEASE_KINDS, Ledger,
    SHARE_OF_FDS, ScopeId, ScopeRecord,
};
pub(crate) use parked::{PARKED, Parked, Wait, Wish, items_of};
pub(crate) use queues::Fate;
pub(crate) use recalls::Recall;
pub(crate) use timers::{Chore, Timer};

use std::collections::BTreeMap;

use crate::api::{ClientId, Config};
use crate::books::clients::Clients;
use crate::books::closings::Closings;
use crate::books::continuity::Continuity;
use crate::books::files::Files;
use crate::books::leases::Leases;
use crate::books::notes::Notes;
use crate::books::objects::Objects;
use crate::books::queues::Waiting;
use crate::books::recalls::Recalls;
use crate::books::registry::Registry;
use crate::books::rooms::Rooms;
use crate::books::timers::Timers;
use fdbroker_protocol::{ByCounter, MAX_BATCH};

/// All owners.
#[derive(Debug)]
pub(crate) struct Books {
    /// Its caps are those in the beginning; the ledger has those in force.
    pub config: Config,
    pub ledger: Ledger,
    pub clients: Clients,
    pub allocations: Registry,
    pub continuity: Continuity,
    pub leases: Leases,
    pub recalls: Recalls,
    pub closings: Closings,
    pub files: Files,
    /// Parked requests by arrival number. At most `max_clients` x `max_parked_per_client`.
    pub parked: BTreeMap<u64, Parked>,
    /// Of these, those that wait for room or a reader.
    pub rooms: Rooms,
    /// Which of the parked requests wait for which allocation.
    pub waiting: Waiting,
    /// Most fds granted in one answer.
    pub most_granted: usize,
    /// The account behind which the look at those who wait for leases to come back goes on.
    pub reclaim_from: Option<Option<Blocked>>,
    /// Where the look at accounts above their caps goes on: how many kinds of scopes are done, and
    /// the next scope.
    pub drain_from: Option<(usize, u32)>,
    /// The administrator wants the broker empty; clients ever connected then: later ones deposit
    /// nothing.
    pub draining: Option<u64>,
    pub timers: Timers,
    /// Clients that this step has made events for.
    pub eventful: Vec<ClientId>,
    pub arrivals: u64,
    pub counters: ByCounter<u64>,
    pub notes: Notes,
    pub objects: Objects,
}

impl Books {
    /// Nothing is in them yet.
    pub fn new(config: Config) -> Self {
        Books {
            ledger: Ledger::new(config.caps(), config.table_fds),
            clients: Clients::new(config.max_domains, config.subordinate_uids.clone()),
            allocations: Registry::new(config.max_slots, config.first_generation),
            continuity: Continuity::default(),
            leases: Leases::default(),
            recalls: Recalls::default(),
            closings: Closings::default(),
            files: Files::default(),
            parked: BTreeMap::new(),
            rooms: Rooms::default(),
            waiting: Waiting::default(),
            most_granted: MAX_BATCH,
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
        }
    }
}
