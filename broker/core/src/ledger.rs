//! The ledger: scopes with a parent (client, job, domain, node), and what each is charged with. A charge walks up from a
//! scope: it is made on all accounts on its way or on none, and a release asserts that the charge is there. What else is
//! counted of a scope is counted here, too. Must never let a sum pass its cap or go below zero.

use crate::api::{CapsOfScopes, Now};
use crate::limits::TABLE_RESERVE;
use crate::order::Index;
use crate::work::visit;
use fdbroker_protocol::{Caps, MAX_BATCH, NO_CAP, Resource, Scope};
use serde::{Deserialize, Serialize};

/// One charge: of what, and how many fds, bytes, leases, ... of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge(pub Resource, pub u64);

impl Charge {
    /// Every resource that it is counted in, its own first.
    fn resources(self) -> impl Iterator<Item = Resource> {
        std::iter::once(self.0).chain(self.0.counted_in().iter().copied())
    }

    /// What can be in its way in a scope.
    fn blocked_in(self, scope: ScopeId) -> impl Iterator<Item = Blocked> {
        let capped = self.resources().filter(|it| *it != Resource::TablePlaces);
        capped.map(move |resource| Blocked { resource, scope })
    }

    /// Whether it takes places of the broker's own fd table.
    fn is_in_table(self) -> bool {
        matches!(self.0, Resource::HeldFds | Resource::ReservedPlaces | Resource::TablePlaces)
    }
}

/// Counts of one client, job, domain or node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// In use or reserved. Wide enough for any sum of claimed sizes: 2^64 leases of 2^64 bytes.
    counted: [u128; Resource::COUNT],
    /// The most that was in use.
    peak: [u128; Resource::COUNT],
    /// What has changed since the caps of the node were asserted, one bit for each resource.
    changed: u32,
}

// One bit for each resource.
const _: () = assert!(Resource::COUNT <= 32);

impl Account {
    /// In use now. What is reserved is not: [`Resource::reserved_by`] has it.
    pub fn now(&self, resource: Resource) -> u64 {
        u64::try_from(self.used(resource)).unwrap_or(u64::MAX)
    }

    /// In use or reserved now: what the cap bounds.
    pub fn counted(&self, resource: Resource) -> u64 {
        u64::try_from(self.counted[resource.index()]).unwrap_or(u64::MAX)
    }

    fn used(&self, resource: Resource) -> u128 {
        let reserved = resource.reserved_by().iter().map(|by| self.counted[by.index()]);
        self.counted[resource.index()] - reserved.sum::<u128>()
    }

    /// Most ever in use.
    pub fn peak(&self, resource: Resource) -> u64 {
        u64::try_from(self.peak[resource.index()]).unwrap_or(u64::MAX)
    }

    /// Most ever in use, of each resource in a fixed order: for a successor.
    pub(crate) fn peaks(&self) -> Vec<u128> {
        self.peak.to_vec()
    }

    /// Takes over what a predecessor has seen in use; it may not have known the last resources of the table. `false`:
    /// these are more than there are resources.
    #[must_use]
    fn raise_peaks(&mut self, peaks: &[u128]) -> bool {
        let known = peaks.len() <= self.peak.len();
        for (peak, former) in self.peak.iter_mut().zip(peaks) {
            *peak = (*peak).max(*former);
        }
        known
    }

    /// Whether nothing is charged.
    pub fn is_zero(&self) -> bool {
        self.counted.iter().all(|counted| *counted == 0)
    }

    /// The resource whose cap the charge would pass, if any.
    fn refuses(&self, cap: impl Fn(Resource) -> u64, charge: Charge) -> Option<Resource> {
        let Charge(_, amount) = charge;
        if amount == 0 {
            // Adds nothing, not even to what is above its cap.
            return None;
        }
        let full = |resource: Resource| {
            // A sum that u64 cannot tell is above every cap, even where there is none.
            let sum = self.counted[resource.index()] + u128::from(amount);
            resource != Resource::PinnedBytes && sum > cap(resource).into()
        };
        charge.resources().find(|resource| full(*resource))
    }

    fn add(&mut self, charge: Charge) {
        for resource in charge.resources() {
            let at = resource.index();
            self.counted[at] += u128::from(charge.1);
            self.changed |= 1 << at;
        }
        self.raise_peaks_of(charge);
    }

