//! What steps go on with, a portion at a time: sweeps, deadlines, caps that were lowered, a broker
//! that is emptied. Must never take from a client by force: what can be had again is evicted, the
//! rest is asked for.

use crate::api::ClientId;
use crate::books::{Blocked, Chore, Grace, ScopeId, Timer};
use crate::core::Core;
use crate::limits::{
    DRAIN_PAUSE_US, DRAINED_PER_STEP, EVICTIONS_PER_STEP, LEASES_SWEPT_PER_TURN,
    PARKED_ITEMS_PER_STEP, PARKED_LOOKS_PER_STEP, RECLAIM_LOOKS, RECLAIM_PAUSE_US,
    RESERVED_ENDS_PER_STEP, RESERVED_LOOKS_PER_STEP, SCOPES_DRAINED_PER_STEP,
    SILENT_QUEUES_PER_STEP, TIMERS_PER_STEP, WAITERS_WOKEN_PER_STEP, WATCHERS_WOKEN_PER_STEP,
};
use crate::moves::Step;
use fdbroker_protocol::{ErrorCode, MAX_BATCH, Resource, Scope};

/// What eviction or reclaim brings down; the fds first, because evictions of those help both.
const DRAINED: [Resource; 5] = [
    Resource::HeldBytes,
    Resource::HeldFds,
    Resource::Fds,
    Resource::OpenLeases,
    Resource::MappedLeases,
];

impl Core {
    /// While the broker is being drained: evicts what can be had again, and asks for leases; a
    /// portion at a time.
    pub(crate) fn give_up(&mut self, step: &mut Step) {
        if !self.books.timers.begin_chore(Chore::GiveUp, step.now) {
            return;
        }
        let mut evicted = 0;
        while evicted < DRAINED_PER_STEP
            && let Some(slot) = self.books.victim(ScopeId::NODE, false, step)
        {
            self.books.evict(slot, step);
            evicted += 1;
        }
        let asked_before = self.books.counters.reclaims;
        for resource in [Resource::OpenLeases, Resource::MappedLeases] {
            if self.books.ledger[ScopeId::NODE].account.now(resource) > 0 {
                self.books.reclaim(Blocked { resource, scope: ScopeId::NODE }, MAX_BATCH, step);
            }
        }
        let pause = match (evicted, self.books.counters.reclaims - asked_before) {
            (0, 0) => DRAIN_PAUSE_US,
            (DRAINED_PER_STEP, _) => 0,
            _ => RECLAIM_PAUSE_US,
        };
        self.books.timers.set_chore(Chore::GiveUp, Some(step.now.after(pause)));
    }

    /// Ends slots that their owners have not named, a bounded number at a time, in turns between
    /// owners.
    pub(crate) fn end_lost(&mut self, step: &mut Step) {
        let mut looks = RESERVED_LOOKS_PER_STEP;
        for _ in 0..RESERVED_ENDS_PER_STEP {
            let Some((slot, lost)) = self.books.continuity.next_lost(&mut looks) else { break };
            // Of what its owner has ended clients may have leases, which they may declare in time.
            if lost != Some(ErrorCode::Stale) {
                self.books.continuity.leave(slot);
            }
            if let Some(code) = lost {
                self.books.counters.lost += u64::from(code == ErrorCode::Lost);
                self.books.end(slot, code, step);
            }
            // What has lingered may have been drained meanwhile, and its slot used again.
            if self.books.allocations.in_slot(slot).is_some_and(|it| !it.drained) {
                self.books.drain_if_done(slot);
            }
        }
        self.books.continuity.turn();
    }

    /// Brings accounts above their caps down, as far as is possible now, a portion at a time; again
    /// after a pause while one is above. The narrowest scopes first: what they give up is room in
    /// the wider ones, too.
    pub(crate) fn drain(&mut self, step: &mut Step) {
        if self.books.drain_from.is_none() && self.books.timers.begin_chore(Chore::Drain, step.now)
        {
            self.books.drain_from = Some((0, 0));
        }
        let Some((mut kind, mut from)) = self.books.drain_from.take() else { return };
        let mut looks = SCOPES_DRAINED_PER_STEP;
        let mut left = EVICTIONS_PER_STEP;
        while looks > 0 && left > 0 {
            let Some(scopes) = Scope::WIDEST_FIRST.iter().rev().nth(kind) else { return };
            match self.books.ledger.next_of(*scopes, &mut from, &mut looks) {
                Some(scope) => left = self.drain_scope(scope, left, step),
                None if looks > 0 => (kind, from) = (kind + 1, 0),
                None => {}
            }
        }
        // One that had to be left is looked at again.
        self.books.drain_from = Some((kind, if left == 0 { from - 1 } else { from }));
    }

    /// Brings one scope down; how much is left of `most` evictions and leases to be asked for.
    fn drain_scope(&mut self, scope: ScopeId, most: usize, step: &mut Step) -> usize {
        let mut left = most;
        // Its caps may have been raised.
        self.books.ledger.freed(scope, Resource::ALL.iter().copied());
        for resource in DRAINED {
            if self.excess(scope, resource) > 0 && left > 0 {
                left -= self.drain_one(Blocked { resource, scope }, left, step);
                let again = step.now.after(DRAIN_PAUSE_US);
                self.books.timers.set_chore(Chore::Drain, Some(again));
            }
        }
        left
    }

