//! Judges what outlives an owner or a broker: kept allocations, allocations reserved after a crash,
//! redeposit. Must never look into the core: only at inputs, effects and the model.

use crate::action::{groups_of, show_status};
use crate::judge::{ensure, overlaps};
use crate::model::{Allocation, Check, Closing, Drain, Model, Phase};
use crate::step::{Quota, Step};
use crate::tally::Promise;
use fdbroker_core::{
    ClientId, Deposit, DomainKey, FormerLife, FormerSlot, Judged, Kept, Record, Redeposit,
    Registered,
};
use fdbroker_protocol::{AllocationId, ErrorCode, Facts, Share, Status};
use std::collections::BTreeSet;

/// Stands for no client.
pub const NOBODY: u32 = u32::MAX;

/// What an item of a redeposit may come to.
#[derive(Debug)]
pub struct Return {
    /// For OK or NO_QUOTA: the allocation, and its state before.
    taken: Option<(AllocationId, Box<Allocation>)>,
    /// For OK: it is drained already.
    drained: bool,
    /// What ends, unless the answer is AGAIN.
    ends: Option<AllocationId>,
    /// Errors that it may be answered with.
    codes: Vec<ErrorCode>,
}

impl Return {
    /// It is refused with one of these.
    fn refused(codes: Vec<ErrorCode>) -> Self {
        Return { taken: None, drained: false, ends: None, codes }
    }
}

impl Model {
    // --- keep -----------------------------------------------------------------------------------

    /// The fd of a slot goes to the service manager's store.
    pub fn keep(&mut self, slot: u32) -> Check {
        let full = self.slots.get(slot as usize).is_some_and(|state| state.full);
        ensure!(full, "slot {slot} is kept, and has no fd");
        self.proofs.count(Promise::Lives, 1);
        ensure!(self.kept_slots.insert(slot), "slot {slot} is kept twice");
        Ok(())
    }

    /// The fd of a slot leaves the store, before it is closed.
    pub fn unkeep(&mut self, slot: u32) -> Check {
        let full = self.slots.get(slot as usize).is_some_and(|state| state.full);
        ensure!(full, "slot {slot} leaves the store, and was closed before");
        ensure!(self.kept_slots.remove(&slot), "slot {slot} leaves the store, and is not in it");
        Ok(())
    }

    /// The record of a slot in the store has changed.
    pub fn kept_changed(&self, slot: u32) -> Check {
        ensure!(
            self.kept_slots.contains(&slot),
            "slot {slot} is changed in the store, and not there"
        );
        Ok(())
    }

    /// Whether it lives without its owner.
    pub fn is_orphan(&self, allocation: &Allocation) -> bool {
        allocation.ended.is_none() && !allocation.reserved && !self.owner_here(allocation)
    }

    /// Why an allocation may end by time alone: its grace or its time to live is over.
    pub fn timed_out(&self, id: AllocationId) -> Option<ErrorCode> {
        let allocation = self.live(id)?;
        let is_over = self.grace_until.is_some_and(|at| at <= self.now);
        if allocation.reserved && is_over && !self.is_complete(allocation) {
            return Some(ErrorCode::Lost);
        }
        let ttl = self.config.keep_ttl_us;
        let ttl_over = self.is_orphan(allocation)
            && allocation.orphaned_at.is_some_and(|at| at.0 + ttl <= self.now);
        ttl_over.then_some(ErrorCode::OwnerGone)
    }

