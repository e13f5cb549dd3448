//! Begins the judgement of a step: what follows from the input alone. `effects` judges each effect,
//! `finish` the end. Must never look into the core: only at inputs, effects and the model.

use crate::action::Action;
use crate::model::{Ask, Check, Client, Drain, Model, Phase, Request};
use crate::step::{Fate, Foretold, Step};
use crate::sums::Holder;
use fdbroker_core::{
    Arrived, Deposit, DomainKey, Granted, JobKey, Judged, Lane, LeaseId, OwnerKey, Supply,
};
use fdbroker_protocol::limits::ENDS_PER_MESSAGE;
use fdbroker_protocol::{AllocationId, ErrorCode, Facts, Status};
use std::collections::BTreeMap;

/// Fails the check with a message unless the condition holds.
macro_rules! ensure {
    ($cond:expr, $($message:tt)*) => {
        if !$cond {
            return Err(format!($($message)*));
        }
    };
}
pub(crate) use ensure;

impl Model {
    /// Notes what follows from the input alone.
    pub fn begin(&mut self, now: u64, action: &Action) -> Check<Step> {
        self.now = now;
        let mut step = Step {
            arrived: vec![Fate::Waiting; action.arrived_fds()],
            silent_before: self.silent.clone(),
            ..Step::default()
        };
        self.heard.clear();
        if !matches!(action, Action::Unsent { .. } | Action::Sendable { .. }) {
            self.clients.values_mut().for_each(|client| client.answered.clear());
        }
        if let Some((client, request)) = action.request()
            && self.client(client)?.phase == Phase::Connected
        {
            self.begin_stranger(&mut step, action, client, request)?;
            return Ok(step);
        }
        match action {
            Action::Connect { client, domain, job, pid } => {
                self.begin_connect(&mut step, *client, (*domain, *job), *pid)?;
            }
            Action::Identify { client, key } => self.client_mut(*client)?.key = *key,
            Action::BoundHeld { client, fds } => self.client_mut(*client)?.most_held = Some(*fds),
            Action::Complete { client } => self.begin_complete(*client)?,
            Action::Hello { client, request, own_fds, deadline } => {
                let state = self.client(*client)?;
                let again = state.phase != Phase::Connected || !state.requests.is_empty();
                let ask = Ask::Hello { own_fds: *own_fds, deadline: *deadline };
                self.ask(*client, *request, ask)?;
                step.disconnect = Some((*client, again));
                step.must_fail = again.then_some(ErrorCode::Protocol);
            }
            Action::Gone { client } => self.begin_gone(&mut step, *client)?,
            Action::Register { client, request, deposits, credits_wanted, deadline } => {
                let deposits = deposits.clone();
                let (credits_wanted, deadline) = (*credits_wanted, *deadline);
                let ask = Ask::Register { deposits, credits_wanted, deadline };
                self.begin_register(&mut step, *client, *request, ask)?;
            }
            Action::Unregister { client, request, ids } => {
                self.ask(*client, *request, Ask::Unregister)?;
                let foretold = ids.iter().map(|id| self.unregister(&mut step, *client, *id));
                step.foretold = Some(foretold.collect());
            }
            Action::Acquire { client, request, wanted, deadline } => {
                let ask = Ask::Acquire { wanted: wanted.clone(), deadline: *deadline };
                self.ask(*client, *request, ask)?;
            }
            Action::AcquireAhead { client, wanted } => step.ahead = Some((*client, wanted.clone())),
            Action::Unsent { client, request, grants, deadline, .. } => {
                step.may_ask_again = self.begin_unsent(*client, *request, grants, *deadline)?;
            }
            Action::Sendable { client, sendable } => {
                let state = self.client_mut(*client)?;
                state.sendable = *sendable;
                if *sendable {
                    state.requests.values_mut().for_each(|request| request.unsent = false);
                }
            }
            Action::Cancel { client, request } => {
                let parked = self.client(*client)?.requests.contains_key(request);
                step.cancelled = parked.then_some((*client, *request));
            }
            Action::Mapped { client, request, leases } => {
                let foretold = leases.iter().map(|lease| self.map_lease(*client, *lease)).collect();
                self.one_way(&mut step, *client, *request, foretold)?;
            }
            Action::Release { client, request, leases } => {
                let foretold =
                    leases.iter().map(|lease| self.release_lease(*client, *lease)).collect();
                self.one_way(&mut step, *client, *request, foretold)?;
            }
            Action::Supply { client, supplies } => {
                step.sender = Some(*client);
                self.begin_supply(&mut step, *client, supplies)?;
            }
            Action::SetCaps { caps } => self.set_caps(caps),
            Action::Measured { files } => self.grow_files(files),
            Action::Evict { .. } => {}
            Action::Revoke { ids } => self.begin_revoke(&mut step, ids),
            Action::SetDraining { draining } => self.set_draining(*draining),
            Action::Closed { ticket } => {
                let known = self.tickets.remove(&ticket.0).is_some();
                ensure!(known, "the world closed {ticket:?} twice");
            }
            Action::Redeposit { client, request, items } => {
                self.ask(*client, *request, Ask::Redeposit)?;
                self.begin_redeposit(&mut step, *client, items);
            }
            Action::Declare { client, request, items } => {
                self.ask(*client, *request, Ask::Declare { items: items.clone() })?;
            }
            Action::Poll => self.grace_ending |= self.grace_until.is_some_and(|at| at <= now),
            Action::Settle => step.may_ask_again = true,
        }
        Ok(step)
    }

