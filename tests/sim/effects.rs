//! Judges each effect in its order: it must be due, true, and for a client that is connected. Must
//! never look into the core.

use crate::action::{groups_of, show_status};
use crate::judge::{ensure, foretold, overlaps};
use crate::model::{Allocation, Ask, Check, Closing, Drain, Model, Phase, Request};
use crate::quotas::need_of;
use crate::step::{Fate, Foretold, Quota, Step};
use crate::sums::Holder;
use crate::tally::Promise;
use fdbroker_core::{
    Arrived, ClientId, Deposit, Effect, Effects, Judged, Lane, Registered, StatusReply, limits,
};
use fdbroker_protocol::limits::ENDS_PER_MESSAGE;
use fdbroker_protocol::{AllocationId, ErrorCode, MemoryKind, Resource, Scope, Status};
use std::collections::BTreeSet;

impl Model {
    pub fn effect(&mut self, step: &mut Step, effect: &Effect, all: &Effects) -> Check {
        match effect {
            Effect::StoreArrived { index, slot } => self.stored(step, usize::from(*index), *slot),
            Effect::MeetArrived { index, slot } => self.met(step, usize::from(*index), *slot),
            Effect::CloseArrived { index, ticket, lane } => {
                self.closed_arrived(step, usize::from(*index), ticket.0, *lane)
            }
            Effect::CloseHeld { slot, ticket, .. } => self.closed_held(step, *slot, ticket.0),
            Effect::Keep { slot } => self.keep(*slot),
            Effect::KeptChanged { slot } => self.kept_changed(*slot),
            Effect::Unkeep { slot } => self.unkeep(*slot),
            Effect::Declared { client, request, range } => {
                let items = all.granted.get(range.clone()).ok_or("range out of bounds")?;
                self.declared(step, (*client, request.0), items)
            }
            Effect::Publish { slot, generation: 0 } => self.unpublish(step, *slot),
            Effect::Publish { slot, generation } => {
                self.publish_or_confirm(step, AllocationId { slot: *slot, generation: *generation })
            }
            Effect::Ended { index } => self.remembered(step, *index, all),
            Effect::Welcome { client, request, deposit_credits } => {
                self.welcomed(step, *client, request.0, *deposit_credits)
            }
            Effect::Registered { client, request, range, deposit_credits } => {
                let items = all.registered.get(range.clone()).ok_or("range out of bounds")?;
                self.registered(step, (*client, request.0), items, *deposit_credits)
            }
            Effect::Statuses { client, request, reply, range } => {
                let items = all.statuses.get(range.clone()).ok_or("range out of bounds")?;
                self.statuses(step, (*client, request.0), *reply, items)
            }
            Effect::Granted { client, request, range, deadline, .. } => {
                let items = all.granted.get(range.clone()).ok_or("range out of bounds")?;
                self.granted(step, (*client, request.0), items, deadline.0)
            }
            Effect::GrantedAhead { client, range } => {
                let items = all.granted.get(range.clone()).ok_or("range out of bounds")?;
                self.granted_ahead(step, *client, items)
            }
            Effect::Failed { client, request, status } => {
                self.failed(step, (*client, request.0), *status)
            }
            Effect::Events { client } => {
                step.events_seen = true;
                let phase = self.client(client.0)?.phase;
                ensure!(phase != Phase::Gone, "events for client {}, which is gone", client.0);
                Ok(())
            }
            Effect::ObjectsCreated { .. }
            | Effect::ObjectsSealed { .. }
            | Effect::ObjectsGot { .. } => Err("an answer about objects".into()),
            Effect::Disconnect { client, status } => self.disconnected(step, *client, *status),
            Effect::Forget { client } => self.forgotten(step, *client),
        }
    }

    // --- fds and the page ------------------------------------------------------------------------

    /// What is remembered of an end is of an allocation that has just been taken off the page.
    fn remembered(&self, step: &Step, index: usize, all: &Effects) -> Check {
        let ended = all.ended.get(index).ok_or("index out of bounds")?;
        let id = ended.id;
        ensure!(step.unpublished.contains(&id), "{id} is remembered as ended, and has not ended");
        Ok(())
    }

