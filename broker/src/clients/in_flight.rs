//! How many fds may lie unread in clients' sockets. The kernel counts them against the broker's
//! uid, whoever leaves them there and even when the connection has ended; over its limit every send
//! of every socket fails. So each connection has a share of its own, and the rest is a pool. Must
//! never let one client's use touch another's share.

use crate::clients::turns::Who;
use crate::limits::UNREAD_HELLOS_PER_PROCESS;
use fdbroker_protocol::MAX_BATCH;
use std::collections::HashMap;

/// See the module.
#[derive(Clone, Debug)]
pub struct InFlight {
    /// Fds each connection may always leave unread.
    share: u64,
    /// Fds that may be unread beyond the shares, all connections together.
    pool: u64,
    /// Of these, those that are.
    pool_used: u64,
    /// Answers to hello that are unread, by process; no entry = none.
    hellos: HashMap<Who, u32>,
}

/// Hello's answer carries two fds, and must always be possible.
const LEAST_SHARE: u64 = 2;

impl InFlight {
    /// `most` fds in flight, for at most `connections` of them; half of `most` is divided into
    /// shares.
    pub fn new(most: u64, connections: u32) -> Self {
        let connections = u64::from(connections.max(1));
        let share = (most / 2 / connections).max(LEAST_SHARE);
        let pool = most.saturating_sub(share * connections);
        InFlight { share, pool, pool_used: 0, hellos: HashMap::new() }
    }

    /// Fds that a connection with `unread` of them may be sent now.
    pub fn room(&self, unread: u64) -> u64 {
        self.share.saturating_sub(unread) + self.pool.saturating_sub(self.pool_used)
    }

    /// Fds that a grant to who has read all may have: a whole message's, or what is left.
    pub fn most_in_a_grant(&self) -> usize {
        usize::try_from(self.room(0)).unwrap_or(MAX_BATCH).min(MAX_BATCH)
    }

    /// Whether a process may be sent another answer to hello.
    pub fn has_room_for_hello(&self, who: Who) -> bool {
        self.hellos.get(&who).is_none_or(|unread| *unread < UNREAD_HELLOS_PER_PROCESS)
    }

    /// It was sent one.
    pub fn add_hello(&mut self, who: Who) {
        *self.hellos.entry(who).or_default() += 1;
    }

    /// It has read one.
    pub fn remove_hello(&mut self, who: Who) {
        let Some(unread) = self.hellos.get_mut(&who) else { return };
        *unread -= 1;
        if *unread == 0 {
            self.hellos.remove(&who);
        }
    }

    /// A connection that had `unread` was sent `fds` more.
    pub fn add(&mut self, unread: u64, fds: u64) {
        self.pool_used += self.beyond(unread + fds) - self.beyond(unread);
    }

    /// A connection has read all of its `unread`.
    pub fn remove(&mut self, unread: u64) {
        debug_assert!(self.pool_used >= self.beyond(unread), "added before it is removed");
        self.pool_used = self.pool_used.saturating_sub(self.beyond(unread));
    }

    /// Whether nothing is taken from the pool.
    #[cfg(test)]
    pub fn is_pool_unused(&self) -> bool {
        self.pool_used == 0
    }

    fn beyond(&self, unread: u64) -> u64 {
        unread.saturating_sub(self.share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_when_others_have_taken_the_pool_then_the_share_is_left() {
        let mut in_flight = InFlight::new(600, 50);
        assert_eq!(in_flight.room(0), 6 + 300);
        let mut sent = 0;
        for _ in 0..49 {
            let now = in_flight.room(0).min(253);
            assert!(now >= 6);
            in_flight.add(0, now);
            sent += now;
        }
        assert_eq!((in_flight.room(0), in_flight.most_in_a_grant()), (6, 6));
        assert!(sent + 6 <= 600, "{sent}");
    }

    #[test]
    fn remove_when_all_is_read_then_everything_is_as_before() {
        let mut in_flight = InFlight::new(600, 50);
        in_flight.add(0, 4);
        in_flight.add(4, 100);
        in_flight.add(104, 1);
        assert_eq!(in_flight.room(105), 300 - 99);
        in_flight.remove(105);
        assert!(in_flight.is_pool_unused());
        in_flight.add(0, 5);
        assert_eq!(in_flight.room(5), 1 + 300);
    }

    #[test]
    fn hello_when_a_process_has_not_read_many_then_it_waits_and_another_does_not() {
        let mut in_flight = InFlight::new(600, 50);
        let (one, other) = (Who { uid: 1000, pid: 1 }, Who { uid: 1000, pid: 2 });
        for _ in 0..UNREAD_HELLOS_PER_PROCESS {
            assert!(in_flight.has_room_for_hello(one));
            in_flight.add_hello(one);
        }
        assert!(!in_flight.has_room_for_hello(one) && in_flight.has_room_for_hello(other));
        in_flight.remove_hello(one);
        assert!(in_flight.has_room_for_hello(one));
        (1..UNREAD_HELLOS_PER_PROCESS).for_each(|_| in_flight.remove_hello(one));
        assert!(in_flight.hellos.is_empty());
    }

    #[test]
    fn new_when_the_limit_is_tiny_then_hello_is_always_possible() {
        let in_flight = InFlight::new(10, 100);
        assert_eq!(in_flight.room(0), LEAST_SHARE);
    }
}
