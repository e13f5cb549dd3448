//! Watches what no single effect shows: every client with events was told to take them, and the
//! slot that was free for longest is used first. Must look at nothing in the core but its public
//! views.

use crate::judge::ensure;
use crate::model::{Check, Model, Phase};
use crate::tally::Promise;
use crate::world::World;
use fdbroker_core::{Core, limits::SLOTS_BEFORE_REUSE};
use fdbroker_protocol::AllocationId;
use fdbroker_protocol::page::LAST_GENERATION;
use std::collections::BTreeSet;

/// Which slots are in use, and since when the others are free.
#[derive(Clone, Debug, Default)]
pub struct SlotWatch {
    /// Number of the check that first saw a slot free; `None` if it is in use or was never used.
    free_since: Vec<Option<u64>>,
    /// Number of the last check that saw a slot in use.
    used_at: Vec<u64>,
    looks: u64,
}

impl SlotWatch {
    /// Begins anew after a crash that left `live`, in the order of slots: all other slots that were
    /// ever used, the first `used`, are free from the beginning.
    pub fn after_crash(live: &[AllocationId], used: u32) -> Self {
        let slots = used as usize;
        let mut watch =
            SlotWatch { free_since: vec![Some(0); slots], used_at: vec![0; slots], looks: 1 };
        for id in live {
            (watch.free_since[id.slot as usize], watch.used_at[id.slot as usize]) = (None, 1);
        }
        watch
    }

    /// After a step that put new allocations into the slots `new`: none was used before one that
    /// was free for longer.
    pub fn look(&mut self, model: &Model, core: &Core, new: &BTreeSet<u32>) -> Check {
        self.free_since.resize(model.slots.len(), None);
        self.used_at.resize(model.slots.len(), 0);
        self.looks += 1;
        let oldest_left = self.oldest(model, |slot| !new.contains(&slot));
        let is_unused = |slot: u32| {
            let at = slot as usize;
            (self.free_since[at], self.used_at[at]) == (None, 0)
        };
        let spread = model.config.max_slots.min(SLOTS_BEFORE_REUSE);
        let unused_left = (0..spread).find(|slot| is_unused(*slot) && !new.contains(slot));
        for slot in new {
            model.proofs.count(Promise::Handles, 1);
            if is_unused(*slot) && *slot < spread {
                continue;
            }
            if let Some(unused) = unused_left {
                return Err(format!("slot {slot} is used again, and {unused} was never used"));
            }
            // The step freed it and used it again: of all slots it was free for the shortest time.
            let since = self.free_since[*slot as usize].unwrap_or(self.looks);
            let right = oldest_left.is_none_or(|oldest| since <= oldest);
            ensure!(right, "slot {slot} is used again, and others are free for longer");
        }
        for view in core.allocations(0..u32::MAX) {
            let slot = view.id.slot as usize;
            (self.used_at[slot], self.free_since[slot]) = (self.looks, None);
        }
        for (since, used_at) in self.free_since.iter_mut().zip(&self.used_at) {
            // The last check saw it in use.
            if used_at + 1 == self.looks && *used_at > 0 {
                *since = Some(self.looks);
            }
        }
        for slot in new {
            if self.used_at[*slot as usize] != self.looks {
                self.free_since[*slot as usize] = Some(self.looks);
            }
        }
        Ok(())
    }

    fn oldest(&self, model: &Model, counts: impl Fn(u32) -> bool) -> Option<u64> {
        let free = (0..).zip(&self.free_since).filter(|(slot, _)| {
            let retired = model.slots[*slot as usize].highest == LAST_GENERATION;
            !retired && counts(*slot)
        });
        free.filter_map(|(_, since)| *since).min()
    }
}

impl World {
    /// Every client with events was told so, and takes them sooner or later.
    pub fn everybody_is_told(&self) -> Check {
        for id in self.model.recalling.keys() {
            let to_ask = self.model.allocations.get(id).filter(|a| a.recalled_at.is_none());
            if let Some(allocation) = to_ask.filter(|a| self.model.owner_here(a)) {
                self.is_told(allocation.owner, &format_args!("{id} is to be recalled"))?;
            }
        }
        for (id, allocation) in &self.model.allocations {
            if allocation.ended.is_none() {
                continue;
            }
            if self.model.is_drained(*id, allocation) && self.model.owner_here(allocation) {
                self.is_told(allocation.owner, &format_args!("{id} is drained"))?;
            }
            if self.model.to_unpublish.contains(id) || self.sweeps() {
                // The owner is gone, and its teardown has not come to this allocation; or the sweep
                // has not.
                continue;
            }
            for lease in &allocation.leases {
                let Some(known) = self.model.leases.get(lease) else { continue };
                if !known.revoked {
                    self.is_told(known.client, &format_args!("{id} has ended"))?;
                }
            }
        }
        Ok(())
    }

    /// The core has not come to all holders of ended memory; a poll is due.
    pub fn sweeps(&self) -> bool {
        self.core.totals().gauges.leases_ending > 0
    }

    fn is_told(&self, client: u32, what: &dyn std::fmt::Display) -> Check {
        self.model.proofs.count(Promise::Events, 1);
        let there = self.model.phase(client).is_some_and(|phase| phase != Phase::Gone);
        let told = self.agents.get(&client).is_none_or(|agent| agent.events_due);
        ensure!(told || !there, "{what}, and client {client} is not told to look");
        Ok(())
    }
}
