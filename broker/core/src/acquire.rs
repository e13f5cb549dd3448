//! Acquire: what is ready is granted, what is evicted is recalled, what is hopeless is said. Must never
//! let a newcomer take room that an earlier request of its domain waits for.

use crate::Core;
use crate::api::{ClientId, Effect, Effects, Granted, LeaseId, Now, RequestId, Wanted};
use crate::ledger::{Blocked, Holder};
use crate::state::{Parked, State, Wait, Wish};
use fdbroker_protocol::{ErrorCode, MemoryKind, Resource, Scope, Share, Status};

/// What one item of an acquire comes to.
enum Item {
    /// An error that waiting does not mend.
    Final(ErrorCode),
    /// The broker holds the fd.
    Ready(u32),
    /// The owner must be asked.
    Evicted(u32),
    /// The owner is being asked.
    Recalling(u32),
}

/// What a request may take without overtaking: what stands in the way otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Turn {
    /// Of places for a lease.
    pub lease: Option<Blocked>,
    /// Of places and bytes for a recall, and of those for the lease to come.
    pub recall: Option<Blocked>,
}

impl Turn {
    /// After a request that is blocked like this: what the later ones of `domain` may not take.
    pub fn limit(&mut self, blocked: Blocked, domain: u32) {
        let concerns = match blocked.account {
            Holder::Node => true,
            Holder::Domain(of) => of == domain,
            Holder::Client(_) => false,
        };
        if concerns {
            self.recall = self.recall.or(Some(blocked));
            if !blocked.is_for_held() {
                self.lease = self.lease.or(Some(blocked));
            }
        }
    }
}

/// A request being looked at.
#[derive(Clone, Copy)]
pub(crate) struct Attempt<'a> {
    /// Whose.
    pub client: ClientId,
    /// The client's number for it.
    pub request: RequestId,
    /// Arrival number.
    pub seq: u64,
    /// When it is answered in any case.
    pub deadline: Now,
    /// Its items.
    pub wanted: &'a [Wanted],
    /// What it may take.
    pub turn: Turn,
    /// How often it has been looked at: the first time it starts the evictions it is short of.
    pub first: bool,
}

impl Core {
    pub(crate) fn acquire(
        &mut self,
        now: Now,
        client: ClientId,
        request: RequestId,
        wanted: &[Wanted],
        deadline: Now,
        fx: &mut Effects,
    ) {
        let seq = self.arrival();
        let (turn, first) = (self.turn_of(client.0), true);
        let attempt = Attempt { client, request, seq, deadline, wanted, turn, first };
        let wait = match self.client_mut(client.0).sendable {
            true => self.try_acquire(now, attempt, fx),
            false => Some(Wait::Reader),
        };
        let Some(wait) = wait else { return };
        if deadline <= now {
            return self.answer_waiting(attempt, wait, fx);
        }
        let most = self.config.max_parked_per_client;
        if self.client_mut(client.0).parked.len() >= most as usize {
            let (resource, scope) = (Resource::ParkedRequests, Scope::Client);
            let status = Self::no_quota_limit(resource, scope, most.into());
            self.counters.refusals += 1;
            fx.list.push(Effect::Failed { client, request, status });
            self.leave_recalls(seq, wanted);
            return;
        }
        let wish = Wish::Acquire(wanted.into());
        self.park(seq, Parked { client, request, deadline, wish, wait, supplied: false });
    }