    fn stored(&mut self, step: &mut Step, index: usize, slot: u32) -> Check {
        take_arrived(step, index, Fate::Stored(slot))?;
        self.proofs.count(Promise::OneFd, 1);
        let state = self.slots.get_mut(slot as usize).ok_or("slot out of range")?;
        ensure!(!state.full, "StoreArrived into slot {slot}, which has an fd already");
        state.full = true;
        Ok(())
    }

    fn closed_arrived(&mut self, step: &mut Step, index: usize, ticket: u32, lane: Lane) -> Check {
        take_arrived(step, index, Fate::Closed(lane))?;
        let uninvited = step.uninvited.contains(&index);
        step.arrived_tickets.push(ticket);
        let sender = step.sender.ok_or("fds arrived without a sender")?;
        let closing = self.closing_of_sender(sender, lane == Lane::Refused, uninvited)?;
        self.new_ticket(ticket, closing)
    }

    fn closing_of_sender(&self, sender: u32, refused: bool, uninvited: bool) -> Check<Closing> {
        Ok(Closing {
            client: sender,
            client_order: self.client_orders.get(&sender).copied().unwrap_or(0),
            domain: self.client(sender)?.domain,
            refused,
            uninvited,
        })
    }

    fn new_ticket(&mut self, ticket: u32, closing: Closing) -> Check {
        let known = self.tickets.insert(ticket, closing);
        ensure!(known.is_none(), "ticket {ticket} is in use twice");
        Ok(())
    }

    fn closed_held(&mut self, step: &mut Step, slot: u32, ticket: u32) -> Check {
        ensure!(!self.kept_slots.contains(&slot), "slot {slot} is closed and stays in the store");
        let state = self.slots.get_mut(slot as usize).ok_or("slot out of range")?;
        ensure!(state.full, "CloseHeld of slot {slot}, which has no fd");
        state.full = false;
        if state.published != 0 {
            step.evicted.push(AllocationId { slot, generation: state.published });
        }
        let closing = state.owner.ok_or_else(|| format!("slot {slot} has no owner"))?;
        self.new_ticket(ticket, closing)
    }

    /// An allocation of before a crash is shown again once its owner has named it; else it must be
    /// a new one.
    fn publish_or_confirm(&mut self, step: &mut Step, id: AllocationId) -> Check {
        let AllocationId { slot, generation } = id;
        let state = self.slots.get_mut(slot as usize).ok_or("slot out of range")?;
        if state.published != generation {
            return self.publish(step, slot, generation);
        }
        state.unconfirmed = false;
        let known = self.live(id).ok_or_else(|| format!("{id} is confirmed, and has ended"))?;
        let named = self.owner_here(known) && !known.awaited && !step.returns.is_empty();
        self.proofs.count(Promise::Lives, 1);
        ensure!(named, "{id} is confirmed, and its owner has not named it");
        Ok(())
    }

    fn publish(&mut self, step: &mut Step, slot: u32, generation: u32) -> Check {
        let first = self.config.first_generation;
        self.proofs.count(Promise::Handles, 1);
        let state = self.slots.get_mut(slot as usize).ok_or("slot out of range")?;
        let live = state.published;
        ensure!(live == 0, "slot {slot} gets generation {generation} while {live} lives there");
        let floor = state.highest.max(first - 1);
        ensure!(generation > floor, "slot {slot} gets generation {generation}, not above {floor}");
        state.published = generation;
        state.highest = generation;
        let sender = step.sender.ok_or("an allocation without an owner")?;
        let owner = self.closing_of_sender(sender, false, false)?;
        self.slots[slot as usize].owner = Some(owner);
        step.published.insert(AllocationId { slot, generation });
        step.used_slots.insert(slot);
        Ok(())
    }

