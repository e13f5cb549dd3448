//! How many fds may lie unread in clients' sockets. The kernel counts them against the broker's
//! uid, whoever leaves them there and even when the connection has ended; over its limit every send
//! of every socket fails. So each connection has a share of its own, and the rest is a pool. Must
//! never let one client's use touch another's share.

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct InFlight {
    /// Fds each connection may always leave unread.
    share: u64,
    /// Fds that may be unread beyond the shares, all connections together.
    pool: u64,
    /// Of these, those that are.
    pool_used: u64,
}

/// Hello's answer carries two fds, and must always be possible.
const LEAST_SHARE: u64 = 2;

impl InFlight {
    /// `most` fds in flight, for at most `connections` of them; half of `most` is divided into
    /// shares.
    pub fn new(most: u64, connections: u32) -> Self {
        let connections = u64::from(connections.max(1));
        let share = (most / 2 / connections).max(LEAST_SHARE);
        InFlight { share, pool: most.saturating_sub(share * connections), pool_used: 0 }
    }

    /// Fds that a connection with `unread` of them may be sent now.
    pub fn room(&self, unread: u64) -> u64 {
        self.share.saturating_sub(unread) + self.pool.saturating_sub(self.pool_used)
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
        assert_eq!(in_flight.room(0), 6);
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
    fn new_when_the_limit_is_tiny_then_hello_is_always_possible() {
        let in_flight = InFlight::new(10, 100);
        assert_eq!(in_flight.room(0), LEAST_SHARE);
    }
}
