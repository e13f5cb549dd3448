//! Which parked requests wait for which allocation. Each item of a parked request is in one queue; a queue is moved whole,
//! however long it is, to those that are ready, and these are served a few requests a step, the domains in turn. Must never
//! walk a queue to find one request, nor to move it.

use crate::Core;
use crate::acquire::{Item, Turn};
use crate::allocation::State;
use crate::api::{ClientId, Effects, Now, Wanted};
use crate::limits::{PARKED_ITEMS_PER_STEP, PARKED_LOOKS_PER_STEP, SILENT_QUEUES_PER_STEP};
use crate::lists::{Link, List, Nodes};
use crate::recall::PROMISED_LEASE;
use crate::rounds::Rounds;
use crate::slots::{NONE, Slots};
use crate::state::{Recall, Wait, Wish};
use fdbroker_protocol::{AllocationId, ErrorCode, Status};

/// What the requests in a queue wait for, or what becomes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The fd of this slot, from its owner. Once it has come they are served in their order.
    Recalled(u32),
    /// Room to take the fd of this slot, which was supplied for them.
    Pinned(u32),
    /// Anything else than the fd of this slot; its end answers them, too.
    Interested(u32),
    /// The fd is here for good: they are served before anyone else.
    First,
    /// They are looked at again, each in its turn.
    InTurn,
    /// They are answered: this is the status of this allocation.
    Answer(AllocationId, Status),
}

/// An item of a parked request, in its queue.
#[derive(Debug)]
pub struct Node {
    seq: u64,
    queue: u32,
    link: Link,
}

/// Items that wait for the same.
#[derive(Debug)]
pub struct Queue {
    nodes: List,
    fate: Fate,
    /// Of the allocation; or of none.
    domain: u32,
    /// Its place among the ready ones; or among those of the owner, as long as they are interested.
    link: Link,
    is_ready: bool,
}

struct NodeLinks<'a>(&'a mut Slots<Node>);

impl Nodes for NodeLinks<'_> {
    fn link(&mut self, node: u32) -> &mut Link {
        &mut self.0[node].link
    }
}

struct QueueLinks<'a>(&'a mut Slots<Queue>);

impl Nodes for QueueLinks<'_> {
    fn link(&mut self, node: u32) -> &mut Link {
        &mut self.0[node].link
    }
}

/// All queues.
#[derive(Debug)]
pub struct Waiting {
    nodes: Slots<Node>,
    queues: Slots<Queue>,
    ready: Rounds,
}

impl Default for Waiting {
    fn default() -> Self {
        let (nodes, queues) = (Slots::new(NONE, 1, 0), Slots::new(NONE, 1, 0));
        Waiting { nodes, queues, ready: Rounds::default() }
    }
}

impl Waiting {
    /// Whether no queue is ready.
    pub fn is_idle(&self) -> bool {
        self.ready.is_empty()
    }

    /// Items in a queue.
    pub fn len(&self, queue: u32) -> usize {
        if queue == NONE { 0 } else { self.queues[queue].nodes.len() }
    }

    /// What becomes of the items of a node's queue.
    pub fn fate(&self, node: u32) -> Option<Fate> {
        (node != NONE).then(|| self.queues[self.nodes[node].queue].fate)
    }

    fn new_queue(&mut self, fate: Fate, domain: u32) -> u32 {
        let (nodes, link, is_ready) = (List::EMPTY, Link::OUT, false);
        let queue = Queue { nodes, fate, domain, link, is_ready };
        self.queues.insert(queue).expect("2^32 slots outlast memory").0
    }

    fn push(&mut self, queue: u32, seq: u64) -> u32 {
        let node = Node { seq, queue, link: Link::OUT };
        let (number, _) = self.nodes.insert(node).expect("2^32 slots outlast memory");
        let mut list = self.queues[queue].nodes;
        list.push(&mut NodeLinks(&mut self.nodes), number);
        self.queues[queue].nodes = list;
        number
    }

    /// Takes an item out of its queue; the queue.
    fn remove(&mut self, node: u32) -> u32 {
        let queue = self.nodes[node].queue;
        let mut list = self.queues[queue].nodes;
        list.remove(&mut NodeLinks(&mut self.nodes), node);
        self.queues[queue].nodes = list;
        self.nodes.remove(node);
        queue
    }

