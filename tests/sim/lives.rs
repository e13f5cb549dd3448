//! The ends of a broker: a planned restart, after which a successor goes on with the saved state,
//! and a crash, after which a new broker knows only the generation page and the store. Must only do
//! what the daemon does: the model judges.

use crate::action::Action;
use crate::agents::on_another_gpu;
use crate::checks;
use crate::judge::{ensure, overlaps};
use crate::model::{Allocation, Check, Phase};
use crate::reclaims::Reclaims;
use crate::step::Step;
use crate::tally::{Fault, Promise};
use crate::turns::Turns;
use crate::watch::SlotWatch;
use crate::world::World;
use fdbroker_core::{
    Core, Declared, Deposit, Former, FormerLife, FormerSlot, Kept, Now, Redeposit,
};
use fdbroker_protocol::{AllocationId, ErrorCode};

impl World {
    /// A planned restart: only parked requests and closing fds may show that there was one.
    pub fn restart(&mut self) -> Check {
        self.stats.fault(Fault::Restart);
        self.feed(Action::Settle)?;
        self.trace.step(|| format!("{} -- restart --", self.now));
        let saved = self.core.save();
        let restored = Core::restore(self.model.config.clone(), saved.clone(), Now(self.now));
        let mut core = restored.map_err(|error| error.to_string())?;
        ensure!(core.save() == saved, "what was restored is not what was saved");
        core.check_invariants();
        self.core = core;
        // The old process closed these fds when it ended, or nobody is charged for them any more.
        self.closing.clear();
        self.model.tickets.clear();
        self.model.proofs.count(Promise::Lives, 1);
        let step = Step { silent_before: self.model.silent.clone(), ..Step::default() };
        checks::sync(&mut self.model, &self.core, &step, &Action::Poll)?;
        self.ledger = self.model.ledger();
        self.model.drain(&self.ledger);
        // No request waits any more, so that no domain has a turn; and who was idle is not saved.
        self.turns = Turns::default();
        self.reclaims.forget_order();
        checks::sums(&self.model, &self.core, &self.ledger)?;
        let clients: Vec<u32> = self.agents.keys().copied().collect();
        clients.into_iter().for_each(|client| self.events_are_due(client));
        Ok(())
    }

    /// The broker is killed. The page and the fds in the service manager's store are left. Clients
    /// remember what they had, and some of them come back and name it.
    pub fn crash(&mut self) -> Check {
        let highest = self.model.slots.iter().map(|slot| slot.highest).max().unwrap_or(0);
        let first = highest.max(self.model.config.first_generation).saturating_add(1);
        if first > u32::MAX - 5 {
            // No generation is left for a new broker.
            return Ok(());
        }
        self.stats.fault(Fault::Crash);
        self.trace.step(|| format!("{} -- crash --", self.now));
        for (slot, stored) in &self.stored {
            let right = self.core.kept(*slot);
            ensure!(right == Some(*stored), "{stored:?} is stored, it is {right:?}");
        }
        self.remember();
        let kept: Vec<Kept> = self.stored.values().copied().collect();
        let slots = self.former_slots()?;
        self.setup.config.first_generation = first;
        let former = Former { slots: &slots, kept: &kept, ..Former::default() };
        let core = Core::after_crash(self.setup.config.clone(), former, Now(self.now));
        self.core = core.map_err(|error| error.to_string())?;
        for FormerSlot { id, .. } in slots.iter() {
            if let Some(code) = self.core.end_of(*id) {
                let is_here = self.core.is_ended_here(*id);
                self.records
                    .entry(id.slot)
                    .and_modify(|it| it.life = ended(it.life, code, is_here));
            }
        }
        let alive = self.core.allocations(0..u32::MAX).map(|view| view.id);
        let (live, used) = (alive.collect::<Vec<_>>(), self.core.allocation_slots());
        self.closing.clear();
        self.agents.clear();
        self.turns = Turns::default();
        self.slot_watch = SlotWatch::after_crash(&live, used);
        self.reclaims = Reclaims::default();
        self.model.now = self.now;
        self.model.crash(&slots, &kept, first);
        // Kept allocations may be above caps that were lowered in the meantime.
        self.model.note_what_is_above();
        self.core.check_invariants();
        self.ledger = self.model.ledger();
        self.model.proofs.count(Promise::Lives, 1);
        checks::sums(&self.model, &self.core, &self.ledger)
    }

