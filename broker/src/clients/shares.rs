//! What clients share: fds that lie unread in their sockets, and sockets for fds that are fetched
//! ahead. Of each a domain has its share. Must never let one client's use touch another's share.

use fdbroker_core::{DomainKey, Part};
use fdbroker_protocol::MAX_BATCH;
use rustc_hash::FxHashMap;

/// So many of something, of which each domain has its share.
#[derive(Debug)]
pub struct Pool {
    most: u64,
    used: u64,
    /// The part of `used` that each domain uses; no entry = none.
    used_by: FxHashMap<DomainKey, u64>,
    /// [`fdbroker_core::Config::share_factor`].
    factor: u64,
}

impl Pool {
    /// Nothing is used yet. `factor`: [`fdbroker_core::Config::share_factor`].
    pub fn new(most: u64, factor: u64) -> Self {
        Pool { most, used: 0, used_by: FxHashMap::default(), factor }
    }

    /// Whether there is anything at all.
    pub fn is_possible(&self) -> bool {
        self.most > 0
    }

    /// How much more `domain` may take.
    pub fn room(&self, domain: DomainKey) -> u64 {
        let held = self.used_by.get(&domain).copied().unwrap_or(0);
        let part = Part { held, used: self.used, most: self.most };
        part.room(self.factor).min(self.most.saturating_sub(self.used))
    }

    pub fn take(&mut self, domain: DomainKey, count: u64) {
        if count > 0 {
            self.used += count;
            *self.used_by.entry(domain).or_default() += count;
        }
    }

    pub fn give_back(&mut self, domain: DomainKey, count: u64) {
        debug_assert!(self.used >= count, "taken before it is given back");
        self.used = self.used.saturating_sub(count);
        let Some(used) = self.used_by.get_mut(&domain) else { return };
        *used = used.saturating_sub(count);
        if *used == 0 {
            self.used_by.remove(&domain);
        }
    }

    /// Whether nothing is taken.
    #[cfg(test)]
    pub fn is_unused(&self) -> bool {
        self.used == 0 && self.used_by.is_empty()
    }
}

/// How many fds may lie unread in clients' sockets, in numbers. The kernel counts them against the
/// broker's uid, for every client that leaves them there, even when its connection has ended; over
/// its limit every send of every socket fails. So each connection has a share of its own, and the
/// rest is a pool.
#[derive(Debug)]
pub struct Shares {
    /// Fds each connection may always leave unread.
    share: u64,
    /// Fds that may be unread beyond the shares, all connections together.
    beyond: Pool,
}

/// Hello's answer carries an fd, and must always be possible; so must a grant of one behind it.
const LEAST_SHARE: u64 = 2;

impl Shares {
    /// `most` fds in flight, for at most `connections` of them; half of `most` is divided into
    /// shares. `factor`: [`fdbroker_core::Config::share_factor`].
    pub fn new(most: u64, connections: u32, factor: u64) -> Self {
        let connections = u64::from(connections.max(1));
        let share = (most / 2 / connections).max(LEAST_SHARE);
        Shares { share, beyond: Pool::new(most.saturating_sub(share * connections), factor) }
    }

    /// How many of `fds` fds a connection of `domain` with `unread` of them may be sent now.
    pub fn room(&self, domain: DomainKey, unread: u64, fds: u64) -> u64 {
        let own = self.share.saturating_sub(unread);
        if own >= fds {
            return fds;
        }
        own.saturating_add(self.beyond.room(domain)).min(fds)
    }

    /// Fds that a grant to a client of a domain that has read all may have: a whole message's, or
    /// what is left.
    pub fn most_in_a_grant(&self) -> usize {
        let most = self.room(DomainKey::NOBODYS, 0, MAX_BATCH as u64);
        usize::try_from(most).unwrap_or(MAX_BATCH)
    }

    /// A connection of `domain` that had `unread` was sent `fds` more.
    pub fn add(&mut self, domain: DomainKey, unread: u64, fds: u64) {
        self.beyond.take(domain, self.beyond_share(unread + fds) - self.beyond_share(unread));
    }

    /// A connection of `domain` has read all of its `unread`.
    pub fn remove(&mut self, domain: DomainKey, unread: u64) {
        self.beyond.give_back(domain, self.beyond_share(unread));
    }

    /// Whether nothing is taken from the pool.
    #[cfg(test)]
    pub fn is_unused(&self) -> bool {
        self.beyond.is_unused()
    }

    fn beyond_share(&self, unread: u64) -> u64 {
        unread.saturating_sub(self.share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fdbroker_protocol::NO_CAP;

    const DOMAIN: DomainKey = DomainKey::new(0, 1000);
    const OTHER: DomainKey = DomainKey::new(0, 1001);

    #[test]
    fn room_when_others_have_taken_the_pool_then_the_share_is_left() {
        let mut shares = Shares::new(600, 50, NO_CAP);
        assert_eq!(shares.room(DOMAIN, 0, 999), 6 + 300);
        let mut sent = 0;
        for _ in 0..49 {
            let now = shares.room(DOMAIN, 0, 253);
            assert!(now >= 6);
            shares.add(DOMAIN, 0, now);
            sent += now;
        }
        assert_eq!((shares.room(DOMAIN, 0, 99), shares.most_in_a_grant()), (6, 6));
        assert!(sent + 6 <= 600, "{sent}");
    }

    #[test]
    fn room_when_one_domain_never_reads_then_a_newcomer_finds_some() {
        let mut shares = Shares::new(20_000, 1000, 8);
        for _ in 0..60 {
            let now = shares.room(DOMAIN, 0, 506);
            shares.add(DOMAIN, 0, now);
        }
        assert_eq!(shares.room(DOMAIN, 0, 253), 10, "its own share alone");
        assert_eq!(shares.room(OTHER, 0, 253), 253);
        assert_eq!(shares.most_in_a_grant(), 253);
        shares.add(OTHER, 0, 253);
        shares.remove(OTHER, 253);
        assert_eq!(shares.beyond.used_by.len(), 1);
    }

    #[test]
    fn remove_when_all_is_read_then_everything_is_as_before() {
        let mut shares = Shares::new(600, 50, NO_CAP);
        shares.add(DOMAIN, 0, 4);
        shares.add(DOMAIN, 4, 100);
        shares.add(DOMAIN, 104, 1);
        assert_eq!(shares.room(DOMAIN, 105, 999), 300 - 99);
        shares.remove(DOMAIN, 105);
        assert!(shares.is_unused());
        shares.add(DOMAIN, 0, 5);
        assert_eq!(shares.room(DOMAIN, 5, 999), 1 + 300);
    }

    #[test]
    fn new_when_the_limit_is_tiny_then_hello_is_always_possible() {
        let shares = Shares::new(10, 100, 8);
        assert_eq!(shares.room(DOMAIN, 0, 9), LEAST_SHARE);
    }

    #[test]
    fn room_when_one_domain_takes_all_that_it_may_then_another_finds_some() {
        let mut ahead = Pool::new(16, 2);
        while ahead.room(DOMAIN) > 0 {
            ahead.take(DOMAIN, 1);
        }
        assert!(ahead.used < 16 && ahead.room(OTHER) > 0);
        (0..ahead.used).for_each(|_| ahead.give_back(DOMAIN, 1));
        assert!(ahead.is_unused());
    }
}