    /// After all polls that were due: no allocation outlives its grace or its time to live.
    pub fn nothing_outstays(&mut self, is_there: impl Fn(AllocationId) -> bool) -> Check {
        self.forget_what_is_given_up(is_there);
        let (now, ttl, grace) = (self.now, self.config.keep_ttl_us, self.grace_until);
        let of_complete = |known: &&Allocation| known.awaited && self.is_complete(known);
        let left =
            self.allocations.values().filter(|known| known.ended.is_none()).find(of_complete);
        ensure!(left.is_none(), "its owner has not named it, and it does not end: {left:?}");
        let given_up = self.allocations.values().find(|known| self.is_given_up(known));
        let left = given_up.filter(|known| known.leases.is_empty());
        ensure!(left.is_none(), "nobody waits for its owner, and it is not forgotten: {left:?}");
        let orders = &self.client_orders;
        let clients = &self.clients;
        for (id, allocation) in &mut self.allocations {
            if allocation.drain == Drain::Lingers && self.grace_ending {
                allocation.drain = Drain::Due;
            }
            if allocation.ended.is_some() {
                continue;
            }
            if allocation.reserved {
                let over = grace.is_none_or(|at| at <= now);
                ensure!(!over, "{id} is reserved, and its time is over");
                continue;
            }
            let here = orders.get(&allocation.owner) == Some(&allocation.owner_order)
                && clients.get(&allocation.owner).is_some_and(|c| c.phase != Phase::Gone);
            if here {
                continue;
            }
            let (since, latest) = allocation.orphaned_at.unwrap_or((now, None));
            // By now the core has noticed that the owner is gone.
            let latest = latest.unwrap_or(now);
            allocation.orphaned_at = Some((since, Some(latest)));
            ensure!(now < latest.saturating_add(ttl), "{id} is kept beyond its time to live");
        }
        Ok(())
    }

    // --- crash ----------------------------------------------------------------------------------

    /// An allocation that has ended waits for its owner no more.
    pub fn waits_no_more(&mut self, id: AllocationId) {
        self.allocations.get_mut(&id).into_iter().for_each(|known| known.awaited = false);
        self.sweep(id);
    }

    /// The core has come to some of the ended allocations for whose owners nobody waits any more.
    pub fn forget_what_is_given_up(&mut self, is_there: impl Fn(AllocationId) -> bool) {
        let is_gone = |(id, known): (&AllocationId, &Allocation)| {
            let is_gone = self.is_given_up(known) && known.leases.is_empty() && !is_there(*id);
            is_gone.then_some(*id)
        };
        let gone: Vec<AllocationId> = self.allocations.iter().filter_map(is_gone).collect();
        gone.into_iter().for_each(|id| self.waits_no_more(id));
    }

    /// Whether the former owner of an allocation has named all that is alive.
    pub fn is_complete(&self, allocation: &Allocation) -> bool {
        self.complete.contains(&(allocation.domain, allocation.gid, allocation.key))
    }

    /// Why the owner of a live allocation can no longer name it.
    pub fn too_late(&self, id: AllocationId) -> Option<ErrorCode> {
        let known = self.live(id).filter(|known| known.awaited)?;
        match () {
            () if self.is_complete(known) => Some(ErrorCode::Stale),
            () if known.reserved && self.grace_ending => Some(ErrorCode::Lost),
            () => None,
        }
    }

    /// A client says that it has named all that is alive.
    pub fn begin_complete(&mut self, client: u32) -> Check {
        let state = self.client(client)?;
        let owner = (state.domain, groups_of(state.pid).0, state.key);
        if state.phase != Phase::Gone && !self.grace_ending {
            self.complete.insert(owner);
        }
        Ok(())
    }

    /// Whether the private record of a slot says what is true of its last allocation.
    pub fn is_record_right(&self, record: &FormerSlot) -> Check {
        let id = record.id;
        self.proofs.count(Promise::Lives, 1);
        match (self.allocations.get(&id).filter(|known| known.ended.is_none()), record.life) {
            (Some(known), FormerLife::Live { record, .. }) => {
                let Deposit { share, recallable, facts, .. } = *known.deposit;
                let Facts { kind, gpu, size_bytes, .. } = facts;
                let owner =
                    if self.owner_here(known) || known.awaited { known.key } else { record.owner };
                let (domain, gid) = (known.domain, known.gid);
                let right = Record { domain, gid, kind, gpu, size_bytes, share, recallable, owner };
                ensure!(record == right, "{id} is remembered as {record:?}, it is {right:?}");
            }
            (None, FormerLife::Ended(code) | FormerLife::Leased { code, .. }) => {
                let right = self.reason(id);
                ensure!(code == right, "{id} is remembered to have ended with {code:?}: {right:?}");
                let lasts = self.allocations.get(&id);
                let is_leased = matches!(record.life, FormerLife::Leased { .. });
                // Nobody can have had one that ended in the message that it came in.
                let is_drained = lasts.is_none_or(|known| known.drain == Drain::Due);
                ensure!(
                    is_leased || is_drained,
                    "{id} is remembered as drained, and is not: {lasts:?}"
                );
            }
            // Its owner is being torn down.
            (None, FormerLife::Live { .. }) if self.to_unpublish.contains(&id) => {}
            (known, life) => return Err(format!("{id} is remembered as {life:?}: {known:?}")),
        }
        Ok(())
    }

