//! Acquire: what is ready is granted, what is evicted is recalled, what is hopeless is said. Must
//! never let a newcomer take room that an earlier request of its domain waits for.

use std::sync::Arc;

use crate::api::{Asker, ClientId, Effect, Granted, Item, LeaseId, Now, Wanted};
use crate::books::{Blocked, Charge, FOR_HELD, FOR_LEASE, Wait, Wish};
use crate::core::Core;
use crate::limits::PLACES_AT_ONCE;
use crate::moves::Step;
use crate::requests::turn::{Attempt, Turn};
use fdbroker_protocol::{ErrorCode, Resource, Status};

impl Core {
    pub(crate) fn acquire(&mut self, by: Asker, wanted: &[Wanted], deadline: Now, step: &mut Step) {
        let client = by.client;
        let attempt = Attempt::new(by, self.books.arrival(), deadline);
        let wait = if self.books.client_mut(client.0).sendable {
            self.try_acquire(attempt, wanted, step)
        } else {
            Some(Wait::Reader)
        };
        let Some(wait) = wait else { return };
        if deadline <= step.now {
            self.answer_waiting(attempt, wanted, wait, step);
            return self.books.give_promises_back(client, wanted);
        }
        if let Err(status) = self.park(attempt, Wish::Acquire(wanted.into()), wait, step) {
            self.books.refuse(by, status, step);
            self.books.give_promises_back(client, wanted);
        }
    }

    /// Answers the request if any of its items can be answered; else says what it waits for, and
    /// has started the recalls or evictions that will help.
    pub(crate) fn try_acquire(
        &mut self,
        attempt: Attempt,
        wanted: &[Wanted],
        step: &mut Step,
    ) -> Option<Wait> {
        let Attempt { by: Asker { client, request }, seq, deadline, turn, .. } = attempt;
        let begin = step.fx.granted.len();
        let mut blocked = self.ahead(turn, client.0, FOR_LEASE);
        let (mut any, mut short_of, mut fds) = (false, 0, 0);
        // Grants change none of the items.
        step.fx.items.clear();
        step.fx.items.extend(wanted.iter().map(|item| self.books.item(client, *item)));
        let charged = if blocked.is_none() { self.charge_ready(client, &step.fx.items) } else { 0 };
        for (at, item) in wanted.iter().enumerate() {
            let granted = match step.fx.items[at] {
                Item::Final(code) => {
                    Granted::refused(*item, self.books.naming_owner(client, *item, code.into()))
                }
                Item::Ready(slot) if fds < self.books.most_granted && blocked.is_none() => {
                    let lease = if fds < charged {
                        Ok(self.books.charged_lease(client.0, slot, step))
                    } else {
                        self.books.lease(client.0, slot, step)
                    };
                    match lease {
                        Ok(lease) => {
                            fds += 1;
                            self.books.allocations.mark_used(slot, step.now);
                            self.books.allocations.granted(slot, *item, lease)
                        }
                        Err(full) => {
                            blocked = Some(full);
                            Granted::refused(*item, ErrorCode::Again.into())
                        }
                    }
                }
                Item::Ready(_) | Item::Evicted(_) | Item::Recalling(_) | Item::Reserved(_) => {
                    Granted::refused(*item, ErrorCode::Again.into())
                }
            };
            short_of += usize::from(blocked.is_some() && granted.lease == LeaseId(0));
            any |= granted.status != Status::error(ErrorCode::Again);
            step.fx.granted.push(granted);
        }
        let evicted = step.fx.items.iter().any(|item| matches!(item, Item::Evicted(_)));
        // An empty request has nothing to wait for.
        if !any && !wanted.is_empty() {
            step.fx.granted.truncate(begin);
            self.books.set_aside(wanted, step);
            let wait = self.wait_for(attempt, wanted, blocked, step);
            self.books.put_back(step);
            return Some(wait);
        }
        match blocked {
            None if evicted && self.books.rooms.is_empty() => {
                self.recall_ahead(client, wanted, step);
            }
            // What did not fit will be asked for again: makes the room meanwhile.
            Some(full) if self.books.may_make_room(full) => {
                self.books.set_aside(wanted, step);
                self.books.evict_for(full, short_of, step);
                self.books.put_back(step);
            }
            _ => {}
        }
        let range = begin..step.fx.granted.len();
        step.fx.list.push(Effect::Granted { client, request, range, deadline, seq });
        None
    }

