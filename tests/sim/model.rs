//! The naive model: clients, allocations, leases, and where each fd is, learnt from inputs and
//! effects alone. Must never be clever: it counts every sum anew, and keeps nothing in the order of
//! use.

use crate::action::groups_of;
use crate::sums::Holder;
use crate::tally::Proofs;
use fdbroker_core::{
    Arrived, CapsOfScopes, Config, Declared, DomainKey, JobKey, Judged, LeaseId, OwnerKey, Wanted,
};
use fdbroker_protocol::{AllocationId, ErrorCode, Resource, Share};
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
    Register { deposits: Vec<Arrived>, credits_wanted: u32, deadline: u64 },
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
    /// Its grant could not be sent, so that it went back to the queue, and the client has not been
    /// reported to read since.
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
    /// Arrival numbers of acquires that the last step answered: some of the answers may turn out
    /// unsent.
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
    /// Nobody has a lease that is known of. It ended in the grace time, in which others can still
    /// declare leases.
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
    pub deposit: Judged,
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
    /// The same, or its fd is in the store and its owner has not named it again; or it has ended,
    /// and its owner may want to hear when it is drained.
    pub awaited: bool,
    /// Kept, and its owner gone: the earliest time at which that began and, once it is known, the
    /// latest.
    pub orphaned_at: Option<(u64, Option<u64>)>,
}

#[derive(Clone, Copy, Debug)]
pub struct Lease {
    pub client: u32,
    pub id: AllocationId,
    pub mapped: bool,
    pub revoked: bool,
    /// It is of before a crash.
    pub declared: bool,
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
    /// Allocations that are being recalled, whether or not the owner has been told, as the core's
    /// view says; and since when.
    pub recalling: BTreeMap<AllocationId, u64>,
    /// Supplied allocations that must stay until the requests waiting for them are served, as the
    /// core's view says.
    pub pinned: BTreeSet<AllocationId>,
    /// The same before the step.
    pub was_pinned: BTreeSet<AllocationId>,
    /// Leases promised to each client along with a recall, as the core's view says.
    pub promised: BTreeMap<u32, u64>,
    /// Allocations of gone clients that the core has still to take off the page.
    pub to_unpublish: BTreeSet<AllocationId>,
    /// Allocations with leases of gone clients that the core has still to take down, as the core's
    /// view says.
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
    /// Clients of which a request was answered in this step: before that, it may have been ahead of
    /// other requests.
    pub heard: BTreeSet<u32>,
    /// A poll was due before this step: those in line may not have been looked at since they could
    /// be served.
    pub is_poll_due: bool,
    /// The views are compared after every step, not only now and then.
    pub exact: bool,
    /// How often each promise was checked.
    pub proofs: Proofs,
}

impl Request {
    /// The time at which it must be answered; `None` = at once.
    pub fn may_wait_until(&self) -> Option<u64> {
        match &self.ask {
            Ask::Acquire { deadline, .. } | Ask::Hello { deadline, .. } => Some(*deadline),
            Ask::Register { deposits, deadline, .. } if deposits.is_empty() => Some(*deadline),
            _ => None,
        }
    }

    /// How many items it has that wait.
    pub fn items(&self) -> u64 {
        match &self.ask {
            Ask::Acquire { wanted, .. } => wanted.len() as u64,
            _ => 0,
        }
    }

    /// The fds that a parked hello declares.
    pub fn own_fds(&self) -> Option<u64> {
        match self.ask {
            Ask::Hello { own_fds, .. } => Some(own_fds.into()),
            _ => None,
        }
    }

    /// The allocations that it wants; none if it wants credit, or to be let in.
    pub fn wanted(&self) -> impl Iterator<Item = AllocationId> {
        let wanted = match &self.ask {
            Ask::Acquire { wanted, .. } => wanted.as_slice(),
            _ => &[],
        };
        wanted.iter().filter_map(|item| item.ok())
    }
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
            is_poll_due: false,
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
            Share::Gid => {
                let same_listener = asking.domain.listener == allocation.domain.listener;
                let (gid, groups) = groups_of(asking.pid);
                let of_group = gid == allocation.gid || groups.contains(&allocation.gid);
                asking.domain == allocation.domain || same_listener && of_group
            }
            Share::Uid | _ => asking.domain == allocation.domain,
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

    /// An allocation has ended, and no lease of it is known of: its owner is told, at once or when
    /// it lingers no more.
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

    /// Whether clients may still declare leases of an ended allocation, and its owner hears of its
    /// drain only later.
    pub fn lingers(&self, id: AllocationId, known: &Allocation) -> bool {
        let is_time = self.grace_until.is_some() && !self.grace_ending;
        let is_former = id.generation < self.config.first_generation;
        known.ended.is_some() && (known.awaited || is_time && is_former && self.owner_here(known))
    }

    /// Whether nobody waits any more for the owner of an ended allocation to name it: the core
    /// forgets it in its turn.
    pub fn is_given_up(&self, known: &Allocation) -> bool {
        known.ended.is_some() && known.awaited && self.grace_ending
    }

    /// Whether the owner is to be told that no lease of it is left. The last lease may be that of a
    /// gone client, whose teardown goes in portions.
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

    /// Whether the broker may close its fd: held, recallable, not waited for.
    pub fn is_evictable(&self, id: AllocationId, allocation: &Allocation) -> bool {
        allocation.ended.is_none()
            && allocation.deposit.recallable
            && !allocation.deposit.keep
            && self.is_held(id)
            && !self.pinned.contains(&id)
    }

    /// The lease of that number, as its client names it.
    pub fn lease_of(&self, client: u32, number: LeaseId) -> Option<&Lease> {
        self.leases.get(&number.0).filter(|lease| lease.client == client)
    }
}
