//! Register: deposits become allocations, or the same allocation counted once more; a reused
//! address ends what was there. Must never keep an fd that has no place, nor two of one allocation.

use crate::api::{Arrived, Asker, ClientId, Deposit, Effect, Judged, Lane, NONE, Now, Registered};
use crate::books::{Allocation, Blocked, Charge, Client, ScopeId, ScopeRecord, State};
use crate::core::Core;
use crate::moves::Step;
use crate::moves::charging::places;
use fdbroker_protocol::admin::EventKind;
use fdbroker_protocol::{AllocationId, ErrorCode, Facts, MemoryKind, Resource, Status};

/// The id of no allocation.
pub(crate) const NOTHING: AllocationId = AllocationId { slot: NONE, generation: 0 };

/// The allocation of a deposit, and whether the fd is kept: not when it is the same as before, or
/// is evicted at once.
pub(crate) type Outcome = Result<(AllocationId, bool), Status>;

impl Core {
    pub(crate) fn register(
        &mut self,
        by: Asker,
        deposits: &[Arrived],
        credits_wanted: u32,
        deadline: Now,
        step: &mut Step,
    ) {
        let client = by.client;
        if !self.admit(by, deposits, step) {
            return;
        }
        let wanted = u64::from(credits_wanted).min(self.books.config.max_credits.into());
        if deposits.is_empty() && self.books.client_mut(client.0).credits == 0 && wanted > 0 {
            if self.books.is_turned_away(client.0) {
                return self.books.refuse(by, ErrorCode::ShuttingDown.into(), step);
            }
            return self.wait_for_credits(by, wanted, deadline, step);
        }
        let begin = step.fx.registered.len();
        let has_places = self.give_places(client.0, deposits.len() as u64);
        for (index, deposit) in (0..).zip(deposits) {
            let judged = if has_places { deposit.judged } else { Err(ErrorCode::Again.into()) };
            let earlier = &step.fx.registered[begin..];
            let judged = judged.and_then(|it| self.same_file(client.0, it, deposits, earlier));
            let done = judged.and_then(|judged| self.deposit(client.0, &judged, step));
            match done {
                Ok((id, true)) => {
                    step.fx.list.push(Effect::StoreArrived { index, slot: id.slot });
                    self.books.keep_stored(id.slot, step);
                }
                Ok((AllocationId { slot, .. }, false)) if self.is_new(slot) => {
                    step.fx.list.push(Effect::MeetArrived { index, slot });
                    self.books.close_arrived(client.0, index, deposit.lane, step);
                }
                _ if has_places => self.books.close_arrived(client.0, index, deposit.lane, step),
                _ => self.books.close_unreserved(client, (index, deposit.lane), step),
            }
            let done = done.map(|(id, _)| (Status::OK, id));
            let (status, id) = done.unwrap_or_else(|status| (status, NOTHING));
            step.fx.registered.push(Registered { status, id, index });
        }
        let credits = self.adjust_credits(client.0, wanted);
        let short_of = wanted.saturating_sub(credits.into());
        if short_of > 0 && self.books.rooms.is_empty() {
            self.make_room_for_deposits(client.0, short_of, step);
        }
        self.answer_registered(by, begin, step);
    }

    /// Answers with what has become of the deposits since `begin`, and the client's credits.
    pub(crate) fn answer_registered(&mut self, by: Asker, begin: usize, step: &mut Step) {
        let Asker { client, request } = by;
        let credits = self.books.clients[client.0].credits;
        let deposit_credits = u32::try_from(credits).expect("at most max_credits");
        let range = begin..step.fx.registered.len();
        step.fx.list.push(Effect::Registered { client, request, range, deposit_credits });
    }

