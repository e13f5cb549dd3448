//! Shares of domains: of what cannot be taken back, a domain gets more only while it holds less
//! than so many times ([`crate::Config::share_factor`]) what is still free, and little of the last
//! sixteenth. So a newcomer finds some, though several domains take all that they may. Must never
//! take anything back.
//!
//! An example: 9,000 fds and a factor of 8, as on a node service. A domain alone gets 8,000: with
//! 7,999 it still has less than 8 times the 1,001 that are free. The next one may take 889 by that
//! rule, and gets 438: then 562 are left, the last sixteenth. Of these each further domain gets 35,
//! one 256th of all, so that sixteen more find some. When the first one gives 1,000 back, they are
//! free for all; it may take them again only while the rule holds for it.
//!
//! Domains of one user's subordinate uids count as one: 65,536 uids are no more than one person.

use crate::limits::{LAST_PART, LEAST_OF_LAST, SHARE_OF_LAST};
use fdbroker_protocol::NO_CAP;

/// What of a resource cannot be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Held by the domain.
    pub held: u64,
    /// Held by all domains.
    pub used: u64,
    /// All that there is.
    pub most: u64,
}

impl Part {
    /// How much more the domain may get; `factor` as in [`crate::Config::share_factor`].
    pub fn room(self, factor: u64) -> u64 {
        if factor == NO_CAP || self.most == NO_CAP {
            return NO_CAP;
        }
        let Part { held, used, most } = self;
        let free = most.saturating_sub(used);
        let reach = factor.saturating_mul(free);
        if held >= reach {
            return 0;
        }
        // The last one that it gets finds that the domain holds less than `factor` times what is
        // free then.
        let room = (reach - held - 1) / (factor + 1) + 1;
        room.min(free)
    }

    /// The same for what a domain may keep for ever: it gets little of the last part.
    pub(crate) fn lasting_room(self, factor: u64) -> u64 {
        let Part { held, used, most } = self;
        let before_last = most.saturating_sub(used).saturating_sub(most / LAST_PART);
        let of_last = (most / SHARE_OF_LAST).max(LEAST_OF_LAST).saturating_sub(held);
        match self.room(factor) {
            NO_CAP => NO_CAP,
            room => room.min(before_last.max(of_last)),
        }
    }
}

#[cfg(test)]
#[path = "../../tests/unit/shares.rs"]
mod tests;
