//! The queues of parked requests' items, by what they wait for. Each item is in one queue; a queue
//! is moved whole, however long it is, to those that are ready. Must never walk a queue to find one
//! request, nor to move it.

use std::collections::{BTreeMap, VecDeque};

use crate::api::NONE;
use crate::books::lists::{Link, List, Nodes};
use crate::books::rounds::Rounds;
use crate::books::slots::Slots;
use crate::work::visit;
use fdbroker_protocol::{AllocationId, Status};
use rustc_hash::FxHashMap;

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
struct Node {
    seq: u64,
    queue: u32,
    link: Link,
}

/// Items that wait for the same.
#[derive(Debug)]
struct Queue {
    nodes: List,
    fate: Fate,
    /// Number of the allocation's domain, in whose turn the queue is served; [`NONE`]: of no
    /// allocation.
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

/// The queues of those that want an owner's allocations, and wait for something else.
#[derive(Debug, Default)]
struct Interests {
    queues: List,
    /// How many of these are still to be told that the owner is silent.
    untold: usize,
}

/// The items of all parked requests, in their queues, and the queues that are ready to be served.
#[derive(Debug, Default)]
pub struct Waiting {
    nodes: Slots<Node>,
    queues: Slots<Queue>,
    ready: Rounds,
    /// The queue of those that want an allocation and wait for something else, by its slot.
    interested: BTreeMap<u32, u32>,
    /// What is wanted of each owner, by its client number; no entry: nothing.
    interests: FxHashMap<u32, Interests>,
    /// Owners that have turned silent, and may have requests that are still to be told. A client
    /// may be in it several times, once for each recall that it has missed.
    silenced: VecDeque<u32>,
}

impl Waiting {
    /// Whether no queue is ready, and no request to be told that an owner is silent.
    pub fn is_idle(&self) -> bool {
        self.ready.is_empty() && self.silenced.is_empty()
    }

    /// Items in a queue.
    pub fn len(&self, queue: u32) -> usize {
        if queue == NONE { 0 } else { self.queues[queue].nodes.len() }
    }

    /// What becomes of the items of a node's queue.
    pub fn fate(&self, node: u32) -> Option<Fate> {
        (node != NONE).then(|| self.queues[self.nodes[node].queue].fate)
    }

    /// A queue without items: the next call puts one in.
    pub fn new_queue(&mut self, fate: Fate, domain: u32) -> u32 {
        let (nodes, link, is_ready) = (List::EMPTY, Link::OUT, false);
        let queue = Queue { nodes, fate, domain, link, is_ready };
        self.queues.insert(queue).expect("2^32 slots outlast memory").0
    }

    /// Puts an item of a request at the end of a queue; gives its node.
    pub fn push(&mut self, queue: u32, seq: u64) -> u32 {
        let node = Node { seq, queue, link: Link::OUT };
        let (number, _) = self.nodes.insert(node).expect("2^32 slots outlast memory");
        let mut list = self.queues[queue].nodes;
        list.push(&mut NodeLinks(&mut self.nodes), number);
        self.queues[queue].nodes = list;
        number
    }

    /// Takes an item out of its queue; gives the queue.
    pub fn remove(&mut self, node: u32) -> u32 {
        let queue = self.nodes[node].queue;
        let mut list = self.queues[queue].nodes;
        list.remove(&mut NodeLinks(&mut self.nodes), node);
        self.queues[queue].nodes = list;
        self.nodes.remove(node);
        queue
    }

    /// The first item of a queue, and its request.
    pub fn first(&self, queue: u32) -> Option<(u32, u64)> {
        let node = self.queues[queue].nodes.first()?;
        Some((node, self.nodes[node].seq))
    }

    /// From now on the queue is served in its turn.
    pub fn make_ready(&mut self, queue: u32, fate: Fate) {
        let Waiting { queues, ready, .. } = self;
        queues[queue].fate = fate;
        if !std::mem::replace(&mut queues[queue].is_ready, true) {
            ready.push(queues[queue].domain, &mut QueueLinks(queues), queue);
        }
    }

    /// Removes an empty queue; gives what it waited for.
    pub fn drop_queue(&mut self, queue: u32) -> Fate {
        let Waiting { queues, ready, .. } = self;
        if queues[queue].is_ready {
            ready.remove(queues[queue].domain, &mut QueueLinks(queues), queue);
        }
        queues.remove(queue).fate
    }

    /// What becomes of a queue; `None`: it has gone.
    pub fn fate_of(&self, queue: u32) -> Option<Fate> {
        self.queues.is_full(queue).then(|| self.queues[queue].fate)
    }

    /// The request of an item.
    pub fn request_of(&self, node: u32) -> u64 {
        self.nodes[node].seq
    }

