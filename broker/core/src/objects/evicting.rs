//! Groups that may end when bytes are short: sealed ones that are neither pinned nor leased, the one that was not used for longest first.
//! Which ones is known at any time, and what they would free: a request for which that is not enough ends none. Must never end a group
//! that is leased, nor any for a request that is refused.

use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

use super::charges::{of_kept, of_objects_in};
use super::groups::{Group, GroupState};
use crate::Core;
use crate::api::{Effects, Now};
use crate::ledger::{Charge, ScopeId, ScopeRecord};
use crate::limits::RECLAIM_BATCH;
use crate::slots::NONE;
use fdbroker_protocol::{ErrorCode, NO_CAP, Resource, Scope, Status};

/// Whether somebody has a lease of a group; whether it is kept, since kept ones alone help against a cap of kept bytes; and since when
/// it is not in use, or is, as far as the order knows.
pub(super) type Place = (bool, bool, Now);

/// What the groups that may be evicted would free: that of those which are not kept, and of those which are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Spare {
    bytes: [u128; 2],
    groups: [u64; 2],
}

impl Spare {
    fn change(&mut self, kept: bool, change: impl Fn(u128, u64) -> (u128, u64)) {
        let at = usize::from(kept);
        (self.bytes[at], self.groups[at]) = change(self.bytes[at], self.groups[at]);
    }

    /// Bytes; of the kept ones alone, or of all.
    fn bytes(&self, kept_alone: bool) -> u128 {
        self.bytes[1] + if kept_alone { 0 } else { self.bytes[0] }
    }
}

/// What groups would free, of all domains and of each.
#[derive(Debug, Default)]
struct Sums {
    all: Spare,
    of: FxHashMap<u32, Spare>,
    /// The domains by the bytes of all their groups, and of the kept ones.
    richest: [BTreeSet<(u128, u32)>; 2],
}

impl Sums {
    fn change(&mut self, domain: u32, kept: bool, change: impl Fn(u128, u64) -> (u128, u64)) {
        self.all.change(kept, &change);
        let former = self.of(domain);
        let mut now = former;
        now.change(kept, &change);
        match now == Spare::default() {
            true => self.of.remove(&domain),
            false => self.of.insert(domain, now),
        };
        for (kept_alone, richest) in [false, true].into_iter().zip(&mut self.richest) {
            richest.remove(&(former.bytes(kept_alone), domain));
            if now.bytes(kept_alone) > 0 {
                richest.insert((now.bytes(kept_alone), domain));
            }
        }
    }

    fn of(&self, domain: u32) -> Spare {
        self.of.get(&domain).copied().unwrap_or_default()
    }

    /// The domain whose groups make room for so many bytes more of a domain, in that domain's cap or in the node's. In the
    /// node's the domain that has most of them, what is wanted counted with its own: who has least keeps it.
    fn payer(&self, domain: u32, scope: ScopeId, bytes: u64, kept_alone: bool) -> Option<u32> {
        let own = self.of(domain).bytes(kept_alone);
        let (most, richest) = match scope {
            ScopeId::NODE => self.richest[usize::from(kept_alone)].last().copied()?,
            _ => (0, domain),
        };
        let is_own = own > 0 && own + u128::from(bytes) >= most;
        Some(if is_own { domain } else { richest })
    }

    fn check(&self, right: &FxHashMap<u32, Spare>) {
        assert_eq!(self.of, *right, "what groups would free");
        for (kept_alone, richest) in [false, true].into_iter().zip(&self.richest) {
            let right = right.iter().map(|(domain, it)| (it.bytes(kept_alone), *domain));
            let right: BTreeSet<_> = right.filter(|(bytes, _)| *bytes > 0).collect();
            assert_eq!(*richest, right, "domains by what they can free");
            let all: u128 = right.iter().map(|(bytes, _)| bytes).sum();
            assert_eq!(self.all.bytes(kept_alone), all, "what all can free");
        }
    }
}

