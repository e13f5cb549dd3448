//! The invariants of objects, recomputed from what there is. Must never change anything.

use super::charges::{of_kept, of_member};
use super::groups::GroupState;
use super::names::Name;
use crate::Core;
use crate::ledger::Ledger;
use crate::parked::Wish;
use crate::slots::NONE;
use crate::timers::Timer;
use std::collections::BTreeSet;

impl Core {
    /// Makes every charge of objects, and of requests that wait for names.
    pub(crate) fn count_objects(&self, right: &mut Ledger) {
        for (_, group) in self.objects.groups.iter_from(0) {
            let scope = self.clients.scope_of_domain(group.domain);
            let named = group.members.iter().filter(|member| member.is_named);
            named.flat_map(of_member).for_each(|charge| right.add(scope, charge));
            let kept = group.is_kept.then(|| of_kept(group.size_bytes, group.pin));
            kept.into_iter().flatten().for_each(|charge| right.add(scope, charge));
        }
        for log in self.objects.watches.logs.values() {
            right.add(self.clients.scope_of_domain(log.domain), log.charge());
        }
        for parked in self.parked.values() {
            if let Wish::Get(get) = &parked.wish {
                let domain = self.clients[parked.client.0].domain;
                right.add(self.clients.scope_of_domain(domain), get.charge());
            }
        }
    }

    /// Asserts that names and groups lead to each other, that memory is where it belongs, and who waits.
    pub(crate) fn check_objects(&self) {
        let mut entered = 0;
        for (scope, name, entry) in self.objects.names.all() {
            assert!(entry.sealed.is_some() || !entry.makers.is_empty(), "a name of nothing");
            for place in entry.sealed.iter().chain(&*entry.makers) {
                let group = &self.objects.groups[place.group];
                let member = &group.members[usize::from(place.member)];
                assert!(member.is_named && group.scope == scope && member.name == *name);
                let is_made = group.state == GroupState::Making;
                let stands = entry.sealed == Some(*place);
                assert!(group.is_ended() || is_made != stands, "{name:?} stands");
                entered += 1;
            }
        }
        self.objects.groups.check();
        self.objects.watches.check();
        let groups = self.objects.groups.iter_from(0);
        self.objects.order.check(groups.map(|(number, group)| (number, group, self.may_go(group))));
        let is_here = |client: &u32| self.clients.find(*client).is_some_and(|it| !it.gone);
        assert!(self.objects.watches.of.keys().all(|(client, _)| is_here(client)), "who watches");
        let mut named = 0;
        for (number, group) in self.objects.groups.iter_from(0) {
            let count = group.members.iter().filter(|member| member.is_named).count();
            assert_eq!(count, group.names as usize, "names of group {number}");
            named += count;
            let is_ended = group.is_ended();
            assert_eq!(group.link.is_in(), is_ended, "group {number} is swept");
            assert!(is_ended || group.allocation != NONE, "group {number} lives without memory");
            let timer = Timer::Object(number, self.objects.groups.generation(number));
            assert!(group.due.is_none_or(|at| self.timers.has(at, timer)), "time of {number}");
            if group.allocation != NONE {
                let allocation = &self.allocations[group.allocation];
                assert!(allocation.is_live() && allocation.domain == group.domain);
                assert_eq!(allocation.owner == NONE, group.is_kept, "owner of group {number}");
                let is_timed = group.due.is_some() || is_ended;
                assert!(is_timed || self.until(group).is_none(), "{number} is kept for ever");
            }
        }
        assert_eq!(entered, named, "objects with names");
        let gets = self.parked.iter().filter_map(|(seq, parked)| match &parked.wish {
            Wish::Get(get) => Some((seq, get)),
            _ => None,
        });
        let standing = gets.map(|(seq, get)| {
            let names: BTreeSet<_> = get.stands_at().iter().collect();
            let stands = |name: &&Name| self.objects.waits.has(get.scope, name, *seq);
            assert!(names.iter().all(stands), "{seq} is lost");
            names.len()
        });
        assert_eq!(standing.sum::<usize>(), self.objects.waits.len(), "who stands at names");
    }
}
