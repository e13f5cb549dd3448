//! Whose turn it is. Two rules keep a flood from delaying anybody else: users take turns, however many clients each
//! has; and a client that has just become ready goes before those that still have work left from an earlier turn,
//! because one request at a time is how a client behaves that waits for its answer. Must never let the latter starve.

use crate::limits::FRESH_IN_A_ROW;
use fdbroker_core::ClientId;
use std::collections::{HashMap, VecDeque};

/// One of the two classes, as a ring of users that have clients in it.
#[derive(Debug, Default)]
struct Class {
    users: VecDeque<u32>,
    clients: HashMap<u32, VecDeque<ClientId>>,
    count: usize,
}

/// See the module. Each client is in it once at most: who puts them in sees to that.
#[derive(Debug, Default)]
pub struct Turns {
    fresh: Class,
    rest: Class,
    /// Turns of fresh ones since the last one of the rest.
    in_a_row: usize,
}

impl Turns {
    /// A client that had nothing to do until now.
    pub fn push_fresh(&mut self, uid: u32, client: ClientId) {
        self.fresh.push(uid, client);
    }

    /// A client whose turn has ended before its work has.
    pub fn push_rest(&mut self, uid: u32, client: ClientId) {
        self.rest.push(uid, client);
    }

    /// The next one.
    pub fn pop(&mut self) -> Option<ClientId> {
        let is_turn_of_fresh = self.in_a_row < FRESH_IN_A_ROW || self.rest.count == 0;
        if is_turn_of_fresh && let Some(client) = self.fresh.pop() {
            self.in_a_row += 1;
            return Some(client);
        }
        self.in_a_row = 0;
        self.rest.pop()
    }

    /// Whether nobody waits for a turn.
    pub fn is_empty(&self) -> bool {
        self.fresh.count + self.rest.count == 0
    }

    /// Nobody waits any more.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Nobody of this user is left: nothing is kept for it.
    pub fn forget_user(&mut self, uid: u32) {
        for class in [&mut self.fresh, &mut self.rest] {
            if class.clients.get(&uid).is_some_and(VecDeque::is_empty) {
                class.clients.remove(&uid);
            }
        }
    }
}

impl Class {
    fn push(&mut self, uid: u32, client: ClientId) {
        let clients = self.clients.entry(uid).or_default();
        if clients.is_empty() {
            self.users.push_back(uid);
        }
        clients.push_back(client);
        self.count += 1;
    }

    fn pop(&mut self) -> Option<ClientId> {
        let uid = self.users.pop_front()?;
        let clients = self.clients.get_mut(&uid)?;
        let client = clients.pop_front()?;
        // An empty list stays for the user's next turn, until `forget_user`.
        if !clients.is_empty() {
            self.users.push_back(uid);
        }
        self.count -= 1;
        Some(client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(turns: &mut Turns) -> Vec<u32> {
        std::iter::from_fn(|| turns.pop()).map(|client| client.0).collect()
    }

    #[test]
    fn pop_when_a_user_has_many_clients_then_another_user_waits_for_one_of_them() {
        let mut turns = Turns::default();
        (0..100).for_each(|client| turns.push_fresh(1000, ClientId(client)));
        turns.push_fresh(1001, ClientId(100));
        assert_eq!(turns.pop(), Some(ClientId(0)));
        assert_eq!(turns.pop(), Some(ClientId(100)));
        assert_eq!(turns.pop(), Some(ClientId(1)));
    }

    #[test]
    fn pop_when_clients_of_the_same_user_have_work_left_then_a_fresh_one_goes_first() {
        let mut turns = Turns::default();
        (0..10).for_each(|client| turns.push_rest(1000, ClientId(client)));
        turns.push_fresh(1000, ClientId(10));
        assert_eq!(turns.pop(), Some(ClientId(10)));
        assert_eq!(order(&mut turns), (0..10).collect::<Vec<_>>());
        assert!(turns.is_empty());
    }

    #[test]
    fn pop_when_fresh_ones_never_end_then_the_rest_has_its_turns() {
        let mut turns = Turns::default();
        turns.push_rest(1000, ClientId(7));
        let mut served = 0;
        loop {
            turns.push_fresh(1000, ClientId(8));
            served += 1;
            if turns.pop() == Some(ClientId(7)) {
                break;
            }
        }
        assert_eq!(served, FRESH_IN_A_ROW + 1);
    }

    #[test]
    fn forget_user_when_it_has_nobody_left_then_nothing_is_kept() {
        let mut turns = Turns::default();
        turns.push_fresh(1000, ClientId(1));
        turns.pop();
        turns.forget_user(1000);
        assert!(turns.fresh.clients.is_empty() && turns.fresh.users.is_empty());
    }
}
