//! How many sockets for fds that are fetched ahead there are, one for a client at most. Fds lie in
//! them until the client reads them, and are its leases meanwhile. Must never let there be more of
//! them than [`ahead_sockets`].
//!
//! [`ahead_sockets`]: crate::limits::ahead_sockets

use fdbroker_core::{DomainKey, Part};
use rustc_hash::FxHashMap;

/// See the module.
#[derive(Debug)]
pub struct Ahead {
    most: u64,
    used: u64,
    /// No entry = none.
    used_by: FxHashMap<DomainKey, u64>,
    /// [`fdbroker_core::Config::share_factor`].
    factor: u64,
}

impl Ahead {
    /// None yet, and at most `most`. `factor`: [`fdbroker_core::Config::share_factor`].
    pub fn new(most: u64, factor: u64) -> Self {
        Ahead { most, used: 0, used_by: FxHashMap::default(), factor }
    }

    /// Whether this broker has any.
    pub fn is_possible(&self) -> bool {
        self.most > 0
    }

    /// Whether a client of `domain` may have one.
    pub fn has_room(&self, domain: DomainKey) -> bool {
        let held = self.used_by.get(&domain).copied().unwrap_or(0);
        Part { held, used: self.used, most: self.most }.room(self.factor) > 0
            && self.used < self.most
    }

    /// A client of `domain` has one from now on.
    pub fn open(&mut self, domain: DomainKey) {
        self.used += 1;
        *self.used_by.entry(domain).or_default() += 1;
    }

    /// A client of `domain` has its socket no more, and nothing lies in it.
    pub fn close(&mut self, domain: DomainKey) {
        self.used -= 1;
        let Some(used) = self.used_by.get_mut(&domain) else { return };
        *used -= 1;
        if *used == 0 {
            self.used_by.remove(&domain);
        }
    }

    /// Whether there is none.
    #[cfg(test)]
    pub fn is_unused(&self) -> bool {
        self.used == 0 && self.used_by.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOMAIN: DomainKey = DomainKey { listener: 0, uid: 1000 };
    const OTHER: DomainKey = DomainKey { listener: 0, uid: 1001 };

    #[test]
    fn has_room_when_one_domain_takes_all_that_it_may_then_another_finds_some() {
        let mut ahead = Ahead::new(16, 2);
        while ahead.has_room(DOMAIN) {
            ahead.open(DOMAIN);
        }
        assert!(ahead.used < 16 && ahead.has_room(OTHER));
        (0..ahead.used).for_each(|_| ahead.close(DOMAIN));
        assert!(ahead.is_unused());
    }
}
