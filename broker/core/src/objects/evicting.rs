//! Groups that may end when bytes are short: sealed ones that are neither pinned nor leased, the one that was not used for longest first.
//! Where such a group stands is looked at only when it is the oldest: a use costs nothing. Must never end a group that is leased.

use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

use super::groups::{Group, GroupState};
use crate::Core;
use crate::api::{Effects, Now};
use crate::ledger::{Charge, ScopeId};
use fdbroker_protocol::{Resource, Scope};

/// When a group was used last, as far as the order knows; kept groups apart, since they alone help against a cap of kept bytes.
pub(super) type Place = (bool, Now);

/// The groups that may be evicted, all of them and by domain.
#[derive(Debug, Default)]
pub struct Order {
    all: BTreeSet<(Place, u32)>,
    of_domain: BTreeSet<(u32, Place, u32)>,
    /// Bytes of those that are not kept, and of those that are, the leased ones included.
    bytes: [u128; 2],
    bytes_of: FxHashMap<u32, [u128; 2]>,
}

impl Order {
    fn enter(&mut self, domain: u32, place: Place, (group, bytes): (u32, u64)) {
        self.all.insert((place, group));
        self.of_domain.insert((domain, place, group));
        let kept = usize::from(place.0);
        self.bytes[kept] += u128::from(bytes);
        self.bytes_of.entry(domain).or_default()[kept] += u128::from(bytes);
    }

    fn leave(&mut self, domain: u32, place: Place, (group, bytes): (u32, u64)) {
        self.all.remove(&(place, group));
        self.of_domain.remove(&(domain, place, group));
        let kept = usize::from(place.0);
        self.bytes[kept] -= u128::from(bytes);
        let left = self.bytes_of.get_mut(&domain).expect("it was entered");
        left[kept] -= u128::from(bytes);
        if *left == [0; 2] {
            self.bytes_of.remove(&domain);
        }
    }

    /// Bytes of a domain, or of all, not kept and kept.
    fn bytes(&self, domain: Option<u32>) -> [u128; 2] {
        domain.map_or(self.bytes, |domain| self.bytes_of.get(&domain).copied().unwrap_or_default())
    }

    fn first(&self, domain: Option<u32>, is_kept: bool) -> Option<(Place, u32)> {
        let from = (is_kept, Now(0));
        let first = match domain {
            None => self.all.range((from, 0)..).next().copied(),
            Some(domain) => {
                let first = self.of_domain.range((domain, from, 0)..).next();
                first.filter(|(of, ..)| *of == domain).map(|(_, place, group)| (*place, *group))
            }
        };
        first.filter(|((kept, _), _)| *kept == is_kept)
    }

    /// Asserts that these are the groups in it.
    pub(super) fn check<'a>(&self, groups: impl Iterator<Item = (u32, &'a Group)>) {
        let (mut count, mut bytes) = (0, [0; 2]);
        for (number, group) in groups {
            let Some(place) = group.place else {
                assert!(!group.may_be_evicted(), "group {number} cannot be found");
                continue;
            };
            assert!(group.may_be_evicted() && place.0 == group.is_kept, "place of group {number}");
            assert!(self.all.contains(&(place, number)));
            assert!(self.of_domain.contains(&(group.domain, place, number)));
            count += 1;
            bytes[usize::from(place.0)] += u128::from(group.size_bytes);
        }
        let of = |kept: usize| self.bytes_of.values().map(|bytes| bytes[kept]).sum();
        let of_domains: [u128; 2] = [of(0), of(1)];
        assert_eq!((self.bytes, of_domains), (bytes, bytes), "bytes to evict");
        assert_eq!((self.all.len(), self.of_domain.len()), (count, count), "groups to evict");
    }
}

impl Group {
    /// Whether it may end when bytes are short and nobody has a lease of it.
    fn may_be_evicted(&self) -> bool {
        self.evictable && !self.pin && matches!(self.state, GroupState::Sealed(_))
    }
}

impl Core {
    /// A group may be evicted from now on, or no more, or stands elsewhere.
    pub(super) fn order_group(&mut self, number: u32) {
        let used = self.objects.groups[number].used;
        self.order_group_at(number, used);
    }

    fn order_group_at(&mut self, number: u32, at: Now) {
        let group = &mut self.objects.groups[number];
        let place = group.may_be_evicted().then_some((group.is_kept, at));
        let (domain, former) = (group.domain, std::mem::replace(&mut group.place, place));
        let (order, of) = (&mut self.objects.order, (number, group.size_bytes));
        former.into_iter().for_each(|former| order.leave(domain, former, of));
        place.into_iter().for_each(|place| order.enter(domain, place, of));
    }