    /// Whether the client may send the fds, and the domain's refused ones have not piled up. Else
    /// the request fails, and they are closed.
    pub(crate) fn admit(&mut self, by: Asker, deposits: &[Arrived], step: &mut Step) -> bool {
        let Client { credits, credits_taken, domain, .. } = self.books.clients[by.client.0];
        let refused = deposits.iter().filter(|deposit| deposit.lane == Lane::Refused).count();
        let status = if deposits.len() as u64 > credits + credits_taken {
            Some(ErrorCode::Protocol.into())
        } else {
            self.books.too_many_refused(domain, refused as u64).filter(|_| refused > 0)
        };
        let Some(status) = status else { return true };
        // Before what follows, which may end the connection.
        step.fail(by, status);
        self.books.close_all_uninvited(by.client, deposits, step);
        false
    }

    /// From now on reserved places of a client are places of held fds, or of fds in the closers.
    /// `false`: it has not so many.
    pub(crate) fn give_places(&mut self, client: u32, count: u64) -> bool {
        if count > self.books.clients[client].credits && !self.give_again(client, count) {
            return false;
        }
        self.books.use_credits(client, count);
        self.books.settle(client, places(count));
        self.books.counters.deposits += count;
        true
    }

    fn make_room_for_deposits(&mut self, client: u32, short_of: u64, step: &mut Step) {
        let scope = self.books.scope_of(client);
        // If there is room after all: credits take half of it at a time.
        if let Err(blocked) =
            self.books.ledger.fits_in_table(scope, Charge(Resource::ReservedPlaces, short_of))
        {
            // Idle credits of others are had for the asking.
            let ScopeRecord { coming, idle_credits, .. } = self.books.ledger[blocked.scope];
            let count = short_of.saturating_sub(coming + idle_credits);
            if count > 0 {
                self.books.evict_for(blocked, usize::try_from(count).unwrap_or(usize::MAX), step);
            }
        }
    }

    pub(crate) fn deposit(&mut self, owner: u32, deposit: &Judged, step: &mut Step) -> Outcome {
        if !deposit.has_sound_range() {
            return Err(ErrorCode::Protocol.into());
        }
        if let Some(slot) = self.same(owner, deposit) {
            if !self.books.allocations.register_again(slot, deposit.virtual_fd) {
                return Err(ErrorCode::Protocol.into());
            }
            if deposit.virtual_fd && self.books.allocations[slot].outlives_owner() {
                step.fx.list.push(Effect::KeptChanged { slot });
            }
            return Ok((self.books.allocations.id_of(slot), false));
        }
        if !self.end_overlapping(owner, deposit, step) {
            return Err(ErrorCode::Again.into());
        }
        self.new_allocation(owner, deposit, step)
    }

    /// Whether nothing has come of it since it was registered.
    fn is_new(&self, slot: u32) -> bool {
        let allocation = &self.books.allocations[slot];
        allocation.registrations == 1 && allocation.state == State::Evicted
    }

    /// The deposit, unless it names an allocation again and is other memory. The file of one that
    /// is evicted the daemon compares ([`Core::named_by`]), but for what this message has brought.
    fn same_file(
        &self,
        owner: u32,
        deposit: Judged,
        all: &[Arrived],
        earlier: &[Registered],
    ) -> Result<Judged, Status> {
        let is_memfd = deposit.facts.kind == MemoryKind::Memfd;
        let (Some(file), true) = (deposit.file, is_memfd) else { return Ok(deposit) };
        let Some(slot) = self.same(owner, &deposit) else { return Ok(deposit) };
        let brought = || {
            let first = earlier.iter().find(|it| it.status.is_ok() && it.id.slot == slot)?;
            all[usize::from(first.index)].judged.ok()?.file
        };
        match self.books.file_of(slot).or_else(brought) {
            Some(known) if known.id != file.id => Err(Status::OTHER_MEMORY),
            _ => Ok(deposit),
        }
    }

    /// The live allocation of a client that this deposit would name again.
    pub fn named_by(&self, client: ClientId, deposit: &Deposit) -> Option<u32> {
        self.same(client.0, deposit)
    }

    /// The live allocation that this deposit names again.
    fn same(&self, owner: u32, deposit: &Deposit) -> Option<u32> {
        let Facts { device, gpu, size_bytes, owner_allocation_id, .. } = deposit.facts;
        let key = (device, deposit.base);
        let slot = self.books.allocations.at(owner, key)?;
        let allocation = &self.books.allocations[slot];
        let same = allocation.size_bytes == size_bytes
            && self.books.allocations.facts(slot).gpu == gpu
            && allocation.owner_allocation_id == owner_allocation_id;
        same.then_some(slot)
    }