    fn unpublish(&mut self, step: &mut Step, slot: u32) -> Check {
        let state = self.slots.get_mut(slot as usize).ok_or("slot out of range")?;
        ensure!(state.published != 0, "slot {slot} is unpublished twice");
        let id = AllocationId { slot, generation: state.published };
        let was_held = state.full;
        (state.published, state.unconfirmed) = (0, false);
        if was_held {
            self.ends_with_file(id);
        }
        ensure!(!step.events_seen, "{id} is taken off the page after its holders could be told");
        step.unpublished.insert(id);
        if let Some(code) = step.due_end.get(&id).copied() {
            self.end_now(step, id, code);
        } else if let Some(code) = self.timed_out(id).or_else(|| self.too_late(id)) {
            let was_freed = code == ErrorCode::Stale && self.live(id).is_some_and(|it| it.reserved);
            self.end_now(step, id, code);
            if !was_freed {
                self.waits_no_more(id);
            }
        }
        Ok(())
    }

    fn end_now(&mut self, step: &mut Step, id: AllocationId, code: ErrorCode) {
        let leased = self.allocations.get(&id).is_some_and(|a| !a.leases.is_empty());
        step.ended_of.extend(self.allocations.get(&id).map(|a| a.owner));
        self.end(id, code);
        step.ended.insert(id);
        if leased {
            step.ended_leased.insert(id);
        }
    }

    // --- answers ---------------------------------------------------------------------------------

    pub fn answer(&mut self, client: ClientId, request: u64) -> Check<Request> {
        let state = self.client_mut(client.0)?;
        ensure!(state.phase != Phase::Gone, "an answer to client {}, which is gone", client.0);
        self.heard.insert(client.0);
        let state = self.client_mut(client.0)?;
        state.requests.remove(&request).ok_or_else(|| {
            format!("request {request} of client {} is answered, and was not asked", client.0)
        })
    }

    fn welcomed(&mut self, step: &mut Step, client: ClientId, request: u64, credits: u32) -> Check {
        let asked = self.answer(client, request)?;
        let Ask::Hello { own_fds, .. } = asked.ask else {
            return Err("welcome in answer to another request".into());
        };
        ensure!(step.must_fail.is_none(), "welcomed twice");
        let most = self.config.max_credits.min(self.config.base_credits);
        let state = self.client_mut(client.0)?;
        ensure!(credits <= most, "{credits} deposit credits at hello, more than {most}");
        state.phase = Phase::Active;
        (state.own, state.seated) = (u64::from(own_fds), true);
        step.let_in.push((client.0, own_fds.into()));
        state.credits = u64::from(credits);
        Ok(())
    }

    fn registered(
        &mut self,
        step: &mut Step,
        (client, request): (ClientId, u64),
        items: &[Registered],
        credits: u32,
    ) -> Check {
        let asked = self.answer(client, request)?;
        if let Ask::Redeposit = asked.ask {
            return self.redeposited(step, client, items, credits);
        }
        let Ask::Register { deposits, credits_wanted, .. } = asked.ask else {
            return Err("a register reply to another request".into());
        };
        ensure!(
            items.len() == deposits.len(),
            "{} replies, {} deposits",
            items.len(),
            deposits.len()
        );
        ensure!(step.must_fail.is_none(), "deposits beyond the credits were accepted");
        ensure!(!step.refused_unread, "deposits were accepted while refused ones pile up");
        for (index, (item, deposit)) in items.iter().zip(&deposits).enumerate() {
            ensure!(usize::from(item.index) == index, "reply {index} says index {}", item.index);
            if step.has_no_place {
                ensure!(step.arrived[index] == Fate::Closed(deposit.lane), "an fd is kept")
            } else {
                self.registered_item(step, client.0, (index, deposit), item)?
            }
        }
        // The answer to a wait for credit includes the credits that came in the meantime.
        let has = if deposits.is_empty() { self.client(client.0)?.credits } else { 0 };
        let most = self.config.max_credits.min(credits_wanted.max(self.config.base_credits));
        let most = u64::from(most).max(has);
        self.proofs.count(Promise::Bounds, 1);
        ensure!(u64::from(credits) <= most, "{credits} deposit credits, more than {most}");
        let waited =
            deposits.is_empty() && credits_wanted > 0 && self.client(client.0)?.credits == 0;
        ensure!(!waited || credits > 0, "waited for credit, and got none");
        step.credits_given |= waited;
        let state = self.client_mut(client.0)?;
        state.credits = u64::from(credits);
        state.credit_waited_for = credits > 0 && (waited || state.credit_waited_for);
        Ok(())
    }

