//! The naive model: clients, allocations, leases, and where each fd is, learnt from inputs and effects alone. Must never be
//! clever: it counts every sum anew, and keeps nothing in the order of use.

use crate::action::groups_of;
use crate::shares::SHARE_OF_FDS;
use crate::tally::Proofs;
use fdbroker_core::{
    Caps, CapsOfScopes, Config, Declared, Deposit, DomainKey, JobKey, LeaseId, OwnerKey, Wanted,
    limits,
};
use fdbroker_protocol::{AllocationId, ErrorCode, MAX_BATCH, NO_CAP, Resource, Share};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};

/// `Err` says which promise is broken.
pub type Check<T = ()> = Result<T, String>;

/// Where a client is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Accepted, hello not answered yet.
    Connected,
    /// Welcomed.
    Active,
    /// The core has disconnected it; its `Gone` is to come.
    Dropped,
    /// Gone; its `Forget` is to come.
    Gone,
}

/// What an unanswered request asks for.
#[derive(Clone, Debug)]
pub enum Ask {
    Hello { own_fds: u32, deadline: u64 },
    Register { deposits: Vec<Deposit>, credits_wanted: u32, deadline: u64 },
    Unregister,
    Lease,
    Acquire { wanted: Vec<Wanted>, deadline: u64 },
    Redeposit,
    Declare { items: Vec<Declared> },
}

/// An unanswered request.
#[derive(Clone, Debug)]
pub struct Request {
    pub ask: Ask,
    /// Number of its arrival. It keeps the number when it goes back to the queue.
    pub order: u64,
    /// Its grant could not be sent, so that it went back to the queue, and the client has not been reported to read since.
    pub unsent: bool,
}

#[derive(Clone, Debug)]
pub struct Client {
    pub domain: DomainKey,
    pub job: Option<JobKey>,
    pub pid: u32,
    /// What it is known by over connections and brokers.
    pub key: OwnerKey,
    /// The most fds that it wants to be held for it.
    pub most_held: Option<u32>,
    /// It has been let in: its connection has its places of the table.
    pub seated: bool,
    pub phase: Phase,
    pub own: u64,
    pub credits: u64,
    /// It has waited for one of them, and has not used it.
    pub credit_waited_for: bool,
    /// Credits that were taken back, which it does not know.
    pub credits_taken: u64,
    pub sendable: bool,
    /// Leases in the order they were granted.
    pub leases: Vec<u64>,
    /// Live allocations it owns.
    pub owns: Vec<AllocationId>,
    pub requests: BTreeMap<u64, Request>,
    /// Arrival numbers of acquires that the last step answered: some of the answers may turn out unsent.
    pub answered: BTreeMap<u64, u64>,
}

impl Client {
    pub fn use_credits(&mut self, sent: u64) {
        self.credits = self.credits.saturating_sub(sent);
        self.credit_waited_for &= sent == 0;
    }

    /// Credits that are taken back when another needs the place.
    pub fn idle_credits(&self) -> u64 {
        self.credits - u64::from(self.credit_waited_for)
    }

    /// Whether this client, whose number is `number`, is charged to an account.
    pub fn is_of(&self, number: u32, account: Holder) -> bool {
        match account {
            Holder::Client(client) => client == number,
            Holder::Job(domain, job) => self.domain == domain && self.job == Some(job),
            Holder::Domain(domain) => self.domain == domain,
            Holder::Node => true,
        }
    }
}

/// Puts the caps of every scope into a configuration.
pub fn set_caps(config: &mut Config, caps: &CapsOfScopes) {
    let CapsOfScopes { node, domain, job, client } = *caps;
    (config.node, config.domain, config.job, config.client) = (node, domain, job, client);
    config.bound_caps();
}

/// Whether the owner is told that the last lease of an ended allocation is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// There is nobody to tell, or there are leases left.
    No,
    /// Nobody has a lease that is known of. It ended in the grace time, in which others can still declare leases.
    Lingers,
    /// The owner is still to be told.
    Due,
    /// The owner was told.
    Told,
}