    /// Charges what is ready of a request of several, as far as it is granted now, in one go; how
    /// many. One by one costs as much as all the rest of a grant. 0: not all of them fit.
    fn charge_ready(&mut self, client: ClientId, items: &[Item]) -> usize {
        if items.len() < 2 {
            return 0;
        }
        let is_ready = |item: &&Item| matches!(item, Item::Ready(_));
        let ready = items.iter().filter(is_ready).count().min(self.books.most_granted);
        let charge = Charge(Resource::OpenLeases, ready as u64);
        if self.books.charge_share(client.0, charge).is_ok() { ready } else { 0 }
    }

    /// Recalls, from free room alone, what the client will ask for again.
    fn recall_ahead(&mut self, client: ClientId, wanted: &[Wanted], step: &mut Step) {
        for item in wanted {
            if let Item::Evicted(slot) = self.books.item(client, *item)
                && self.books.start_recall(slot, None, step).is_err()
            {
                return;
            }
        }
    }

    /// None of the items can be answered: starts recalls, or makes room, and says what to wait for.
    fn wait_for(
        &mut self,
        Attempt { by: Asker { client, .. }, turn, first, .. }: Attempt,
        wanted: &[Wanted],
        blocked: Option<Blocked>,
        step: &mut Step,
    ) -> Wait {
        let mut recalling = false;
        let mut ready: Option<u32> = None;
        let mut several_ready = false;
        let mut full: Option<Blocked> = None;
        let mut may_start = true;
        step.also_blocked.clear();
        for item in wanted {
            match self.books.item(client, *item) {
                Item::Recalling(_) | Item::Reserved(_) => recalling = true,
                // What stops all of them stops the rest too; one that is too large, or whose owner
                // is full, does not.
                Item::Evicted(_) if !may_start => {}
                Item::Evicted(slot) => {
                    let started = match self.ahead_of_recall(turn, client.0, slot) {
                        Some(ahead) => Err(ahead),
                        None => self.books.start_recall(slot, Some(client.0), step),
                    };
                    match started {
                        Ok(()) => recalling = true,
                        Err(blocked) if full.is_none() => {
                            // What keeps the client from any further lease.
                            let ahead = self.ahead(turn, client.0, FOR_LEASE);
                            let no_lease = ahead.or_else(|| self.lease_blocked(client.0));
                            step.also_blocked.extend(no_lease);
                            may_start = no_lease.is_none() && !blocked.stops_every_recall();
                            full = Some(blocked);
                        }
                        Err(blocked) => step.also_blocked.push(blocked),
                    }
                }
                Item::Ready(slot) => several_ready |= *ready.get_or_insert(slot) != slot,
                Item::Final(_) => {}
            }
        }
        let in_the_way = match (ready.is_some(), recalling) {
            (true, _) => blocked,
            (false, true) => return Wait::Recall,
            (false, false) => full,
        };
        let Some(in_the_way) = in_the_way else { return Wait::Recall };
        // For all items: the others are asked for again as soon as one is granted. A grant needs
        // one place; a recall its own and, where leases count too, that of the lease to come. Bytes
        // are free at once: a recall has closed what it needs.
        let for_lease = FOR_LEASE.contains(&in_the_way.resource);
        let short_of = match ready {
            // Those of one file.
            _ if in_the_way.resource == Resource::HeldBytes => PLACES_AT_ONCE,
            None if for_lease => wanted.len() * 2,
            _ => wanted.len(),
        };
        let short_of = short_of.min(PLACES_AT_ONCE);
        if first || self.books.may_make_room(in_the_way) {
            let evicted = self.books.evict_for(in_the_way, short_of, step);
            if evicted == 0 && several_ready {
                // Nothing but what it wants itself can go: one of them makes room for another.
                self.books.put_back(step);
                self.books.evict_for(in_the_way, 1, step);
            }
        }
        Wait::Room(in_the_way)
    }