    fn raise_peaks_of(&mut self, charge: Charge) {
        for resource in charge.resources() {
            let peak = self.peak[resource.index()].max(self.used(resource));
            self.peak[resource.index()] = peak;
        }
    }

    /// What was reserved is in use from now on.
    fn settle(&mut self, charge: Charge) {
        self.take_from(charge.0, charge.1);
        self.raise_peaks_of(charge);
    }

    /// Whether more is counted than the cap.
    fn is_above(&self, resource: Resource, caps: &Caps) -> bool {
        self.counted(resource) > caps[resource]
    }

    fn take(&mut self, charge: Charge) {
        charge.resources().for_each(|resource| self.take_from(resource, charge.1));
    }

    fn take_from(&mut self, resource: Resource, amount: u64) {
        let at = resource.index();
        let (now, amount) = (&mut self.counted[at], u128::from(amount));
        assert!(*now >= amount, "ledger: {resource} {now} is less than {amount} to release");
        *now -= amount;
        self.changed |= 1 << at;
    }
}

/// Which scope a charge did not fit into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Blocked {
    /// The resource whose cap is full.
    pub resource: Resource,
    /// The scope of the cap.
    pub scope: ScopeId,
}

impl Blocked {
    /// The broker's own table is full.
    pub const TABLE: Blocked = Blocked { resource: Resource::TablePlaces, scope: ScopeId::NODE };

    /// Whether an fd that is closed makes room. Else only leases that are given back do.
    pub fn is_helped_by_eviction(self) -> bool {
        FOR_HELD.contains(&self.resource)
    }

    /// Whether no recall at all fits, whatever its size and whoever its owner.
    pub fn stops_every_recall(self) -> bool {
        self.scope == ScopeId::NODE && self.resource != Resource::HeldBytes
    }
}

/// Stands for the share of a domain in the fds: fds of clients' own have no cap, so nothing else is blocked by them.
pub const SHARE_OF_FDS: Resource = Resource::OwnFds;

/// Resources of which a grant of a held fd takes one.
pub const FOR_LEASE: &[Resource] = &[Resource::Fds, Resource::OpenLeases, SHARE_OF_FDS];
/// Resources of which a deposit credit takes one.
pub const FOR_CREDIT: &[Resource] = &[Resource::Fds, Resource::HeldFds, Resource::TablePlaces];
/// Resources of which a recalled fd takes some.
pub const FOR_HELD: &[Resource] =
    &[Resource::Fds, Resource::HeldFds, Resource::TablePlaces, Resource::HeldBytes];

/// Kinds of leases that a client can be asked for: open ones, and mapped ones.
pub const LEASE_KINDS: usize = 2;

/// Parked requests that wait for room in one scope, by the resource that is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queued([u32; Resource::COUNT]);

impl Queued {
    /// Whether any wait for this resource.
    pub fn has(self, resource: Resource) -> bool {
        self.0[resource.index()] > 0
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self == Queued::default()
    }
}

/// The number of a scope in the ledger. Used again once the scope is closed and nobody waits for room in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ScopeId(#[serde(skip)] u32);

impl ScopeId {
    /// The node.
    pub const NODE: ScopeId = ScopeId(0);
}

/// What is counted of one client, job, domain or the node. Only the ledger changes it.
#[derive(Clone, Debug)]
pub struct ScopeRecord {
    /// What it is.
    pub kind: Scope,
    /// Its number among the clients, jobs or domains.
    pub number: u32,
    /// The next wider scope; none of the node.
    parent: Option<ScopeId>,
    /// What it is charged with.
    pub account: Account,
    /// Its clients with evictable allocations, by the place of the oldest one.
    pub lru: Index,
    /// Allocations that can be evicted.
    pub evictable: u64,
    /// Its clients with idle credits, by when they got them.
    pub creditors: Index,
    /// Credits that are taken back when another needs the place.
    pub idle_credits: u64,
    /// Its clients that have leases to be asked for, by kind of lease. Those that have given back nothing of what they were
    /// asked for come last; the others by their last activity, as far as it was known when they were put here.
    pub askable: [Index; LEASE_KINDS],
    /// Until when nobody is asked for leases for its sake, by kind of lease.
    pub pauses: [Now; LEASE_KINDS],
    /// Requests that wait for room in it.
    pub blocked: Queued,
    /// Its fds in the closers that will be closed soon; of the node, but for those of slow domains.
    pub coming: u64,
    /// The most fds that it wants to be held; [`NO_CAP`]: no bound.
    most_held: u64,
    /// Nothing is charged to it any more.
    is_closed: bool,
}

