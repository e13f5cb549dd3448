//! Which parked requests wait for which allocation: their items enter queues and leave them, and the requests of those that
//! are ready are served, a few a step, the domains in turn. Must never keep an fd for a request that does not wait for it.

use crate::Core;
use crate::acquire::{Item, Turn};
use crate::allocation::State;
use crate::api::{ClientId, Effects, Now, Wanted};
use crate::limits::{PARKED_ITEMS_PER_STEP, PARKED_LOOKS_PER_STEP, SILENT_QUEUES_PER_STEP};
use crate::parked::{Wait, Wish};
use crate::queues::Fate;
use crate::recall::PROMISED_LEASE;
use crate::recalls::Recall;
use crate::slots::NONE;
use fdbroker_protocol::{ErrorCode, Status};

impl Core {
    // --- entering and leaving queues ----------------------------------------------------------------

    /// Puts every item of a parked request into the queue that it belongs in now. Those that stay keep their places.
    pub(crate) fn place_items(&mut self, now: Now, seq: u64) {
        let Some(parked) = self.parked.get_mut(&seq) else { return };
        let (client, reads) = (parked.client, parked.wait != Wait::Reader);
        let wish = std::mem::replace(&mut parked.wish, Wish::Credits(0));
        let mut nodes = std::mem::take(&mut parked.nodes);
        if let Wish::Acquire(wanted) = &wish {
            if nodes.is_empty() {
                nodes = vec![NONE; wanted.len()].into();
            }
            for (item, node) in wanted.iter().zip(&mut nodes) {
                let is = self.waiting.fate(*node);
                let to_be = self.fate_to_be(client, *item, is, reads);
                if is != to_be {
                    // Entered first: an fd that is kept back stays kept back.
                    let entered =
                        to_be.map_or(NONE, |fate| self.enter_queue(now, seq, client, fate));
                    self.leave_queue(std::mem::replace(node, entered));
                }
            }
        }
        let pinned = |node: &u32| matches!(self.waiting.fate(*node), Some(Fate::Pinned(_)));
        let supplied = nodes.iter().any(pinned);
        let parked = self.parked.get_mut(&seq).expect("it was just looked at");
        (parked.wish, parked.nodes) = (wish, nodes);
        let wait = parked.wait;
        self.wait_anew(seq, wait, supplied);
    }