    /// The broker was killed: the private records and the fds in the store are left.
    pub fn crash(&mut self, slots: &[FormerSlot], kept: &[Kept], first_generation: u32) {
        self.config.first_generation = first_generation;
        self.clients.clear();
        self.tickets.clear();
        self.leases.clear();
        self.lease_highest.clear();
        self.allocations.clear();
        self.recalling.clear();
        self.pinned.clear();
        self.was_pinned.clear();
        self.promised.clear();
        self.to_unpublish.clear();
        self.silent.clear();
        self.kept_slots = kept.iter().map(|kept| kept.id.slot).collect();
        self.grace_until = Some(self.now + self.config.grace_us);
        self.grace_ending = false;
        self.complete.clear();
        self.drained_before.clear();
        self.draining = Default::default();
        for FormerSlot { id, life } in slots {
            let is_kept = self.kept_slots.contains(&id.slot);
            let state = &mut self.slots[id.slot as usize];
            (state.full, state.published, state.unconfirmed) = (is_kept, 0, false);
            let (record, owner_lives) = match life {
                FormerLife::Live { record, owner_lives } => (record, owner_lives),
                FormerLife::Leased { record, code, .. } => {
                    self.ended_before(*id, *code, record);
                    continue;
                }
                FormerLife::Ended(_) => {
                    self.drained_before.insert(*id);
                    continue;
                }
            };
            state.owner = Some(nobodys(record.domain));
            if is_kept || *owner_lives && record.recallable {
                (state.published, state.unconfirmed) = (id.generation, !is_kept);
                self.ended.remove(id);
                self.allocations.insert(*id, reserved(record));
            } else {
                let code = if *owner_lives { ErrorCode::Lost } else { ErrorCode::OwnerGone };
                self.ended_before(*id, code, record);
            }
        }
        for kept in kept {
            let (id, domain, gid, deposit) = (kept.id, kept.domain, kept.gid, kept.deposit);
            let orphaned_at = Some((self.now, Some(self.now)));
            let job = kept.job.map(|(job, _)| job);
            self.slots[id.slot as usize].owner = Some(nobodys(domain));
            let known = self.allocations.get_mut(&id).expect("the world remembers it as live");
            (known.gid, known.job, known.deposit) = (gid, job, deposit);
            (known.orphaned_at, known.reserved) = (orphaned_at, false);
        }
    }

    /// It had ended before the crash, or with it: clients may have leases of it.
    fn ended_before(&mut self, id: AllocationId, code: ErrorCode, record: &Record) {
        let waiting = Allocation { ended: Some(code), reserved: false, ..reserved(record) };
        self.allocations.insert(id, waiting);
        self.ended.insert(id, code);
    }

    // --- redeposit ------------------------------------------------------------------------------

    /// Notes what each item may come to. An allocation that may be taken over is, until the answer
    /// says otherwise.
    pub fn begin_redeposit(&mut self, step: &mut Step, client: u32, items: &[Redeposit]) {
        for item in items {
            let found = self.redeposit_item(step, client, item);
            step.returns.push(found);
        }
    }

