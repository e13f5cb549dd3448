//! Which held fds may be evicted, and their eviction in the scope whose cap is in the way. Must
//! never evict what is resident or waited for, nor choose an owner that does not answer while
//! another one of the scope has something to evict.
//!
//! An example: client A may hold 64 fds, has 64, and registers another. The cap in the way is A's,
//! so one of A's own goes, however old those of others are. Were it the node's cap, the oldest of
//! the node would go, whosever it is. The oldest is the one at the front of its queue; if it was
//! granted since it was put there, it goes to the end instead, and the next one is looked at. After
//! eight of these the one used longest ago is taken: a client that uses all that it has must not
//! make each eviction a walk of its whole queue.

use crate::api::{Effect, Lane, NONE, Wanted};
use crate::books::order::Moment;
use crate::books::{Allocation, Blocked, Books, Charge, Client, ScopeId, State};
use crate::limits::{EVICTIONS_PER_STEP, LOOKS_PER_VICTIM};
use crate::moves::Step;
use fdbroker_protocol::admin::EventKind;
use fdbroker_protocol::{Resource, Status};

/// Behind all places of owners that answer: the clock of these does not come so far.
const OF_THE_SILENT: u64 = 1 << 63;

impl Books {
    /// Makes a held allocation evictable, as the youngest. Resident ones and those that are waited
    /// for stay out.
    pub(crate) fn lru_insert(&mut self, slot: u32) {
        if let Some(owner) = self.allocations.enter_order(slot) {
            self.set_evictable(slot, true);
            self.reindex(owner);
        }
    }

    /// Makes an allocation not evictable; `false`: it was not before.
    pub(crate) fn lru_remove(&mut self, slot: u32) -> bool {
        let Some(owner) = self.allocations.leave_order(slot) else { return false };
        self.set_evictable(slot, false);
        self.reindex(owner);
        true
    }

    /// Where a client comes among those with evictable allocations, by the oldest one of its queue,
    /// and how many it has. One that is silent comes last: its memory could not be had again, yet
    /// it must not keep all others out.
    pub(crate) fn place_among_evictable(&self, owner: u32, silent: bool) -> Option<(u64, u64)> {
        let (place, count) = self.allocations.place_of_oldest(owner)?;
        let behind = if silent { OF_THE_SILENT } else { 0 };
        Some((place | behind, count))
    }

    /// Brings the ledger in line with that.
    fn reindex(&mut self, owner: u32) {
        let Client { silent, scope, .. } = self.clients[owner];
        let (place, count) = self.place_among_evictable(owner, silent).unzip();
        self.ledger.set_evictable(scope, place, count.unwrap_or(0));
    }

    /// The owner does not answer, or answers again.
    pub(crate) fn set_silent(&mut self, owner: u32, silent: bool) {
        if std::mem::replace(&mut self.client_mut(owner).silent, silent) == silent {
            return;
        }
        self.waiting.set_silent(owner, silent);
        self.reindex(owner);
    }

    /// The oldest allocation in the queues of a scope's clients.
    pub(crate) fn oldest(&self, scope: ScopeId) -> Option<u32> {
        let (_, owner) = self.ledger[scope].lru.first_key()?;
        self.allocations.oldest(owner)
    }

    /// An evictable allocation in the scope that was not used for long; `None`: there is none. One
    /// that was used since it was put into its queue goes to the end of it; after some of these,
    /// the one used longest ago is taken. So does the node's last fd of CUDA memory when the node
    /// is short of fds: while one is held anywhere, an export takes the driver 29 us and not 567,
    /// and a close 9 and not 529 (H200, driver 580). It is taken when nothing else can be.
    pub(crate) fn victim(
        &mut self,
        scope: ScopeId,
        is_for_fds: bool,
        step: &mut Step,
    ) -> Option<u32> {
        let mut used: Option<(Moment, u32)> = None;
        let mut may_spare = is_for_fds && scope == ScopeId::NODE;
        for _ in 0..LOOKS_PER_VICTIM {
            let slot = self.oldest(scope)?;
            if may_spare && self.allocations.is_last_of_cuda(slot) {
                may_spare = false;
                self.renew(slot);
                continue;
            }
            let Some(last) = self.allocations.last_use_in_order(slot) else { return Some(slot) };
            if !step.allowances.second_chances.take() {
                break;
            }
            if used.is_none_or(|(earliest, _)| last < earliest) {
                used = Some((last, slot));
            }
            self.renew(slot);
        }
        used.map(|(_, slot)| slot).or_else(|| self.oldest(scope))
    }

    /// An evictable allocation becomes the youngest.
    fn renew(&mut self, slot: u32) {
        self.allocations.renew(slot);
        self.reindex(self.allocations[slot].owner);
    }