    /// What an item of a parked request waits for. A client that does not read has nothing kept back for it.
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
            _ => Fate::Interested(id.slot),
        })
    }

    fn is_pinned(&self, slot: u32) -> bool {
        let allocation = &self.allocations[slot];
        allocation.state == State::Held && allocation.recall != NONE
    }

    fn enter_queue(&mut self, now: Now, seq: u64, client: ClientId, fate: Fate) -> u32 {
        let queue = self.queue_of(fate);
        let node = self.waiting.push(queue, seq);
        if let Fate::Recalled(slot) = fate {
            self.join_recall(now, slot, node, client);
        }
        node
    }

    /// The queue of those that wait for the same; a new one if there is none.
    fn queue_of(&mut self, fate: Fate) -> u32 {
        let (Fate::Recalled(slot) | Fate::Pinned(slot) | Fate::Interested(slot)) = fate else {
            unreachable!("no request begins to wait for an answer that is certain")
        };
        let (owner, domain) = (self.allocations[slot].owner, self.allocations[slot].domain);
        let number = self.allocations[slot].recall;
        let known = match fate {
            Fate::Recalled(_) if number == NONE => NONE,
            Fate::Recalled(_) => self.recalls[number].waiting,
            Fate::Pinned(_) => self.recalls[number].pinned,
            _ => self.waiting.interested(slot),
        };
        if known != NONE {
            return known;
        }
        let queue = self.waiting.new_queue(fate, domain);
        match fate {
            Fate::Recalled(_) => {
                let number = self.recall_of_reserved(slot);
                self.recalls.set_waiting(number, queue);
            }
            Fate::Pinned(_) => self.recalls.set_pinned(number, queue),
            _ => self.waiting.add_interest(owner, slot, queue),
        }
        queue
    }

    /// The record of a recall; one of before a crash, whose owner is not back, gets one when it is waited for.
    fn recall_of_reserved(&mut self, slot: u32) -> u32 {
        if self.allocations[slot].recall == NONE {
            let number = self.recalls.begin(self.allocations[slot].owner, Recall::begun(self.now));
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
        match self.waiting.drop_queue(queue) {
            Fate::Recalled(slot) => {
                let number = self.allocations[slot].recall;
                self.recalls.set_waiting(number, NONE);
                self.unpin_if_served(slot);
            }
            Fate::Pinned(slot) => {
                let number = self.allocations[slot].recall;
                self.recalls.set_pinned(number, NONE);
                self.unpin_if_served(slot);
            }
            _ => {}
        }
    }

    /// No request is interested in an allocation any more, or the queue of those that are goes to the ready ones.
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

    /// Once the last request that a supplied fd was kept for is served, the fd may be evicted again.
    fn unpin_if_served(&mut self, slot: u32) {
        let number = self.allocations[slot].recall;
        let recall = &self.recalls[number];
        if self.allocations[slot].state == State::Held
            && (recall.waiting, recall.pinned) == (NONE, NONE)
        {
            self.unpin(slot);
        }
    }

    /// A request waits no longer: takes its items out of their queues.
    pub(crate) fn leave_queues(&mut self, nodes: &[u32]) {
        nodes.iter().for_each(|node| self.leave_queue(*node));
    }

    // --- what becomes of whole queues ---------------------------------------------------------------

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

    /// An owner that has turned silent: those that wait for room to ask it are told, a few allocations a step.
    pub(crate) fn sweep_silent(&mut self) {
        for _ in 0..SILENT_QUEUES_PER_STEP {
            let Some((queue, slot)) = self.waiting.next_untold() else { return };
            if self.allocations[slot].is_held() {
                // Its fd is here: the owner is not needed.
                let owner = self.allocations[slot].owner;
                self.waiting.put_interest_last(owner, queue);
                continue;
            }
            self.tell_of_silence(slot);
        }
    }

    /// Those that want an allocation and wait for room are told that its owner does not answer.
    pub(crate) fn tell_of_silence(&mut self, slot: u32) {
        let queue = self.forget_interest(slot);
        let fate = Fate::Answer(self.allocations.id_of(slot), ErrorCode::OwnerSilent.into());
        self.decide(queue, fate);
    }

    // --- serving ------------------------------------------------------------------------------------

    /// Serves requests of ready queues, a few a step; each time those of another domain's allocations.
    pub(crate) fn serve_ready(&mut self, now: Now, fx: &mut Effects) {
        let mut items = 0;
        for _ in 0..PARKED_LOOKS_PER_STEP {
            let Some(queue) = self.waiting.next_ready() else { return };
            if items >= PARKED_ITEMS_PER_STEP || fx.granted.len() >= PARKED_ITEMS_PER_STEP {
                return;
            }
            let (node, seq) = self.waiting.first(queue).expect("a queue without items is dropped");
            items += self.parked[&seq].nodes.len();
            let fate = self.waiting.fate_of(queue).expect("a ready queue");
            match fate {
                _ if self.client(self.parked[&seq].client).is_none() => _ = self.unpark(seq),
                Fate::Answer(..) => self.answer_ended_item(seq, fx),
                _ if self.has_ended_item(seq) => self.answer_ended_item(seq, fx),
                Fate::InTurn => {
                    self.place_items(now, seq);
                    self.look_soon(seq);
                }
                _ => _ = self.retry(now, seq, Turn::First, fx),
            }
            let stays = self.waiting.fate_of(queue) == Some(fate)
                && self.waiting.first(queue) == Some((node, seq));
            assert!(!stays, "request {seq} was looked at, and stands where it stood");
            self.waiting.end_turn();
        }
    }

    /// What an item is answered with, when that is certain before its state shows it.
    pub(crate) fn answer_of(&self, node: u32, wanted: Wanted) -> Option<Status> {
        match self.waiting.fate(node) {
            Some(Fate::Answer(id, status)) if wanted == Ok(id) => Some(status),
            _ => None,
        }
    }

    // --- the lease place that is promised with a recall -----------------------------------------------

    /// An item waits for a recall under way.
    fn join_recall(&mut self, now: Now, slot: u32, node: u32, client: ClientId) {
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
            self.recall_again(now, slot);
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
            let client = self.parked[&self.waiting.request_of(next)].client.0;
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

    // --- invariants -----------------------------------------------------------------------------------

    /// Asserts that each item is in one queue, and each queue where it is found.
    pub(crate) fn check_queues(&mut self) {
        let mut items = 0;
        let parked: Vec<(u64, Vec<u32>)> =
            self.parked.iter().map(|(seq, parked)| (*seq, parked.nodes.to_vec())).collect();
        for (seq, nodes) in parked {
            for node in nodes.into_iter().filter(|node| *node != NONE) {
                assert_eq!(self.waiting.request_of(node), seq, "an item of another request");
                items += 1;
            }
        }
        for (queue, fate) in self.waiting.checked(items) {
            let found = match fate {
                Fate::Recalled(slot) => self.recalls[self.allocations[slot].recall].waiting,
                Fate::Pinned(slot) => self.recalls[self.allocations[slot].recall].pinned,
                Fate::Interested(slot) => self.waiting.interested(slot),
                Fate::First | Fate::InTurn | Fate::Answer(..) => unreachable!("it is ready"),
            };
            assert_eq!(found, queue, "a queue that is not found");
        }
    }
}