    fn redeposit_item(&mut self, step: &mut Step, client: u32, item: &Redeposit) -> Return {
        let only = |codes: &[ErrorCode]| Return::refused(codes.to_vec());
        if item.ended {
            return self.ended_item(step, client, item);
        }
        let id = match item.id {
            Ok(id) => id,
            Err(code) => return only(&[code]),
        };
        let tearing = self.clients.values().any(|client| client.phase == Phase::Gone);
        let absent = self.reason(id);
        if let Some(code) = step.due_end.get(&id) {
            return only(&[*code, absent]);
        }
        let Some(known) = self.allocations.get(&id).cloned() else {
            let dying = [absent, ErrorCode::Again, ErrorCode::OwnerGone, ErrorCode::Stale];
            return only(if tearing { &dying } else { &dying[..1] });
        };
        if let Some(code) = known.ended {
            let gone = [code, ErrorCode::OwnerGone, ErrorCode::Again];
            return only(if tearing { &gone } else { &gone[..2] });
        }
        if let Some(code) = self.too_late(id) {
            return only(&[code]);
        }
        let deposit = &item.deposit;
        let overlapping = self.overlaps_own(step, client, deposit);
        let asking = &self.clients[&client];
        let is_group_same =
            known.deposit.share != Share::Gid || groups_of(asking.pid).0 == known.gid;
        let may_own = asking.domain == known.domain && is_group_same;
        if known.reserved {
            let share = known.deposit.share;
            return match () {
                () if !may_own => only(&[ErrorCode::NotPermitted]),
                () if !is_sound(deposit) || is_other(&known, deposit) => {
                    only(&[ErrorCode::Protocol])
                }
                () if !deposit.recallable => self.lost(step, id, ErrorCode::Lost),
                () if overlapping => self.lost(step, id, ErrorCode::Stale),
                () => {
                    let facts = deposit.facts.gpu(known.deposit.facts.gpu);
                    let named = Deposit { share, facts, ..*deposit };
                    self.take(client, id, known, named.into(), Vec::new())
                }
            };
        }
        if self.is_orphan(&known) {
            let again = self.again_while_dying(&known);
            let refused = match () {
                () if !may_own => ErrorCode::NotPermitted,
                () if !is_sound(deposit) || is_other(&known, deposit) => ErrorCode::Protocol,
                () if overlapping => {
                    let mut lost = self.lost(step, id, ErrorCode::Stale);
                    lost.codes.extend(again);
                    return lost;
                }
                () => {
                    let adopted = adopted(&known, deposit);
                    return self.take(client, id, known, adopted, again);
                }
            };
            let codes = [again, vec![refused]].concat();
            return Return::refused(codes);
        }
        if known.owner != client {
            return only(&[ErrorCode::NotPermitted]);
        }
        if id.generation >= self.config.first_generation {
            return only(&[ErrorCode::Stale]);
        }
        if let Some(known) = self.allocations.get_mut(&id) {
            known.count += 1;
        }
        let taken = Some((id, Box::new(known)));
        Return { taken, drained: false, ends: None, codes: Vec::new() }
    }

    /// What its owner has ended meanwhile ends now, or had ended before the crash; and its owner
    /// waits for its drain.
    fn ended_item(&mut self, step: &mut Step, client: u32, item: &Redeposit) -> Return {
        let only = |codes: &[ErrorCode]| Return::refused(codes.to_vec());
        let id = match item.id {
            Ok(id) => id,
            Err(code) => return only(&[code]),
        };
        let absent = self.reason(id);
        // The core may know an owner's yet that is being torn down.
        let tearing = self.clients.values().any(|client| client.phase == Phase::Gone);
        let codes = [absent, ErrorCode::Stale, ErrorCode::Again];
        let codes = if tearing { &codes[..] } else { &codes[..2] };
        let Some(known) = self.allocations.get(&id).cloned() else {
            let is_last = self.slots[id.slot as usize].highest == id.generation;
            let drained = is_last && self.drained_before.contains(&id);
            let codes = if drained { &[] } else { codes };
            return Return { drained, ..only(codes) };
        };
        let is_orphan = self.is_orphan(&known);
        let waits = match known.ended {
            Some(_) => known.awaited,
            None => known.reserved || is_orphan,
        };
        if step.due_end.contains_key(&id) || !waits {
            return only(codes);
        }
        let is_given_up = self.is_given_up(&known);
        let deposit = &item.deposit;
        let is_group_same = known.deposit.share != Share::Gid
            || groups_of(self.clients[&client].pid).0 == known.gid;
        let mut given_up = if is_given_up { vec![absent, ErrorCode::Stale] } else { Vec::new() };
        given_up.extend(self.again_while_dying(&known));
        let wrong = match () {
            () if self.clients[&client].domain != known.domain || !is_group_same => {
                ErrorCode::NotPermitted
            }
            () if !is_sound(deposit) => ErrorCode::Protocol,
            () => {
                let (share, leased) = (known.deposit.share, !known.leases.is_empty());
                let recallable = known.deposit.recallable;
                // Of its fd nothing else is known.
                let Facts { device, owner_allocation_id, .. } = deposit.facts;
                let Facts { kind, gpu, size_bytes, .. } = known.deposit.facts;
                let facts = Facts::new(kind, size_bytes)
                    .device(device)
                    .gpu(gpu)
                    .owner_allocation_id(owner_allocation_id);
                let unknown = Deposit { share, recallable, facts, keep: false, ..*deposit };
                let unknown = Deposit { driver_data: None, ..unknown }.into();
                let deposit = if is_orphan { adopted(&known, deposit) } else { unknown };
                let (ended, slot) = (known.ended, self.slots[id.slot as usize]);
                if ended.is_none() {
                    step.due_end.insert(id, ErrorCode::Stale);
                }
                let taken = self.take(client, id, known, deposit, given_up);
                // Who was charged for an fd that it has still is, until that is closed.
                self.slots[id.slot as usize] = slot;
                if let Some(code) = ended {
                    self.client_mut(client).expect("it sends").owns.retain(|own| *own != id);
                    self.end(id, code);
                    if !leased {
                        self.unleased(id);
                    }
                }
                return taken;
            }
        };
        only(&[given_up, vec![wrong]].concat())
    }