/// An allocation that lives; or has ended, and is still leased or its owner still to be told.
#[derive(Clone, Debug)]
pub struct Allocation {
    pub owner: u32,
    /// Counts the connections that had the owner's number: numbers are used again.
    pub owner_order: u64,
    pub domain: DomainKey,
    /// Its owner's group.
    pub gid: u32,
    /// Its owner's job, also after the owner is gone.
    pub job: Option<JobKey>,
    /// What its owner is known by.
    pub key: OwnerKey,
    pub deposit: Deposit,
    /// How often it was registered.
    pub count: u64,
    /// How it ended; `None` = it lives.
    pub ended: Option<ErrorCode>,
    pub leases: BTreeSet<u64>,
    /// When the owner took a recall that it has not answered.
    pub recalled_at: Option<u64>,
    /// The owner's last answer was a refusal with this code.
    pub refused: Option<ErrorCode>,
    pub drain: Drain,
    /// From before a crash, and not named again yet.
    pub reserved: bool,
    /// The same, or its fd is in the store and its owner has not named it again; or it has ended, and its owner may want to
    /// hear when it is drained.
    pub awaited: bool,
    /// Kept, and its owner gone: the earliest time at which that began and, once it is known, the latest.
    pub orphaned_at: Option<(u64, Option<u64>)>,
}

#[derive(Clone, Copy, Debug)]
pub struct Lease {
    pub client: u32,
    pub id: AllocationId,
    pub mapped: bool,
    pub revoked: bool,
}

/// A slot of the page and of the fd table.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slot {
    /// What the page says.
    pub published: u32,
    /// It says so only once the owner has named the allocation again.
    pub unconfirmed: bool,
    /// Highest generation it ever said.
    pub highest: u32,
    /// The broker has an fd there.
    pub full: bool,
    /// The client that is charged for that fd.
    pub owner: Option<Closing>,
}

/// An fd in a closer.
#[derive(Clone, Copy, Debug)]
pub struct Closing {
    pub client: u32,
    pub client_order: u64,
    pub domain: DomainKey,
    /// Of the refused lane.
    pub refused: bool,
    /// It came without a reserved place: beyond the credits, or unasked.
    pub uninvited: bool,
}

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
    pub pinned_bytes: u128,
    pub kept: u64,
    pub connections: u64,
    /// Connections that have been let in.
    pub seats: u64,
    pub parked: u64,
    pub parked_items: u64,
    pub refused: u64,
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
            // Of the node alone.
            Resource::Domains => 0,
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

#[derive(Debug)]
pub struct Model {
    pub config: Config,
    pub now: u64,
    pub clients: BTreeMap<u32, Client>,
    /// How many connections each client number has had.
    pub client_orders: BTreeMap<u32, u64>,
    pub allocations: BTreeMap<AllocationId, Allocation>,
    /// The cause of each end there ever was.
    pub ended: FxHashMap<AllocationId, ErrorCode>,
    pub leases: BTreeMap<u64, Lease>,
    /// The highest generation granted in each lease slot: lease numbers are never used twice.
    pub lease_highest: FxHashMap<u32, u32>,
    pub slots: Vec<Slot>,
    pub tickets: BTreeMap<u32, Closing>,
    /// Allocations that are being recalled, whether or not the owner has been told, as the core's view says; and since when.
    pub recalling: BTreeMap<AllocationId, u64>,
    /// Supplied allocations that must stay until the requests waiting for them are served, as the core's view says.
    pub pinned: BTreeSet<AllocationId>,
    /// The same before the step.
    pub was_pinned: BTreeSet<AllocationId>,
    /// Leases promised to each client along with a recall, as the core's view says.
    pub promised: BTreeMap<u32, u64>,
    /// Allocations of gone clients that the core has still to take off the page.
    pub to_unpublish: BTreeSet<AllocationId>,
    /// Allocations with leases of gone clients that the core has still to take down, as the core's view says.
    pub still_leased: BTreeSet<AllocationId>,
    /// What is known of files.
    pub files: crate::files::Files,
    /// Slots whose fd is in the service manager's store.
    pub kept_slots: BTreeSet<u32>,
    /// Until when allocations from before a crash may be named again.
    pub grace_until: Option<u64>,
    /// That time is over, and the core knows it.
    pub grace_ending: bool,
    /// Allocations that a broker before the last crash had drained.
    pub drained_before: BTreeSet<AllocationId>,
    /// Former owners that have named all that is alive: domain, group and key.
    pub complete: BTreeSet<(DomainKey, u32, OwnerKey)>,
    /// Clients that have missed a recall, as the core's view says.
    pub silent: BTreeSet<u32>,
    /// Uses that were above a cap when it was lowered, and how much of each is left.
    pub above: BTreeMap<(Holder, Resource), u128>,
    /// Requests that have arrived so far.
    pub orders: u64,
    /// The administrator wants the broker empty.
    pub draining: crate::acts::Draining,
    /// Clients of which a request was answered in this step: before that, it may have been ahead of other requests.
    pub heard: BTreeSet<u32>,
    /// The views are compared after every step, not only now and then.
    pub exact: bool,
    /// How often each promise was checked.
    pub proofs: Proofs,
}