impl ScopeRecord {
    /// Places that are free as soon as another needs them.
    pub fn can_be_had_back(&self) -> u64 {
        self.evictable + self.idle_credits
    }

    fn new(kind: Scope, number: u32, parent: Option<ScopeId>) -> Self {
        ScopeRecord {
            kind,
            number,
            parent,
            account: Account::default(),
            lru: Index::default(),
            evictable: 0,
            creditors: Index::default(),
            idle_credits: 0,
            askable: Default::default(),
            pauses: Default::default(),
            blocked: Queued::default(),
            coming: 0,
            most_held: NO_CAP,
            is_closed: false,
        }
    }
}

/// All scopes, and the broker's own fd table. Functions with `below` in their names stop before the scope of that kind.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// At the place of its number; `None`: the number is free.
    scopes: Vec<Option<Box<ScopeRecord>>>,
    /// Numbers that are not in use.
    free: Vec<ScopeId>,
    caps: CapsOfScopes,
    /// Where the node is above its cap since that was lowered, or a file has grown: so much may stay, and never grows. 0 =
    /// not above.
    may_stay: [u64; Resource::COUNT],
    /// Fds in the broker's table that the core may plan with.
    table_fds: u64,
    /// Most of the table ever in use.
    table_peak: u64,
    /// Fds that came without a place and wait for the closers.
    unplaced: u64,
}

impl std::ops::Index<ScopeId> for Ledger {
    type Output = ScopeRecord;

    fn index(&self, scope: ScopeId) -> &ScopeRecord {
        self.scopes[scope.0 as usize].as_deref().expect("a scope that is open")
    }
}

impl Ledger {
    /// Nothing is charged; the node is the only scope.
    pub fn new(caps: CapsOfScopes, table_fds: u64) -> Self {
        let scopes = vec![Some(Box::new(ScopeRecord::new(Scope::Node, 0, None)))];
        let (free, table_peak) = (Vec::new(), TABLE_RESERVE);
        let may_stay = [0; Resource::COUNT];
        Ledger { scopes, free, caps, may_stay, table_fds, table_peak, unplaced: 0 }
    }

    /// A new scope.
    pub fn open(&mut self, kind: Scope, number: u32, parent: ScopeId) -> ScopeId {
        let scope = Some(Box::new(ScopeRecord::new(kind, number, Some(parent))));
        if let Some(id) = self.free.pop() {
            self.scopes[id.0 as usize] = scope;
            return id;
        }
        let id = ScopeId(u32::try_from(self.scopes.len()).expect("scopes are fewer than slots"));
        self.scopes.push(scope);
        id
    }

    fn get(&mut self, id: ScopeId) -> &mut ScopeRecord {
        self.scopes[id.0 as usize].as_deref_mut().expect("a scope that is open")
    }

    /// Nothing of the scope is left but requests that wait for room in it.
    pub fn close(&mut self, id: ScopeId) {
        let scope = self.get(id);
        assert!(scope.account.is_zero(), "invariant 3: who is gone has zero: {scope:?}");
        assert!(scope.lru.is_empty() && scope.askable.iter().all(Index::is_empty));
        assert!(scope.creditors.is_empty() && scope.idle_credits == 0);
        assert!(scope.coming == 0 && scope.evictable == 0);
        scope.is_closed = true;
        self.drop_if_closed(id);
    }

    fn drop_if_closed(&mut self, id: ScopeId) {
        if self[id].is_closed && self[id].blocked.is_empty() {
            self.scopes[id.0 as usize] = None;
            self.free.push(id);
        }
    }

    /// The scopes from this one up to the node.
    pub fn path(&self, from: ScopeId) -> impl Iterator<Item = ScopeId> {
        std::iter::successors(Some(from), |id| self[*id].parent)
    }