    /// The answer while a gone owner has not left what it keeps.
    fn again_while_dying(&self, known: &Allocation) -> Vec<ErrorCode> {
        let is_last = self.client_orders.get(&known.owner) == Some(&known.owner_order);
        let is_dying = is_last && self.clients.contains_key(&known.owner) && self.is_orphan(known);
        if is_dying { vec![ErrorCode::Again] } else { Vec::new() }
    }

    fn lost(&mut self, step: &mut Step, id: AllocationId, code: ErrorCode) -> Return {
        step.due_end.insert(id, code);
        self.allocations.get_mut(&id).into_iter().for_each(|known| known.awaited = false);
        Return { ends: Some(id), ..Return::refused(vec![code]) }
    }

    fn take(
        &mut self,
        client: u32,
        id: AllocationId,
        former: Allocation,
        deposit: Judged,
        codes: Vec<ErrorCode>,
    ) -> Return {
        let owner_order = self.client_orders.get(&client).copied().unwrap_or(0);
        let state = self.clients.get_mut(&client).expect("it sends");
        state.owns.push(id);
        let (domain, gid, job) = (state.domain, groups_of(state.pid).0, state.job);
        let key = state.key;
        let allocation = Allocation {
            owner: client,
            owner_order,
            domain,
            gid,
            job,
            key,
            deposit,
            count: 1,
            reserved: false,
            awaited: false,
            orphaned_at: None,
            ..former.clone()
        };
        self.allocations.insert(id, allocation);
        self.slots[id.slot as usize].owner =
            Some(Closing { client, client_order: owner_order, ..nobodys(domain) });
        Return { taken: Some((id, Box::new(former))), drained: false, ends: None, codes }
    }

    /// Judges the answer to a redeposit.
    pub fn redeposited(
        &mut self,
        step: &mut Step,
        client: ClientId,
        items: &[Registered],
        credits: u32,
    ) -> Check {
        let returns = std::mem::take(&mut step.returns);
        ensure!(items.len() == returns.len(), "{} of {} returns", items.len(), returns.len());
        let has = self.client(client.0)?.credits;
        ensure!(u64::from(credits) == has, "{credits} credits after a redeposit, it has {has}");
        for (item, expected) in items.iter().zip(returns) {
            self.proofs.count(Promise::Lives, 1);
            let shown = show_status(&item.status);
            let Err(code) = item.status.result() else {
                let right = if expected.drained { Status::DRAINED } else { Status::OK };
                ensure!(item.status == right, "it comes back {shown}, not {right:?}");
                if expected.drained {
                    continue;
                }
                let (id, _) = expected.taken.ok_or_else(|| {
                    format!("{} comes back, it should say {:?}", item.id, expected.codes)
                })?;
                ensure!(id == item.id, "{id} comes back as {}", item.id);
                let shown = !self.slots[id.slot as usize].unconfirmed;
                ensure!(shown, "{id} comes back, and the page does not show it");
                continue;
            };
            let quota = code == ErrorCode::NoQuota && expected.taken.is_some();
            ensure!(
                quota || expected.codes.contains(&code),
                "a redeposit is answered {shown}, not {:?}",
                expected.codes
            );
            if code == ErrorCode::Again {
                expected.ends.into_iter().for_each(|id| _ = step.due_end.remove(&id));
            }
            let Some((id, former)) = expected.taken else { continue };
            // Nothing has ended.
            step.due_end.remove(&id);
            if quota {
                let (status, owner, passing) = (item.status, None, true);
                let need = former.deposit.facts.size_bytes.max(1);
                step.quotas.push(vec![Quota { status, client: client.0, owner, need, passing }]);
            }
            self.untake(client.0, id, *former);
        }
        Ok(())
    }

