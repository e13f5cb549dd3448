//! What else the ledger counts of a scope and those above it: what can be evicted, taken back,
//! asked for, or comes back by itself, and which requests wait. Must never let a scope differ from
//! the sum of its clients.

use super::{Blocked, Ledger, ScopeId, ScopeRecord};
use crate::api::Now;
use fdbroker_protocol::{Resource, Scope};

impl Ledger {
    /// A client's oldest evictable allocation has this place now, and it has so many of them.
    pub fn set_evictable(&mut self, client: ScopeId, place: Option<u64>, count: u64) {
        let ScopeRecord { evictable, ref lru, number, .. } = self[client];
        let former = lru.first_key().map(|(place, _)| place);
        if (former, evictable) == (place, count) {
            return;
        }
        self.walk(client, None, |scope| {
            scope.evictable = scope.evictable - evictable + count;
            if former != place {
                scope.lru.change(number, former, place);
            }
        });
    }

    /// A client has so many idle credits now; `place`: where it comes among the others if it had
    /// none.
    pub fn set_idle_credits(&mut self, client: ScopeId, count: u64, place: u64) {
        let ScopeRecord { idle_credits, ref creditors, number, .. } = self[client];
        if idle_credits == count {
            return;
        }
        let former = creditors.first_key().map(|(place, _)| place);
        let place = (count > 0).then(|| former.unwrap_or(place));
        self.walk(client, None, |scope| {
            scope.idle_credits = scope.idle_credits - idle_credits + count;
            if former != place {
                scope.creditors.change(number, former, place);
            }
        });
        if count < idle_credits {
            // A hello that is in line for the table because they could come back may have to let
            // others pass now.
            self.freed(ScopeId::NODE, std::iter::once(Resource::TablePlaces));
        }
    }

    /// Where a client is among those that can be asked for leases of a kind.
    pub fn ask_key(&self, client: ScopeId, kind: usize) -> Option<u64> {
        self[client].askable[kind].first_key().map(|(key, _)| key)
    }

    /// Puts a client there.
    pub fn set_ask_key(&mut self, client: ScopeId, kind: usize, key: Option<u64>) {
        let (number, former) = (self[client].number, self.ask_key(client, kind));
        self.walk(client, None, |scope| scope.askable[kind].change(number, former, key));
    }

    /// Nobody is asked for leases of a kind for the scope's sake until then.
    pub fn pause(&mut self, scope: ScopeId, kind: usize, until: Now) {
        self.get(scope).pauses[kind] = until;
    }

    /// Something that was asked for has come back: more may be asked for.
    pub fn end_pauses(&mut self, client: ScopeId) {
        self.walk(client, None, |scope| scope.pauses = Default::default());
    }

    /// The bytes that a domain holds and that cannot be had back change: a part of them from
    /// `former` to `now`.
    pub fn change_resident(&mut self, domain: ScopeId, former: u64, now: u64) {
        let change = |sum: u128| sum - u128::from(former) + u128::from(now);
        self.walk(domain, None, |scope| scope.resident_bytes = change(scope.resident_bytes));
    }

    /// A request waits for room.
    pub fn block(&mut self, Blocked { resource, scope }: Blocked) {
        self.get(scope).blocked.0[resource.index()] += 1;
    }

    /// It waits no longer; the kind and number of the scope, unless that was closed.
    pub fn unblock(&mut self, Blocked { resource, scope }: Blocked) -> Option<(Scope, u32)> {
        self.get(scope).blocked.0[resource.index()] -= 1;
        self.drop_if_closed(scope)
    }

    /// Fds go to the closers, and will be closed soon. `is_slow`: the node does not wait for them.
    pub fn add_coming(&mut self, from: ScopeId, is_slow: bool, count: u64) {
        self.walk(from, is_slow.then_some(Scope::Node), |scope| scope.coming += count);
    }

    /// They have been closed: whoever still waits may have others evicted.
    pub fn take_coming(&mut self, from: ScopeId, is_slow: bool, count: u64) {
        self.walk(from, is_slow.then_some(Scope::Node), |scope| scope.coming -= count);
        self.can_be_had(from);
    }

    /// A client is gone: its fds in the closers are its domain's alone.
    pub fn leave_coming(&mut self, client: ScopeId) {
        let count = self[client].coming;
        self.walk(client, Some(Scope::Domain), |scope| scope.coming -= count);
        // Its job waits for them no more.
        self.can_be_had(client);
    }

    /// The node does not wait for closes of the domain any more, or does again.
    pub fn set_slow(&mut self, domain: ScopeId, is_slow: bool) {
        let count = self[domain].coming;
        let node = self.get(ScopeId::NODE);
        node.coming = if is_slow { node.coming - count } else { node.coming + count };
        // Whoever waited for these closes may have others evicted.
        self.can_be_had(ScopeId::NODE);
    }
}