    /// Changes each scope from this one up: at most four, which count as one record.
    fn walk(
        &mut self,
        from: ScopeId,
        below: Option<Scope>,
        mut change: impl FnMut(&mut ScopeRecord),
    ) {
        visit(1);
        let mut next = Some(from);
        while let Some(id) = next {
            let scope = self.get(id);
            if Some(scope.kind) == below {
                return;
            }
            change(scope);
            next = scope.parent;
        }
    }

    // --- caps ---------------------------------------------------------------------------------------

    /// The caps of every scope.
    pub fn caps(&self) -> &CapsOfScopes {
        &self.caps
    }

    /// The cap of a resource in a scope.
    pub fn cap(&self, scope: ScopeId, resource: Resource) -> u64 {
        self.cap_of(&self[scope], resource)
    }

    fn cap_of(&self, scope: &ScopeRecord, resource: Resource) -> u64 {
        let cap = self.caps[scope.kind][resource];
        if resource == Resource::HeldFds { cap.min(scope.most_held) } else { cap }
    }

    /// A client wants no more held fds than these, whatever its cap.
    pub fn bound_held(&mut self, client: ScopeId, most: u64) {
        self.get(client).most_held = most;
    }

    /// New caps. What is above them now may stay.
    pub fn set_caps(&mut self, caps: CapsOfScopes) {
        self.caps = caps;
        Resource::ALL.iter().for_each(|resource| self.let_stay(*resource));
    }

    /// The node may be above its cap by as much as it is now.
    fn let_stay(&mut self, resource: Resource) {
        let node = &self[ScopeId::NODE].account;
        let is_above = node.is_above(resource, &self.caps.node);
        self.may_stay[resource.index()] = if is_above { node.counted(resource) } else { 0 };
    }

    /// The next scope of a kind from a number on, which then is the number behind it. Each number takes one of `looks`.
    pub fn next_of(&self, kind: Scope, from: &mut u32, looks: &mut usize) -> Option<ScopeId> {
        while *looks > 0
            && let Some(scope) = self.scopes.get(*from as usize)
        {
            visit(1);
            (*from, *looks) = (*from + 1, *looks - 1);
            if scope.as_deref().is_some_and(|scope| scope.kind == kind) {
                return Some(ScopeId(*from - 1));
            }
        }
        None
    }

    /// Takes over what a predecessor has seen in use. `false`: see [`Account::raise_peaks`].
    #[must_use]
    pub fn raise_peaks(&mut self, scope: ScopeId, peaks: &[u128]) -> bool {
        self.get(scope).account.raise_peaks(peaks)
    }

    // --- charges ------------------------------------------------------------------------------------

    /// Makes the charge on every account, or on none and says which cap is in the way.
    pub fn charge(&mut self, from: ScopeId, charge: Charge) -> Result<(), Blocked> {
        self.fits_in_table(from, charge)?;
        self.add(from, charge);
        Ok(())
    }

    /// Which cap is in the way of a charge, or the table.
    pub fn fits_in_table(&self, from: ScopeId, charge: Charge) -> Result<(), Blocked> {
        self.fits(from, None, charge)?;
        match charge.is_in_table() && charge.1 > self.table_room() {
            true => Err(Blocked::TABLE),
            false => Ok(()),
        }
    }

    /// Which cap is in the way of a charge on the accounts below a kind of scope.
    pub fn fits(&self, from: ScopeId, below: Option<Scope>, charge: Charge) -> Result<(), Blocked> {
        visit(1);
        for id in self.path(from) {
            let scope = &self[id];
            if Some(scope.kind) == below {
                break;
            }
            let cap = |resource| self.cap_of(scope, resource);
            if let Some(resource) = scope.account.refuses(cap, charge) {
                return Err(Blocked { resource, scope: id });
            }
        }
        Ok(())
    }

    /// Makes the charge whatever the caps.
    pub fn add(&mut self, from: ScopeId, charge: Charge) {
        self.walk(from, None, |scope| scope.account.add(charge));
        self.table_peak = self.table_peak.max(self.table_now());
    }

    /// The same, and the wider scopes are not charged.
    pub fn add_below(&mut self, below: Scope, from: ScopeId, charge: Charge) {
        self.walk(from, Some(below), |scope| scope.account.add(charge));
    }

