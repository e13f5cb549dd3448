//! Parked requests: who waits for what, and when they are given up. Must
//! never serve a later request of a domain with what an earlier one of it waits for.

use crate::Core;
use crate::acquire::{Attempt, Turn};
use crate::api::{ClientId, Effect, Effects, Granted, Now, RequestId};
use crate::continuity::Grace;
use crate::ledger::Charge;
use crate::limits::{PARKED_ITEMS_PER_STEP, TIMERS_PER_STEP};
use crate::objects::Asked;
use crate::parked::{Parked, Wait, Wish};
use crate::queues::Fate;
use crate::timers::Timer;
use fdbroker_protocol::{ErrorCode, Resource};

/// What a client is charged with for each of its requests that waits.
const PARKED: Charge = Charge(Resource::ParkedRequests, 1);

/// And with the items of each.
pub(crate) fn items_of(wish: &Wish) -> Charge {
    let items = match wish {
        Wish::Acquire(wanted) => wanted.len(),
        Wish::Get(get) => get.names.len(),
        Wish::Credits(_) | Wish::Hello(_) => 0,
    };
    Charge(Resource::ParkedItems, items as u64)
}

impl Core {
    /// Parks a request, until it is served or its deadline passes.
    pub(crate) fn park(&mut self, seq: u64, parked: Parked) {
        let (client, deadline) = (parked.client.0, parked.deadline);
        self.timers.set(deadline, Timer::Parked(seq));
        self.client_mut(client).parked.push(seq);
        self.parked.insert(seq, parked);
        self.counters.requests_parked += 1;
        self.charge_uncapped(client, PARKED);
        self.enter_rooms(seq);
        self.place_items(self.now, seq);
        self.listen(seq);
    }

    /// Takes a parked request away, with all that it waited for.
    pub(crate) fn unpark(&mut self, seq: u64) -> Option<Parked> {
        let nodes = std::mem::take(&mut self.parked.get_mut(&seq)?.nodes);
        self.leave_queues(&nodes);
        let wait = self.parked[&seq].wait;
        self.stand_down(seq);
        let mut parked = Parked { wait, ..self.parked.remove(&seq)? };
        self.client_mut(parked.client.0).parked.retain(|other| *other != seq);
        self.undo_charge(parked.client.0, PARKED);
        self.undo_charge(parked.client.0, items_of(&parked.wish));
        if let Wish::Get(get) = &mut parked.wish {
            self.forget_get(seq, parked.client.0, get);
        }
        Some(parked)
    }

    /// Looks at a parked request again. `turn`: what it may take. Says what it still waits for; `None`
    /// when it has been answered.
    pub(crate) fn retry(
        &mut self,
        now: Now,
        seq: u64,
        turn: Turn,
        fx: &mut Effects,
    ) -> Option<Wait> {
        if self.is_answer_certain(seq) {
            self.answer_ended_item(seq, fx);
            return None;
        }
        let parked = self.parked.get_mut(&seq)?;
        let (client, request, deadline) = (parked.client, parked.request, parked.deadline);
        self.also_blocked.clear();
        // Put back below: the items are borrowed while the rest of the core changes.
        let mut wish = std::mem::replace(&mut parked.wish, Wish::Credits(0));
        let wait = match &mut wish {
            Wish::Credits(wanted) => self.try_credits(client, request, *wanted, turn, fx),
            Wish::Hello(own) => self.retry_hello(client, request, *own, turn, fx),
            Wish::Acquire(wanted) if self.client_mut(client.0).sendable => {
                let first = false;
                let attempt = Attempt { client, request, seq, deadline, wanted, turn, first };
                self.try_acquire(attempt, fx)
            }
            Wish::Get(get) => {
                let (scope, first) = (get.scope, false);
                let asked = Asked { client, request, scope, turn, first };
                self.retry_get(seq, asked, get, fx)
            }
            // It asks anew when its client reads.
            Wish::Acquire(_) => Some(Wait::Reader),
        };
        let parked = self.parked.get_mut(&seq)?;
        parked.wish = wish;
        let supplied = parked.supplied;
        match wait {
            None => {
                self.unpark(seq);
            }
            Some(wait) => {
                self.wait_anew(seq, wait, supplied);
                self.place_items(now, seq);
                self.listen(seq);
            }
        }
        wait
    }

    /// A parked request waits for something else now, or for the same still.
    pub(crate) fn wait_anew(&mut self, seq: u64, wait: Wait, supplied: bool) {
        let parked = &self.parked[&seq];
        if (parked.wait, parked.supplied) == (wait, supplied) {
            return;
        }
        let is_ready = self.look_no_more(seq);
        self.leave_rooms(seq);
        let parked = self.parked.get_mut(&seq).expect("it is parked");
        (parked.wait, parked.supplied) = (wait, supplied);
        self.enter_rooms(seq);
        if is_ready {
            self.look_soon(seq);
        }
    }