    /// A request that comes before hello.
    fn begin_stranger(
        &mut self,
        step: &mut Step,
        action: &Action,
        client: u32,
        request: Option<u64>,
    ) -> Check {
        if let Some(request) = request {
            self.ask(client, request, Ask::Lease)?;
        }
        step.sender = Some(client);
        step.stranger = true;
        step.must_fail = Some(ErrorCode::Protocol);
        step.uninvited = (0..action.arrived_fds()).collect();
        step.disconnect = Some((client, true));
        Ok(())
    }

    fn begin_connect(
        &mut self,
        step: &mut Step,
        client: u32,
        (domain, job): (DomainKey, Option<JobKey>),
        pid: u32,
    ) -> Check {
        ensure!(!self.clients.contains_key(&client), "the world connected client {client} twice");
        *self.client_orders.entry(client).or_insert(0) += 1;
        let connected = Client {
            domain,
            job,
            pid,
            key: OwnerKey::default(),
            most_held: None,
            seated: false,
            phase: Phase::Connected,
            own: 0,
            credits: 0,
            credit_waited_for: false,
            credits_taken: 0,
            sendable: true,
            leases: Vec::new(),
            owns: Vec::new(),
            requests: BTreeMap::new(),
            answered: BTreeMap::new(),
        };
        self.clients.insert(client, connected);
        self.note_late(client);
        step.connecting = Some(client);
        step.disconnect = Some((client, false));
        Ok(())
    }

    fn begin_gone(&mut self, step: &mut Step, client: u32) -> Check {
        let now = self.now;
        let gone = self.client_mut(client)?;
        gone.phase = Phase::Gone;
        gone.requests.clear();
        (gone.credits, gone.credit_waited_for) = (0, false);
        gone.own = 0;
        let (owns, leases) = (std::mem::take(&mut gone.owns), std::mem::take(&mut gone.leases));
        for id in owns {
            let kept = self.is_held(id) && self.live(id).is_some_and(|known| known.deposit.keep);
            if kept {
                let known = self.allocations.get_mut(&id);
                known.into_iter().for_each(|known| known.orphaned_at = Some((now, None)));
                continue;
            }
            self.end(id, ErrorCode::OwnerGone);
            step.orphaned.insert(id);
        }
        self.client_mut(client)?.owns.clear();
        for lease in leases {
            self.drop_lease(lease);
        }
        // No owner is left to be told of the drains of allocations that had ended before.
        let order = self.client_orders.get(&client).copied();
        let mut done = Vec::new();
        for (id, allocation) in &mut self.allocations {
            if allocation.owner == client && Some(allocation.owner_order) == order {
                allocation.drain = Drain::No;
                done.push(*id);
            }
        }
        done.into_iter().for_each(|id| self.sweep(id));
        Ok(())
    }

    fn begin_register(&mut self, step: &mut Step, client: u32, request: u64, ask: Ask) -> Check {
        step.sender = Some(client);
        let sent = step.arrived.len() as u64;
        let deposits = match &ask {
            Ask::Register { deposits, .. } => deposits.clone(),
            _ => Vec::new(),
        };
        self.ask(client, request, ask)?;
        step.disconnect = Some((client, false));
        let state = self.client_mut(client)?;
        if sent > state.credits + state.credits_taken {
            step.must_fail = Some(ErrorCode::Protocol);
            step.uninvited = (0..step.arrived.len()).collect();
            return Ok(());
        }
        let domain = state.domain;
        let refused =
            deposits.iter().filter(|deposit| deposit.lane == Lane::Refused).count() as u64;
        let most = u64::from(self.config.max_refused_per_domain);
        if refused > 0 && self.refused_of(domain) + refused > most {
            step.refused_unread = true;
            step.uninvited = (0..step.arrived.len()).collect();
            return Ok(());
        }
        let state = self.client_mut(client)?;
        step.lacks_credits = sent > state.credits;
        if !step.lacks_credits {
            state.use_credits(sent);
        }
        for deposit in &deposits {
            let deposit = foretold(deposit).ok();
            let same = deposit.and_then(|deposit| self.same(step, client, &deposit));
            step.same.push(same);
            if let Some(deposit) = deposit.filter(|_| same.is_none()) {
                self.overlapped_end(step, client, &deposit);
            }
        }
        Ok(())
    }