impl Model {
    /// Nobody there.
    pub fn new(mut config: Config, exact: bool) -> Self {
        config.bound_caps();
        let slots = vec![Slot::default(); config.max_slots as usize];
        Model {
            config,
            now: 0,
            clients: BTreeMap::new(),
            client_orders: BTreeMap::new(),
            allocations: BTreeMap::new(),
            ended: FxHashMap::default(),
            leases: BTreeMap::new(),
            lease_highest: FxHashMap::default(),
            slots,
            tickets: BTreeMap::new(),
            recalling: BTreeMap::new(),
            pinned: BTreeSet::new(),
            was_pinned: BTreeSet::new(),
            promised: BTreeMap::new(),
            to_unpublish: BTreeSet::new(),
            still_leased: BTreeSet::new(),
            files: crate::files::Files::default(),
            kept_slots: BTreeSet::new(),
            grace_until: None,
            grace_ending: false,
            drained_before: BTreeSet::new(),
            complete: BTreeSet::new(),
            silent: BTreeSet::new(),
            above: BTreeMap::new(),
            orders: 0,
            draining: crate::acts::Draining::default(),
            heard: BTreeSet::new(),
            exact,
            proofs: Proofs::default(),
        }
    }

    /// The client, connected or not yet forgotten.
    pub fn client(&self, client: u32) -> Check<&Client> {
        self.clients.get(&client).ok_or_else(|| format!("client {client} is not connected"))
    }

    /// The same, to change.
    pub fn client_mut(&mut self, client: u32) -> Check<&mut Client> {
        self.clients.get_mut(&client).ok_or_else(|| format!("client {client} is not connected"))
    }

    /// The allocation if it lives.
    pub fn live(&self, id: AllocationId) -> Option<&Allocation> {
        self.allocations.get(&id).filter(|allocation| allocation.ended.is_none())
    }

    /// The broker has its fd.
    pub fn is_held(&self, id: AllocationId) -> bool {
        self.slots.get(id.slot as usize).is_some_and(|s| s.full && s.published == id.generation)
    }

    /// Whether the client may acquire it.
    pub fn permitted(&self, client: u32, allocation: &Allocation) -> bool {
        let Some(asking) = self.clients.get(&client) else { return false };
        match allocation.deposit.share {
            Share::Any => true,
            Share::Uid => asking.domain == allocation.domain,
            Share::Gid => {
                let same_listener = asking.domain.listener == allocation.domain.listener;
                let (gid, groups) = groups_of(asking.pid);
                let of_group = gid == allocation.gid || groups.contains(&allocation.gid);
                asking.domain == allocation.domain || same_listener && of_group
            }
        }
    }

    /// Whether the client that deposited it is still that connection.
    pub fn owner_here(&self, allocation: &Allocation) -> bool {
        self.client_orders.get(&allocation.owner) == Some(&allocation.owner_order)
            && self.clients.get(&allocation.owner).is_some_and(|owner| owner.phase != Phase::Gone)
    }

    /// Whether only its owner could supply it, and the owner does not answer.
    pub fn is_unanswered(&self, id: AllocationId) -> bool {
        let silent = |a: &Allocation| self.silent.contains(&a.owner);
        !self.is_held(id) && self.live(id).is_some_and(silent)
    }

    /// Whether requests for it wait for its owner alone: to supply the fd, or to name it again.
    pub fn is_awaited(&self, id: AllocationId) -> bool {
        let reserved = self.live(id).is_some_and(|allocation| allocation.reserved);
        self.recalling.contains_key(&id) || reserved
    }

    /// Ends an allocation: from now on it is not granted, and its holders are to be told.
    pub fn end(&mut self, id: AllocationId, code: ErrorCode) {
        let Some(allocation) = self.allocations.get_mut(&id) else { return };
        allocation.ended = Some(code);
        allocation.recalled_at = None;
        allocation.count = 0;
        // The end of a kept one is its end.
        allocation.awaited &= allocation.reserved;
        let owner = allocation.owner;
        if let Some(owner) = self.clients.get_mut(&owner) {
            owner.owns.retain(|other| *other != id);
        }
        self.recalling.remove(&id);
        self.pinned.remove(&id);
        self.ended.insert(id, code);
    }

