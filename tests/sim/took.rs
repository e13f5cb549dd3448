//! Judges each message of an event socket: each event must be due, true, and told once. Must never
//! look into the core.

use crate::judge::ensure;
use crate::model::{Check, Drain, Model, Phase};
use crate::tally::Promise;
use fdbroker_core::{DrainedEvent, Events, LeaseId, RecallEvent, RevokedEvent};
use fdbroker_protocol::MAX_BATCH;

impl Model {
    /// Judges events that the client took.
    pub fn took(&mut self, client: u32, events: &Events) -> Check {
        let phase = self.client(client)?.phase;
        ensure!(phase != Phase::Gone, "events for client {client}, which is gone");
        let count = match events {
            Events::Recall(list) => {
                list.iter().try_for_each(|event| self.took_recall(client, event))?;
                list.len()
            }
            Events::Reclaim(leases) => {
                leases.iter().try_for_each(|lease| self.took_reclaim(client, *lease))?;
                leases.len()
            }
            Events::Revoked(list) => {
                list.iter().try_for_each(|event| self.took_revoked(client, event))?;
                list.len()
            }
            Events::Drained(list) => {
                list.iter().try_for_each(|event| self.took_drained(client, event))?;
                list.len()
            }
            // Worlds of objects have a judge of their own.
            Events::Objects(_) => return Err("news of objects that nobody watches".into()),
        };
        self.proofs.count(Promise::Events, count);
        self.proofs.count(Promise::Bounds, 1);
        ensure!((1..=MAX_BATCH).contains(&count), "an event message of {count} items");
        Ok(())
    }

    /// The client has taken all its events: none that was due may be missing.
    pub fn took_all(&self, client: u32) -> Check {
        let state = self.client(client)?;
        self.proofs.count(Promise::Eviction, state.leases.len());
        for lease in &state.leases {
            let known = self.leases.get(lease).ok_or("a lease of nobody")?;
            let ended = self.allocations.get(&known.id).is_some_and(|a| a.ended.is_some());
            // The owner is gone, and its teardown, which goes in portions, has come to this
            // allocation.
            let ended = ended && !self.to_unpublish.contains(&known.id);
            ensure!(!ended || known.revoked, "lease {lease:#x}: {} ended, not told", known.id);
        }
        let order = self.client_orders.get(&client).copied();
        for (id, allocation) in &self.allocations {
            if allocation.owner != client || Some(allocation.owner_order) != order {
                continue;
            }
            let drained = self.is_drained(*id, allocation);
            ensure!(!drained, "{id} is drained, and its owner is not told");
            let asked = allocation.recalled_at.is_some();
            let recalling = self.recalling.contains_key(id);
            ensure!(asked || !recalling, "{id} is recalled, and its owner is not asked");
        }
        Ok(())
    }

    fn took_recall(&mut self, client: u32, event: &RecallEvent) -> Check {
        let (id, now, held) = (event.id, self.now, self.is_held(event.id));
        ensure!(self.live(id).is_some(), "a recall of {id}, which has ended");
        let Some(allocation) = self.allocations.get_mut(&id) else { return Ok(()) };
        ensure!(allocation.owner == client, "a recall of {id} to client {client}, not its owner");
        ensure!(allocation.deposit.recallable, "a recall of {id}, which is resident");
        ensure!(!held, "a recall of {id} while its fd is here");
        ensure!(
            allocation.recalled_at.is_none(),
            "a second recall of {id} while the first is not answered"
        );
        let d = &allocation.deposit;
        let (told, right) = ((event.facts, event.base), (d.facts, d.base));
        ensure!(told == right, "the recall of {id} says {told:?}, not {right:?}");
        allocation.recalled_at = Some(now);
        Ok(())
    }

    fn took_reclaim(&self, client: u32, lease: LeaseId) -> Check {
        let known = self.lease_of(client, lease);
        let known = known.ok_or_else(|| format!("asked for {:#x}, not its lease", lease.0))?;
        ensure!(self.live(known.id).is_some(), "asked for a lease of {}, which ended", known.id);
        Ok(())
    }

    fn took_revoked(&mut self, client: u32, event: &RevokedEvent) -> Check {
        let ended = self.ended.get(&event.id).copied();
        let lease = self
            .leases
            .get_mut(&event.lease.0)
            .filter(|lease| lease.client == client)
            .ok_or_else(|| format!("revoked to client {client}: not its lease: {event:?}"))?;
        ensure!(lease.id == event.id, "revoked names {}, the lease is of {}", event.id, lease.id);
        ensure!(!lease.revoked, "lease {:#x} is revoked twice", event.lease.0);
        ensure!(ended == Some(event.code), "{} ended with {ended:?}: {event:?}", event.id);
        lease.revoked = true;
        Ok(())
    }

    fn took_drained(&mut self, client: u32, event: &DrainedEvent) -> Check {
        let (id, is_over) = (event.id, self.grace_ending);
        let allocation = self
            .allocations
            .get_mut(&id)
            .ok_or_else(|| format!("{id} is drained, and no client waits for that"))?;
        ensure!(allocation.owner == client, "{id} is drained to client {client}, not its owner");
        let lingered = allocation.drain == Drain::Lingers && is_over;
        let is_due = allocation.drain == Drain::Due || lingered;
        ensure!(is_due, "{id} is drained in {:?}", allocation.drain);
        ensure!(allocation.leases.is_empty(), "{id} is drained and still leased");
        let told = (event.owner_allocation_id, event.base);
        let right = (allocation.deposit.facts.owner_allocation_id, allocation.deposit.base);
        ensure!(told == right, "drained says {told:?}, not {right:?}");
        allocation.drain = Drain::Told;
        self.sweep(id);
        Ok(())
    }
}