    /// The live allocation that a deposit repeats.
    pub fn same(&self, step: &Step, client: u32, deposit: &Deposit) -> Option<AllocationId> {
        let owns = &self.clients.get(&client)?.owns;
        let same = |id: &&AllocationId| {
            self.live(**id).is_some_and(|known| {
                deposit.base != 0
                    && known.deposit.base == deposit.base
                    && known.deposit.facts.device == deposit.facts.device
                    && known.deposit.facts.gpu == deposit.facts.gpu
                    && known.deposit.facts.size_bytes == deposit.facts.size_bytes
                    && known.deposit.facts.owner_allocation_id == deposit.facts.owner_allocation_id
            })
        };
        owns.iter().filter(|id| !step.due_end.contains_key(id)).find(same).copied()
    }

    /// A deposit at an address in use shows that the earlier memory at this address is gone.
    fn overlapped_end(&self, step: &mut Step, client: u32, deposit: &Deposit) {
        let owns = self.clients.get(&client).map(|c| c.owns.as_slice()).unwrap_or_default();
        for id in owns {
            if self.live(*id).is_some_and(|old| overlaps(&old.deposit, deposit)) {
                step.due_end.insert(*id, ErrorCode::Stale);
            }
        }
    }

    fn unregister(&mut self, step: &mut Step, client: u32, id: AllocationId) -> Foretold {
        let due = step.due_end.contains_key(&id);
        let known = self.allocations.get_mut(&id).filter(|a| a.ended.is_none() && !due);
        let Some(allocation) = known else {
            return Foretold::OneOf(&[
                ErrorCode::Stale,
                ErrorCode::BadHandle,
                ErrorCode::OwnerGone,
            ]);
        };
        // The gone owner of an orphan may have had the number that this client has now.
        let order = self.client_orders.get(&client).copied();
        if allocation.owner != client || Some(allocation.owner_order) != order {
            return Foretold::Exactly(Status::error(ErrorCode::NotPermitted));
        }
        if allocation.count == 1 && step.due_end.len() == ENDS_PER_MESSAGE {
            return Foretold::Exactly(Status::error(ErrorCode::Again));
        }
        allocation.count -= 1;
        if allocation.count > 0 {
            return Foretold::Exactly(Status::OK);
        }
        step.due_end.insert(id, ErrorCode::Stale);
        Foretold::Ends(id)
    }

    fn begin_unsent(
        &mut self,
        client: u32,
        request: u64,
        grants: &[Granted],
        deadline: u64,
    ) -> Check<bool> {
        for grant in grants.iter().filter(|grant| grant.status.is_ok()) {
            ensure!(self.drop_lease(grant.lease.0).is_some(), "the world unsent no lease");
        }
        let most = self.config.max_parked_per_client as usize;
        let state = self.client_mut(client)?;
        let full = state.requests.len() >= most;
        let order = state.answered.remove(&request);
        let wanted = grants.iter().map(|grant| grant.wanted).collect();
        let ask = Ask::Acquire { wanted, deadline };
        let order = order.ok_or("the world sent back a request that was not answered")?;
        state.requests.insert(request, Request { ask, order, unsent: true });
        Ok(full)
    }

    fn ask(&mut self, client: u32, request: u64, ask: Ask) -> Check {
        self.orders += 1;
        let order = self.orders;
        let state = self.client_mut(client)?;
        let known = state.requests.insert(request, Request { ask, order, unsent: false });
        ensure!(known.is_none(), "the world used request {request} twice");
        Ok(())
    }

    fn one_way(
        &mut self,
        step: &mut Step,
        client: u32,
        request: Option<u64>,
        foretold: Vec<Foretold>,
    ) -> Check {
        if let Some(request) = request {
            self.ask(client, request, Ask::Lease)?;
            step.foretold = Some(foretold);
        }
        Ok(())
    }

    fn release_lease(&mut self, client: u32, lease: LeaseId) -> Foretold {
        if self.lease_of(client, lease).is_none() {
            return Foretold::Exactly(Status::error(ErrorCode::BadHandle));
        }
        self.drop_lease(lease.0);
        Foretold::Exactly(Status::OK)
    }