    /// Takes a lease off its holder and its allocation.
    pub fn drop_lease(&mut self, number: u64) -> Option<Lease> {
        let lease = self.leases.remove(&number)?;
        if let Some(client) = self.clients.get_mut(&lease.client) {
            client.leases.retain(|other| *other != number);
        }
        if let Some(allocation) = self.allocations.get_mut(&lease.id) {
            allocation.leases.remove(&number);
            if allocation.ended.is_some() && allocation.leases.is_empty() {
                self.unleased(lease.id);
            }
        }
        Some(lease)
    }

    /// An allocation has ended, and no lease of it is known of: its owner is told, at once or when it lingers no more.
    pub fn unleased(&mut self, id: AllocationId) {
        let Some(known) = self.allocations.get(&id) else { return };
        let drain = match (self.owner_here(known), self.lingers(id, known)) {
            (true, true) => Drain::Lingers,
            (true, false) => Drain::Due,
            // It waits for its owner.
            (false, true) => Drain::No,
            (false, false) => return drop(self.allocations.remove(&id)),
        };
        self.allocations.get_mut(&id).expect("just found").drain = drain;
    }

    /// Whether clients may still declare leases of an ended allocation, and its owner hears of its drain only later.
    pub fn lingers(&self, id: AllocationId, known: &Allocation) -> bool {
        let is_time = self.grace_until.is_some() && !self.grace_ending;
        let is_former = id.generation < self.config.first_generation;
        known.ended.is_some() && (known.awaited || is_time && is_former && self.owner_here(known))
    }

    /// Whether nobody waits any more for the owner of an ended allocation to name it: the core forgets it in its turn.
    pub fn is_given_up(&self, known: &Allocation) -> bool {
        known.ended.is_some() && known.awaited && (self.grace_ending || self.is_complete(known))
    }

    /// Whether the owner is to be told that no lease of it is left. The last lease may be that of a gone client, whose
    /// teardown goes in portions.
    pub fn is_drained(&self, id: AllocationId, allocation: &Allocation) -> bool {
        allocation.drain == Drain::Due && !self.still_leased.contains(&id)
    }

