//! The lobby: connections that have not said hello. Each domain has a part of it, so that one that only connects keeps the
//! others out of nothing. Must never count a connection twice.

use crate::limits::{LOBBY, LOBBY_PER_DOMAIN};
use fdbroker_core::DomainKey;
use std::collections::HashMap;

/// How many connections have not said hello.
#[derive(Debug)]
pub struct Lobby {
    of: HashMap<DomainKey, u32>,
    all: u32,
    /// A broker of one user shares nothing.
    is_shared: bool,
}

impl Lobby {
    /// An empty one.
    pub fn new(is_shared: bool) -> Self {
        Lobby { of: HashMap::new(), all: 0, is_shared }
    }

    /// Whether another connection of this domain may come in.
    pub fn has_room(&self, domain: DomainKey) -> bool {
        let of_domain = self.of.get(&domain).copied().unwrap_or(0);
        !self.is_shared || (self.all < LOBBY && of_domain < LOBBY_PER_DOMAIN)
    }

    /// A connection has come in.
    pub fn enter(&mut self, domain: DomainKey) {
        *self.of.entry(domain).or_default() += 1;
        self.all += 1;
    }

    /// It has said hello, or has ended before.
    pub fn leave(&mut self, domain: DomainKey) {
        let of_domain = self.of.get_mut(&domain).expect("it came in before");
        (*of_domain, self.all) = (*of_domain - 1, self.all - 1);
        if *of_domain == 0 {
            self.of.remove(&domain);
        }
    }

    /// Nobody is in it any more.
    pub fn clear(&mut self) {
        self.of.clear();
        self.all = 0;
    }

    /// Nobody is in it.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.all == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lobby_when_a_domain_has_its_part_then_only_others_come_in_until_one_leaves() {
        let (mine, other) = (DomainKey { listener: 0, uid: 1 }, DomainKey { listener: 0, uid: 2 });
        let mut lobby = Lobby::new(true);
        (0..LOBBY_PER_DOMAIN).for_each(|_| lobby.enter(mine));
        assert!(!lobby.has_room(mine) && lobby.has_room(other));
        lobby.leave(mine);
        assert!(lobby.has_room(mine));
        (0..LOBBY_PER_DOMAIN - 1).for_each(|_| lobby.leave(mine));
        assert!(lobby.is_empty());
    }

    #[test]
    fn lobby_when_full_then_nobody_comes_in_but_to_a_private_broker() {
        let domain = |uid| DomainKey { listener: 0, uid };
        let (mut shared, mut private) = (Lobby::new(true), Lobby::new(false));
        for uid in 0..LOBBY {
            shared.enter(domain(uid));
            private.enter(domain(0));
        }
        assert!(!shared.has_room(domain(LOBBY)) && private.has_room(domain(0)));
    }
}
