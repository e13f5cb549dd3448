//! Requests are parked, and their items enter queues and leave them. Must never keep an fd for a
//! request that does not wait for it.

use crate::api::{ClientId, Item, NONE, Wanted};
use crate::books::objects::get::Standing;
use crate::books::{
    Books, Fate, PARKED, PROMISED_LEASE, Parked, Recall, State, Timer, Wait, Wish, items_of,
};
use crate::moves::Step;
use fdbroker_protocol::ErrorCode;

impl Books {
    /// Parks a request, until it is served or its deadline passes.
    pub(crate) fn park(&mut self, seq: u64, parked: Parked, step: &mut Step) {
        let (client, deadline) = (parked.by.client.0, parked.deadline);
        self.timers.set(deadline, Timer::Parked(seq));
        self.client_mut(client).parked.push(seq);
        self.parked.insert(seq, parked);
        self.counters.requests_parked += 1;
        self.ledger.add(self.scope_of(client), PARKED);
        self.enter_rooms(seq);
        self.place_items(seq, step);
        self.listen(seq, step);
    }

    /// Takes a parked request away, with all that it waited for.
    pub(crate) fn unpark(&mut self, seq: u64, step: &mut Step) -> Option<Parked> {
        let nodes = std::mem::take(&mut self.parked.get_mut(&seq)?.nodes);
        nodes.iter().for_each(|node| self.leave_queue(*node));
        let wait = self.parked[&seq].wait;
        self.stand_down(seq, step);
        self.stand_at(seq, Standing::Nowhere);
        let parked = Parked { wait, ..self.parked.remove(&seq)? };
        self.client_mut(parked.by.client.0).parked.retain(|other| *other != seq);
        self.undo_charge(parked.by.client.0, PARKED);
        self.undo_charge(parked.by.client.0, items_of(&parked.wish));
        if let Wish::Get(get, _) = &parked.wish {
            let domain = self.clients[parked.by.client.0].domain;
            self.release_objects(domain, &[get.charge()]);
        }
        Some(parked)
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

    /// The client of a parked request is gone: nothing is kept back for it, and it stands before
    /// nobody. Its items leave their queues in the client's teardown, or when their turn comes.
    pub(crate) fn stand_down(&mut self, seq: u64, step: &mut Step) {
        self.wait_anew(seq, Wait::Recall, false);
        self.listen(seq, step);
        self.look_no_more(seq);
        self.timers.cancel(self.parked[&seq].deadline, Timer::Parked(seq));
    }

    /// Puts every item of a parked request into the queue that it belongs in now. Those that stay
    /// keep their places.
    pub(crate) fn place_items(&mut self, seq: u64, step: &mut Step) {
        let Some(parked) = self.parked.get_mut(&seq) else { return };
        let (client, wait) = (parked.by.client, parked.wait);
        let Wish::Acquire(wanted) = parked.wish.clone() else { return };
        let mut nodes = std::mem::take(&mut parked.nodes);
        if nodes.is_empty() {
            nodes = vec![NONE; wanted.len()].into();
        }
        for (item, node) in wanted.iter().zip(&mut nodes) {
            let is = self.waiting.fate(*node);
            let to_be = self.fate_to_be(client, *item, is, wait != Wait::Reader);
            if is != to_be {
                // Entered first: an fd that is kept back stays kept back.
                let entered = to_be.map_or(NONE, |fate| self.enter_queue(seq, client, fate, step));
                self.leave_queue(std::mem::replace(node, entered));
            }
        }
        let pinned = |node: &u32| matches!(self.waiting.fate(*node), Some(Fate::Pinned(_)));
        let supplied = nodes.iter().any(pinned);
        self.parked.get_mut(&seq).expect("it was just looked at").nodes = nodes;
        self.wait_anew(seq, wait, supplied);
    }

    /// What an item of a parked request waits for. A client that does not read has nothing kept
    /// back for it.
    fn fate_to_be(
        &self,
        client: ClientId,
        wanted: Wanted,
        is: Option<Fate>,
        reads: bool,
    ) -> Option<Fate> {
        if let Some(Fate::Answer(..)) = is {
            return is;
        }
        let id = wanted.ok()?;
        self.allocations.find(id).filter(|found| found.is_live())?;
        let was_recalled = is == Some(Fate::Recalled(id.slot)) || is == Some(Fate::Pinned(id.slot));
        Some(match self.item(client, wanted) {
            Item::Recalling(slot) | Item::Reserved(slot) if reads => Fate::Recalled(slot),
            Item::Ready(slot) if reads && was_recalled && self.is_pinned(slot) => {
                Fate::Pinned(slot)
            }
            Item::Final(_)
            | Item::Ready(_)
            | Item::Evicted(_)
            | Item::Recalling(_)
            | Item::Reserved(_) => Fate::Interested(id.slot),
        })
    }

    fn is_pinned(&self, slot: u32) -> bool {
        let allocation = &self.allocations[slot];
        allocation.state == State::Held && allocation.recall != NONE
    }

    fn enter_queue(&mut self, seq: u64, client: ClientId, fate: Fate, step: &mut Step) -> u32 {
        let queue = self.queue_of(fate, step);
        let node = self.waiting.push(queue, seq);
        if let Fate::Recalled(slot) = fate {
            self.join_recall(slot, node, client, step);
        }
        node
    }

    /// The queue of those that wait for the same; a new one if there is none.
    fn queue_of(&mut self, fate: Fate, step: &mut Step) -> u32 {
        let (Fate::Recalled(slot) | Fate::Pinned(slot) | Fate::Interested(slot)) = fate else {
            unreachable!("no request begins to wait for an answer that is certain")
        };
        let (owner, domain) = (self.allocations[slot].owner, self.allocations[slot].domain);
        let number = self.allocations[slot].recall;
        let known = match fate {
            Fate::Recalled(_) if number == NONE => NONE,
            Fate::Recalled(_) => self.recalls[number].waiting,
            Fate::Pinned(_) => self.recalls[number].pinned,
            Fate::Interested(_) | Fate::First | Fate::InTurn | Fate::Answer(..) => {
                self.waiting.interested(slot)
            }
        };
        if known != NONE {
            return known;
        }
        let queue = self.waiting.new_queue(fate, domain);
        match fate {
            Fate::Recalled(_) => {
                let number = self.recall_of_reserved(slot, step);
                self.recalls.set_waiting(number, queue);
            }
            Fate::Pinned(_) => self.recalls.set_pinned(number, queue),
            Fate::Interested(_) | Fate::First | Fate::InTurn | Fate::Answer(..) => {
                self.waiting.add_interest(owner, slot, queue)
            }
        }
        queue
    }

    /// The record of a recall; one of before a crash, whose owner is not back, gets one when it is
    /// waited for.
    fn recall_of_reserved(&mut self, slot: u32, step: &mut Step) -> u32 {
        if self.allocations[slot].recall == NONE {
            let number = self.recalls.begin(self.allocations[slot].owner, Recall::begun(step.now));
            self.allocations.set_recall(slot, number);
        }
        self.allocations[slot].recall
    }

    /// An item waits no longer in its queue, if it is in one.
    fn leave_queue(&mut self, node: u32) {
        if node == NONE {
            return;
        }
        if let Some(Fate::Recalled(slot)) = self.waiting.fate(node) {
            self.leave_promise(slot, node);
        }
        let queue = self.waiting.remove(node);
        if self.waiting.len(queue) > 0 {
            return;
        }
        if let Some(Fate::Interested(slot)) = self.waiting.fate_of(queue) {
            self.forget_interest(slot);
        }
        let fate = self.waiting.drop_queue(queue);
        let (Fate::Recalled(slot) | Fate::Pinned(slot)) = fate else { return };
        let number = self.allocations[slot].recall;
        if fate == Fate::Pinned(slot) {
            self.recalls.set_pinned(number, NONE);
        } else {
            self.recalls.set_waiting(number, NONE);
        }
        self.unpin_if_served(slot);
    }

    /// No request is interested in an allocation any more, or the queue of those that are goes to
    /// the ready ones.
    pub(crate) fn forget_interest(&mut self, slot: u32) -> u32 {
        self.waiting.take_interest(self.allocations[slot].owner, slot)
    }

    /// An allocation gets another owner: those that are interested in it are found by that one.
    pub(crate) fn move_interest(&mut self, slot: u32, to: u32) {
        let queue = self.forget_interest(slot);
        if queue != NONE {
            self.waiting.add_interest(to, slot, queue);
        }
    }

    /// Once the last request that a supplied fd was kept for is served, the fd may be evicted
    /// again.
    fn unpin_if_served(&mut self, slot: u32) {
        let number = self.allocations[slot].recall;
        let recall = &self.recalls[number];
        if self.allocations[slot].state == State::Held
            && (recall.waiting, recall.pinned) == (NONE, NONE)
        {
            self.unpin(slot);
        }
    }

    /// The owner has given the fd: those that wait for it are served, a few a step.
    pub(crate) fn serve_recalled(&mut self, slot: u32) {
        let queue = self.recalls[self.allocations[slot].recall].waiting;
        match queue {
            NONE => self.unpin_if_served(slot),
            queue => self.waiting.make_ready(queue, Fate::Recalled(slot)),
        }
    }

    /// A queue is looked at again, or is answered.
    pub(crate) fn decide(&mut self, queue: u32, fate: Fate) {
        if queue != NONE {
            self.waiting.make_ready(queue, fate);
        }
    }

    /// The same for all that wait for an allocation, or for something else on behalf of it.
    pub(crate) fn decide_all(&mut self, slot: u32, fate: Fate) {
        let interested = self.forget_interest(slot);
        for queue in self.end_recall(slot).into_iter().chain([interested]) {
            self.decide(queue, fate);
        }
    }

    /// Those that want an allocation and wait for room are told that its owner does not answer.
    pub(crate) fn tell_of_silence(&mut self, slot: u32) {
        let queue = self.forget_interest(slot);
        let fate = Fate::Answer(self.allocations.id_of(slot), ErrorCode::OwnerSilent.into());
        self.decide(queue, fate);
    }

    /// An item waits for a recall under way.
    fn join_recall(&mut self, slot: u32, node: u32, client: ClientId, step: &mut Step) {
        let number = self.allocations[slot].recall;
        if self.allocations[slot].state != State::Recalling {
            return;
        }
        let recall = &self.recalls[number];
        if recall.is_promise_free(client.0) {
            self.recalls.promise(number, client.0, node);
        } else if recall.promised_to.is_none() {
            self.promise(number, node, client.0);
        }
        if self.recalls[number].deadline.is_none() {
            // The owner missed this one, but has answered others since: it is given the time again.
            self.time_recall(slot, step.now);
            self.not_overdue(slot);
        }
    }

    fn promise(&mut self, number: u32, node: u32, client: u32) {
        if self.charge(client, PROMISED_LEASE).is_ok() {
            self.recalls.promise(number, client, node);
        }
    }

    /// The lease place promised for this item goes to the one that waits longest, if to any.
    fn leave_promise(&mut self, slot: u32, node: u32) {
        let number = self.allocations[slot].recall;
        if self.recalls[number].promised_for != node || self.recalls[number].promised_to.is_none() {
            return;
        }
        self.free_promise(number);
        let queue = self.recalls[number].waiting;
        let next = self.waiting.first_but(queue, node);
        if let Some(next) = next
            && self.allocations[slot].state == State::Recalling
        {
            let client = self.parked[&self.waiting.request_of(next)].by.client.0;
            self.promise(number, next, client);
        }
    }

    /// A request has started recalls, and does not wait for them.
    pub(crate) fn give_promises_back(&mut self, client: ClientId, wanted: &[Wanted]) {
        for id in wanted.iter().flatten() {
            let Some(found) = self.allocations.find(*id) else { continue };
            if found.state == State::Recalling {
                let number = found.recall;
                if self.recalls[number].is_promise_free(client.0) {
                    self.free_promise(number);
                }
            }
        }
    }
}