    /// The same for something that has grown; says whether a scope is above its cap now.
    pub fn grow(&mut self, from: ScopeId, below: Option<Scope>, charge: Charge) -> bool {
        let (caps, mut is_above) = (self.caps, false);
        self.walk(from, below, |scope| {
            scope.account.add(charge);
            is_above |= scope.account.is_above(charge.0, &caps[scope.kind]);
        });
        self.let_stay(charge.0);
        is_above
    }

    /// Whether a scope is above its cap of a resource, as what has grown leaves it.
    pub fn above(&self, from: ScopeId, resource: Resource) -> Option<Blocked> {
        let is_above = |scope: &ScopeId| {
            let ScopeRecord { kind, account, .. } = &self[*scope];
            account.is_above(resource, &self.caps[*kind])
        };
        self.path(from).find(is_above).map(|scope| Blocked { resource, scope })
    }

    /// What was reserved with this charge is in use from now on.
    pub fn settle(&mut self, from: ScopeId, charge: Charge) {
        self.walk(from, None, |scope| scope.account.settle(charge));
    }

    /// Takes the charge back from every account.
    pub fn take(&mut self, from: ScopeId, charge: Charge) {
        self.walk(from, None, |scope| scope.account.take(charge));
    }

    /// The same, but the wider scopes keep it.
    pub fn take_below(&mut self, below: Scope, from: ScopeId, charge: Charge) {
        self.walk(from, Some(below), |scope| scope.account.take(charge));
    }

    /// Free room for held places: the least of all scopes'.
    pub fn held_room(&self, from: ScopeId) -> u64 {
        let room = |id: ScopeId| {
            let fds = [Resource::Fds, Resource::HeldFds].into_iter();
            fds.map(move |it| self.cap(id, it).saturating_sub(self[id].account.counted(it)))
        };
        self.path(from).flat_map(room).fold(self.table_room(), u64::min)
    }

    // --- the broker's own fd table ------------------------------------------------------------------

    /// Places of the table that are used or kept: for held fds, connections let in, fds without a place, the reserve.
    pub fn table_now(&self) -> u64 {
        let node = &self[ScopeId::NODE].account;
        let connections = node.counted(Resource::TablePlaces);
        node.counted(Resource::HeldFds) + connections + self.unplaced + TABLE_RESERVE
    }

    /// The table now, most of it ever in use, and all of it.
    pub fn table(&self) -> (u64, u64, u64) {
        (self.table_now(), self.table_peak, self.table_fds)
    }

    /// Takes over what a predecessor has seen in use.
    pub fn raise_table_peak(&mut self, peak: u64) {
        self.table_peak = peak.max(self.table_now());
    }

    /// Held places that still fit the table.
    pub fn table_room(&self) -> u64 {
        self.table_room_after(0)
    }

    /// The same once so many more places have come back. Fds that have no place may stand where these were.
    pub fn table_room_after(&self, coming: u64) -> u64 {
        (self.table_fds + coming).saturating_sub(self.table_now())
    }

    /// Fds that have no place and wait for the closers.
    pub fn unplaced(&self) -> u64 {
        self.unplaced
    }

    /// An fd has come that has no place, or a closer has closed one.
    pub fn set_unplaced(&mut self, unplaced: u64) {
        self.unplaced = unplaced;
        self.table_peak = self.table_peak.max(self.table_now());
    }

    // --- what else is counted -----------------------------------------------------------------------

    /// A client's oldest evictable allocation has this place now, and it has so many of them.
    pub fn set_evictable(&mut self, client: ScopeId, place: Option<u64>, count: u64) {
        let ScopeRecord { evictable, ref lru, number, .. } = self[client];
        let former = lru.first_key().map(|(place, _)| place);
        if (former, evictable) == (place, count) {
            return;
        }
        self.walk(client, None, |scope| {
            scope.evictable = scope.evictable - evictable + count;
            if former != place {
                scope.lru.change(number, former, place);
            }
        });
    }