    /// The group of a scope that was not used for longest; at most so many are looked at in a step.
    fn group_to_evict(&mut self, domain: Option<u32>, kept_alone: bool) -> Option<u32> {
        loop {
            let kept = self.objects.order.first(domain, true);
            let other = self.objects.order.first(domain, false).filter(|_| !kept_alone);
            let is_older = |((_, at), _): &((bool, Now), u32)| kept.is_none_or(|it| *at < it.0.1);
            let ((_, at), number) = other.filter(is_older).or(kept)?;
            if !self.allowances.object_looks.take() {
                return None;
            }
            let group = &self.objects.groups[number];
            let used = group.used;
            match self.allocations[group.allocation].leases.is_empty() {
                true if used <= at => return Some(number),
                true => self.order_group_at(number, used),
                false => self.order_group_at(number, self.now),
            }
        }
    }

    /// Ends a group of a domain, or of the node, to make room. `false`: none may be.
    fn evict_group(&mut self, scope: ScopeId, kept_alone: bool, fx: &mut Effects) -> bool {
        let domain = match self.ledger[scope].kind {
            Scope::Node => None,
            Scope::Domain => Some(self.ledger[scope].number),
            // Their caps are for what their clients do; nothing of others is ended for that.
            Scope::Client | Scope::Job => return false,
        };
        let Some(number) = self.group_to_evict(domain, kept_alone) else { return false };
        let slot = self.objects.groups[number].allocation;
        self.counters.evictions += 1;
        self.end_group_by(number, true);
        // Its bytes are free at once; its names are swept.
        self.end_memory(slot, fx);
        true
    }

    /// Ends evictable groups until so many bytes more of an owner fit beside what cannot be had back, as far as that helps.
    pub(crate) fn evict_objects_for(&mut self, owner: u32, bytes: u64, fx: &mut Effects) {
        while let Some(scope) = self.short_of_bytes(owner, bytes)
            && self.evict_group(scope, false, fx)
        {}
    }

    /// The domain of an owner or the node, if it cannot have so many bytes more whatever else is evicted, and its groups would
    /// make room. What is for other domains stays for them: within its share a domain counts groups of all domains as free.
    fn short_of_bytes(&self, owner: u32, bytes: u64) -> Option<ScopeId> {
        if self.objects.order.all.is_empty() {
            return None;
        }
        let domain = self.clients[owner].domain;
        let of_domain = self.clients.scope_of_domain(domain);
        let is_short = |scope: ScopeId, spare: u128| {
            let cap = u128::from(self.ledger.cap(scope, Resource::HeldBytes));
            let wanted = self.ledger[scope].resident_bytes + u128::from(bytes);
            (wanted > cap, wanted.saturating_sub(spare) <= cap)
        };
        let order = &self.objects.order;
        let spare: u128 = order.bytes(None).iter().sum();
        let of_node = is_short(ScopeId::NODE, spare);
        let of_it = is_short(of_domain, order.bytes(Some(domain)).iter().sum());
        let spare = u64::try_from(spare).unwrap_or(u64::MAX);
        let (_, room) = self.share_of_bytes(domain, spare);
        if !of_node.1 || !of_it.1 || bytes > room {
            return None;
        }
        match (of_it.0, of_node.0 || self.beyond_share_of_bytes(domain, bytes).is_some()) {
            (true, _) => Some(of_domain),
            (false, true) => Some(ScopeId::NODE),
            (false, false) => None,
        }
    }

    /// Ends evictable groups that are kept until a domain may keep so many bytes more; none, if all of them are not enough.
    pub(super) fn evict_kept_for(&mut self, domain: u32, bytes: u64, fx: &mut Effects) {
        while let Some(scope) = self.short_of_kept(domain, bytes)
            && self.evict_group(scope, true, fx)
        {}
    }

    fn short_of_kept(&self, domain: u32, bytes: u64) -> Option<ScopeId> {
        let of_domain = self.clients.scope_of_domain(domain);
        let charge = Charge(Resource::KeptBytes, bytes);
        let (scope, of) = match self.ledger.fits(of_domain, None, charge) {
            Err(blocked) if blocked.scope == ScopeId::NODE => (ScopeId::NODE, None),
            Ok(()) if bytes <= self.share_of_objects(domain, Resource::KeptBytes) => return None,
            Ok(()) | Err(_) => (of_domain, Some(domain)),
        };
        let [_, spare] = self.objects.order.bytes(of);
        let kept = self.ledger[scope].account.counted(Resource::KeptBytes);
        let with_it = (u128::from(kept) + u128::from(bytes)).saturating_sub(spare);
        (with_it <= self.ledger.cap(scope, Resource::KeptBytes).into()).then_some(scope)
    }
}
