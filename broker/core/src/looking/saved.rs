//! The broker's state as plain data, for a successor that goes on with the same connections: the
//! tables of records. Links, sums and timers are not in it: `restore` makes them again. Must never
//! leave out what a client could notice the lack of.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::api::{Comeback, File, FileId, Now};
use crate::books::clients::{Domain, Job};
use crate::books::continuity::{FormerOwner, Standing};
use crate::books::gpus::SavedGpus;
use crate::books::objects::saved::SavedObjects;
use crate::books::slots::{Flat, SavedSlots};
use crate::books::{
    Allocation, AllocationList, Client, Grace, Lease, Orphan, Recall, ScopeId, State,
};
use crate::core::Core;
use fdbroker_protocol::Resource;
use serde::{Deserialize, Serialize};

/// All that a successor needs to know to go on: see [`Core::save`]. Opaque; its format is that of
/// its serde form and changes with the version of this crate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// In the order of the table of counters.
    pub(crate) counters: Vec<u64>,
    pub(crate) arrivals: u64,
    pub(crate) serials: u64,
    /// Turns given to domains.
    pub(crate) turns: u64,
    pub(crate) table_peak: u64,
    /// Of each scope, in the order of [`Core::scopes`].
    pub(crate) peaks: Vec<Vec<u128>>,
    /// Those that clients or allocations are of.
    pub(crate) domains: SavedSlots<Domain>,
    pub(crate) jobs: SavedSlots<Job>,
    pub(crate) clients: Vec<Option<Box<Client>>>,
    pub(crate) allocations: SavedSlots<Allocation>,
    pub(crate) beside: Beside,
    pub(crate) leases: SavedSlots<Lease>,
    /// Leases whose holders are still to be told that they are asked for, or that their allocations
    /// have ended.
    pub(crate) to_tell: BTreeSet<u32>,
    /// Of before a crash.
    pub(crate) owners: SavedOwners,
    /// Until when these may name their slots; `None`: it is too late.
    pub(crate) grace_until: Option<Now>,
    /// What has become of the others so far.
    pub(crate) comeback: Comeback,
    /// Gone clients not yet torn down, in their turn.
    pub(crate) dying: VecDeque<u32>,
    /// Being drained: clients ever connected when that began.
    pub(crate) draining: Option<u64>,
    pub(crate) objects: SavedObjects,
}

/// Owners that slots wait for, whether each has named all that is alive, and each slot with whether
/// its fd outlived the crash.
pub(crate) type SavedOwners = Vec<(FormerOwner, bool, Vec<(u32, Standing)>)>;

/// Facts of allocations that their records do not have, by slot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Beside {
    pub(crate) driver_data: BTreeMap<u32, Vec<u8>>,
    /// What their numbers of GPUs stand for.
    pub(crate) gpus: SavedGpus,
    /// Of those that are held, or have ended and are leased.
    pub(crate) files: BTreeMap<u32, File>,
    /// See [`Core::payers`].
    pub(crate) payers: Vec<(u32, FileId, u32)>,
    pub(crate) orphans: BTreeMap<u32, Orphan>,
    pub(crate) recalls: BTreeMap<u32, Recall>,
    /// Recalls that are still to be sent.
    pub(crate) to_recall: BTreeSet<u32>,
}

impl Core {
    /// What a successor goes on with. Not in it: fds in the closers, which the daemon closes or
    /// forgets.
    ///
    /// # Panics
    /// When requests are parked: [`Core::settle_parked`] comes first, and no step in between.
    pub fn save(&self) -> Saved {
        assert!(
            self.books.parked.is_empty(),
            "parked requests are settled before the state is saved"
        );
        let is_to_tell = |(slot, lease): (u32, &Lease)| lease.is_to_tell().then_some(slot);
        let (domains, jobs, clients) = self.books.clients.save(|domain| self.is_used(domain));
        Saved {
            counters: self.books.counters.iter().map(|(_, count)| *count).collect(),
            arrivals: self.books.arrivals,
            serials: self.books.clients.serials(),
            turns: self.books.rooms.turns_given(),
            table_peak: self.books.ledger.table().1,
            peaks: self.scopes().iter().map(|it| self.books.ledger[*it].account.peaks()).collect(),
            domains,
            jobs,
            clients,
            allocations: self.books.allocations.save(|_| true),
            beside: self.beside(),
            leases: self.books.leases.save(|_| true),
            to_tell: self.books.leases.iter_from(0).filter_map(is_to_tell).collect(),
            owners: self.books.continuity.all().collect(),
            grace_until: match self.books.continuity.grace() {
                Grace::Until(at) => Some(at),
                Grace::None | Grace::Ending(_) => None,
            },
            comeback: self.books.continuity.comeback,
            dying: self.books.clients.dying().clone(),
            draining: self.books.draining,
            objects: self.books.objects.save(),
        }
    }

    fn beside(&self) -> Beside {
        let all = || self.books.allocations.iter_from(0);
        let recalled = || all().filter(|(_, allocation)| allocation.state == State::Recalling);
        let recall = |(slot, allocation): (u32, &Allocation)| {
            (slot, self.books.recalls[allocation.recall].flat())
        };
        let to_recall = recalled().filter(|(_, it)| it.is_in(AllocationList::Event));
        let driver_data = self.books.allocations.all_driver_data();
        let file = |slot| self.books.file_of(slot).or_else(|| self.books.ended_file_of(slot));
        Beside {
            gpus: self.books.allocations.gpus.saved(),
            driver_data: driver_data.map(|(slot, bytes)| (slot, bytes.to_vec())).collect(),
            files: all().filter_map(|(slot, _)| Some((slot, file(slot)?))).collect(),
            payers: self.books.payers(),
            orphans: self.books.allocations.orphans().clone(),
            recalls: recalled().map(recall).collect(),
            to_recall: to_recall.map(|(slot, _)| slot).collect(),
        }
    }

    /// Whether clients or allocations are of the domain: if not, it is there for fds in the closers
    /// alone.
    pub(crate) fn is_used(&self, domain: &Domain) -> bool {
        domain.clients > 0 || self.books.ledger[domain.scope].account.now(Resource::Allocations) > 0
    }

    /// The scopes that are saved: the node, all domains, all jobs and all clients, each kind by its
    /// numbers.
    pub(crate) fn scopes(&self) -> Vec<ScopeId> {
        let domains = self.books.clients.domains(0).map(|(_, domain)| domain);
        let domains = domains.filter(|domain| self.is_used(domain)).map(|domain| domain.scope);
        let jobs = self.books.clients.jobs(0).map(|(_, job)| job.scope);
        let clients = self.books.clients.iter().map(|(_, client)| client.scope);
        std::iter::once(ScopeId::NODE).chain(domains).chain(jobs).chain(clients).collect()
    }
}