    /// Up to `most` to evict so that a scope pins less: the oldest that is charged by its size, or
    /// the ranges of the oldest file. Ranges of files that would stay are passed by; after some of
    /// these, one of them is taken: others may follow it.
    fn victims_for_bytes(&mut self, scope: ScopeId, most: usize, step: &mut Step) -> Vec<u32> {
        let mut first = None;
        while let Some(slot) = self.victim(scope, false, step) {
            if let Some(all) = self.evicted_with(slot, scope, most) {
                return all;
            }
            if first == Some(slot) {
                // None of them would help.
                break;
            }
            if !step.allowances.file_looks.take() {
                return vec![slot];
            }
            first.get_or_insert(slot);
            self.renew(slot);
        }
        Vec::new()
    }

    /// Takes what a request wants out of the order: room for one of its items is not made by
    /// evicting another.
    pub(crate) fn set_aside(&mut self, wanted: &[Wanted], step: &mut Step) {
        for id in wanted.iter().flatten() {
            if self.allocations.find(*id).is_some() && self.lru_remove(id.slot) {
                step.aside.push(id.slot);
            }
        }
    }

    /// Puts back what was set aside, as the youngest.
    pub(crate) fn put_back(&mut self, step: &mut Step) {
        step.aside.drain(..).for_each(|slot| self.lru_insert(slot));
    }

    /// Closes the broker's fd of an allocation; the owner can be asked for it again. Leases stand.
    pub(crate) fn evict(&mut self, slot: u32, step: &mut Step) {
        let Allocation { state, owner, .. } = self.allocations[slot];
        assert!(state == State::Held, "invariant 5: only held fds are evicted");
        self.lru_remove(slot);
        self.allocations.set_state(slot, State::Evicted);
        self.counters.evictions += 1;
        self.note_of_allocation(EventKind::Evict, slot, Status::OK);
        if self.waiting.interested(slot) != NONE && self.clients[owner].silent {
            self.tell_of_silence(slot);
        }
        self.close_held(slot, step);
    }

    /// The fd of a slot goes to the closer; its bytes are free at once, its place when it is
    /// closed.
    pub(crate) fn close_held(&mut self, slot: u32, step: &mut Step) {
        let Allocation { owner, domain, .. } = self.allocations[slot];
        self.let_go(slot);
        let ticket = self.closing(owner, domain, Lane::Accepted);
        let uid = self.clients.domain_key(domain).uid;
        step.fx.list.push(Effect::CloseHeld { slot, ticket, uid });
    }

    /// Starts up to `count` evictions that will help against `blocked`, for bytes only those of one
    /// allocation or file; says how many. Bytes are free at once, the place of an fd when its
    /// closer reports it. Where no eviction helps, clients are asked for leases.
    pub(crate) fn evict_for(&mut self, blocked: Blocked, count: usize, step: &mut Step) -> usize {
        if !blocked.is_helped_by_eviction() {
            self.reclaim(blocked, count, step);
            return 0;
        }
        if blocked.resource == Resource::HeldBytes {
            let victims = self.victims_for_bytes(blocked.scope, count, step);
            victims.iter().for_each(|slot| self.evict(*slot, step));
            return victims.len();
        }
        let mut evicted = 0;
        while evicted < count.min(EVICTIONS_PER_STEP)
            && let Some(slot) = self.victim(blocked.scope, true, step)
        {
            self.evict(slot, step);
            evicted += 1;
        }
        if evicted == 0 && count > 0 && self.ledger[blocked.scope].coming == 0 {
            self.reclaim(blocked, count, step);
        }
        evicted
    }

    /// Charges the bytes of an fd about to be held, evicting others until they fit if it may.
    pub(crate) fn charge_bytes(
        &mut self,
        owner: u32,
        size: u64,
        may_evict: bool,
        step: &mut Step,
    ) -> Result<(), Blocked> {
        let may_evict = may_evict && self.fits_at_all(owner, size);
        let mut evicted = 0;
        loop {
            if may_evict {
                // Where more have to go than one step may end, the next request goes on.
                self.evict_objects_for(owner, size, step).ok();
            }
            let blocked = match self.charge(owner, Charge(Resource::HeldBytes, size)) {
                Ok(()) => return Ok(()),
                Err(blocked) => blocked,
            };
            let may_fit = may_evict && self.fits_beside_resident(owner, size);
            if !may_fit || evicted >= EVICTIONS_PER_STEP {
                return Err(blocked);
            }
            match self.evict_for(blocked, EVICTIONS_PER_STEP - evicted, step) {
                0 => return Err(blocked),
                more => evicted += more,
            }
        }
    }
}