/// The groups that may be evicted unless they are leased, by domain.
#[derive(Debug, Default)]
pub struct Order {
    of_domain: BTreeSet<(u32, Place, u32)>,
    /// Of those that nobody has a lease of.
    idle: Sums,
    /// Of the leased ones.
    leased: Sums,
}

impl Order {
    fn sums(&mut self, leased: bool) -> &mut Sums {
        if leased { &mut self.leased } else { &mut self.idle }
    }

    fn enter(&mut self, domain: u32, place: Place, (group, bytes): (u32, u64)) {
        self.of_domain.insert((domain, place, group));
        let change = |sum, count| (sum + u128::from(bytes), count + 1);
        self.sums(place.0).change(domain, place.1, change);
    }

    fn leave(&mut self, domain: u32, place: Place, (group, bytes): (u32, u64)) {
        self.of_domain.remove(&(domain, place, group));
        let change = |sum, count| (sum - u128::from(bytes), count - 1);
        self.sums(place.0).change(domain, place.1, change);
    }

    fn first(&self, domain: u32, leased: bool, kept: bool) -> Option<(Now, u32)> {
        let from = (domain, (leased, kept, Now(0)), 0);
        let (of, place, group) = self.of_domain.range(from..).next()?;
        let is_it = (*of, place.0, place.1) == (domain, leased, kept);
        is_it.then_some((place.2, *group))
    }

    /// Asserts that these are the groups in it, each with whether it is leased, if it belongs there.
    pub(super) fn check<'a>(&self, groups: impl Iterator<Item = (u32, &'a Group, Option<bool>)>) {
        let (mut count, mut spare_of) = (0, <[FxHashMap<u32, Spare>; 2]>::default());
        for (number, group, leased) in groups {
            let is_right = group.place.map(|place| (place.0, place.1));
            assert_eq!(is_right, leased.map(|it| (it, group.is_kept)), "place of group {number}");
            let Some(place) = group.place else { continue };
            assert!(self.of_domain.contains(&(group.domain, place, number)));
            count += 1;
            let size = u128::from(group.size_bytes);
            let spare = spare_of[usize::from(place.0)].entry(group.domain).or_default();
            spare.change(place.1, |sum, count| (sum + size, count + 1));
        }
        assert_eq!(self.of_domain.len(), count, "groups to evict");
        self.idle.check(&spare_of[0]);
        self.leased.check(&spare_of[1]);
    }
}

/// What a domain wants more of something, and what its own groups and those of all domains would free of it: the idle ones,
/// and the leased ones, too.
struct Wish {
    resource: Resource,
    amount: u64,
    count: fn(&ScopeRecord) -> u64,
    idle: [u64; 2],
    all: [u64; 2],
}

impl Group {
    /// Whether it may end when bytes are short and nobody has a lease of it.
    fn may_be_evicted(&self) -> bool {
        self.evictable && !self.pin && matches!(self.state, GroupState::Sealed(_))
    }
}

fn resident(scope: &ScopeRecord) -> u64 {
    u64::try_from(scope.resident_bytes).unwrap_or(NO_CAP)
}

impl Core {
    /// Whether a group that may be evicted is leased; `None`: it may not be.
    pub(super) fn may_go(&self, group: &Group) -> Option<bool> {
        let is_leased = |slot| slot != NONE && !self.allocations[slot].leases.is_empty();
        group.may_be_evicted().then(|| is_leased(group.allocation))
    }

    /// A group may be evicted from now on, or no more, or stands elsewhere.
    pub(super) fn order_group(&mut self, number: u32) {
        let used = self.objects.groups[number].used;
        self.order_group_at(number, used);
    }

    fn order_group_at(&mut self, number: u32, at: Now) {
        let group = &self.objects.groups[number];
        let place = self.may_go(group).map(|is_leased| (is_leased, group.is_kept, at));
        self.place_group(number, place);
    }