    fn registered_item(
        &mut self,
        step: &mut Step,
        client: u32,
        (index, arrived): (usize, &Arrived),
        item: &Registered,
    ) -> Check {
        let fate = step.arrived.get(index).copied().unwrap_or(Fate::Waiting);
        let deposit = &match foretold(arrived) {
            Ok(deposit) => deposit,
            Err(status) => {
                let told = show_status(&item.status);
                ensure!(item.status == status, "deposit {index} is answered {told}, not {status}");
                ensure!(fate == Fate::Closed(arrived.lane), "refused deposit {index}: {fate:?}");
                return Ok(());
            }
        };
        if item.status == Status::OTHER_MEMORY {
            let known = self.same_before(step, client, (index, deposit));
            let is_other = known.and_then(|id| self.allocations.get(&id));
            let is_other = is_other.is_some_and(|known| is_other_memory(known, deposit));
            ensure!(is_other, "deposit {index} is refused as other memory: {deposit:?}");
            ensure!(fate == Fate::Closed(arrived.lane), "refused deposit {index}: {fate:?}");
            return Ok(());
        }
        if item.status.is_ok() {
            return self.registered_ok(step, client, (index, deposit), (item.id, fate));
        }
        ensure!(fate == Fate::Closed(arrived.lane), "refused deposit {index}: {fate:?}");
        if item.status.result() == Err(ErrorCode::Again) {
            return self.overlaps_too_many(step, client, deposit);
        }
        let shown = show_status(&item.status);
        if item.status.result() == Err(ErrorCode::ShuttingDown) {
            ensure!(self.is_late(client), "deposit {index}: {shown}");
            step.turned_away += 1;
            self.end_overlapped_now(step, client, deposit);
            return Ok(());
        }
        ensure!(item.status.result() == Err(ErrorCode::NoQuota), "deposit {index}: {shown}");
        // The address was reused, whether or not there is room for the new allocation.
        self.end_overlapped_now(step, client, deposit);
        let need = need_of(&item.status, deposit.facts.size_bytes, 1);
        let passing = step.arrived.len() > 1;
        step.quotas.push(vec![Quota { status: item.status, client, owner: None, need, passing }]);
        Ok(())
    }

    fn registered_ok(
        &mut self,
        step: &mut Step,
        client: u32,
        (index, deposit): (usize, &Judged),
        (id, fate): (AllocationId, Fate),
    ) -> Check {
        if step.published.remove(&id) {
            ensure!(!self.is_late(client), "new {id} of a client that is too late");
            match fate {
                Fate::Stored(slot) => ensure!(slot == id.slot, "new {id}: its fd is in {slot}"),
                // The cap on bytes is reached: the allocation is evicted at once.
                Fate::Closed(_) if deposit.is_evictable() => step.not_kept.push(id),
                _ => return Err(format!("new {id}: its fd is {fate:?}")),
            }
            self.end_overlapped_now(step, client, deposit);
            return self.new_allocation(step, client, id, deposit);
        }
        let same = self.same_before(step, client, (index, deposit));
        ensure!(same == Some(id), "{id} is registered again, the same is {same:?}");
        // The daemon compares the files of what is evicted.
        let is_held = self.slots[id.slot as usize].full && step.evicted.is_empty();
        let is_other = self.allocations.get(&id).is_some_and(|it| is_other_memory(it, deposit));
        self.proofs.count(Promise::Handles, 1);
        ensure!(!is_held || !is_other, "{id} is registered again as other memory: {deposit:?}");
        match fate {
            Fate::Closed(_) => {}
            Fate::Stored(slot) => ensure!(slot == id.slot, "{id}: its fd is in slot {slot}"),
            Fate::Waiting => return Err(format!("{id}: fd {index} is neither stored nor closed")),
        }
        if let Some(known) = self.allocations.get_mut(&id) {
            known.count += 1;
        }
        Ok(())
    }

