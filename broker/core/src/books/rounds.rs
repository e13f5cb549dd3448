//! Work that is left over, in a list for each domain: the domains take turns. Must never look
//! through all of a list, nor at a domain that has nothing left.

use std::collections::VecDeque;

use crate::books::lists::{List, Nodes};

/// Nodes by domain; also those of no domain, whose number is [`crate::api::NONE`].
#[derive(Debug, Default)]
pub struct Rounds {
    /// By domain number and 1; the first is of no domain.
    lists: Vec<Work>,
    /// Places in `lists` of those that have nodes, the next turn first; and of some that have none
    /// any more.
    turns: VecDeque<usize>,
}

#[derive(Debug)]
struct Work {
    list: List,
    /// It is among the turns.
    has_turn: bool,
}

impl Rounds {
    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Adds a node behind those of its domain.
    pub fn push(&mut self, domain: u32, nodes: &mut impl Nodes, node: u32) {
        let place = domain.wrapping_add(1) as usize;
        while self.lists.len() <= place {
            self.lists.push(Work { list: List::EMPTY, has_turn: false });
        }
        let work = &mut self.lists[place];
        work.list.push(nodes, node);
        if !std::mem::replace(&mut work.has_turn, true) {
            self.turns.push_back(place);
        }
    }

    /// Takes out a node of a domain.
    pub fn remove(&mut self, domain: u32, nodes: &mut impl Nodes, node: u32) {
        self.lists[domain.wrapping_add(1) as usize].list.remove(nodes, node);
        self.drop_empty_turns();
    }

    /// The oldest node of the domain whose turn it is.
    pub fn first(&self) -> Option<u32> {
        self.turns.front().and_then(|place| self.lists[*place].list.first())
    }

    /// The domain has had its turn.
    pub fn end_turn(&mut self) {
        if !self.turns.is_empty() {
            self.turns.rotate_left(1);
            self.drop_empty_turns();
        }
    }

    /// So that the first turn is of a domain that has something left.
    fn drop_empty_turns(&mut self) {
        while let Some(place) = self.turns.front()
            && self.lists[*place].list.is_empty()
        {
            self.lists[*place].has_turn = false;
            self.turns.pop_front();
        }
    }
}
