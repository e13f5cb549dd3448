//! The ledger: scopes with a parent (client, job, domain, node), and what each is charged with. A
//! charge walks up from a scope: it is made on all accounts on its way or on none, and a release
//! asserts that the charge is there. What else is counted of a scope is counted here, too. Must
//! never let a sum pass its cap or go below zero.

mod account;
mod blocked;
mod counts;
mod scope;
mod table;

pub use account::{Account, Charge, Charged};
pub use blocked::{Blocked, FOR_CREDIT, FOR_HELD, FOR_LEASE, SHARE_OF_FDS, ScopeId};
pub use scope::{LEASE_KINDS, ScopeRecord};

use crate::api::CapsOfScopes;
use crate::books::order::Index;
use crate::limits::TABLE_RESERVE;
use crate::work::visit;
use fdbroker_protocol::{MAX_BATCH, Resource, Scope};
use std::collections::BTreeSet;

/// All scopes, and the broker's own fd table. Functions with `below` in their names stop before the
/// scope of that kind.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// At the place of its number; `None`: the number is free.
    scopes: Vec<Option<Box<ScopeRecord>>>,
    /// Numbers that are not in use.
    free: Vec<ScopeId>,
    /// Accounts that requests wait for, and of which something has come back.
    freed: BTreeSet<Blocked>,
    caps: CapsOfScopes,
    /// Where the node is above its cap since that was lowered, or a file has grown: so much may
    /// stay, and never grows. 0 = not above.
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
        let (free, freed, table_peak) = (Vec::new(), BTreeSet::new(), TABLE_RESERVE);
        let may_stay = [0; Resource::COUNT];
        Ledger { scopes, free, freed, caps, may_stay, table_fds, table_peak, unplaced: 0 }
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
        assert_eq!(scope.declared, [0; LEASE_KINDS]);
        assert!(scope.coming == 0 && scope.evictable == 0 && scope.resident_bytes == 0);
        scope.is_closed = true;
        self.drop_if_closed(id);
    }

    /// Drops a scope that is closed, and that nobody waits for; else its kind and number.
    fn drop_if_closed(&mut self, id: ScopeId) -> Option<(Scope, u32)> {
        if !self[id].is_closed || !self[id].blocked.is_empty() {
            return Some((self[id].kind, self[id].number));
        }
        self.scopes[id.0 as usize] = None;
        self.free.push(id);
        None
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

    // --- caps ------------------------------------------------------------------------------------

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

    /// The next scope of a kind from a number on, which then is the number behind it. Each number
    /// takes one of `looks`.
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

    // --- charges ---------------------------------------------------------------------------------

    /// Makes the charge on every account, or on none and says which cap is in the way.
    pub fn charge(&mut self, from: ScopeId, charge: Charge) -> Result<(), Blocked> {
        self.fits_in_table(from, charge)?;
        self.add(from, charge);
        Ok(())
    }

    /// Which cap is in the way of a charge, or the table.
    pub fn fits_in_table(&self, from: ScopeId, charge: Charge) -> Result<(), Blocked> {
        self.fits(from, None, charge)?;
        if charge.is_in_table() && charge.1 > self.table_room() {
            Err(Blocked::TABLE)
        } else {
            Ok(())
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

    /// Which cap is in the way of another declared lease: there can have been no more of them than
    /// the caps allow, whatever has been granted since.
    pub fn fits_declared(&self, from: ScopeId, charge: Charge, kind: usize) -> Result<(), Blocked> {
        visit(1);
        for id in self.path(from) {
            let is_full = |it: &Resource| self.cap(id, *it) <= self[id].declared[kind];
            if let Some(resource) = charge.resources().find(is_full) {
                return Err(Blocked { resource, scope: id });
            }
        }
        Ok(())
    }

    /// One more lease of a kind is a declared one, or one less.
    pub fn count_declared(&mut self, from: ScopeId, kind: usize, is_more: bool) {
        let count = |now: u64| if is_more { now + 1 } else { now - 1 };
        self.walk(from, None, |scope| scope.declared[kind] = count(scope.declared[kind]));
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
            let above = |it| scope.account.is_above(it, &caps[scope.kind]);
            is_above |= charge.resources().any(above);
        });
        charge.resources().for_each(|resource| self.let_stay(resource));
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

    /// The same, and whoever waits for it may have it.
    pub fn release(&mut self, from: ScopeId, charge: Charge) {
        self.take(from, charge);
        self.freed(from, charge.freed());
    }

    /// Takes the charge back from the accounts below a kind of scope, for whoever waits; the wider
    /// scopes keep it.
    pub fn release_below(&mut self, below: Scope, from: ScopeId, charge: Charge) {
        self.walk(from, Some(below), |scope| scope.account.take(charge));
        self.freed(from, charge.freed());
    }

    /// Fds can be closed, or idle credits taken back, in the scopes from this one up.
    pub fn can_be_had(&mut self, from: ScopeId) {
        self.freed(from, FOR_HELD.iter().copied().chain([SHARE_OF_FDS]));
    }

    /// Something has come back, or can be had back, in the scopes from this one up.
    pub fn freed(&mut self, from: ScopeId, resources: impl Iterator<Item = Resource> + Clone) {
        visit(1);
        let Ledger { scopes, freed, .. } = self;
        let mut next = Some(from);
        while let Some(id) = next {
            let scope = scopes[id.0 as usize].as_deref().expect("a scope that is open");
            let waited_for = resources.clone().filter(|it| scope.blocked.has(*it));
            freed.extend(waited_for.map(|resource| Blocked { resource, scope: id }));
            next = scope.parent;
        }
    }

    /// Takes an account that requests wait for, and of which something has come back.
    pub fn next_freed(&mut self) -> Option<Blocked> {
        self.freed.pop_first()
    }

    /// Whether there is none.
    pub fn is_idle(&self) -> bool {
        self.freed.is_empty()
    }

    /// Free room for held places: the least of all scopes'.
    pub fn held_room(&self, from: ScopeId) -> u64 {
        let room = |id: ScopeId| {
            let fds = [Resource::Fds, Resource::HeldFds].into_iter();
            fds.map(move |it| self.cap(id, it).saturating_sub(self[id].account.counted(it)))
        };
        self.path(from).flat_map(room).fold(self.table_room(), u64::min)
    }

    /// How much is missing where a charge of so much does not fit. An account above a lowered cap
    /// lacks that, too.
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

    /// What would be in the way of these charges, one after the other, each from a scope. Idle
    /// credits are not.
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

    // --- invariants ------------------------------------------------------------------------------

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

    /// Asserts that every count is the same as in another ledger of the same scopes.
    pub fn assert_same(&self, mut other: Ledger) {
        assert!(self.table_now() <= self.table_peak, "more of the table is in use than ever was");
        assert_eq!(self.unplaced, other.unplaced, "invariant 1: fds without a place");
        let scopes = self.scopes.iter().flatten();
        for (is, right) in scopes.zip(other.scopes.iter_mut().flatten()) {
            // What has been and when is known here only.
            right.account = Account { counted: right.account.counted, ..is.account };
            right.pauses = is.pauses;
            assert_eq!(is, right, "invariants 3, 5 (evictable) and 8 (coming)");
            assert!(!is.is_closed || !is.blocked.is_empty(), "it is closed, and stays: {is:?}");
        }
    }
}

#[cfg(test)]
#[path = "../../tests/unit/ledger.rs"]
mod tests;
