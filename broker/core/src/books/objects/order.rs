//! Groups that may end when bytes are short, the one that was not used for longest first, and what
//! they would free: known at any time. Must never be looked through.

use std::collections::BTreeSet;

use crate::api::Now;
use crate::books::ledger::ScopeId;
use crate::books::objects::groups::{Class, Group, GroupState, Place};
use rustc_hash::FxHashMap;

/// Which groups may make room; `None`: those of every class.
pub(crate) type Which = Option<Class>;

/// What the groups of each class that may be evicted would free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spare {
    pub(crate) bytes: [u128; 3],
    pub(crate) groups: [u64; 3],
}

impl Spare {
    pub(crate) fn change(&mut self, of: Class, change: impl Fn(u128, u64) -> (u128, u64)) {
        let at = of as usize;
        (self.bytes[at], self.groups[at]) = change(self.bytes[at], self.groups[at]);
    }

    pub(crate) fn bytes(&self, of: Which) -> u128 {
        of.map_or_else(|| self.bytes.iter().sum(), |class| self.bytes[class as usize])
    }
}

/// What groups would free, of all domains and of each.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    pub(crate) all: Spare,
    pub(crate) of: FxHashMap<u32, Spare>,
    /// The domains by the bytes of their groups.
    pub(crate) richest: [BTreeSet<(u128, u32)>; 3],
}

/// Of which groups the sets of the richest are.
const RICHEST: [Which; 3] = [None, Some(Class::KeptHost), Some(Class::KeptGpu)];

impl Sums {
    pub(crate) fn change(
        &mut self,
        domain: u32,
        class: Class,
        change: impl Fn(u128, u64) -> (u128, u64),
    ) {
        self.all.change(class, &change);
        let former = self.of(domain);
        let mut now = former;
        now.change(class, &change);
        if now == Spare::default() {
            self.of.remove(&domain)
        } else {
            self.of.insert(domain, now)
        };
        for (of, richest) in RICHEST.into_iter().zip(&mut self.richest) {
            richest.remove(&(former.bytes(of), domain));
            if now.bytes(of) > 0 {
                richest.insert((now.bytes(of), domain));
            }
        }
    }

    pub(crate) fn of(&self, domain: u32) -> Spare {
        self.of.get(&domain).copied().unwrap_or_default()
    }

    /// The domain whose groups make room for so many bytes more of a domain, in that domain's cap
    /// or in the node's. In the node's the domain that has most of them, what is wanted counted
    /// with its own: who has least keeps it.
    pub(crate) fn payer(
        &self,
        domain: u32,
        scope: ScopeId,
        bytes: u64,
        which: Which,
    ) -> Option<u32> {
        let own = self.of(domain).bytes(which);
        let at = RICHEST.iter().position(|it| *it == which)?;
        let (most, richest) = match scope {
            ScopeId::NODE => self.richest[at].last().copied()?,
            _ => (0, domain),
        };
        let is_own = own > 0 && own + u128::from(bytes) >= most;
        Some(if is_own { domain } else { richest })
    }

    pub(crate) fn check(&self, right: &FxHashMap<u32, Spare>) {
        assert_eq!(self.of, *right, "what groups would free");
        for (of, richest) in RICHEST.into_iter().zip(&self.richest) {
            let right = right.iter().map(|(domain, it)| (it.bytes(of), *domain));
            let right: BTreeSet<_> = right.filter(|(bytes, _)| *bytes > 0).collect();
            assert_eq!(*richest, right, "domains by what they can free");
            let all: u128 = right.iter().map(|(bytes, _)| bytes).sum();
            assert_eq!(self.all.bytes(of), all, "what all can free");
        }
    }
}

/// The groups that may be evicted unless they are leased, by domain.
#[derive(Debug, Default)]
pub struct Order {
    pub(crate) of_domain: BTreeSet<(u32, Place, u32)>,
    /// Of those that nobody has a lease of.
    pub(crate) idle: Sums,
    /// Of the leased ones.
    pub(crate) leased: Sums,
}

impl Order {
    pub(crate) fn sums(&mut self, leased: bool) -> &mut Sums {
        if leased { &mut self.leased } else { &mut self.idle }
    }

    pub(crate) fn enter(&mut self, domain: u32, place: Place, (group, bytes): (u32, u64)) {
        self.of_domain.insert((domain, place, group));
        let change = |sum, count| (sum + u128::from(bytes), count + 1);
        self.sums(place.0).change(domain, place.1, change);
    }

    pub(crate) fn leave(&mut self, domain: u32, place: Place, (group, bytes): (u32, u64)) {
        self.of_domain.remove(&(domain, place, group));
        let change = |sum, count| (sum - u128::from(bytes), count - 1);
        self.sums(place.0).change(domain, place.1, change);
    }

    pub(crate) fn first(&self, domain: u32, leased: bool, class: Class) -> Option<(Now, u32)> {
        let from = (domain, (leased, class, Now(0)), 0);
        let (of, place, group) = self.of_domain.range(from..).next()?;
        let is_it = (*of, place.0, place.1) == (domain, leased, class);
        is_it.then_some((place.2, *group))
    }

    /// Asserts that these are the groups in it, each with whether it is leased, if it belongs
    /// there.
    pub(crate) fn check<'a>(&self, groups: impl Iterator<Item = (u32, &'a Group, Option<bool>)>) {
        let (mut count, mut spare_of) = (0, <[FxHashMap<u32, Spare>; 2]>::default());
        for (number, group, leased) in groups {
            let is_right = group.place.map(|place| (place.0, place.1));
            assert_eq!(is_right, leased.map(|it| (it, group.class())), "place of group {number}");
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

impl Group {
    /// Whether it may end when bytes are short and nobody has a lease of it.
    pub(crate) fn may_be_evicted(&self) -> bool {
        self.evictable && !self.pin && matches!(self.state, GroupState::Sealed(_))
    }
}
