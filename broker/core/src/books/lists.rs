//! Doubly linked lists through slabs: order without allocation, removal without search. Must never
//! own what it links.

use crate::api::NONE;

/// A node's place in one list. It is not for a successor, which makes its own lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    prev: u32,
    next: u32,
}

impl Link {
    /// In no list. (A single node is told apart by `prev` pointing at itself.)
    pub const OUT: Link = Link { prev: NONE - 1, next: NONE - 1 };

    /// Whether the node is in the list.
    pub fn is_in(self) -> bool {
        self != Self::OUT
    }

    /// The node after this one; `None`: it is the last, or in no list.
    pub fn next(self) -> Option<u32> {
        (self.is_in() && self.next != NONE).then_some(self.next)
    }
}

impl Default for Link {
    fn default() -> Self {
        Link::OUT
    }
}

/// Where the nodes of a list live.
pub trait Nodes {
    /// The link of `node`.
    fn link(&mut self, node: u32) -> &mut Link;
}

/// First and last node, and how many. It is not for a successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl Default for List {
    fn default() -> Self {
        List::EMPTY
    }
}

impl List {
    /// No nodes.
    pub const EMPTY: List = List { head: NONE, tail: NONE, len: 0 };

    /// Nodes in it.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The oldest node.
    pub fn first(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    /// The node after `node`.
    pub fn next(nodes: &mut impl Nodes, node: u32) -> Option<u32> {
        let next = nodes.link(node).next;
        (next != NONE).then_some(next)
    }

    /// Adds at the young end.
    pub fn push(&mut self, nodes: &mut impl Nodes, node: u32) {
        let tail = self.tail;
        let link = nodes.link(node);
        assert!(!link.is_in(), "node {node} is in the list already");
        *link = Link { prev: tail, next: NONE };
        match tail {
            NONE => self.head = node,
            tail => nodes.link(tail).next = node,
        }
        self.tail = node;
        self.len += 1;
    }

    /// Takes a node of this list out.
    pub fn remove(&mut self, nodes: &mut impl Nodes, node: u32) {
        let Link { prev, next } = std::mem::replace(nodes.link(node), Link::OUT);
        assert!(prev != Link::OUT.prev, "node {node} is not in the list");
        match prev {
            NONE => self.head = next,
            prev => nodes.link(prev).next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => nodes.link(next).prev = prev,
        }
        self.len -= 1;
    }

    /// Takes the oldest node out.
    pub fn pop(&mut self, nodes: &mut impl Nodes) -> Option<u32> {
        let first = self.first()?;
        self.remove(nodes, first);
        Some(first)
    }

    /// All nodes, oldest first, after walking the list both ways; for the invariant checks.
    pub fn checked(&self, nodes: &mut impl Nodes) -> Vec<u32> {
        let (mut forth, mut node) = (Vec::new(), self.head);
        while node != NONE {
            forth.push(node);
            assert!(forth.len() <= self.len(), "a list is longer than its count");
            node = nodes.link(node).next;
        }
        let (mut back, mut node) = (Vec::new(), self.tail);
        while node != NONE && back.len() < forth.len() {
            back.push(node);
            node = nodes.link(node).prev;
        }
        back.reverse();
        assert!(node == NONE && forth == back && forth.len() == self.len(), "a list is torn");
        forth
    }
}

#[cfg(test)]
#[path = "../../tests/unit/lists.rs"]
mod tests;
