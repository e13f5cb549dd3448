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
use crate::slots::NONE;
use fdbroker_protocol::{ErrorCode, NO_CAP, Resource, Scope, Status};

/// When a group was used last, as far as the order knows; kept groups apart, since they alone help against a cap of kept bytes.
pub(super) type Place = (bool, Now);

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

/// The groups that may be evicted, by domain.
#[derive(Debug, Default)]
pub struct Order {
    of_domain: BTreeSet<(u32, Place, u32)>,
    spare: Spare,
    spare_of: FxHashMap<u32, Spare>,
    /// The domains by the bytes of all their groups that may be evicted, and of the kept ones.
    richest: [BTreeSet<(u128, u32)>; 2],
}

impl Order {
    fn enter(&mut self, domain: u32, place: Place, (group, bytes): (u32, u64)) {
        self.of_domain.insert((domain, place, group));
        self.change(domain, place.0, |sum, count| (sum + u128::from(bytes), count + 1));
    }

    fn leave(&mut self, domain: u32, place: Place, (group, bytes): (u32, u64)) {
        self.of_domain.remove(&(domain, place, group));
        self.change(domain, place.0, |sum, count| (sum - u128::from(bytes), count - 1));
    }

    fn change(&mut self, domain: u32, kept: bool, change: impl Fn(u128, u64) -> (u128, u64)) {
        self.spare.change(kept, &change);
        let former = self.spare_of(domain);
        let mut now = former;
        now.change(kept, &change);
        match now == Spare::default() {
            true => self.spare_of.remove(&domain),
            false => self.spare_of.insert(domain, now),
        };
        for (kept_alone, richest) in [false, true].into_iter().zip(&mut self.richest) {
            richest.remove(&(former.bytes(kept_alone), domain));
            if now.bytes(kept_alone) > 0 {
                richest.insert((now.bytes(kept_alone), domain));
            }
        }
    }

    fn spare_of(&self, domain: u32) -> Spare {
        self.spare_of.get(&domain).copied().unwrap_or_default()
    }

    /// The domain whose groups make room for so many bytes more of a domain, in that domain's cap or in the node's. In the
    /// node's the domain that has most of them, what is wanted counted with its own: who has least keeps it.
    fn payer(&self, domain: u32, scope: ScopeId, bytes: u64, kept_alone: bool) -> Option<u32> {
        let own = self.spare_of(domain).bytes(kept_alone);
        let (most, richest) = match scope {
            ScopeId::NODE => self.richest[usize::from(kept_alone)].last().copied()?,
            _ => (0, domain),
        };
        let is_own = own > 0 && own + u128::from(bytes) >= most;
        Some(if is_own { domain } else { richest })
    }

    fn first(&self, domain: u32, is_kept: bool) -> Option<(Place, u32)> {
        let from = (is_kept, Now(0));
        let (of, place, group) = self.of_domain.range((domain, from, 0)..).next()?;
        (*of == domain && place.0 == is_kept).then_some((*place, *group))
    }

    /// Asserts that these are the groups in it, `true`: it may be evicted now.
    pub(super) fn check<'a>(&self, groups: impl Iterator<Item = (u32, &'a Group, bool)>) {
        let (mut count, mut spare_of) = (0, FxHashMap::<u32, Spare>::default());
        for (number, group, may_go) in groups {
            assert_eq!(group.place.is_some(), may_go, "group {number} in the order");
            let Some(place) = group.place else { continue };
            assert_eq!(place.0, group.is_kept, "place of group {number}");
            assert!(self.of_domain.contains(&(group.domain, place, number)));
            count += 1;
            let size = u128::from(group.size_bytes);
            let spare = spare_of.entry(group.domain).or_default();
            spare.change(place.0, |sum, count| (sum + size, count + 1));
        }
        assert_eq!(self.of_domain.len(), count, "groups to evict");
        assert_eq!(self.spare_of, spare_of, "what groups to evict would free");
        for (kept_alone, richest) in [false, true].into_iter().zip(&self.richest) {
            let right = spare_of.iter().map(|(domain, it)| (it.bytes(kept_alone), *domain));
            let right: BTreeSet<_> = right.filter(|(bytes, _)| *bytes > 0).collect();
            assert_eq!(*richest, right, "domains by what they can free");
            let all: u128 = right.iter().map(|(bytes, _)| bytes).sum();
            assert_eq!(self.spare.bytes(kept_alone), all, "what all can free");
        }
    }
}

/// What a domain wants more of something, and what its own groups and those of all domains would free of it.
struct Wish {
    resource: Resource,
    amount: u64,
    count: fn(&ScopeRecord) -> u64,
    spare: [u64; 2],
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
    /// Whether a group may be evicted now.
    pub(super) fn may_go(&self, group: &Group) -> bool {
        let is_idle = |slot| slot != NONE && self.allocations[slot].leases.is_empty();
        group.may_be_evicted() && is_idle(group.allocation)
    }

    /// A group may be evicted from now on, or no more, or stands elsewhere.
    pub(super) fn order_group(&mut self, number: u32) {
        let used = self.objects.groups[number].used;
        self.order_group_at(number, used);
    }

    fn order_group_at(&mut self, number: u32, at: Now) {
        let group = &self.objects.groups[number];
        let place = self.may_go(group).then_some((group.is_kept, at));
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
        loop {
            let kept = self.objects.order.first(domain, true);
            let other = self.objects.order.first(domain, false).filter(|_| !kept_alone);
            let is_older = |((_, at), _): &((bool, Now), u32)| kept.is_none_or(|it| *at < it.0.1);
            let ((_, at), number) = other.filter(is_older).or(kept)?;
            if !self.allowances.object_looks.take() {
                return None;
            }
            let used = self.objects.groups[number].used;
            if used <= at {
                return Some(number);
            }
            self.order_group_at(number, used);
        }
    }

    /// Ends groups until all of these fit; none, if they would not fit once all groups that may go have ended. AGAIN: more
    /// have to go than one step may end.
    fn evict_until(
        &mut self,
        (domain, bytes): (u32, u64),
        kept_alone: bool,
        wishes: &[Wish],
        fx: &mut Effects,
    ) -> Result<(), Status> {
        if wishes.iter().any(|wish| self.full_for(domain, wish, wish.spare).is_some()) {
            return Ok(());
        }
        let full = |core: &Core| wishes.iter().find_map(|wish| core.full_for(domain, wish, [0; 2]));
        while let Some(scope) = full(self) {
            let payer = self.objects.order.payer(domain, scope, bytes, kept_alone);
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
        let spare = self.spare(domain, |spare| spare.bytes(false));
        let wish = Wish { resource: Resource::HeldBytes, amount: bytes, count: resident, spare };
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
        let wishes = of_kept(bytes, pin).map(|Charge(resource, amount)| {
            let spare = match resource {
                Resource::KeptFds => self.spare(domain, |spare| spare.groups[1].into()),
                Resource::KeptBytes => self.spare(domain, |spare| spare.bytes(true)),
                _ => [0; 2],
            };
            Wish { resource, amount, count: of_objects_in(resource), spare }
        });
        self.evict_until((domain, bytes), true, &wishes, fx)
    }

    /// What groups would free: the domain's own, and those of all.
    fn spare(&self, domain: u32, of: fn(&Spare) -> u128) -> [u64; 2] {
        let order = &self.objects.order;
        let spare = [order.spare_of(domain), order.spare];
        spare.map(|spare| u64::try_from(of(&spare)).unwrap_or(u64::MAX))
    }
}