    /// The account that has no room for another lease of a client.
    fn lease_blocked(&self, client: u32) -> Option<Blocked> {
        let lease = Charge(Resource::OpenLeases, 1);
        self.books.share_blocked(client, 1).or_else(|| self.books.blocked(client, lease))
    }

    fn ahead_of_recall(&mut self, turn: Turn, client: u32, slot: u32) -> Option<Blocked> {
        let owner = self.books.allocations[slot].owner;
        self.ahead(turn, owner, FOR_HELD).or_else(|| self.ahead(turn, client, FOR_LEASE))
    }

    /// What is in the way of a parked request now: a cap, or one that others before it wait for.
    pub(crate) fn in_the_way(&mut self, client: ClientId, wanted: &[Wanted]) -> Option<Blocked> {
        let (mut ahead, mut fits) = (None, false);
        for item in wanted {
            let full = match self.books.item(client, *item) {
                Item::Ready(_) => {
                    ahead = ahead.or_else(|| self.ahead(Turn::Last, client.0, FOR_LEASE));
                    self.lease_blocked(client.0)
                }
                Item::Evicted(slot) => {
                    ahead = ahead.or_else(|| self.ahead_of_recall(Turn::Last, client.0, slot));
                    self.books.recall_blocked(slot, client.0)
                }
                Item::Final(_) | Item::Recalling(_) | Item::Reserved(_) => continue,
            };
            match full {
                Some(full) => return Some(full),
                None => fits = true,
            }
        }
        ahead.filter(|_| fits)
    }

    /// Answers every item of a request that waits no longer.
    pub(crate) fn answer_waiting(
        &mut self,
        Attempt { by: Asker { client, request }, seq, deadline, .. }: Attempt,
        wanted: &[Wanted],
        wait: Wait,
        step: &mut Step,
    ) {
        let begin = step.fx.granted.len();
        let (again, pending) = (ErrorCode::Again.into(), self.why_not(client.0, wait));
        for item in wanted {
            let status = match self.books.item(client, *item) {
                Item::Final(code) => self.books.naming_owner(client, *item, code.into()),
                Item::Recalling(_) | Item::Reserved(_) => again,
                Item::Ready(_) | Item::Evicted(_) => pending,
            };
            step.fx.granted.push(Granted::refused(*item, status));
        }
        let range = begin..step.fx.granted.len();
        step.fx.list.push(Effect::Granted { client, request, range, deadline, seq });
    }

    /// A grant could not be sent: undoes its leases and puts the request back where it was.
    pub(crate) fn unsent(&mut self, attempt: Attempt, grants: &[Granted], step: &mut Step) {
        let client = attempt.by.client;
        if self.books.client(client).is_none() {
            return;
        }
        for grant in grants.iter().filter(|grant| grant.status.is_ok()) {
            if let Some(lease) = self.books.leases.find(client, grant.lease) {
                self.books.end_lease(lease, step);
                self.books.counters.grants -= 1;
            }
        }
        let wanted: Arc<[Wanted]> = grants.iter().map(|grant| grant.wanted).collect();
        let wish = Wish::Acquire(Arc::clone(&wanted));
        if self.park(attempt, wish, Wait::Reader, step).is_err() {
            // Nowhere to wait: it asks again.
            self.answer_waiting(attempt, &wanted, Wait::Reader, step);
        }
    }
}
