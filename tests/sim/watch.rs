//! Watches what no single effect shows: that whoever has events was told to look, and that free slots are used
//! oldest first. Must never look at more of the core than its public views.

use crate::judge::ensure;
use crate::model::{Check, Drain, Model, Phase};
use crate::tally::Promise;
use crate::world::World;
use fdbroker_core::Core;
use fdbroker_protocol::AllocationId;
use std::collections::BTreeSet;

/// Which slots are in use, and since when the others are not.
#[derive(Clone, Debug, Default)]
pub struct SlotWatch {
    /// Number of the look at which a slot was first seen free; `None` = in use, or never used.
    free_since: Vec<Option<u64>>,
    /// Slots in use at the last look.
    used: BTreeSet<u32>,
    looks: u64,
}

impl SlotWatch {
    /// After a step that has given out `new` ids: none of them came before one that was free for longer.
    pub fn look(&mut self, model: &Model, core: &Core, new: &[AllocationId]) -> Check {
        self.free_since.resize(model.slots.len(), None);
        self.looks += 1;
        let new: BTreeSet<u32> = new.iter().map(|id| id.slot).collect();
        let oldest_left = self.oldest(model, |slot| !new.contains(&slot));
        for slot in &new {
            model.proofs.count(Promise::Handles, 1);
            // Freed and used again within the step: the youngest of all.
            let since = self.free_since[*slot as usize].unwrap_or(self.looks);
            let right = oldest_left.is_none_or(|oldest| since <= oldest);
            ensure!(right, "slot {slot} is used again, and others are free for longer");
        }
        let used: BTreeSet<u32> = core.allocations(0).map(|view| view.id.slot).collect();
        for slot in self.used.difference(&used) {
            self.free_since[*slot as usize] = Some(self.looks);
        }
        for slot in &used {
            self.free_since[*slot as usize] = None;
        }
        for slot in new.difference(&used) {
            self.free_since[*slot as usize] = Some(self.looks);
        }
        self.used = used;
        Ok(())
    }

    fn oldest(&self, model: &Model, counts: impl Fn(u32) -> bool) -> Option<u64> {
        let free = (0..).zip(&self.free_since).filter(|(slot, _)| {
            let retired = model.slots[*slot as usize].highest == u32::MAX;
            !retired && counts(*slot)
        });
        free.filter_map(|(_, since)| *since).min()
    }
}

impl World {
    /// Whoever has events waiting was told so, and looks at them sooner or later.
    pub fn everybody_is_told(&self) -> Check {
        for (id, allocation) in &self.model.allocations {
            let asked = allocation.recalled_at.is_some();
            let recalled = !asked && self.model.recalling.contains_key(id);
            let drained = allocation.drain == Drain::Due;
            if (recalled || drained) && self.model.owner_here(allocation) {
                let what = if recalled { "to be recalled" } else { "drained" };
                self.is_told(allocation.owner, &format_args!("{id} is {what}"))?;
            }
            if allocation.ended.is_none() {
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

    fn is_told(&self, client: u32, what: &dyn std::fmt::Display) -> Check {
        self.model.proofs.count(Promise::Events, 1);
        let there = self.model.phase(client).is_some_and(|phase| phase != Phase::Gone);
        let told = self.agents.get(&client).is_none_or(|agent| agent.events_due);
        ensure!(told || !there, "{what}, and client {client} is not told to look");
        Ok(())
    }
}
