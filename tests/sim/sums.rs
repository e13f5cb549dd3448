//! What the model counts: the sums of every account, made anew each time. Must never be clever: it
//! keeps no sum from one step to the next.

use crate::model::{Allocation, Closing, Lease, Model, Request};
use fdbroker_core::{DomainKey, JobKey, limits};
use fdbroker_protocol::{AllocationId, Resource};
use std::collections::{BTreeMap, BTreeSet};

/// What one account is charged with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    pub held: u64,
    pub closing: u64,
    pub recalls: u64,
    /// Those that their clients have waited for.
    pub credits: u64,
    /// All others: they are taken back when another needs the place.
    pub idle_credits: u64,
    pub own: u64,
    pub open: u64,
    pub promised_open: u64,
    pub mapped: u64,
    pub allocations: u64,
    pub held_bytes: u128,
    /// Of what is never evicted.
    pub resident_bytes: u128,
    pub pinned_bytes: u128,
    pub kept: u64,
    pub connections: u64,
    /// Connections that have been let in.
    pub seats: u64,
    pub parked: u64,
    pub parked_items: u64,
    pub refused: u64,
    /// Of domains and the node: GPUs that owners name.
    pub gpus: u64,
    /// Of a client or a job: files that it may be charged for, or another owner in its place.
    pub may_pay_bytes: u128,
    /// Evictable fds that [`Ledger::without`] has taken out of `held`.
    pub taken_out: u64,
}

impl Sums {
    /// Places in the broker: held, closing, reserved.
    pub fn held_fds(&self) -> u64 {
        self.held + self.closing + self.recalls + self.credits + self.idle_credits
    }

    /// All fds of shared memory, open or to come.
    pub fn fds(&self) -> u64 {
        self.held_fds() + self.open + self.promised_open + self.own
    }

    /// How much of a resource is in use, reservations apart.
    pub fn now(&self, resource: Resource) -> u128 {
        match resource {
            Resource::Fds => (self.held + self.closing + self.open).into(),
            Resource::HeldFds => (self.held + self.closing).into(),
            Resource::OpenLeases => self.open.into(),
            other => self.usage(other),
        }
    }

    /// How much of a resource is in use or reserved: what its cap bounds.
    pub fn usage(&self, resource: Resource) -> u128 {
        match resource {
            Resource::Fds => self.fds().into(),
            Resource::HeldFds | Resource::TablePlaces => self.held_fds().into(),
            Resource::HeldBytes => self.held_bytes,
            Resource::OpenLeases => (self.open + self.promised_open).into(),
            Resource::MappedLeases => self.mapped.into(),
            Resource::Allocations => self.allocations.into(),
            Resource::OwnFds => self.own.into(),
            Resource::ReservedPlaces => (self.recalls + self.credits + self.idle_credits).into(),
            Resource::PromisedLeases => self.promised_open.into(),
            Resource::PinnedBytes => self.pinned_bytes,
            Resource::KeptAllocations => self.kept.into(),
            Resource::Connections => self.connections.into(),
            Resource::ParkedRequests => self.parked.into(),
            Resource::ParkedItems => self.parked_items.into(),
            Resource::RefusedFds => self.refused.into(),
            Resource::Gpus => self.gpus.into(),
            // Of the node alone.
            Resource::Domains => 0,
            // Worlds of their own have objects (objects/).
            Resource::ObjectNames
            | Resource::MetadataBytes
            | Resource::KeptBytes
            | Resource::KeptGpuBytes
            | Resource::KeptFds
            | Resource::PermanentBytes => 0,
        }
    }
}

/// Every account's sums.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    pub node: Sums,
    pub domains: BTreeMap<DomainKey, Sums>,
    pub jobs: BTreeMap<(DomainKey, JobKey), Sums>,
    pub clients: BTreeMap<u32, Sums>,
    /// Which job a client is of.
    job_of: BTreeMap<u32, (DomainKey, JobKey)>,
}

impl Ledger {
    /// An owner of a file that its domain is charged for.
    pub fn may_pay(&mut self, client: u32, domain: DomainKey, bytes: u128) {
        self.clients.entry(client).or_default().may_pay_bytes += bytes;
        if let Some(job) = self.job_of.get(&client) {
            self.jobs.entry(*job).or_default().may_pay_bytes += bytes;
        }
        self.domains.entry(domain).or_default();
    }