    /// The client of a parked request is gone: nothing is kept back for it, and it stands before nobody. Its items leave their
    /// queues in the client's teardown, or when their turn comes.
    pub(crate) fn stand_down(&mut self, seq: u64) {
        self.wait_anew(seq, Wait::Recall, false);
        self.listen(seq);
        self.look_no_more(seq);
        self.timers.cancel(self.parked[&seq].deadline, Timer::Parked(seq));
    }

    /// The client of a parked request does not read: it waits for that, and does not stand before others.
    pub(crate) fn wait_for_reader(&mut self, seq: u64) {
        let parked = &self.parked[&seq];
        if let (Wish::Acquire(_) | Wish::Get(_), Wait::Room(_)) = (&parked.wish, parked.wait) {
            let supplied = parked.supplied;
            self.wait_anew(seq, Wait::Reader, supplied);
            self.listen(seq);
            if supplied {
                // Then nothing is kept back for it any more.
                self.look_soon(seq);
            }
        }
    }

    // --- ends of waiting ----------------------------------------------------------------------------

    pub(crate) fn cancel(&mut self, client: ClientId, request: RequestId, fx: &mut Effects) {
        let Some(record) = self.clients.find(client.0) else {
            return;
        };
        let found = record.parked.iter().find(|seq| self.parked[seq].request == request).copied();
        if let Some(seq) = found {
            self.unpark(seq);
            let status = ErrorCode::Cancelled.into();
            fx.list.push(Effect::Failed { client, request, status });
        }
    }

    /// Whether one of its items has come to an end that a parked request is answered with.
    fn is_answer_certain(&self, seq: u64) -> bool {
        let Some(parked) = self.parked.get(&seq) else { return false };
        let is_answer = |node: &u32| matches!(self.waiting.fate(*node), Some(Fate::Answer(..)));
        parked.nodes.iter().any(is_answer)
    }

    /// Answers a request of which an item has come to an end, out of its turn: nothing is granted, so that it overtakes
    /// nobody; what it may still have it asks for again.
    pub(crate) fn answer_ended_item(&mut self, seq: u64, fx: &mut Effects) {
        let Some(parked) = self.parked.get(&seq) else { return };
        let (client, request, deadline) = (parked.client, parked.request, parked.deadline);
        let Wish::Acquire(wanted) = &parked.wish else { unreachable!("only acquires have items") };
        let begin = fx.granted.len();
        for (item, node) in wanted.iter().zip(&parked.nodes) {
            let by_state = || self.final_error(client, *item).unwrap_or(ErrorCode::Again).into();
            let status = self.answer_of(*node, *item).unwrap_or_else(by_state);
            let status = self.naming_owner(client, *item, status);
            fx.granted.push(Granted::refused(*item, status));
        }
        self.unpark(seq);
        let range = begin..fx.granted.len();
        fx.list.push(Effect::Granted { client, request, range, deadline, seq });
    }

    /// Does what is due.
    pub(crate) fn expire(&mut self, now: Now, fx: &mut Effects) {
        for _ in 0..TIMERS_PER_STEP {
            if fx.granted.len() >= PARKED_ITEMS_PER_STEP {
                return;
            }
            let Some(timer) = self.timers.pop_due(now) else { return };
            match timer {
                Timer::Recall(slot, generation) => self.recall_overdue(slot, generation),
                Timer::Parked(seq) => self.deadline_passed(seq, fx),
                Timer::Keep(slot, generation) => self.end_orphan(slot, generation, fx),
                Timer::Object(group, generation) => self.object_overdue(group, generation),
                Timer::Grace => self.continuity.set_grace(Grace::Ending(0)),
            }
        }
    }

    fn deadline_passed(&mut self, seq: u64, fx: &mut Effects) {
        if self.is_answer_certain(seq) {
            return self.answer_ended_item(seq, fx);
        }
        let Some(parked) = self.unpark(seq) else { return };
        let Parked { client, request, deadline, wish, wait, .. } = parked;
        match wish {
            Wish::Acquire(wanted) => {
                let (turn, first) = (Turn::Last, false);
                let wanted = &wanted[..];
                let attempt = Attempt { client, request, seq, deadline, wanted, turn, first };
                // What stood in the way when it was last looked at may have gone since.
                let wait = match wait {
                    Wait::Room(_) => {
                        self.in_the_way(client, wanted).map_or(Wait::Recall, Wait::Room)
                    }
                    wait => wait,
                };
                self.answer_waiting(attempt, wait, fx);
            }
            Wish::Credits(wanted) => {
                // The room may have come in this very moment.
                if self.try_credits(client, request, wanted, Turn::Last, fx).is_none() {
                    return;
                }
                let status = self.no_credit(client);
                self.refuse(client, request, status, fx);
            }
            Wish::Hello(own) => self.hello_too_late(client, request, own, fx),
            Wish::Get(get) => self.get_too_late(client, request, &get, fx),
        }
    }
}
