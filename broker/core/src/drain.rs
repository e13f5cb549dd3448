//! Caps changed at run time. Must never add to an account that is above a lowered cap, nor take from a client by
//! force: what can be had again is evicted, the rest is asked for, and drains as it is given back.

use crate::Core;
use crate::api::{CapsOfScopes, Effects, Now};
use crate::ledger::{Blocked, ScopeId};
use crate::limits::{DRAIN_PAUSE_US, EVICTIONS_PER_STEP, RECLAIM_LOOKS, SCOPES_DRAINED_PER_STEP};
use crate::timers::Chore;
use fdbroker_protocol::admin::EventKind;
use fdbroker_protocol::{Resource, Scope};

/// What eviction or reclaim brings down; the fds first, because evictions of those help both.
const DRAINED: [Resource; 5] = [
    Resource::HeldBytes,
    Resource::HeldFds,
    Resource::Fds,
    Resource::OpenLeases,
    Resource::MappedLeases,
];

impl Core {
    /// New caps, from now on, as far as [`Config::bound_caps`](crate::Config::bound_caps) lets them go.
    pub(crate) fn set_caps(&mut self, caps: &CapsOfScopes) {
        self.note_of_node(EventKind::Caps);
        self.caps_changed(self.config.bounded(*caps));
    }

    /// What is above its cap stays until it is given back, and never grows.
    pub(crate) fn caps_changed(&mut self, caps: CapsOfScopes) {
        self.ledger.set_caps(caps);
        self.timers.set_chore(Chore::Drain, Some(Now(0)));
    }

    /// Something has grown; accounts that are above their caps now are brought down.
    pub(crate) fn drain_soon(&mut self, is_above: bool) {
        if is_above && self.timers.chore(Chore::Drain).is_none() {
            self.timers.set_chore(Chore::Drain, Some(Now(0)));
        }
    }

    /// Brings accounts above their caps down, as far as is possible now, a portion at a time; again after a pause while one
    /// is above. The narrowest scopes first: what they give up is room in the wider ones, too.
    pub(crate) fn drain(&mut self, fx: &mut Effects) {
        if self.drain_from.is_none() && self.timers.begin_chore(Chore::Drain, self.now) {
            self.drain_from = Some((0, 0));
        }
        let Some((mut kind, mut from)) = self.drain_from.take() else { return };
        let mut looks = SCOPES_DRAINED_PER_STEP;
        let mut left = EVICTIONS_PER_STEP;
        while looks > 0 && left > 0 {
            let Some(scopes) = Scope::WIDEST_FIRST.iter().rev().nth(kind) else { return };
            match self.ledger.next_of(*scopes, &mut from, &mut looks) {
                Some(scope) => left = self.drain_scope(scope, left, fx),
                None if looks > 0 => (kind, from) = (kind + 1, 0),
                None => {}
            }
        }
        // One that had to be left is looked at again.
        self.drain_from = Some((kind, if left == 0 { from - 1 } else { from }));
    }

    /// Brings one scope down; how much is left of `most` evictions and leases to be asked for.
    fn drain_scope(&mut self, scope: ScopeId, most: usize, fx: &mut Effects) -> usize {
        let mut left = most;
        // Its caps may have been raised.
        self.ledger.freed(scope, Resource::ALL.iter().copied());
        for resource in DRAINED {
            let excess = self.excess(scope, resource);
            if excess > 0 && left > 0 {
                left -= self.drain_one(Blocked { resource, scope }, excess, left, fx);
                let again = self.now.after(DRAIN_PAUSE_US);
                self.timers.set_chore(Chore::Drain, Some(again));
            }
        }
        left
    }

    fn excess(&self, scope: ScopeId, resource: Resource) -> u64 {
        let now = self.ledger[scope].account.counted(resource);
        now.saturating_sub(self.ledger.cap(scope, resource))
    }

    /// Evicts, or asks for leases; how many of `most` that took.
    fn drain_one(&mut self, blocked: Blocked, excess: u64, most: usize, fx: &mut Effects) -> usize {
        let mut evicted = 0;
        if blocked.resource == Resource::HeldBytes {
            while evicted < most && self.excess(blocked.scope, blocked.resource) > 0 {
                match self.evict_for(blocked, most - evicted, fx) {
                    0 => break,
                    more => evicted += more,
                }
            }
            return evicted;
        }
        let excess = match self.take_idle_credits(blocked, 0) {
            true => self.excess(blocked.scope, blocked.resource),
            false => excess,
        };
        let missing = excess.saturating_sub(self.ledger[blocked.scope].coming);
        let missing = usize::try_from(missing).unwrap_or(usize::MAX);
        let asked_before = self.counters.reclaims;
        evicted = self.evict_for(blocked, missing.min(most), fx);
        if evicted == missing || evicted == most {
            return evicted;
        }
        self.reclaim(blocked, missing - evicted);
        // Some clients are looked at, however few leases they have.
        let asked = (self.counters.reclaims - asked_before) as usize;
        (evicted + asked + RECLAIM_LOOKS).min(most)
    }
}