    /// How much is missing where a charge of so much does not fit. An account above a lowered cap lacks that, too.
    pub fn lacking(&self, Blocked { resource, scope }: Blocked, amount: u64) -> u64 {
        if resource == Resource::TablePlaces {
            return (self.table_now() + amount).saturating_sub(self.table_fds);
        }
        let with_it = self[scope].account.counted[resource.index()] + u128::from(amount);
        u64::try_from(with_it.saturating_sub(self.cap(scope, resource).into())).unwrap_or(u64::MAX)
    }

    /// Whether so much fits once idle credits are taken back; how many of them have to be.
    pub fn short_of_credits(&self, blocked: Blocked, amount: u64) -> Option<u64> {
        let lacking = self.lacking(blocked, amount);
        let idle = self[blocked.scope].idle_credits.min(MAX_BATCH as u64);
        let can_be_had = lacking <= idle && FOR_CREDIT.contains(&blocked.resource);
        (lacking == 0 || can_be_had).then_some(lacking)
    }

    /// What would be in the way of these charges, one after the other, each from a scope. Idle credits are not.
    pub fn blocked(&self, charges: &[(ScopeId, Charge)]) -> Option<Blocked> {
        let is_full = |at, amount| self.short_of_credits(at, amount).is_none();
        for (last, (from, charge)) in charges.iter().enumerate().filter(|(_, it)| it.1.1 > 0) {
            visit(1);
            let so_far = &charges[..=last];
            for at in self.path(*from).flat_map(|scope| charge.blocked_in(scope)) {
                let counts = |(of, charge): &&(ScopeId, Charge)| {
                    charge.blocked_in(at.scope).any(|it| it == at)
                        && self.path(*of).any(|scope| scope == at.scope)
                };
                if is_full(at, so_far.iter().filter(counts).map(|(_, it)| it.1).sum()) {
                    return Some(at);
                }
            }
            let in_table = so_far.iter().filter(|(_, it)| it.is_in_table());
            if charge.is_in_table() && is_full(Blocked::TABLE, in_table.map(|(_, it)| it.1).sum()) {
                return Some(Blocked::TABLE);
            }
        }
        None
    }

    /// A client has so many idle credits now; `place`: where it comes among the others if it had none.
    pub fn set_idle_credits(&mut self, client: ScopeId, count: u64, place: u64) {
        let ScopeRecord { idle_credits, ref creditors, number, .. } = self[client];
        if idle_credits == count {
            return;
        }
        let former = creditors.first_key().map(|(place, _)| place);
        let place = (count > 0).then(|| former.unwrap_or(place));
        self.walk(client, None, |scope| {
            scope.idle_credits = scope.idle_credits - idle_credits + count;
            if former != place {
                scope.creditors.change(number, former, place);
            }
        });
    }

    /// Where a client is among those that can be asked for leases of a kind.
    pub fn ask_key(&self, client: ScopeId, kind: usize) -> Option<u64> {
        self[client].askable[kind].first_key().map(|(key, _)| key)
    }

    /// Puts a client there.
    pub fn set_ask_key(&mut self, client: ScopeId, kind: usize, key: Option<u64>) {
        let (number, former) = (self[client].number, self.ask_key(client, kind));
        self.walk(client, None, |scope| scope.askable[kind].change(number, former, key));
    }

    /// Nobody is asked for leases of a kind for the scope's sake until then.
    pub fn pause(&mut self, scope: ScopeId, kind: usize, until: Now) {
        self.get(scope).pauses[kind] = until;
    }

    /// Something that was asked for has come back: more may be asked for.
    pub fn end_pauses(&mut self, client: ScopeId) {
        self.walk(client, None, |scope| scope.pauses = Default::default());
    }

    /// A request waits for room.
    pub fn block(&mut self, Blocked { resource, scope }: Blocked) {
        self.get(scope).blocked.0[resource.index()] += 1;
    }

    /// It waits no longer.
    pub fn unblock(&mut self, Blocked { resource, scope }: Blocked) {
        self.get(scope).blocked.0[resource.index()] -= 1;
        self.drop_if_closed(scope);
    }

    /// Whether requests wait for room that a new one must leave to them. A request that waits for its client's own account
    /// holds up no other.
    pub fn is_waited_for(&self, Blocked { resource, scope }: Blocked) -> bool {
        self[scope].kind != Scope::Client && self[scope].blocked.has(resource)
    }

