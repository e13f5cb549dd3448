//! Fds fetched ahead: what a client will most likely ask for next, from room that nobody misses.
//! Must never start a recall or an eviction, make anybody wait, or count as use.

use crate::api::{ClientId, Effect, Item, Wanted};
use crate::books::{FOR_LEASE, ScopeId, ScopeRecord};
use crate::core::Core;
use crate::limits::AHEAD_ROOM_DIVISOR;
use crate::moves::Step;
use fdbroker_protocol::Resource;
use fdbroker_protocol::limits::{AHEAD_BYTES, AHEAD_FDS};

impl Core {
    /// Leases what is held of the items, in their order, as far as there is room; the others are
    /// left out, without a word. A client that can be sent nothing gets nothing, nor does anybody
    /// from a broker that is to be emptied.
    pub(crate) fn acquire_ahead(&mut self, client: ClientId, wanted: &[Wanted], step: &mut Step) {
        if self.books.draining.is_some() || !self.books.client_mut(client.0).sendable {
            return;
        }
        let begin = step.fx.granted.len();
        let room = self.room_ahead(client);
        let mut bytes = AHEAD_BYTES;
        for item in wanted.iter().take(AHEAD_FDS) {
            let Item::Ready(slot) = self.books.item(client, *item) else { continue };
            let size = self.books.allocations[slot].size_bytes;
            if (step.fx.granted.len() - begin) as u64 == room || size > bytes {
                break;
            }
            let Ok(lease) = self.books.lease(client.0, slot, step) else { break };
            bytes -= size;
            // Not marked as used: nobody has asked for it yet.
            step.fx.granted.push(self.books.allocations.granted(slot, *item, lease));
        }
        let range = begin..step.fx.granted.len();
        if !range.is_empty() {
            step.fx.list.push(Effect::GrantedAhead { client, range });
        }
    }

    /// How many leases a client may have that nobody has asked for: a part of the free room of
    /// every account that they are charged to, and none while somebody waits for room there.
    pub fn room_ahead(&self, client: ClientId) -> u64 {
        let record = &self.books.clients[client.0];
        let share = self.books.share_of_fds(record.domain);
        let free = |scope: ScopeId| {
            let ScopeRecord { blocked, account, .. } = &self.books.ledger[scope];
            let is_waited_for = FOR_LEASE.iter().any(|it| blocked.has(*it));
            let cap = |it| self.books.ledger.cap(scope, it);
            let room = |it| cap(it).saturating_sub(account.counted(it));
            if is_waited_for { 0 } else { room(Resource::Fds).min(room(Resource::OpenLeases)) }
        };
        self.books.ledger.path(record.scope).map(free).fold(share, u64::min) / AHEAD_ROOM_DIVISOR
    }
}