    /// The daemon's private record of a slot, written before the page.
    pub fn remember_slot(&mut self, slot: u32, generation: u32) {
        let known = self.records.get(&slot).copied();
        let live = self.core.record(slot).filter(|(id, _)| id.generation == generation);
        let record = match (live, known) {
            (Some((id, record)), _) => {
                FormerSlot { id, life: FormerLife::Live { record, owner_lives: true } }
            }
            // It has ended in the same step.
            (None, _) if generation != 0 => {
                let id = AllocationId { slot, generation };
                FormerSlot { id, life: FormerLife::Ended(ErrorCode::Stale) }
            }
            (None, None) => return,
            (None, Some(FormerSlot { id, life })) => {
                let code = self.core.end_of(id).unwrap_or(ErrorCode::Stale);
                FormerSlot { id, life: ended(life, code, self.core.is_ended_here(id)) }
            }
        };
        self.records.insert(slot, record);
    }

    /// What the next broker finds: some owners have died meanwhile.
    fn former_slots(&mut self) -> Check<Vec<FormerSlot>> {
        let mut here: Vec<_> = std::mem::take(&mut self.returning);
        self.stats.faults(Fault::CrashInGrace, usize::from(self.core.reserved() > 0));
        let clients = self.model.clients.values().filter(|state| state.phase != Phase::Gone);
        here.extend(clients.map(|state| (state.domain, state.pid, state.key)));
        let (alive, dead): (Vec<_>, Vec<_>) =
            here.into_iter().partition(|_| self.quiet || !self.rng.chance(150));
        self.stats.faults(Fault::OwnerDied, dead.len());
        let mut slots: Vec<FormerSlot> = self.records.values().copied().collect();
        for slot in &mut slots {
            self.model.is_record_right(slot)?;
            if let FormerLife::Live { record, owner_lives }
            | FormerLife::Leased { record, owner_lives, .. } = &mut slot.life
            {
                *owner_lives = alive.iter().any(|(_, _, key)| *key == record.owner);
            }
        }
        self.returning = alive;
        Ok(slots)
    }

    /// What the clients of the killed broker had.
    fn remember(&mut self) {
        let model = &self.model;
        self.former.retain(|(id, ..)| model.allocations.get(id).is_some_and(|it| it.awaited));
        for (id, known) in &model.allocations {
            if known.awaited {
                continue;
            }
            let (id, domain, deposit) = (*id, known.domain, known.deposit.claimed);
            if known.ended.is_some() {
                self.former.push((id, domain, Remembered::Ended(deposit)));
                continue;
            }
            let owned = if self.rng.chance(200) {
                Remembered::Ended(deposit)
            } else {
                Remembered::Owned(deposit)
            };
            self.former.extend((0..known.count.max(1)).map(|_| (id, domain, owned)));
        }
        for lease in model.leases.values() {
            let Some(holder) = model.clients.get(&lease.client) else { continue };
            self.former.push((lease.id, holder.domain, Remembered::Leased(!lease.mapped)));
        }
    }