    /// Forgets an ended allocation without leases whose owner need not be told of it.
    pub fn sweep(&mut self, id: AllocationId) {
        let done = self.allocations.get(&id).is_some_and(|allocation| {
            allocation.ended.is_some()
                && allocation.leases.is_empty()
                && matches!(allocation.drain, Drain::No | Drain::Told)
                && !self.lingers(id, allocation)
        });
        if done {
            self.allocations.remove(&id);
        }
    }

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
        ended.map_or(0, |allocation| allocation.deposit.size_bytes.into())
    }

    fn charge_allocation(&self, ledger: &mut Ledger, id: AllocationId, allocation: &Allocation) {
        let owner = self.owner_here(allocation).then_some(allocation.owner);
        let live = allocation.ended.is_none();
        let held = live && self.is_held(id);
        let recalling = live && self.recalling.contains_key(&id);
        // Files that are held are charged by themselves.
        let bytes = match (held, recalling) {
            (true, _) if allocation.deposit.file.is_none() => allocation.deposit.size_bytes,
            (_, true) => self.bytes_to_recall(id, allocation),
            _ => 0,
        };
        ledger.charge(owner, allocation.domain, |sums| {
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

    /// Whether the broker may close its fd: held, recallable, not waited for, owner answering.
    pub fn is_evictable(&self, id: AllocationId, allocation: &Allocation) -> bool {
        allocation.ended.is_none()
            && allocation.deposit.recallable
            && !allocation.deposit.keep
            && self.is_held(id)
            && !self.pinned.contains(&id)
            && !self.silent.contains(&allocation.owner)
    }

    /// The cap of an account, the largest number when it has none; a client may have bounded what is held for it.
    pub fn cap(&self, account: Holder, resource: Resource) -> u128 {
        let cap = self.caps(account)[resource];
        let cap = match account {
            Holder::Client(client) if resource == Resource::HeldFds => {
                let bound = self.clients.get(&client).and_then(|client| client.most_held);
                bound.map_or(cap, |bound| cap.min(bound.into()))
            }
            _ => cap,
        };
        if cap == NO_CAP { u128::MAX } else { cap.into() }
    }

    fn caps(&self, account: Holder) -> &Caps {
        match account {
            Holder::Client(_) => &self.config.client,
            Holder::Job(..) => &self.config.job,
            Holder::Domain(_) => &self.config.domain,
            Holder::Node => &self.config.node,
        }
    }

    /// The most fds of its own that any client could have.
    pub fn most_own_fds(&self) -> u64 {
        let Config { node, domain, job, client, .. } = &self.config;
        [node, domain, job, client].into_iter().map(|caps| caps.fds).min().unwrap_or(0)
    }

    /// Takes new caps; a use that is above them now may stay.
    pub fn set_caps(&mut self, caps: &CapsOfScopes) {
        set_caps(&mut self.config, caps);
        self.note_what_is_above();
    }

    /// Notes the uses that are above their cap now: they may stay.
    pub fn note_what_is_above(&mut self) {
        let ledger = self.ledger();
        self.above.clear();
        for (account, sums) in ledger.accounts() {
            for resource in Resource::capped() {
                let cap = self.cap(account, resource);
                if sums.usage(resource) > cap {
                    self.above.insert((account, resource), sums.usage(resource));
                }
            }
        }
    }

    /// A use that was above its cap and has shrunk must not grow again.
    pub fn drain(&mut self, ledger: &Ledger) {
        for ((account, resource), above) in &mut self.above {
            *above = (*above).min(ledger.of(*account).usage(*resource));
        }
    }

    /// Whether `need` more of a resource would pass the account's cap.
    pub fn is_full(&self, ledger: &Ledger, account: Holder, resource: Resource, need: u64) -> bool {
        let (used, cap) = match resource {
            Resource::TablePlaces => {
                (self.table_fds(&ledger.node).into(), self.config.table_fds.into())
            }
            _ => (ledger.of(account).usage(resource), self.cap(account, resource)),
        };
        let lacking = (used + u128::from(need)).saturating_sub(cap);
        // Idle credits are not in the way, but for a hello with very many fds.
        let idle = match resource {
            Resource::Fds | Resource::HeldFds | Resource::TablePlaces => {
                ledger.of(account).idle_credits.min(MAX_BATCH as u64)
            }
            _ => 0,
        };
        lacking > idle.into()
    }

    /// Every cap that blocks a grant of `id` to `client`; `None` if no room would help: the allocation has ended, or is not
    /// permitted.
    pub fn blockers(&self, ledger: &Ledger, client: u32, id: AllocationId) -> Option<Vec<Blocker>> {
        let allocation = self.live(id).filter(|allocation| !allocation.reserved)?;
        let asking = self.clients.get(&client)?;
        if !self.permitted(client, allocation) {
            return None;
        }
        let mut found = Vec::new();
        let mut look = |accounts: &[Holder], needs: &[(Resource, u64)]| {
            for account in accounts {
                for (resource, need) in needs {
                    if self.is_full(ledger, *account, *resource, *need) {
                        found.push(Blocker { resource: *resource, account: *account });
                    }
                }
            }
        };
        let lease = [(Resource::OpenLeases, 1), (Resource::Fds, 1)];
        look(&self.accounts_of_client(client), &lease);
        if !self.is_held(id) {
            let owner = allocation.owner;
            let same_domain = allocation.domain == asking.domain;
            let size = allocation.deposit.size_bytes;
            let (held, bytes) = ((Resource::HeldFds, 1), (Resource::HeldBytes, size));
            let client_fds = (Resource::Fds, if owner == client { 2 } else { 1 });
            look(&[Holder::Client(owner)], &[held, client_fds, bytes]);
            let owner_job = self.clients.get(&owner).and_then(|owner| owner.job);
            if let Some(job) = owner_job {
                let same_job = same_domain && asking.job == owner_job;
                let job_fds = (Resource::Fds, if same_job { 2 } else { 1 });
                look(&[Holder::Job(allocation.domain, job)], &[held, job_fds, bytes]);
            }
            let domain_fds = (Resource::Fds, if same_domain { 2 } else { 1 });
            look(&[Holder::Domain(allocation.domain)], &[held, domain_fds, bytes]);
            look(&[Holder::Node], &[held, (Resource::Fds, 2), bytes, (Resource::TablePlaces, 1)]);
        }
        if self.is_beyond_share(ledger, asking.domain, SHARE_OF_FDS, 1) {
            let account = Holder::Domain(asking.domain);
            found.push(Blocker { resource: SHARE_OF_FDS, account });
        }
        Some(found)
    }

    /// The lease of that number, as its client names it.
    pub fn lease_of(&self, client: u32, number: LeaseId) -> Option<&Lease> {
        self.leases.get(&number.0).filter(|lease| lease.client == client)
    }
}