    /// Ends the owner's live allocations that overlap the deposit: their memory is gone. `false`
    /// when there are more of them than a message may end.
    fn end_overlapping(&mut self, owner: u32, deposit: &Deposit, step: &mut Step) -> bool {
        while let Some(slot) = self.books.allocations.overlapping(owner, deposit.range()) {
            if !step.allowances.ends.take() {
                return false;
            }
            self.books.revoke(slot, step);
        }
        true
    }

    fn new_allocation(&mut self, owner: u32, deposit: &Judged, step: &mut Step) -> Outcome {
        if self.books.is_turned_away(owner) {
            return Err(self.books.refused(owner, ErrorCode::ShuttingDown.into()));
        }
        if !self.books.allocations.has_room() {
            let blocked = Blocked { resource: Resource::Allocations, scope: ScopeId::NODE };
            let status = Status {
                value: u64::from(self.books.config.max_slots),
                ..self.books.no_quota(blocked)
            };
            return Err(self.books.refused(owner, status));
        }
        let evictable = deposit.is_evictable();
        let domain = self.books.client_mut(owner).domain;
        let resident = self.books.more_resident(domain, deposit.file, deposit.facts.size_bytes);
        if let Err(status) = self.books.may_name(domain, deposit.facts.gpu) {
            return Err(self.books.refused(owner, status));
        }
        // First, so that nothing of others is ended for what is refused.
        let kept = Charge(Resource::KeptAllocations, deposit.keep.into());
        let charged = self.books.charge_all(owner, [Charge(Resource::Allocations, 1), kept]);
        let charged = charged.map_err(|blocked| self.books.refusal(owner, blocked))?;
        let above = deposit.file.and_then(|_| self.books.above_held_bytes(owner));
        let short = if evictable {
            None
        } else {
            self.short_of_resident(owner, resident, above.is_none(), step)
        };
        if let Some(status) = short {
            charged.release(&mut self.books.ledger);
            return Err(self.books.refused(owner, status));
        }
        let bytes = self.books.more_pinned(domain, deposit.file, deposit.facts.size_bytes);
        let fits = match above {
            Some(above) => Err(above),
            None => self.books.charge_bytes(owner, bytes, true, step),
        };
        if let Err(blocked) = fits
            && (!evictable || deposit.file.is_some() && !self.books.may_be_held(owner, bytes))
        {
            charged.release(&mut self.books.ledger);
            return Err(self.books.refusal(owner, blocked));
        }
        let state = match (fits.is_ok(), evictable) {
            (true, true) => State::Held,
            (true, false) => State::Resident,
            (false, _) => State::Evicted,
        };
        let allocation = Allocation::new(deposit, owner, domain, state, step.now);
        let id = self.books.allocations.insert(allocation, deposit.driver_data);
        charged.stay();
        self.books.enter_gpu(id.slot, deposit.facts.gpu);
        self.books.note_of_allocation(EventKind::Deposit, id.slot, Status::OK);
        step.fx.list.push(Effect::Publish { slot: id.slot, generation: id.generation });
        if state == State::Evicted {
            return Ok((id, false));
        }
        self.books.pin(id.slot, deposit.file, bytes);
        self.books.lru_insert(id.slot);
        let scope = self.books.scope_of(owner);
        self.books.ledger.can_be_had(scope);
        Ok((id, true))
    }

    /// Why a client may not hold so many bytes more that cannot be had back. Groups of objects make
    /// room, if they may.
    fn short_of_resident(
        &mut self,
        owner: u32,
        bytes: u64,
        may_evict: bool,
        step: &mut Step,
    ) -> Option<Status> {
        if may_evict && let Err(status) = self.books.evict_objects_for(owner, bytes, step) {
            return Some(status);
        }
        self.books.beyond_share_of_bytes(self.books.clients[owner].domain, bytes)
    }
}