    /// The first item of a queue, and its request.
    fn first(&self, queue: u32) -> Option<(u32, u64)> {
        let node = self.queues[queue].nodes.first()?;
        Some((node, self.nodes[node].seq))
    }

    /// From now on the queue is served in its turn.
    fn make_ready(&mut self, queue: u32, fate: Fate) {
        let Waiting { queues, ready, .. } = self;
        queues[queue].fate = fate;
        if !std::mem::replace(&mut queues[queue].is_ready, true) {
            ready.push(queues[queue].domain, &mut QueueLinks(queues), queue);
        }
    }

    /// An empty queue goes; what it waited for.
    fn drop_queue(&mut self, queue: u32) -> Fate {
        let Waiting { queues, ready, .. } = self;
        if queues[queue].is_ready {
            ready.remove(queues[queue].domain, &mut QueueLinks(queues), queue);
        }
        queues.remove(queue).fate
    }
}

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
            _ => self.allocations[slot].interest,
        };
        if known != NONE {
            return known;
        }
        let queue = self.waiting.new_queue(fate, domain);
        match fate {
            Fate::Recalled(_) => {
                let number = self.recall_of_reserved(slot);
                self.recalls[number].waiting = queue;
            }
            Fate::Pinned(_) => self.recalls[number].pinned = queue,
            _ => {
                self.allocations.set_interest(slot, queue);
                self.with_interests(owner, |list, links| list.push(links, queue));
            }
        }
        queue
    }

    /// The record of a recall; one of before a crash, whose owner is not back, gets one when it is waited for.
    fn recall_of_reserved(&mut self, slot: u32) -> u32 {
        if self.allocations[slot].recall == NONE {
            let recall = Recall::begun(self.now);
            let (number, _) = self.recalls.insert(recall).expect("recalls are fewer than slots");
            self.allocations.set_recall(slot, number);
        }
        self.allocations[slot].recall
    }

    fn with_interests(&mut self, owner: u32, change: impl FnOnce(&mut List, &mut QueueLinks<'_>)) {
        let Some(client) = self.clients.find_mut(owner) else {
            return;
        };
        change(&mut client.interests, &mut QueueLinks(&mut self.waiting.queues));
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
        if let Fate::Interested(slot) = self.waiting.queues[queue].fate {
            self.forget_interest(slot);
        }
        match self.waiting.drop_queue(queue) {
            Fate::Recalled(slot) => {
                let number = self.allocations[slot].recall;
                self.recalls[number].waiting = NONE;
                self.unpin_if_served(slot);
            }
            Fate::Pinned(slot) => {
                let number = self.allocations[slot].recall;
                self.recalls[number].pinned = NONE;
                self.unpin_if_served(slot);
            }
            _ => {}
        }
    }

    /// No request is interested in an allocation any more, or the queue of those that are goes to the ready ones.
    pub(crate) fn forget_interest(&mut self, slot: u32) -> u32 {
        let queue = self.allocations.set_interest(slot, NONE);
        if queue != NONE {
            let owner = self.allocations[slot].owner;
            self.with_interests(owner, |list, links| list.remove(links, queue));
        }
        queue
    }

    /// An allocation gets another owner: those that are interested in it are found by that one.
    pub(crate) fn move_interest(&mut self, slot: u32, to: u32) {
        let queue = self.forget_interest(slot);
        if queue != NONE {
            self.allocations.set_interest(slot, queue);
            self.with_interests(to, |list, links| list.push(links, queue));
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
        let mut left = SILENT_QUEUES_PER_STEP;
        while left > 0
            && let Some(owner) = self.silenced.front().copied()
        {
            let client = self.clients.find_mut(owner);
            let more = client.filter(|client| client.silent && client.interests_left > 0);
            let Some(queue) = more.and_then(|client| {
                client.interests_left -= 1;
                client.interests.first()
            }) else {
                self.silenced.pop_front();
                continue;
            };
            left -= 1;
            let Fate::Interested(slot) = self.waiting.queues[queue].fate else {
                unreachable!("the owner's list is of those that are interested")
            };
            if self.allocations[slot].is_held() {
                // Its fd is here: the owner is not needed.
                self.with_interests(owner, |list, links| {
                    list.remove(links, queue);
                    list.push(links, queue);
                });
                continue;
            }
            self.forget_interest(slot);
            let fate = Fate::Answer(self.allocations.id_of(slot), ErrorCode::OwnerSilent.into());
            self.decide(queue, fate);
        }
    }

    // --- serving ------------------------------------------------------------------------------------

    /// Serves requests of ready queues, a few a step; each time those of another domain's allocations.
    pub(crate) fn serve_ready(&mut self, now: Now, fx: &mut Effects) {
        let mut items = 0;
        for _ in 0..PARKED_LOOKS_PER_STEP {
            let Some(queue) = self.waiting.ready.first() else { return };
            if items >= PARKED_ITEMS_PER_STEP || fx.granted.len() >= PARKED_ITEMS_PER_STEP {
                return;
            }
            let (node, seq) = self.waiting.first(queue).expect("a queue without items is dropped");
            items += self.parked[&seq].nodes.len();
            let fate = self.waiting.queues[queue].fate;
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
            let stays = self.waiting.queues.is_full(queue)
                && self.waiting.queues[queue].fate == fate
                && self.waiting.first(queue) == Some((node, seq));
            assert!(!stays, "request {seq} was looked at, and stands where it stood");
            self.waiting.ready.end_turn();
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
        let recall = &mut self.recalls[number];
        if recall.promised_to == Some(client.0) && recall.promised_for == NONE {
            recall.promised_for = node;
        }
        if recall.promised_to.is_none() {
            self.promise(number, node, client.0);
        }
        if self.recalls[number].deadline.is_none() {
            // The owner missed this one, but has answered others since: it is given the time again.
            self.recall_again(now, slot);
        }
    }

    fn promise(&mut self, number: u32, node: u32, client: u32) {
        if self.charge(client, PROMISED_LEASE).is_ok() {
            self.recalls[number].promised_to = Some(client);
            self.recalls[number].promised_for = node;
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
        let mut links = NodeLinks(&mut self.waiting.nodes);
        let next = match self.waiting.queues[queue].nodes.first() {
            Some(first) if first == node => List::next(&mut links, node),
            first => first,
        };
        if let Some(next) = next
            && self.allocations[slot].state == State::Recalling
        {
            let client = self.parked[&self.waiting.nodes[next].seq].client.0;
            self.promise(number, next, client);
        }
    }

    /// A request has started recalls, and does not wait for them.
    pub(crate) fn give_promises_back(&mut self, client: ClientId, wanted: &[Wanted]) {
        for id in wanted.iter().flatten() {
            let Some(found) = self.allocations.find(*id) else { continue };
            if found.state == State::Recalling {
                let number = found.recall;
                let recall = &self.recalls[number];
                if recall.promised_to == Some(client.0) && recall.promised_for == NONE {
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
                assert_eq!(self.waiting.nodes[node].seq, seq, "an item of another request");
                items += 1;
            }
        }
        assert_eq!(items, self.waiting.nodes.len(), "items of nobody");
        let queues: Vec<u32> = self.waiting.queues.iter_from(0).map(|(queue, _)| queue).collect();
        for queue in queues {
            let Queue { nodes, fate, is_ready, .. } = self.waiting.queues[queue];
            let nodes = nodes.checked(&mut NodeLinks(&mut self.waiting.nodes));
            assert!(!nodes.is_empty(), "a queue without items");
            items -= nodes.len();
            let found = match fate {
                Fate::Recalled(slot) => self.recalls[self.allocations[slot].recall].waiting,
                Fate::Pinned(slot) => self.recalls[self.allocations[slot].recall].pinned,
                Fate::Interested(slot) => self.allocations[slot].interest,
                Fate::First | Fate::InTurn | Fate::Answer(..) => {
                    assert!(is_ready, "a queue that nobody serves");
                    queue
                }
            };
            assert_eq!(found, queue, "a queue that is not found");
        }
        assert_eq!(items, 0, "items in queues");
    }
}