    /// The allocation that a deposit names again.
    fn same_before(
        &self,
        step: &Step,
        client: u32,
        (index, deposit): (usize, &Judged),
    ) -> Option<AllocationId> {
        let before = step.same.get(index).copied().flatten();
        before.or_else(|| self.same(step, client, deposit))
    }

    /// The first fd of an allocation that is evicted at once.
    fn met(&self, step: &Step, index: usize, slot: u32) -> Check {
        let is_new = step.published.iter().any(|id| id.slot == slot);
        ensure!(is_new && index < step.arrived.len(), "fd {index} is the first of slot {slot}");
        Ok(())
    }

    /// AGAIN: the message has ended as many allocations as it may, and the deposit still overlaps
    /// some.
    fn overlaps_too_many(&mut self, step: &mut Step, client: u32, deposit: &Deposit) -> Check {
        let ended = step.unpublished.len();
        ensure!(ended == ENDS_PER_MESSAGE, "AGAIN, and the message has ended {ended}");
        let owns = self.clients.get(&client).map(|c| c.owns.as_slice()).unwrap_or_default();
        let overlapped =
            |id: &&AllocationId| self.live(**id).is_some_and(|old| overlaps(&old.deposit, deposit));
        let left: Vec<AllocationId> = owns.iter().filter(overlapped).copied().collect();
        ensure!(!left.is_empty(), "AGAIN, and it overlaps nothing any more");
        left.iter().for_each(|id| _ = step.due_end.remove(id));
        Ok(())
    }

    /// An earlier deposit of the same message began an allocation that this deposit ends.
    fn end_overlapped_now(&mut self, step: &mut Step, client: u32, deposit: &Deposit) {
        let owns = self.clients.get(&client).map(|c| c.owns.clone()).unwrap_or_default();
        for id in owns {
            if self.live(id).is_some_and(|old| overlaps(&old.deposit, deposit)) {
                self.end_now(step, id, ErrorCode::Stale);
            }
        }
    }

    fn new_allocation(
        &mut self,
        step: &mut Step,
        client: u32,
        id: AllocationId,
        deposit: &Judged,
    ) -> Check {
        let owner_order = self.client_orders.get(&client).copied().unwrap_or(0);
        let state = self.client_mut(client)?;
        state.owns.push(id);
        let allocation = Allocation {
            owner: client,
            owner_order,
            domain: state.domain,
            gid: groups_of(state.pid).0,
            job: state.job,
            key: state.key,
            deposit: *deposit,
            count: 1,
            ended: None,
            leases: BTreeSet::new(),
            recalled_at: None,
            refused: None,
            drain: Drain::No,
            reserved: false,
            awaited: false,
            orphaned_at: None,
        };
        let known = self.allocations.insert(id, allocation);
        ensure!(known.is_none(), "{id} is given to a second allocation");
        step.new_allocations += 1;
        Ok(())
    }

    fn statuses(
        &mut self,
        step: &mut Step,
        (client, request): (ClientId, u64),
        reply: StatusReply,
        items: &[Status],
    ) -> Check {
        let asked = self.answer(client, request)?;
        let fits = matches!(
            (&asked.ask, reply),
            (Ask::Unregister, StatusReply::Unregister) | (Ask::Lease, StatusReply::Lease)
        );
        ensure!(fits, "{reply:?} in answer to {:?}", asked.ask);
        let foretold = step.foretold.take().ok_or("statuses that nobody asked for")?;
        ensure!(foretold.len() == items.len(), "{} statuses, not {}", items.len(), foretold.len());
        for (at, (item, expected)) in items.iter().zip(&foretold).enumerate() {
            let right = match expected {
                Foretold::Exactly(status) => item == status,
                Foretold::Ends(id) => {
                    let lingers =
                        self.allocations.get(id).is_some_and(|known| self.lingers(*id, known));
                    let drained = !step.ended_leased.contains(id) && !lingers;
                    if let Some(ended) = self.allocations.get_mut(id).filter(|_| drained) {
                        // The answer tells it, so that no event follows.
                        ended.drain = Drain::Told;
                    }
                    item.is_ok() && item.value == u64::from(drained)
                }
                Foretold::OneOf(codes) => item.result().is_err_and(|code| codes.contains(&code)),
            };
            ensure!(right, "status {at} is {}, not {expected:?}", show_status(item));
            if item.result() == Err(ErrorCode::NoQuota) {
                let passing = items.len() > 1;
                let client = client.0;
                let quota = Quota { status: *item, client, owner: None, need: 1, passing };
                step.quotas.push(vec![quota]);
            }
        }
        Ok(())
    }