    /// Fds go to the closers, and will be closed soon. `is_slow`: the node does not wait for them.
    pub fn add_coming(&mut self, from: ScopeId, is_slow: bool, count: u64) {
        self.walk(from, is_slow.then_some(Scope::Node), |scope| scope.coming += count);
    }

    /// They have been closed.
    pub fn take_coming(&mut self, from: ScopeId, is_slow: bool, count: u64) {
        self.walk(from, is_slow.then_some(Scope::Node), |scope| scope.coming -= count);
    }

    /// A client is gone: its fds in the closers are its domain's alone.
    pub fn leave_coming(&mut self, client: ScopeId) {
        let count = self[client].coming;
        self.walk(client, Some(Scope::Domain), |scope| scope.coming -= count);
    }

    /// The node does not wait for closes of the domain any more, or does again.
    pub fn set_slow(&mut self, domain: ScopeId, is_slow: bool) {
        let count = self[domain].coming;
        let node = self.get(ScopeId::NODE);
        node.coming = if is_slow { node.coming - count } else { node.coming + count };
    }

    // --- invariants ---------------------------------------------------------------------------------

    /// What can be asserted in no time: no cap of the node is passed, but for what may stay.
    pub fn assert_node(&mut self) {
        let mut changed = std::mem::take(&mut self.get(ScopeId::NODE).account.changed);
        while changed != 0 {
            let resource = Resource::ALL[changed.trailing_zeros() as usize];
            let (now, cap) =
                (self[ScopeId::NODE].account.counted(resource), self.caps.node[resource]);
            let most = cap.max(self.may_stay[resource.index()]);
            assert!(
                now <= most,
                "invariant 2: {resource} of the node is {now}, above its cap {cap}"
            );
            self.let_stay(resource);
            changed &= changed - 1;
        }
        let planned = self.table_now() - self.unplaced;
        let most = self.table_fds;
        assert!(planned <= most, "invariant 1: the table needs {planned} fds");
    }

    /// The same scopes, with nothing counted.
    pub fn emptied(&self) -> Ledger {
        let mut empty = self.clone();
        empty.unplaced = 0;
        for scope in empty.scopes.iter_mut().flatten() {
            let ScopeRecord { kind, number, parent, most_held, is_closed, .. } = **scope;
            **scope =
                ScopeRecord { most_held, is_closed, ..ScopeRecord::new(kind, number, parent) };
        }
        empty
    }

    /// Takes over all that another ledger of the same scopes is charged with.
    pub fn set_accounts(&mut self, right: &Ledger) {
        for (scope, right) in self.scopes.iter_mut().zip(&right.scopes) {
            if let (Some(scope), Some(right)) = (scope, right) {
                let account = right.account;
                let peak = std::array::from_fn(|at| account.used(Resource::ALL[at]));
                scope.account = Account { peak, ..account };
            }
        }
        self.table_peak = self.table_now();
    }

    /// Asserts that every count is the same as in another ledger.
    pub fn assert_same(&self, other: &Ledger) {
        assert!(self.table_now() <= self.table_peak, "more of the table is in use than ever was");
        assert_eq!(self.unplaced, other.unplaced, "invariant 1: fds without a place");
        let open = (0..).zip(&self.scopes).filter(|(_, scope)| scope.is_some());
        for id in open.map(|(id, _)| ScopeId(id)) {
            let (is, right, whose) = (&self[id], &other[id], (self[id].kind, self[id].number));
            assert_eq!(is.account.counted, right.account.counted, "invariant 3: {whose:?}");
            assert_eq!(
                (&is.lru, is.evictable),
                (&right.lru, right.evictable),
                "invariant 5: {whose:?}"
            );
            assert_eq!(
                (&is.creditors, is.idle_credits),
                (&right.creditors, right.idle_credits),
                "idle credits of {whose:?}"
            );
            assert_eq!(is.askable, right.askable, "clients of {whose:?} that can be asked");
            assert_eq!(is.blocked, right.blocked, "requests that wait for {whose:?}");
            assert_eq!(is.coming, right.coming, "invariant 8: closes that {whose:?} waits for");
            assert!(!is.is_closed || !is.blocked.is_empty(), "{whose:?} is closed, and stays");
        }
    }
}

#[cfg(test)]
#[path = "../tests/unit/ledger.rs"]
mod tests;
