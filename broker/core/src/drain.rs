//! Caps changed at run time. Must never add to an account that is above a lowered cap, nor take from a client by
//! force: what can be had again is evicted, the rest is asked for, and drains as it is given back.

use crate::Core;
use crate::api::{CapsOfScopes, Effects, Now};
use crate::ledger::{Blocked, ScopeId};
use crate::limits::{DRAIN_PAUSE_US, EVICTIONS_PER_STEP};
use fdbroker_protocol::Resource;
use fdbroker_protocol::admin::EventKind;

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
        self.drain_at = Some(Now(0));
        // Those that were raised.
        self.room_appeared |= !self.rooms.is_empty();
    }

    /// Something has grown; accounts that are above their caps now are brought down.
    pub(crate) fn drain_soon(&mut self, is_above: bool) {
        if is_above && self.drain_at.is_none() {
            self.drain_at = Some(Now(0));
        }
    }

    /// Brings accounts above their caps down, as far as is possible now; again after a pause while one is above.
    pub(crate) fn drain(&mut self, fx: &mut Effects) {
        if self.drain_at.is_none_or(|at| at > self.now) {
            return;
        }
        self.drain_at = None;
        let mut evictions = EVICTIONS_PER_STEP;
        for scope in self.ledger.narrowest_first() {
            for resource in DRAINED {
                let excess = self.excess(scope, resource);
                if excess > 0 {
                    let blocked = Blocked { resource, scope };
                    evictions -= self.drain_one(blocked, excess, evictions, fx);
                    let pause = if evictions == 0 { 0 } else { DRAIN_PAUSE_US };
                    self.drain_at = Some(Now(self.now.0.saturating_add(pause)));
                }
            }
        }
        if evictions == 0 {
            // Cut short: the next poll goes on.
            self.drain_at = Some(Now(0));
        }
    }

    fn excess(&self, scope: ScopeId, resource: Resource) -> u64 {
        let now = self.ledger[scope].account.counted(resource);
        now.saturating_sub(self.ledger.cap(scope, resource))
    }

    /// Evicts, or asks for leases; how many evictions that took.
    fn drain_one(&mut self, blocked: Blocked, excess: u64, most: usize, fx: &mut Effects) -> usize {
        let mut evicted = 0;
        if blocked.resource == Resource::HeldBytes {
            while evicted < most && self.excess(blocked.scope, blocked.resource) > 0 {
                match self.evict_for(blocked, 1, fx) {
                    0 => break,
                    more => evicted += more,
                }
            }
            return evicted;
        }
        let missing = excess.saturating_sub(self.ledger[blocked.scope].coming);
        let missing = usize::try_from(missing).unwrap_or(usize::MAX);
        evicted = self.evict_for(blocked, missing.min(most), fx);
        if evicted < missing {
            self.reclaim(blocked, missing - evicted);
        }
        evicted
    }
}