    fn excess(&self, scope: ScopeId, resource: Resource) -> u64 {
        let now = self.books.ledger[scope].account.counted(resource);
        now.saturating_sub(self.books.ledger.cap(scope, resource))
    }

    /// Evicts, or asks for leases; how many of `most` that took.
    fn drain_one(&mut self, blocked: Blocked, most: usize, step: &mut Step) -> usize {
        let mut evicted = 0;
        if blocked.resource == Resource::HeldBytes {
            while evicted < most && self.excess(blocked.scope, blocked.resource) > 0 {
                match self.books.evict_for(blocked, most - evicted, step) {
                    0 => break,
                    more => evicted += more,
                }
            }
            return evicted;
        }
        self.books.take_idle_credits(blocked, 0);
        let excess = self.excess(blocked.scope, blocked.resource);
        let missing = excess.saturating_sub(self.books.ledger[blocked.scope].coming);
        let missing = usize::try_from(missing).unwrap_or(usize::MAX);
        let asked_before = self.books.counters.reclaims;
        evicted = self.books.evict_for(blocked, missing.min(most), step);
        if evicted == missing || evicted == most {
            return evicted;
        }
        self.books.reclaim(blocked, missing - evicted, step);
        // Some clients are looked at, however few leases they have.
        let asked = (self.books.counters.reclaims - asked_before) as usize;
        (evicted + asked + RECLAIM_LOOKS).min(most)
    }

    /// Charges holders of ended allocations for the memory, and has them told: so many leases at a
    /// time, and of each domain's allocations in turn.
    pub(crate) fn sweep_ended(&mut self, step: &mut Step) {
        while !step.allowances.sweeps.is_used_up()
            && let Some(slot) = self.books.allocations.next_ending()
        {
            for _ in 0..LEASES_SWEPT_PER_TURN {
                if step.allowances.sweeps.is_used_up() {
                    break;
                }
                // Those that were swept have gone to the end of the list.
                let next = self.books.allocations[slot].leases.first();
                let Some(lease) = next.filter(|lease| !self.books.leases[*lease].ended) else {
                    self.books.allocations.leave_ending(slot);
                    break;
                };
                step.allowances.sweeps.take();
                self.books.sweep_lease(lease);
            }
            self.books.allocations.end_turn_of_ending();
        }
    }

    /// Ends the memory of ended groups, and takes their objects off the names; and wakes clients
    /// that watch, and requests that wait for names which were sealed.
    pub(crate) fn sweep_objects(&mut self, step: &mut Step) {
        self.books.end_before_answer(step);
        for _ in 0..WATCHERS_WOKEN_PER_STEP {
            let Some(client) = self.books.objects.watches.next_woken() else { break };
            self.books.eventful.push(ClientId(client));
        }
        for _ in 0..WAITERS_WOKEN_PER_STEP {
            let Some(seq) = self.books.objects.waits.next_woken() else { return };
            let client = self.books.parked.get(&seq).map(|parked| parked.by.client);
            if client.is_some_and(|client| self.books.client(client).is_some()) {
                self.books.look_soon(seq);
            }
        }
    }

    /// The client has done something for itself: it is the least idle now.
    pub(crate) fn touch(&mut self, client: ClientId) {
        let act = self.books.clients.next_act();
        if let Some(client) = self.books.client(client) {
            client.act = act;
        }
    }

    /// Time has passed: whoever still waits for leases to come back is seen to again.
    pub(crate) fn reclaim_again(&mut self, step: &mut Step) {
        if self.books.timers.begin_chore(Chore::Reclaim, step.now) {
            self.books.reclaim_from = Some(None);
        }
        let Some(mut former) = self.books.reclaim_from.take() else { return };
        for _ in 0..PARKED_LOOKS_PER_STEP {
            let Some(account) = self.books.rooms.account_after(former) else { return };
            former = Some(account);
            if self.books.may_make_room(account) {
                self.books.reclaim(account, 1, step);
            }
        }
        self.books.reclaim_from = Some(former);
    }

    /// Does what is due.
    pub(crate) fn expire(&mut self, step: &mut Step) {
        for _ in 0..TIMERS_PER_STEP {
            if step.fx.granted.len() >= PARKED_ITEMS_PER_STEP {
                return;
            }
            let Some(timer) = self.books.timers.pop_due(step.now) else { return };
            match timer {
                Timer::Recall(slot, generation) => self.books.recall_overdue(slot, generation),
                Timer::Parked(seq) => self.deadline_passed(seq, step),
                Timer::Keep(slot, generation) => self.books.end_orphan(slot, generation, step),
                Timer::Object(group, generation) => {
                    self.books.object_overdue(group, generation, step)
                }
                Timer::Grace => self.books.continuity.set_grace(Grace::Ending(0)),
            }
        }
    }

    /// An owner that has turned silent: those that wait for room to ask it are told, a few
    /// allocations a step.
    pub(crate) fn sweep_silent(&mut self) {
        for _ in 0..SILENT_QUEUES_PER_STEP {
            let Some((queue, slot)) = self.books.waiting.next_untold() else { return };
            if self.books.allocations[slot].is_held() {
                // Its fd is here: the owner is not needed.
                let owner = self.books.allocations[slot].owner;
                self.books.waiting.put_interest_last(owner, queue);
                continue;
            }
            self.books.tell_of_silence(slot);
        }
    }
}