    pub fn charge(&mut self, client: Option<u32>, domain: DomainKey, add: impl Fn(&mut Sums)) {
        add(&mut self.node);
        add(self.domains.entry(domain).or_default());
        if let Some(client) = client {
            add(self.clients.entry(client).or_default());
            if let Some(job) = self.job_of.get(&client) {
                add(self.jobs.entry(*job).or_default());
            }
        }
    }

    /// Every account with its sums.
    pub fn accounts(&self) -> impl Iterator<Item = (Holder, &Sums)> {
        let clients = self.clients.iter().map(|(number, sums)| (Holder::Client(*number), sums));
        let domains = self.domains.iter().map(|(key, sums)| (Holder::Domain(*key), sums));
        let jobs = self.jobs.iter().map(|((key, job), sums)| (Holder::Job(*key, *job), sums));
        clients.chain(jobs).chain(domains).chain([(Holder::Node, &self.node)])
    }

    /// An account's sums; zero when it has none.
    pub fn of(&self, account: Holder) -> Sums {
        match account {
            Holder::Client(client) => self.clients.get(&client).copied(),
            Holder::Job(domain, job) => self.jobs.get(&(domain, job)).copied(),
            Holder::Domain(domain) => self.domains.get(&domain).copied(),
            Holder::Node => Some(self.node),
        }
        .unwrap_or_default()
    }

    /// The same without what a client was let in with.
    pub fn without_hello(mut self, client: u32, domain: DomainKey, own: u64) -> Self {
        self.charge(Some(client), domain, |sums| {
            sums.own = sums.own.saturating_sub(own);
            sums.seats = sums.seats.saturating_sub(1);
        });
        self
    }

    /// The same with one connection less.
    pub fn without_connection(mut self, client: u32, domain: DomainKey) -> Self {
        self.charge(Some(client), domain, |sums| sums.connections -= 1);
        self
    }

    /// The same with one open lease less.
    pub fn without_lease(mut self, client: u32, domain: DomainKey) -> Self {
        self.charge(Some(client), domain, |sums| sums.open = sums.open.saturating_sub(1));
        self
    }

    /// The same without fds that the broker could close to make room.
    pub fn without(mut self, evictable: &[(Option<u32>, DomainKey, u64)]) -> Self {
        for (client, domain, bytes) in evictable {
            self.charge(*client, *domain, |sums| {
                sums.held -= 1;
                sums.taken_out += 1;
                sums.held_bytes -= u128::from(*bytes);
            });
        }
        self
    }
}

/// Whose account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holder {
    Client(u32),
    Job(DomainKey, JobKey),
    Domain(DomainKey),
    Node,
}

/// A cap in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocker {
    pub resource: Resource,
    pub account: Holder,
}

impl Model {
    /// Counts every account anew.
    pub fn ledger(&self) -> Ledger {
        let mut ledger = Ledger::default();
        for (number, client) in &self.clients {
            ledger.job_of.extend(client.job.map(|job| (*number, (client.domain, job))));
        }
        for (number, client) in &self.clients {
            ledger.charge(Some(*number), client.domain, |sums| {
                sums.credits += u64::from(client.credit_waited_for);
                sums.idle_credits += client.idle_credits();
                sums.own += client.own;
                sums.connections += 1;
                sums.seats += u64::from(client.seated);
                sums.parked += client.requests.len() as u64;
                sums.parked_items += client.requests.values().map(Request::items).sum::<u64>();
                sums.promised_open += self.promised.get(number).copied().unwrap_or(0);
            });
        }
        for (id, allocation) in &self.allocations {
            self.charge_allocation(&mut ledger, *id, allocation);
        }
        for lease in self.leases.values() {
            let Some(client) = self.clients.get(&lease.client) else { continue };
            ledger.charge(Some(lease.client), client.domain, |sums| {
                sums.open += u64::from(!lease.mapped);
                sums.mapped += u64::from(lease.mapped);
                sums.pinned_bytes += self.pinned_by(lease);
            });
        }
        // The node counts memory once, however many leases pin it.
        ledger.node.pinned_bytes = self.pinned_on_node();
        self.charge_files(&mut ledger);
        for closing in self.tickets.values().filter(|closing| !closing.uninvited) {
            let here = self.is_there(closing);
            ledger.charge(here.then_some(closing.client), closing.domain, |s| s.closing += 1);
        }
        let gpus = self.allocations.values().map(|it| (it.domain, it.deposit.facts.gpu));
        for (domain, _) in gpus.filter(|(_, gpu)| !gpu.is_none()).collect::<BTreeSet<_>>() {
            ledger.charge(None, domain, |sums| sums.gpus += 1);
        }
        for closing in self.tickets.values().filter(|it| it.uninvited || it.refused) {
            ledger.charge(None, closing.domain, |sums| sums.refused += 1);
        }
        ledger
    }