    fn failed(
        &mut self,
        step: &mut Step,
        (client, request): (ClientId, u64),
        status: Status,
    ) -> Check {
        let code = status.result().err().ok_or("failed with OK")?;
        if step.stranger && request == 0 {
            return Ok(());
        }
        let asked = self.answer(client, request)?;
        if step.cancelled == Some((client.0, request)) {
            ensure!(code == ErrorCode::Cancelled, "a cancelled request failed with {code:?}");
            step.cancelled = None;
            return Ok(());
        }
        if let Some(must) = step.must_fail.take() {
            ensure!(code == must, "failed with {code:?}, not {must:?}");
            return Ok(());
        }
        let shown = show_status(&status);
        if matches!(asked.ask, Ask::Hello { .. }) && code != ErrorCode::NoQuota {
            let ends = step.disconnect == Some((client.0, true));
            ensure!(ends || step.may_ask_again, "hello failed with {shown}");
            step.disconnect = Some((client.0, true));
            return Ok(());
        }
        if step.may_ask_again && code == ErrorCode::Again {
            return Ok(());
        }
        if code == ErrorCode::ShuttingDown {
            let waits = matches!(&asked.ask, Ask::Register { deposits, .. } if deposits.is_empty());
            ensure!(waits && self.is_late(client.0), "{:?} failed with {shown}", asked.ask);
            step.turned_away += 1;
            return Ok(());
        }
        ensure!(code == ErrorCode::NoQuota, "{:?} failed with {shown}", asked.ask);
        let (owner, need, passing) = (None, 1, false);
        let mut quota = Quota { status, client: client.0, owner, need, passing };
        let parked = self.client(client.0)?.requests.len();
        let too_many = parked >= self.config.max_parked_per_client as usize;
        match asked.ask {
            Ask::Hello { own_fds, deadline } => {
                step.disconnect = Some((client.0, true));
                quota.need = match Resource::from_number(status.resource) {
                    Some(Resource::TablePlaces) => limits::FDS_PER_CONNECTION,
                    _ => u64::from(own_fds).max(1),
                };
                let most = self.most_own_fds();
                if u64::from(own_fds) > most {
                    let named = (status.resource, status.value, status.pid);
                    let right = (Resource::OwnFds as u8, most, 0);
                    ensure!(named == right, "an absurd hello is refused with {shown}");
                    ensure!(step.evicted.is_empty(), "fds are closed for a hello that is refused");
                    return Ok(());
                }
                // What did not let it in may have been for the others that this step has let in.
                ensure!(deadline <= self.now, "hello is refused before its deadline");
            }
            Ask::Register { deposits, .. } if !deposits.is_empty() => {
                return self.deposits_refused(step, status);
            }
            Ask::Register { deadline, .. } => {
                ensure!(
                    deadline <= self.now || too_many || self.is_credit_beyond_caps(client.0)?,
                    "no credit, and the deadline has not passed"
                );
            }
            Ask::Acquire { wanted, .. } => {
                step.asked.extend(wanted.iter().flatten());
                let is_of = |resource: Resource| status.resource == resource as u8;
                let right = is_of(Resource::ParkedRequests) && too_many;
                ensure!(
                    right || is_of(Resource::ParkedItems),
                    "an acquire failed with {shown}, {parked} parked"
                );
                quota.need = wanted.len() as u64;
            }
            ask => return Err(format!("{ask:?} failed with {shown}")),
        }
        step.quotas.push(vec![quota]);
        Ok(())
    }