    fn untake(&mut self, client: u32, id: AllocationId, former: Allocation) {
        let leases = self.allocations.get(&id).map(|now| now.leases.clone()).unwrap_or_default();
        if let Some(state) = self.clients.get_mut(&client) {
            state.owns.retain(|other| *other != id);
        }
        self.slots[id.slot as usize].owner = Some(Closing {
            client: former.owner,
            client_order: former.owner_order,
            ..nobodys(former.domain)
        });
        self.allocations.insert(id, Allocation { leases, ..former });
    }

    /// What this message has ended is in nothing's way.
    fn overlaps_own(&self, step: &Step, client: u32, deposit: &Deposit) -> bool {
        let owns = self.clients.get(&client).map(|state| state.owns.as_slice()).unwrap_or_default();
        let mut live = owns.iter().filter(|id| !step.due_end.contains_key(id));
        live.any(|id| self.live(*id).is_some_and(|own| overlaps(&own.deposit, deposit)))
    }

    /// The error for an allocation that is not there: the slot's last one ended for a reason, those
    /// before are stale.
    pub fn reason(&self, id: AllocationId) -> ErrorCode {
        let last = self.slots.get(id.slot as usize).map(|state| state.highest);
        let code = self.ended.get(&id).filter(|_| last == Some(id.generation));
        code.copied().unwrap_or(ErrorCode::Stale)
    }
}

/// A kept one as whoever names it again says, as far as that counts.
fn adopted(known: &Allocation, named: &Deposit) -> Judged {
    let Facts { device, owner_allocation_id, .. } = named.facts;
    let facts = known.deposit.facts.device(device).owner_allocation_id(owner_allocation_id);
    let claimed = Deposit { base: named.base, facts, ..known.deposit.claimed };
    Judged { claimed, ..known.deposit }
}

/// Whether it cannot be what was remembered: of another size, or on another GPU.
fn is_other(known: &Allocation, named: &Deposit) -> bool {
    let (before, now) = (known.deposit.facts, named.facts);
    let is_told = !before.gpu.is_none() && !now.gpu.is_none();
    before.size_bytes != now.size_bytes || is_told && !before.gpu.is_same(&now.gpu)
}

fn is_sound(deposit: &Deposit) -> bool {
    let ends =
        [deposit.base, deposit.facts.fd_offset].map(|at| at.checked_add(deposit.facts.size_bytes));
    deposit.facts.size_bytes > 0 && !ends.contains(&None)
}

fn nobodys(domain: DomainKey) -> Closing {
    Closing { client: NOBODY, client_order: 0, domain, refused: false, uninvited: false }
}

/// An allocation from before a crash that its owner has not named again.
fn reserved(record: &Record) -> Allocation {
    Allocation {
        owner: NOBODY,
        owner_order: 0,
        domain: record.domain,
        gid: record.gid,
        job: None,
        key: record.owner,
        deposit: Deposit {
            share: record.share,
            recallable: record.recallable,
            ..Facts::new(record.kind, record.size_bytes).gpu(record.gpu).into()
        }
        .into(),
        count: 0,
        ended: None,
        leases: BTreeSet::new(),
        recalled_at: None,
        refused: None,
        drain: Drain::No,
        reserved: true,
        awaited: true,
        orphaned_at: None,
    }
}