    /// Whether the client that is charged for a closing fd is not forgotten yet.
    fn is_there(&self, closing: &Closing) -> bool {
        self.client_orders.get(&closing.client) == Some(&closing.client_order)
            && self.clients.contains_key(&closing.client)
    }

    /// The accounts that a client is charged to, the narrowest first; only its own if it is gone.
    pub fn accounts_of_client(&self, client: u32) -> Vec<Holder> {
        let mut all = vec![Holder::Client(client)];
        if let Some(state) = self.clients.get(&client) {
            all.extend(state.job.map(|job| Holder::Job(state.domain, job)));
            all.extend([Holder::Domain(state.domain), Holder::Node]);
        }
        all
    }

    fn pinned_by(&self, lease: &Lease) -> u128 {
        let ended = self.allocations.get(&lease.id).filter(|a| a.ended.is_some());
        ended.map_or(0, |allocation| allocation.deposit.facts.size_bytes.into())
    }

    fn charge_allocation(&self, ledger: &mut Ledger, id: AllocationId, allocation: &Allocation) {
        let owner = self.owner_here(allocation).then_some(allocation.owner);
        let live = allocation.ended.is_none();
        let held = live && self.is_held(id);
        let recalling = live && self.recalling.contains_key(&id);
        // Files that are held are charged by themselves.
        let bytes = match (held, recalling) {
            (true, false) if allocation.deposit.file.is_none() => {
                allocation.deposit.facts.size_bytes
            }
            (false, false) | (true, false) => 0,
            _ => allocation.deposit.facts.size_bytes,
        };
        let is_resident = held && !allocation.deposit.is_evictable();
        ledger.charge(owner, allocation.domain, |sums| {
            sums.resident_bytes += if is_resident { u128::from(bytes) } else { 0 };
            sums.allocations += 1;
            sums.held += u64::from(held);
            sums.held_bytes += u128::from(bytes);
            sums.recalls += u64::from(recalling);
            sums.kept += u64::from(live && allocation.deposit.keep);
        });
    }

    /// Fds in the broker's own table, including those that came without a reserved place.
    pub fn table_fds(&self, node: &Sums) -> u64 {
        let uninvited = self.tickets.values().filter(|closing| closing.uninvited).count() as u64;
        node.held_fds()
            + uninvited
            + node.seats * limits::FDS_PER_CONNECTION
            + limits::TABLE_RESERVE
    }

    /// Closing fds of a domain that were refused or came without a reserved place.
    pub fn refused_of(&self, domain: DomainKey) -> u64 {
        let closing = self.tickets.values().filter(|closing| closing.domain == domain);
        closing.filter(|closing| closing.uninvited || closing.refused).count() as u64
    }

    /// Closing fds that will soon leave room in an account; fds whose close may hang are left out.
    pub fn closing_in(&self, account: Holder) -> usize {
        let of = |closing: &&Closing| match account {
            Holder::Client(client) => closing.client == client,
            Holder::Job(..) => {
                self.is_there(closing) && self.clients[&closing.client].is_of(0, account)
            }
            Holder::Domain(domain) => closing.domain == domain,
            Holder::Node => true,
        };
        let soon = |closing: &&Closing| !closing.refused && !closing.uninvited;
        self.tickets.values().filter(soon).filter(of).count()
    }
}
