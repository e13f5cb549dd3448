//! Groups end when bytes are short. Must never end a group that is leased, nor any for a request
//! that is refused.

use crate::api::{NONE, Now};
use crate::books::objects::charges::{of_kept, of_objects_in};
use crate::books::objects::groups::{Class, Place};
use crate::books::objects::order::{Order, Spare, Which};
use crate::books::{Books, Charge, ScopeId, ScopeRecord};
use crate::limits::RECLAIM_BATCH;
use crate::moves::Step;
use fdbroker_protocol::{ErrorCode, NO_CAP, Resource, Scope, Status};

/// What a domain wants more of something, and what its own groups and those of all domains would
/// free of it: the idle ones, and the leased ones, too.
struct Wish {
    resource: Resource,
    amount: u64,
    count: fn(&ScopeRecord) -> u64,
    idle: [u64; 2],
    all: [u64; 2],
}

/// The classes of which groups may make room.
fn classes(which: Which) -> impl Iterator<Item = Class> {
    Class::ALL.into_iter().filter(move |class| which.is_none_or(|which| which == *class))
}

impl Books {
    /// A group may be evicted from now on, or no more, or stands elsewhere.
    pub(crate) fn order_group(&mut self, number: u32) {
        let used = self.objects.groups[number].used;
        self.order_group_at(number, used);
    }

    fn order_group_at(&mut self, number: u32, at: Now) {
        let group = &self.objects.groups[number];
        let place = self.may_go(group).map(|is_leased| (is_leased, group.class(), at));
        self.place_group(number, place);
    }

    fn place_group(&mut self, number: u32, place: Option<Place>) {
        let group = &mut self.objects.groups[number];
        let (domain, former) = (group.domain, std::mem::replace(&mut group.place, place));
        let (order, of) = (&mut self.objects.order, (number, group.size_bytes));
        former.into_iter().for_each(|former| order.leave(domain, former, of));
        place.into_iter().for_each(|place| order.enter(domain, place, of));
    }

    /// The memory in a slot has its first lease, or has lost its last one: a group in it may be
    /// evicted no more, or again.
    pub(crate) fn lease_of_group(&mut self, slot: u32, step: &mut Step) {
        let Some(number) = self.objects.groups.number_in(slot) else { return };
        if self.objects.groups[number].may_be_evicted() {
            self.order_group_at(number, step.now);
        }
    }

    /// Groups that a seal expects under its names do not make room for it; those that would have.
    pub(crate) fn set_expected_aside(&mut self, number: u32) -> Vec<u32> {
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

    /// The group of a domain that was not used for longest; at most so many are looked at in a
    /// step.
    fn group_to_evict(&mut self, domain: u32, which: Which, step: &mut Step) -> Option<u32> {
        let order = &self.objects.order;
        let firsts = classes(which).filter_map(|class| order.first(domain, false, class));
        let (at, number) = firsts.min()?;
        debug_assert!(self.objects.groups[number].used <= at, "the order knows of each use");
        step.allowances.object_looks.take().then_some(number)
    }

    /// Ends groups until all of these fit; none, if they would not fit once all groups that may go
    /// have ended: then clients are asked for leases of others, if those would do. AGAIN: more have
    /// to go than one step may end, or there may be answers soon.
    fn evict_until(
        &mut self,
        (domain, bytes): (u32, u64),
        which: Which,
        wishes: &[Wish],
        step: &mut Step,
    ) -> Result<(), Status> {
        let full = |books: &Books, spare: fn(&Wish) -> [u64; 2]| {
            wishes.iter().find_map(|wish| books.full_for(domain, wish, spare(wish)))
        };
        if let Some(scope) = full(self, |wish| wish.idle) {
            let leased = &self.objects.order.leased;
            let payer = leased.payer(domain, scope, bytes, which);
            return match payer.filter(|_| full(self, |wish| wish.all).is_none()) {
                Some(payer) if self.ask_for_groups(payer, which, step) => {
                    Err(ErrorCode::Again.into())
                }
                _ => Ok(()),
            };
        }
        while let Some(scope) = full(self, |_| [0; 2]) {
            let payer = self.objects.order.idle.payer(domain, scope, bytes, which);
            let group = payer.and_then(|payer| self.group_to_evict(payer, which, step));
            let number = group.ok_or(ErrorCode::Again)?;
            let slot = self.objects.groups[number].allocation;
            self.counters.evictions += 1;
            self.end_group(number, true);
            // Its bytes are free at once; its names are swept.
            self.end_memory(slot, step);
        }
        Ok(())
    }

    /// Asks for leases of a domain's groups, those first that were not asked for longest. `true`:
    /// there may be an answer soon.
    fn ask_for_groups(&mut self, domain: u32, which: Which, step: &mut Step) -> bool {
        let order = &self.objects.order.of_domain;
        let leased = |class| {
            let (from, to) =
                ((domain, (true, class, Now(0)), 0), (domain, (true, class, Now(u64::MAX)), NONE));
            order.range(from..to).map(|(.., group)| *group).take(RECLAIM_BATCH)
        };
        let groups: Vec<u32> = classes(which).flat_map(leased).collect();
        let mut may_come = false;
        for number in groups {
            if !step.allowances.object_looks.take() {
                break;
            }
            may_come |= self.ask_for_leases_of(self.objects.groups[number].allocation, step);
            // Behind the others: they are asked for next.
            self.order_group_at(number, step.now);
        }
        may_come
    }

    /// The scope that has no room for it, once so much of the domain and of all has been freed: the
    /// domain by its cap, or the node by its cap or by the share of the domain in it.
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

    /// Ends evictable groups until so many bytes more of an owner fit beside what cannot be had
    /// back, if that lets them in: its own caps and its job's are for what their clients do, and
    /// nothing of others is ended for those.
    pub(crate) fn evict_objects_for(
        &mut self,
        owner: u32,
        bytes: u64,
        step: &mut Step,
    ) -> Result<(), Status> {
        let charge = Charge(Resource::HeldBytes, bytes);
        let below = self.ledger.fits(self.scope_of(owner), Some(Scope::Domain), charge);
        if self.objects.order.of_domain.is_empty() || below.is_err() {
            return Ok(());
        }
        let domain = self.clients[owner].domain;
        let wish = self.wish(domain, charge, ScopeRecord::resident, |spare| spare.bytes(None));
        self.evict_until((domain, bytes), None, &[wish], step)
    }

    /// Ends evictable groups that are kept until a domain may keep another group of so many bytes,
    /// if that lets it: those of the same kind of memory.
    #[allow(clippy::wildcard_enum_match_arm, reason = "few resources have a rule of their own")]
    pub(crate) fn evict_kept_for(
        &mut self,
        domain: u32,
        (bytes, is_host): (u64, bool),
        pin: bool,
        step: &mut Step,
    ) -> Result<(), Status> {
        let class = if is_host { Class::KeptHost } else { Class::KeptGpu };
        let wishes = of_kept(bytes, is_host, pin).map(|charge| {
            let freed = |spare: &Spare| match charge.0 {
                Resource::KeptFds => spare.groups[class as usize].into(),
                Resource::PermanentBytes => 0,
                _ => spare.bytes(Some(class)),
            };
            self.wish(domain, charge, of_objects_in(charge.0), freed)
        });
        self.evict_until((domain, bytes), Some(class), &wishes, step)
    }

    fn wish(
        &self,
        domain: u32,
        Charge(resource, amount): Charge,
        count: fn(&ScopeRecord) -> u64,
        freed: impl Fn(&Spare) -> u128,
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