    /// A client names something from before the crash again, mostly its own; or it adopts a kept
    /// allocation.
    pub fn choose_return(&mut self, client: u32) -> Option<Action> {
        let domain = self.model.clients.get(&client)?.domain;
        if self.rng.chance(60) {
            let state = self.model.client(client).ok()?;
            let key = state.key;
            let mut all = self.model.allocations.values();
            let freed = all.any(|known| known.awaited && known.key == key);
            self.stats.faults(Fault::Freed, usize::from(freed));
            return Some(Action::Complete { client });
        }
        let (mut items, mut declared) = (Vec::new(), Vec::new());
        for _ in 0..self.rng.between(1, 6) {
            let Some(at) = self.rng.index(self.former.len()) else { break };
            let (id, of, what) = self.former[at];
            if of != domain && self.rng.chance(800) {
                continue;
            }
            if self.rng.chance(800) {
                self.former.swap_remove(at);
            }
            match what {
                Remembered::Owned(deposit) => items.push(self.draw_redeposit(id, deposit)),
                Remembered::Ended(deposit) => {
                    self.stats.fault(Fault::EndedMeanwhile);
                    let item = self.draw_redeposit(id, deposit);
                    items.push(Redeposit { ended: true, ..item });
                }
                Remembered::Leased(open) => {
                    declared.push(Declared { wanted: self.draw_returned(id), open });
                }
            }
        }
        let orphan = |(id, known): (&AllocationId, &Allocation)| {
            self.model.is_orphan(known).then_some((*id, known.deposit.claimed))
        };
        let orphans: Vec<_> = self.model.allocations.iter().filter_map(orphan).collect();
        if let Some((id, deposit)) = self.rng.pick(&orphans) {
            items.push(self.draw_redeposit(id, deposit));
        }
        keep_apart(&mut items);
        let request = self.next_request(client);
        match () {
            () if !declared.is_empty() && (items.is_empty() || self.rng.chance(500)) => {
                Some(Action::Declare { client, request, items: declared })
            }
            () if !items.is_empty() => Some(Action::Redeposit { client, request, items }),
            () => None,
        }
    }

    fn draw_returned(&mut self, id: AllocationId) -> Result<AllocationId, ErrorCode> {
        match self.rng.below(20) {
            0 => Err(ErrorCode::BadHandle),
            1 => Ok(self.rng.pick(&self.known).unwrap_or(id)),
            _ => Ok(id),
        }
    }

    fn draw_redeposit(&mut self, id: AllocationId, mut deposit: Deposit) -> Redeposit {
        match self.rng.below(20) {
            0 => deposit.recallable = false,
            1 => {
                deposit.facts.size_bytes = [0, u64::MAX, deposit.facts.size_bytes.saturating_mul(2)]
                    [self.rng.below(3) as usize]
            }
            2 => deposit.base = 0x10_0000 + self.rng.below(self.setup.pages) * 4096,
            3 => deposit = on_another_gpu(deposit),
            _ => {}
        }
        // The daemon compares the owner's token first, and refuses a client without it.
        let id = match self.rng.below(20) {
            0 => Err(ErrorCode::NotPermitted),
            _ => self.draw_returned(id),
        };
        let ended = self.rng.below(20) == 0;
        Redeposit { id, deposit, ended }
    }
}

/// What is remembered of an allocation that has ended.
fn ended(life: FormerLife, code: ErrorCode, is_here: bool) -> FormerLife {
    match life {
        FormerLife::Live { record, owner_lives }
        | FormerLife::Leased { record, owner_lives, .. }
            if is_here =>
        {
            FormerLife::Leased { record, owner_lives, code }
        }
        _ => FormerLife::Ended(code),
    }
}

/// An allocation or a lease of before a crash, as its client remembers it. The flag of a lease: its
/// fd is open.
#[derive(Clone, Copy, Debug)]
pub enum Remembered {
    Owned(Deposit),
    Ended(Deposit),
    Leased(bool),
}

/// Keeps only the first of several items that depend on each other. The outcome of the others would
/// depend on caps that the model learns only from the answer. (In a message of its own each is
/// judged.)
fn keep_apart(items: &mut Vec<Redeposit>) {
    let mut apart: Vec<Redeposit> = Vec::new();
    for item in items.drain(..) {
        let meets =
            |other: &Redeposit| other.id == item.id || overlaps(&other.deposit, &item.deposit);
        if !apart.iter().any(meets) {
            apart.push(item);
        }
    }
    *items = apart;
}