    fn place_group(&mut self, number: u32, place: Option<Place>) {
        let group = &mut self.objects.groups[number];
        let (domain, former) = (group.domain, std::mem::replace(&mut group.place, place));
        let (order, of) = (&mut self.objects.order, (number, group.size_bytes));
        former.into_iter().for_each(|former| order.leave(domain, former, of));
        place.into_iter().for_each(|place| order.enter(domain, place, of));
    }

    /// The memory in a slot has its first lease, or has lost its last one: a group in it may be evicted no more, or again.
    pub(crate) fn lease_of_group(&mut self, slot: u32) {
        let Some(number) = self.objects.groups.number_in(slot) else { return };
        if self.objects.groups[number].may_be_evicted() {
            self.order_group_at(number, self.now);
        }
    }

    /// Groups that a seal expects under its names do not make room for it; those that would have.
    pub(super) fn set_expected_aside(&mut self, number: u32) -> Vec<u32> {
        let group = &self.objects.groups[number];
        let expected = group.members.iter().filter(|member| member.expects_an_object());
        let found = expected.filter_map(|member| self.sealed(group.scope, &member.name));
        let mut aside: Vec<u32> = found.map(|(place, _)| place.group).collect();
        aside.sort_unstable();
        aside.dedup();
        aside.retain(|number| self.objects.groups[*number].place.is_some());
        aside.iter().for_each(|number| self.place_group(*number, None));
        aside
    }

    /// The group of a domain that was not used for longest; at most so many are looked at in a step.
    fn group_to_evict(&mut self, domain: u32, kept_alone: bool) -> Option<u32> {
        let kept = self.objects.order.first(domain, false, true);
        let other = self.objects.order.first(domain, false, false).filter(|_| !kept_alone);
        let (at, number) = match (kept, other) {
            (Some(kept), Some(other)) => kept.min(other),
            (kept, other) => kept.or(other)?,
        };
        debug_assert!(self.objects.groups[number].used <= at, "the order knows of each use");
        self.allowances.object_looks.take().then_some(number)
    }

    /// Ends groups until all of these fit; none, if they would not fit once all groups that may go have ended: then clients
    /// are asked for leases of others, if those would do. AGAIN: more have to go than one step may end, or there may be
    /// answers soon.
    fn evict_until(
        &mut self,
        (domain, bytes): (u32, u64),
        kept_alone: bool,
        wishes: &[Wish],
        fx: &mut Effects,
    ) -> Result<(), Status> {
        let full = |core: &Core, spare: fn(&Wish) -> [u64; 2]| {
            wishes.iter().find_map(|wish| core.full_for(domain, wish, spare(wish)))
        };
        if let Some(scope) = full(self, |wish| wish.idle) {
            let leased = &self.objects.order.leased;
            let payer = leased.payer(domain, scope, bytes, kept_alone);
            return match payer.filter(|_| full(self, |wish| wish.all).is_none()) {
                Some(payer) if self.ask_for_groups(payer, kept_alone) => {
                    Err(ErrorCode::Again.into())
                }
                _ => Ok(()),
            };
        }
        while let Some(scope) = full(self, |_| [0; 2]) {
            let payer = self.objects.order.idle.payer(domain, scope, bytes, kept_alone);
            let group = payer.and_then(|payer| self.group_to_evict(payer, kept_alone));
            let number = group.ok_or(ErrorCode::Again)?;
            let slot = self.objects.groups[number].allocation;
            self.counters.evictions += 1;
            self.end_group_by(number, true);
            // Its bytes are free at once; its names are swept.
            self.end_memory(slot, fx);
        }
        Ok(())
    }