    /// The first item of a queue that is not this one.
    pub fn first_but(&mut self, queue: u32, node: u32) -> Option<u32> {
        match self.queues[queue].nodes.first() {
            Some(first) if first == node => List::next(&mut NodeLinks(&mut self.nodes), node),
            first => first,
        }
    }

    /// The ready queue that is served next.
    pub fn next_ready(&self) -> Option<u32> {
        self.ready.first()
    }

    /// The domain of [`Waiting::next_ready`] has had its turn.
    pub fn end_turn(&mut self) {
        self.ready.end_turn();
    }

    // --- interests -------------------------------------------------------------------------------

    /// The queue of those that want an allocation and wait for something else, or [`NONE`].
    pub fn interested(&self, slot: u32) -> u32 {
        visit(1);
        self.interested.get(&slot).copied().unwrap_or(NONE)
    }

    /// A queue becomes the one of those that want this allocation of this owner and wait for
    /// something else.
    pub fn add_interest(&mut self, owner: u32, slot: u32, queue: u32) {
        visit(1);
        self.interested.insert(slot, queue);
        if owner != NONE {
            let Waiting { queues, interests, .. } = self;
            interests.entry(owner).or_default().queues.push(&mut QueueLinks(queues), queue);
        }
    }

    /// No queue wants this allocation of this owner any more. Gives the queue, or [`NONE`].
    pub fn take_interest(&mut self, owner: u32, slot: u32) -> u32 {
        visit(1);
        let Some(queue) = self.interested.remove(&slot) else { return NONE };
        let Waiting { queues, interests, .. } = self;
        if let Some(of_owner) = interests.get_mut(&owner) {
            of_owner.queues.remove(&mut QueueLinks(queues), queue);
            if of_owner.queues.is_empty() {
                interests.remove(&owner);
            }
        }
        queue
    }

    /// All other queues that want this owner's allocations come before this one.
    pub fn put_interest_last(&mut self, owner: u32, queue: u32) {
        let Waiting { queues, interests, .. } = self;
        if let Some(of_owner) = interests.get_mut(&owner) {
            of_owner.queues.remove(&mut QueueLinks(queues), queue);
            of_owner.queues.push(&mut QueueLinks(queues), queue);
        }
    }

    /// The owner has turned silent: those that wait for room to ask it are to be told; or it
    /// answers again.
    pub fn set_silent(&mut self, owner: u32, silent: bool) {
        visit(1);
        let Some(of_owner) = self.interests.get_mut(&owner) else { return };
        of_owner.untold = if silent { of_owner.queues.len() } else { 0 };
        if silent {
            self.silenced.push_back(owner);
        }
    }

    /// A queue that is to be told that its owner is silent; and the slot of what it waits for.
    pub fn next_untold(&mut self) -> Option<(u32, u32)> {
        while let Some(owner) = self.silenced.front() {
            visit(1);
            let of_owner = self.interests.get_mut(owner).filter(|of_owner| of_owner.untold > 0);
            if let Some(of_owner) = of_owner
                && let Some(queue) = of_owner.queues.first()
            {
                of_owner.untold -= 1;
                let Fate::Interested(slot) = self.queues[queue].fate else {
                    unreachable!("the owner's list is of those that are interested")
                };
                return Some((queue, slot));
            }
            self.silenced.pop_front();
        }
        None
    }

    // --- invariants ------------------------------------------------------------------------------

    /// Asserts that each item is in one queue, and that no queue is empty; and gives the queues
    /// that are not ready, with what they wait for. `items`: how many there are.
    pub fn checked(&mut self, mut items: usize) -> Vec<(u32, Fate)> {
        assert_eq!(items, self.nodes.len(), "items of nobody");
        let mut all = Vec::new();
        for (number, Queue { nodes, fate, is_ready, .. }) in self.queues.iter_from(0) {
            let nodes = nodes.checked(&mut NodeLinks(&mut self.nodes));
            assert!(!nodes.is_empty(), "a queue without items");
            items -= nodes.len();
            let is_found =
                matches!(fate, Fate::Recalled(_) | Fate::Pinned(_) | Fate::Interested(_));
            assert!(is_found || *is_ready, "a queue that nobody serves");
            if is_found {
                all.push((number, *fate));
            }
        }
        assert_eq!(items, 0, "items in queues");
        let interested = all.iter().filter(|(_, fate)| matches!(fate, Fate::Interested(_))).count();
        assert_eq!(interested, self.interested.len(), "slots that nobody is interested in");
        let listed: usize = self.interests.values().map(|it| it.queues.len()).sum();
        assert!(listed <= interested, "queues that are interested in nothing");
        all
    }
}