    /// The next arrival number.
    pub(crate) fn arrival(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    fn item(&self, client: ClientId, wanted: Wanted) -> Item {
        let id = match wanted {
            Ok(id) => id,
            Err(code) => return Item::Final(code),
        };
        let Some(allocation) = self.allocations.get(id.slot, id.generation) else {
            return Item::Final(ErrorCode::Stale);
        };
        let domain = self.clients[client.0 as usize].as_deref().map(|client| client.domain);
        if allocation.share == Share::Uid && Some(allocation.domain) != domain {
            return Item::Final(ErrorCode::NotPermitted);
        }
        if let State::Ended(code) = allocation.state {
            return Item::Final(code);
        }
        match (allocation.state, self.owner_error(allocation.owner)) {
            (_, Some(ErrorCode::OwnerGone)) => Item::Final(ErrorCode::OwnerGone),
            (State::Held | State::Resident, _) => Item::Ready(id.slot),
            (_, Some(code)) => Item::Final(code),
            (State::Recalling, None) => Item::Recalling(id.slot),
            (_, None) => Item::Evicted(id.slot),
        }
    }

    /// Whether an item of a parked request needs waiting for no more.
    pub(crate) fn has_ended_item(&self, seq: u64) -> bool {
        let parked = &self.parked[&seq];
        let Wish::Acquire(wanted) = &parked.wish else { return false };
        wanted.iter().any(|item| matches!(self.item(parked.client, *item), Item::Final(_)))
    }

    /// Answers the request if any of its items can be answered; else says what it waits for, and
    /// has started the recalls or evictions that will help.
    pub(crate) fn try_acquire(
        &mut self,
        now: Now,
        attempt: Attempt<'_>,
        fx: &mut Effects,
    ) -> Option<Wait> {
        let Attempt { client, wanted, turn, .. } = attempt;
        let begin = fx.granted.len();
        let mut blocked = turn.lease;
        let (mut any, mut short_of) = (false, 0);
        for item in wanted {
            let granted = match self.item(client, *item) {
                Item::Final(code) => Granted::refused(*item, code.into()),
                Item::Ready(slot) if blocked.is_none() => match self.lease(now, client.0, slot) {
                    Ok(lease) => self.granted(*item, slot, lease),
                    Err(full) => {
                        blocked = Some(full);
                        Granted::refused(*item, ErrorCode::Again.into())
                    }
                },
                _ => Granted::refused(*item, ErrorCode::Again.into()),
            };
            short_of += usize::from(blocked.is_some() && granted.lease == LeaseId(0));
            any |= granted.status != Status::error(ErrorCode::Again);
            fx.granted.push(granted);
        }
        // An empty request has nothing to wait for.
        if !any && !wanted.is_empty() {
            fx.granted.truncate(begin);
            return Some(self.wait_for(now, attempt, blocked, fx));
        }
        match blocked {
            None if turn.recall.is_none() && self.rooms.is_empty() => {
                self.recall_ahead(now, client, wanted, fx);
            }
            // What did not fit will be asked for again: makes the room meanwhile.
            Some(full) if self.closing_in(full.account) == 0 => {
                self.evict_for(full, short_of, wanted, fx);
            }
            _ => {}
        }
        let Attempt { request, deadline, seq, .. } = attempt;
        let range = begin..fx.granted.len();
        fx.list.push(Effect::Granted { client, request, range, deadline, seq });
        None
    }

    /// Recalls, from free room alone, what the client will ask for again.
    fn recall_ahead(&mut self, now: Now, client: ClientId, wanted: &[Wanted], fx: &mut Effects) {
        for item in wanted {
            if let Item::Evicted(slot) = self.item(client, *item)
                && self.start_recall(now, slot, None, wanted, fx).is_err()
            {
                return;
            }
        }
    }

    /// None of the items can be answered: starts recalls, or makes room, and says what to wait for.
    fn wait_for(
        &mut self,
        now: Now,
        attempt: Attempt<'_>,
        blocked: Option<Blocked>,
        fx: &mut Effects,
    ) -> Wait {
        let Attempt { client, seq, wanted, turn, first, .. } = attempt;
        let mut recalling = false;
        let mut any_ready = false;
        let mut full = turn.recall;
        for item in wanted {
            match self.item(client, *item) {
                Item::Recalling(slot) => {
                    self.join_recall(now, slot, seq, client);
                    recalling = true;
                }
                Item::Evicted(slot) if full.is_none() => {
                    match self.start_recall(now, slot, Some(client.0), wanted, fx) {
                        Ok(()) => {
                            self.join_recall(now, slot, seq, client);
                            recalling = true;
                        }
                        Err(blocked) => full = Some(blocked),
                    }
                }
                Item::Ready(_) => any_ready = true,
                _ => {}
            }
        }
        let in_the_way = match (any_ready, recalling) {
            (true, _) => blocked,
            (false, true) => return Wait::Recall,
            (false, false) => full,
        };
        let Some(in_the_way) = in_the_way else { return Wait::Recall };
        // A grant needs one place; a recall its own and, where leases count too, that of the lease to come.
        let short_of = if any_ready || in_the_way.is_for_held() { 1 } else { 2 };
        if first || self.closing_in(in_the_way.account) == 0 {
            self.evict_for(in_the_way, short_of, wanted, fx);
        }
        Wait::Room(in_the_way)
    }

    fn granted(&mut self, wanted: Wanted, slot: u32, lease: LeaseId) -> Granted {
        self.lru_touch(slot);
        let allocation = &self.allocations[slot];
        Granted {
            wanted,
            status: Status::OK,
            lease,
            kind: allocation.kind,
            size_bytes: allocation.size_bytes,
            fd_offset: allocation.fd_offset,
            device: allocation.device,
            owner_allocation_id: allocation.owner_allocation_id,
            has_driver_data: allocation.has_driver_data,
        }
    }

    /// What a newcomer of this client may take without overtaking who waits already.
    pub(crate) fn turn_of(&self, client: u32) -> Turn {
        let Some(client) = self.clients[client as usize].as_deref() else { return Turn::default() };
        let queues = [self.node_blocked, self.domains[client.domain].blocked];
        if queues.iter().all(|queue| queue.is_empty()) {
            return Turn::default();
        }
        let mut turn = Turn::default();
        for (_, seq) in &self.rooms {
            if let Wait::Room(blocked) = self.parked[seq].wait {
                turn.limit(blocked, client.domain);
            }
            if turn.lease.is_some() {
                break;
            }
        }
        turn
    }

    /// Answers every item of a request that waits no longer.
    pub(crate) fn answer_waiting(&mut self, attempt: Attempt<'_>, wait: Wait, fx: &mut Effects) {
        let Attempt { client, request, seq, deadline, wanted, .. } = attempt;
        let begin = fx.granted.len();
        let again = Status::error(ErrorCode::Again);
        let pending = match wait {
            Wait::Room(blocked) => {
                self.counters.refusals += 1;
                self.no_quota(blocked)
            }
            Wait::Recall | Wait::Reader => again,
        };
        for item in wanted {
            let status = match self.item(client, *item) {
                Item::Final(code) => code.into(),
                Item::Recalling(_) => again,
                Item::Ready(_) | Item::Evicted(_) => pending,
            };
            fx.granted.push(Granted::refused(*item, status));
        }
        self.leave_recalls(seq, wanted);
        let range = begin..fx.granted.len();
        fx.list.push(Effect::Granted { client, request, range, deadline, seq });
    }

    /// A grant could not be sent: undoes its leases and puts the request back where it was.
    pub(crate) fn unsent(
        &mut self,
        client: ClientId,
        request: RequestId,
        grants: &[Granted],
        deadline: Now,
        seq: u64,
    ) {
        if self.client(client).is_none() {
            return;
        }
        for grant in grants.iter().filter(|grant| grant.status.is_ok()) {
            let (slot, generation) = (grant.lease.0 as u32, (grant.lease.0 >> 32) as u32);
            if self.leases.get(slot, generation).is_some_and(|lease| lease.client == client.0) {
                self.end_lease(slot);
                self.counters.grants -= 1;
            }
        }
        let wish = Wish::Acquire(grants.iter().map(|grant| grant.wanted).collect());
        let (wait, supplied) = (Wait::Reader, false);
        self.park(seq, Parked { client, request, deadline, wish, wait, supplied });
    }
}

impl Granted {
    /// An item that gets no fd, and why.
    pub fn refused(wanted: Wanted, status: Status) -> Self {
        Granted {
            wanted,
            status,
            lease: LeaseId(0),
            kind: MemoryKind::Memfd,
            size_bytes: 0,
            fd_offset: 0,
            device: 0,
            owner_allocation_id: 0,
            has_driver_data: false,
        }
    }
}