    /// Whether a cap leaves no place for a held fd beside the client's own fds: then a wait would
    /// be in vain.
    fn is_credit_beyond_caps(&self, client: u32) -> Check<bool> {
        let own = u128::from(self.client(client)?.own);
        let leaves_none = |account: &Holder| {
            let cap = |resource| self.cap(*account, resource);
            cap(Resource::HeldFds) == 0 || cap(Resource::Fds) <= own
        };
        Ok(self.accounts_of_client(client).iter().any(leaves_none))
    }

    /// The whole message of deposits is refused unread: too many refused fds of the domain are
    /// closing already.
    fn deposits_refused(&self, step: &mut Step, status: Status) -> Check {
        let most = u64::from(self.config.max_refused_per_domain);
        let right = Status::no_quota(Resource::RefusedFds, Scope::Domain, most, status.pid);
        ensure!(status == right, "register failed with {}", show_status(&status));
        ensure!(step.refused_unread, "deposits are refused, and the closers have room");
        step.refused_unread = false;
        Ok(())
    }

    // --- ends of connections ---------------------------------------------------------------------

    fn disconnected(&mut self, step: &mut Step, client: ClientId, status: Status) -> Check {
        let justified = step.disconnect.is_some_and(|(who, _)| who == client.0);
        self.proofs.count(Promise::NoHarm, 1);
        ensure!(justified, "client {} is disconnected, and did nothing wrong", client.0);
        let state = self.client_mut(client.0)?;
        ensure!(state.phase != Phase::Gone, "client {} is disconnected when gone", client.0);
        state.phase = Phase::Dropped;
        step.disconnected.insert(client.0);
        let domain = self.client(client.0)?.domain;
        let shown = show_status(&status);
        let justified = match Resource::from_number(status.resource) {
            Some(Resource::RefusedFds) => {
                self.refused_of(domain) >= u64::from(self.config.max_refused_per_domain)
            }
            Some(Resource::Domains) => {
                let mut domains: BTreeSet<_> = self.ledger().domains.into_keys().collect();
                domains.extend(self.tickets.values().map(|closing| closing.domain));
                domains.len() as u32 > self.config.max_domains
            }
            Some(Resource::Connections) => {
                // The model has counted the connection already.
                let (ledger, accounts) = (self.ledger(), self.accounts_of_client(client.0));
                let is_full = |it: &Holder| self.is_full(&ledger, *it, Resource::Connections, 0);
                let beyond = self.connection_is_beyond_share(&ledger, client.0)?;
                client.0 >= self.config.max_clients || accounts.iter().any(is_full) || beyond
            }
            // Only a hello asks for more.
            _ if step.connecting.is_some() => false,
            _ => true,
        };
        ensure!(justified, "client {} is disconnected with {shown}, and there is room", client.0);
        step.turned_away += u64::from(step.connecting == Some(client.0));
        Ok(())
    }

    fn forgotten(&mut self, step: &Step, client: ClientId) -> Check {
        let state = self.client(client.0)?;
        let refused = step.disconnected.contains(&client.0) && step.connecting == Some(client.0);
        ensure!(
            state.phase == Phase::Gone || refused,
            "client {} is forgotten in {:?}",
            client.0,
            state.phase
        );
        ensure!(
            state.leases.is_empty() && state.owns.is_empty(),
            "client {} is forgotten and has leases or allocations",
            client.0
        );
        self.clients.remove(&client.0);
        Ok(())
    }
}

fn take_arrived(step: &mut Step, index: usize, fate: Fate) -> Check {
    let arrived = step
        .arrived
        .get_mut(index)
        .ok_or_else(|| format!("fd {index} of a message that has fewer"))?;
    ensure!(*arrived == Fate::Waiting, "fd {index} of the message is used twice");
    *arrived = fate;
    Ok(())
}

/// Whether a deposit is another memfd than the allocation that it names.
fn is_other_memory(known: &Allocation, deposit: &Judged) -> bool {
    let (is, was) = (deposit.file.map(|file| file.id), known.deposit.file.map(|file| file.id));
    deposit.facts.kind == MemoryKind::Memfd && is.is_some() && was.is_some() && is != was
}
