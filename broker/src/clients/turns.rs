//! Which client is next. Two rules keep a flood from delaying other clients. Users take turns, and
//! so do the processes of a user, however many clients they have. And a client that has just become
//! ready goes before clients with work left from an earlier turn, because a client that waits for
//! each answer has one request at a time. Must never let a client with work left starve.

use crate::limits::FRESH_IN_A_ROW;
use fdbroker_core::{ClientId, UserKey};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::hash::Hash;

/// A client's user, and its process as the broker sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Who {
    /// The process's; where pods are told apart its pod.
    pub user: UserKey,
    /// 0 when it is in another PID namespace: all such processes of a user count as one.
    pub pid: u32,
}

/// See the module. Each client is in it once at most: the caller sees to that.
#[derive(Debug, Default)]
pub struct Turns {
    /// A client that has just become ready while no other waits: the usual case, without a ring.
    alone: Option<(Who, ClientId)>,
    /// The clients that have just become ready, if there are several.
    fresh: Users,
    rest: Users,
    /// Turns of fresh clients since the last turn of a client of the rest.
    in_a_row: usize,
}

type Users = Ring<UserKey, Ring<u32, VecDeque<ClientId>>>;

impl Turns {
    /// A client that had nothing to do until now.
    pub fn push_fresh(&mut self, who: Who, client: ClientId) {
        if self.alone.is_none() && self.fresh.is_empty() {
            self.alone = Some((who, client));
            return;
        }
        if let Some((who, client)) = self.alone.take() {
            push(&mut self.fresh, who, client);
        }
        push(&mut self.fresh, who, client);
    }

    /// A client whose turn has ended before its work has.
    pub fn push_rest(&mut self, who: Who, client: ClientId) {
        push(&mut self.rest, who, client);
    }

    pub fn pop(&mut self) -> Option<ClientId> {
        let is_turn_of_fresh = self.in_a_row < FRESH_IN_A_ROW || self.rest.is_empty();
        if is_turn_of_fresh && let Some(client) = self.pop_fresh() {
            self.in_a_row += 1;
            return Some(client);
        }
        self.in_a_row = 0;
        self.rest.pop()
    }

    fn pop_fresh(&mut self) -> Option<ClientId> {
        match self.alone.take() {
            Some((_, client)) => Some(client),
            None => self.fresh.pop(),
        }
    }

    /// Whether nobody waits for a turn.
    pub fn is_empty(&self) -> bool {
        self.alone.is_none() && self.fresh.is_empty() && self.rest.is_empty()
    }

    /// Whether somebody waits behind another.
    pub fn has_several(&self) -> bool {
        self.fresh.has_several()
            || self.rest.has_several()
            || !(self.alone.is_none() && self.fresh.is_empty() || self.rest.is_empty())
    }

    /// Nobody waits any more.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

fn push(users: &mut Users, who: Who, client: ClientId) {
    users.member(who.user).member(who.pid).push_back(client);
}

/// What clients are taken from, one at a time.
trait Line: Default {
    fn pop(&mut self) -> Option<ClientId>;
    fn is_empty(&self) -> bool;
    fn has_several(&self) -> bool;
}

impl Line for VecDeque<ClientId> {
    fn pop(&mut self) -> Option<ClientId> {
        self.pop_front()
    }

    fn is_empty(&self) -> bool {
        self.is_empty()
    }

    fn has_several(&self) -> bool {
        self.len() > 1
    }
}

/// Lines by their keys that take turns. A line in which nobody waits is removed; one of them is
/// kept for its memory.
#[derive(Debug, Default)]
struct Ring<K, L> {
    order: VecDeque<K>,
    lines: FxHashMap<K, L>,
    spare: Option<L>,
}

impl<K: Copy + Eq + Hash, L: Line> Ring<K, L> {
    /// The line of a key, at the end of the ring if nobody waits in it. The caller puts somebody
    /// in.
    fn member(&mut self, key: K) -> &mut L {
        self.lines.entry(key).or_insert_with(|| {
            self.order.push_back(key);
            self.spare.take().unwrap_or_default()
        })
    }
}

impl<K: Copy + Default + Eq + Hash, L: Line> Line for Ring<K, L> {
    fn pop(&mut self) -> Option<ClientId> {
        let key = self.order.pop_front()?;
        let line = self.lines.get_mut(&key)?;
        let client = line.pop();
        if line.is_empty() {
            self.spare = self.lines.remove(&key);
        } else {
            self.order.push_back(key);
        }
        client
    }

    fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    fn has_several(&self) -> bool {
        let only = self.order.front().and_then(|key| self.lines.get(key));
        self.order.len() > 1 || only.is_some_and(Line::has_several)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fdbroker_core::PodKey;

    const ONE: Who = Who { user: (1000, PodKey::NONE), pid: 1 };
    const ANOTHER: Who = Who { user: (1000, PodKey::NONE), pid: 2 };
    const OTHER_USER: Who = Who { user: (1001, PodKey::NONE), pid: 3 };

    fn order(turns: &mut Turns) -> Vec<u32> {
        std::iter::from_fn(|| turns.pop()).map(|client| client.0).collect()
    }

    #[test]
    fn pop_when_a_user_has_many_clients_then_another_user_waits_for_one_of_them() {
        let mut turns = Turns::default();
        (0..100).for_each(|client| turns.push_fresh(Who { pid: client, ..ONE }, ClientId(client)));
        turns.push_fresh(OTHER_USER, ClientId(100));
        assert_eq!(turns.pop(), Some(ClientId(0)));
        assert_eq!(turns.pop(), Some(ClientId(100)));
        assert_eq!(turns.pop(), Some(ClientId(1)));
    }

    #[test]
    fn pop_when_a_process_has_many_clients_then_another_of_its_user_waits_for_one_of_them() {
        let mut turns = Turns::default();
        (0..100).for_each(|client| turns.push_fresh(ONE, ClientId(client)));
        turns.push_fresh(ANOTHER, ClientId(100));
        assert_eq!(turns.pop(), Some(ClientId(0)));
        assert_eq!(turns.pop(), Some(ClientId(100)));
        assert_eq!(turns.pop(), Some(ClientId(1)));
    }

    #[test]
    fn pop_when_clients_of_the_same_process_have_work_left_then_a_fresh_one_goes_first() {
        let mut turns = Turns::default();
        (0..10).for_each(|client| turns.push_rest(ONE, ClientId(client)));
        turns.push_fresh(ONE, ClientId(10));
        assert_eq!(turns.pop(), Some(ClientId(10)));
        assert_eq!(order(&mut turns), (0..10).collect::<Vec<_>>());
        assert!(turns.is_empty());
    }

    #[test]
    fn pop_when_fresh_ones_never_end_then_the_rest_has_its_turns() {
        let mut turns = Turns::default();
        turns.push_rest(ONE, ClientId(7));
        let mut served = 0;
        loop {
            turns.push_fresh(ONE, ClientId(8));
            served += 1;
            if turns.pop() == Some(ClientId(7)) {
                break;
            }
        }
        assert_eq!(served, FRESH_IN_A_ROW + 1);
    }

    #[test]
    fn pop_when_all_have_had_their_turn_then_nothing_is_kept_of_who_they_were() {
        let mut turns = Turns::default();
        for number in 0..100 {
            turns.push_fresh(Who { user: (number, PodKey::NONE), pid: number }, ClientId(number));
        }
        assert_eq!(order(&mut turns).len(), 100);
        assert!(turns.fresh.lines.is_empty() && turns.fresh.order.is_empty());
    }
}