    fn map_lease(&mut self, client: u32, lease: LeaseId) -> Foretold {
        let Some(known) = self.lease_of(client, lease) else {
            return Foretold::Exactly(Status::error(ErrorCode::BadHandle));
        };
        if known.mapped {
            return Foretold::Exactly(Status::OK);
        }
        if !self.mapped_fits(client) {
            return Foretold::OneOf(&[ErrorCode::NoQuota]);
        }
        if let Some(known) = self.leases.get_mut(&lease.0) {
            known.mapped = true;
        }
        Foretold::Exactly(Status::OK)
    }

    fn mapped_fits(&self, client: u32) -> bool {
        let count = |account: Holder| {
            let holders = self.clients.iter();
            let holders = holders.filter(|(number, holder)| holder.is_of(**number, account));
            let leases = holders.flat_map(|(_, holder)| &holder.leases);
            leases.filter(|lease| self.leases.get(lease).is_some_and(|l| l.mapped)).count() as u64
        };
        self.accounts_of_client(client).into_iter().all(|account| {
            let cap = self.cap(account, fdbroker_protocol::Resource::MappedLeases);
            u128::from(count(account)) < cap
        })
    }

    fn begin_supply(&mut self, step: &mut Step, client: u32, supplies: &[Supply]) -> Check {
        let mut index = 0;
        for supply in supplies {
            let fd = supply.fd.ok().map(usize::from);
            for at in [fd, supply.refused_fd.map(|(at, _)| usize::from(at))].into_iter().flatten() {
                ensure!(at == index, "the world numbered the fds of a supply wrongly");
                index += 1;
            }
            self.supply_item(step, client, supply);
        }
        step.disconnect = Some((client, false));
        Ok(())
    }

    fn supply_item(&mut self, step: &mut Step, client: u32, supply: &Supply) {
        let asked = matches!(self.phase(client), Some(Phase::Active | Phase::Dropped))
            && self.live(supply.id).is_some_and(|allocation| {
                let recalling = self.recalling.contains_key(&supply.id);
                allocation.owner == client && (recalling || allocation.recalled_at.is_some())
            });
        if asked {
            self.recalling.remove(&supply.id);
        }
        let fds = [supply.fd.ok(), supply.refused_fd.map(|(at, _)| at)];
        let Some(allocation) = self.allocations.get_mut(&supply.id).filter(|_| asked) else {
            step.uninvited.extend(fds.into_iter().flatten().map(usize::from));
            return;
        };
        allocation.recalled_at = None;
        match supply.fd {
            Ok(at) => {
                let Facts { fd_offset, size_bytes, .. } = supply.facts;
                let same = supply.facts == allocation.deposit.facts.fd_offset(fd_offset)
                    && fd_offset.checked_add(size_bytes).is_some();
                if same {
                    allocation.deposit.claimed.facts = supply.facts;
                    allocation.deposit.file = supply.file;
                    allocation.refused = None;
                    step.must_store.insert(usize::from(at), supply.id);
                } else {
                    step.due_end.insert(supply.id, ErrorCode::Stale);
                }
            }
            Err(ErrorCode::Stale) => {
                step.due_end.insert(supply.id, ErrorCode::Stale);
            }
            Err(code) => allocation.refused = Some(code),
        }
    }

    pub fn phase(&self, client: u32) -> Option<Phase> {
        self.clients.get(&client).map(|state| state.phase)
    }
}

/// The deposit, or the error that refuses it in any state of the broker.
pub fn foretold(arrived: &Arrived) -> Result<Judged, Status> {
    let deposit = arrived.judged?;
    let ends =
        [deposit.base, deposit.facts.fd_offset].map(|at| at.checked_add(deposit.facts.size_bytes));
    if deposit.facts.size_bytes == 0 || ends.contains(&None) {
        return Err(ErrorCode::Protocol.into());
    }
    Ok(deposit)
}

/// All allocation ids that a slot can have.
pub fn slot_range(slot: u32) -> std::ops::RangeInclusive<AllocationId> {
    AllocationId { slot, generation: 0 }..=AllocationId { slot, generation: u32::MAX }
}

/// Whether a new deposit of the same owner shows that the old one's memory is gone.
pub fn overlaps(old: &Deposit, new: &Deposit) -> bool {
    let end = |d: &Deposit| u128::from(d.base) + u128::from(d.facts.size_bytes);
    old.base != 0
        && new.base != 0
        && old.facts.device == new.facts.device
        && u128::from(old.base) < end(new)
        && u128::from(new.base) < end(old)
}
