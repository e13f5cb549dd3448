//! Kept allocations, which outlive their owner for a time; and which clients may have an allocation at all. Must never
//! evict a kept one, nor let one live without an owner for ever.

use crate::Core;
use crate::allocation::{Allocation, Orphan, State};
use crate::api::{ClientId, Deposit, Effect, Effects, Kept, Lane, NO_GROUP};
use crate::clients::Client;
use crate::ledger::Charge;
use crate::queues::Fate;
use crate::slots::NONE;
use crate::timers::Timer;
use fdbroker_protocol::{ErrorCode, Resource, Share};

impl Core {
    /// What to remember with the fd of a slot that is in the service manager's store: for [`Effect::Keep`].
    /// `None` when the slot is not kept, or its fd is not here.
    pub fn kept(&self, slot: u32) -> Option<Kept> {
        let allocation = self.allocations.in_slot(slot).filter(|it| it.outlives_owner())?;
        Some(Kept {
            id: self.allocations.id_of(slot),
            domain: self.clients.domain_key(allocation.domain),
            gid: self.gid_of(slot)?,
            job: self
                .job_of_slot(slot)
                .map(|job| (self.clients.job_key(job), self.clients.job(job).name)),
            deposit: Deposit {
                checked: Ok(()),
                lane: Lane::Accepted,
                file: self.file_of(slot),
                kind: allocation.traits.kind(),
                share: allocation.traits.share(),
                recallable: allocation.traits.is_recallable(),
                keep: true,
                device: allocation.device,
                size_bytes: allocation.size_bytes,
                fd_offset: allocation.fd_offset,
                owner_allocation_id: allocation.owner_allocation_id,
                base: allocation.base,
                driver_data: self.allocations.driver_data(slot).copied(),
                virtual_fd: allocation.traits.has_virtual_fd(),
            },
        })
    }

    /// The fd of a slot has just been stored.
    pub(crate) fn keep_stored(&mut self, slot: u32, fx: &mut Effects) {
        if self.allocations[slot].traits.is_to_be_kept() {
            fx.list.push(Effect::Keep { slot });
        }
    }

    /// A held allocation ends.
    pub(crate) fn unkeep(&mut self, slot: u32, fx: &mut Effects) {
        if self.allocations[slot].traits.is_to_be_kept() {
            fx.list.push(Effect::Unkeep { slot });
        }
        self.remove_orphan(slot);
    }

    /// The owner of a kept allocation has given its fd again, after a crash: from now on it stays.
    pub(crate) fn keep_supplied(&mut self, slot: u32, fx: &mut Effects) {
        let queues = self.end_recall(slot);
        self.allocations.set_state(slot, State::Resident);
        self.keep_stored(slot, fx);
        queues.into_iter().for_each(|queue| self.decide(queue, Fate::First));
        self.wake_interested(slot);
    }

    /// The owner of a kept allocation is gone: its domain alone is charged for it from now on, and its job is
    /// that of its owner still.
    pub(crate) fn orphan(&mut self, slot: u32) {
        let allocation = &self.allocations[slot];
        let (owner, size) = (allocation.owner, allocation.size_bytes);
        let (gid, job) = (self.client_mut(owner).gid, self.client_mut(owner).job);
        let claimed = if self.has_file(slot) { 0 } else { size };
        for charge in Self::charges_of_kept(claimed) {
            self.leave_to_domain(owner, charge);
        }
        self.move_pin(slot, NONE);
        self.move_interest(slot, NONE);
        self.allocations.take_from_owner(slot);
        let until = self.now.after(self.config.keep_ttl_us);
        self.add_orphan(slot, Orphan { until, gid, job });
    }

    pub(crate) fn add_orphan(&mut self, slot: u32, orphan: Orphan) {
        self.allocations.add_orphan(slot, orphan);
        let timer = Timer::Keep(slot, self.allocations.generation(slot));
        self.timers.set(orphan.until, timer);
        if let Some(job) = orphan.job {
            self.clients.add_orphan(job);
        }
    }

    /// An allocation has an owner again, or has ended; it may have been no orphan.
    pub(crate) fn remove_orphan(&mut self, slot: u32) {
        let Some(Orphan { until, job, .. }) = self.allocations.remove_orphan(slot) else { return };
        self.timers.cancel(until, Timer::Keep(slot, self.allocations.generation(slot)));
        if let Some(job) = job {
            self.clients.take_orphan(job);
            self.forget_job_if_unused(job);
        }
    }

    /// What a kept allocation with its fd is charged with, beside its file.
    pub(crate) fn charges_of_kept(claimed_bytes: u64) -> [Charge; 4] {
        [
            Charge(Resource::HeldFds, 1),
            Charge(Resource::HeldBytes, claimed_bytes),
            Charge(Resource::Allocations, 1),
            Charge(Resource::KeptAllocations, 1),
        ]
    }

    /// Ends a kept allocation that no client has adopted in time.
    pub(crate) fn end_orphan(&mut self, slot: u32, generation: u32, fx: &mut Effects) {
        let found = self.allocations.get(slot, generation);
        if found.is_some() && self.allocations.orphan(slot).is_some() {
            self.end(slot, ErrorCode::OwnerGone, fx);
            self.drain_if_done(slot);
        }
    }

    // --- who may have it --------------------------------------------------------------------------

    /// Whether a client may acquire an allocation, or hold a lease of it.
    pub(crate) fn may_have(&self, client: ClientId, slot: u32, allocation: &Allocation) -> bool {
        let Some(client) = self.clients.find(client.0) else { return false };
        if allocation.domain == client.domain {
            return true;
        }
        match allocation.traits.share() {
            Share::Uid => false,
            Share::Any => true,
            Share::Gid => {
                let [owners, clients] = [allocation.domain, client.domain]
                    .map(|domain| self.clients.domain_key(domain));
                let is_of = |gid| client.is_of_group(gid);
                // Without an owner it has ended: that is what to say.
                owners.listener == clients.listener && self.gid_of(slot).is_none_or(is_of)
            }
        }
    }

    /// The group of an allocation's owner, as long as it has one, is kept, or waits for its owner.
    pub(crate) fn gid_of(&self, slot: u32) -> Option<u32> {
        let owner = self.clients.find(self.allocations[slot].owner);
        let gid = owner.map(|owner| owner.gid);
        let gid = gid.or_else(|| self.allocations.orphan(slot).map(|orphan| orphan.gid));
        gid.or_else(|| self.continuity.gid_of(slot))
    }

    /// The number of the job of an allocation's owner; of a kept one without an owner, the job that has left it.
    pub(crate) fn job_of_slot(&self, slot: u32) -> Option<u32> {
        match self.allocations[slot].owner {
            NONE => self.allocations.orphan(slot)?.job,
            owner => self.clients.find(owner)?.job,
        }
    }
}

impl Client {
    /// Whether the client's process has the group.
    fn is_of_group(&self, gid: u32) -> bool {
        gid != NO_GROUP && (self.gid == gid || self.groups.binary_search(&gid).is_ok())
    }
}