    /// Asks for leases of a domain's groups, those first that were not asked for longest. `true`: there may be an answer soon.
    fn ask_for_groups(&mut self, domain: u32, kept_alone: bool) -> bool {
        let order = &self.objects.order.of_domain;
        let leased = |kept| {
            let (from, to) =
                ((domain, (true, kept, Now(0)), 0), (domain, (true, kept, Now(u64::MAX)), NONE));
            order.range(from..to).map(|(.., group)| *group).take(RECLAIM_BATCH)
        };
        let other = leased(false).take(if kept_alone { 0 } else { RECLAIM_BATCH });
        let groups: Vec<u32> = leased(true).chain(other).collect();
        let mut may_come = false;
        for number in groups {
            if !self.allowances.object_looks.take() {
                break;
            }
            may_come |= self.ask_for_leases_of(self.objects.groups[number].allocation);
            // Behind the others: they are asked for next.
            self.order_group_at(number, self.now);
        }
        may_come
    }

    /// The scope that has no room for it, once so much of the domain and of all has been freed: the domain by its cap, or the
    /// node by its cap or by the share of the domain in it.
    fn full_for(&self, domain: u32, wish: &Wish, spare: [u64; 2]) -> Option<ScopeId> {
        let Wish { resource, amount, count, .. } = *wish;
        let scopes = [self.clients.scope_of_domain(domain), ScopeId::NODE];
        let is_full = |(scope, spare): &(ScopeId, u64)| {
            let left = count(&self.ledger[*scope]).saturating_sub(*spare);
            let cap = self.ledger.cap(*scope, resource);
            cap != NO_CAP && left.saturating_add(amount) > cap
        };
        let full = scopes.into_iter().zip(spare).find(is_full).map(|(scope, _)| scope);
        let share = || self.share_after(domain, self.ledger.caps().node[resource], count, spare);
        full.or_else(|| (amount > share()).then_some(ScopeId::NODE)).filter(|_| amount > 0)
    }

    /// Ends evictable groups until so many bytes more of an owner fit beside what cannot be had back, if that lets them in: its
    /// own caps and its job's are for what their clients do, and nothing of others is ended for those.
    pub(crate) fn evict_objects_for(
        &mut self,
        owner: u32,
        bytes: u64,
        fx: &mut Effects,
    ) -> Result<(), Status> {
        let charge = Charge(Resource::HeldBytes, bytes);
        let below = self.ledger.fits(self.scope_of(owner), Some(Scope::Domain), charge);
        if self.objects.order.of_domain.is_empty() || below.is_err() {
            return Ok(());
        }
        let domain = self.clients[owner].domain;
        let wish = (Charge(Resource::HeldBytes, bytes), resident as fn(&ScopeRecord) -> u64);
        let wish = self.wish(domain, wish, |spare| spare.bytes(false));
        self.evict_until((domain, bytes), false, &[wish], fx)
    }

    /// Ends evictable groups that are kept until a domain may keep another group of so many bytes, if that lets it.
    pub(super) fn evict_kept_for(
        &mut self,
        domain: u32,
        bytes: u64,
        pin: bool,
        fx: &mut Effects,
    ) -> Result<(), Status> {
        let wishes = of_kept(bytes, pin).map(|charge| {
            let freed: fn(&Spare) -> u128 = match charge.0 {
                Resource::KeptFds => |spare| spare.groups[1].into(),
                Resource::KeptBytes => |spare| spare.bytes(true),
                _ => |_| 0,
            };
            self.wish(domain, (charge, of_objects_in(charge.0)), freed)
        });
        self.evict_until((domain, bytes), true, &wishes, fx)
    }

    fn wish(
        &self,
        domain: u32,
        (Charge(resource, amount), count): (Charge, fn(&ScopeRecord) -> u64),
        freed: fn(&Spare) -> u128,
    ) -> Wish {
        let Order { idle, leased, .. } = &self.objects.order;
        let narrow = |sum: u128| u64::try_from(sum).unwrap_or(u64::MAX);
        let sums = [[idle.of(domain), leased.of(domain)], [idle.all, leased.all]];
        let sums = sums.map(|spare| spare.map(|spare| freed(&spare)));
        let (idle, all) =
            (sums.map(|[idle, _]| narrow(idle)), sums.map(|[one, two]| narrow(one + two)));
        Wish { resource, amount, count, idle, all }
    }
}
