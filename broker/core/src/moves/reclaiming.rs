//! Reclaim: clients are asked to give back leases that they do not use, the most idle first, when a
//! cap on leases or fds is in the way. Must never ask for a lease of an ended allocation, nor again
//! for one just asked for; what is asked for stays the client's until it gives it back.

use crate::api::{ClientId, LeaseId, Now};
use crate::books::leases::Shelf;
use crate::books::{Blocked, Books, Chore, Client, LEASE_KINDS, Lease, SHARE_OF_FDS, ScopeId};
use crate::limits::{RECLAIM_AGAIN_US, RECLAIM_BATCH, RECLAIM_LOOKS, RECLAIM_PAUSE_US};
use crate::moves::Step;
use fdbroker_protocol::{MAX_BATCH, Resource};

/// In the key of a client that has given back nothing of what it was asked for.
const KEEPS: u64 = 1 << 63;

impl Books {
    /// Asks for leases whose return will help against `blocked`, for at least `count` where there
    /// are so many. Looks again after a pause, as long as somebody waits.
    #[allow(clippy::wildcard_enum_match_arm, reason = "few resources have a rule of their own")]
    pub(crate) fn reclaim(&mut self, blocked: Blocked, count: usize, step: &mut Step) {
        let Some(mapped) = helps(blocked.resource) else { return };
        let again = step.now.after(RECLAIM_PAUSE_US);
        let at = self.timers.chore(Chore::Reclaim).map_or(again, |at| at.min(again));
        self.timers.set_chore(Chore::Reclaim, Some(at));
        let scope = match blocked.resource {
            SHARE_OF_FDS => self.scope_of_share(blocked.scope),
            _ => blocked.scope,
        };
        let kind = usize::from(mapped);
        if self.ledger[scope].pauses[kind] > step.now {
            return;
        }
        if self.ask(scope, mapped, count.clamp(1, MAX_BATCH), step) {
            self.ledger.pause(scope, kind, again);
        } else {
            // The order was not as it seemed: the next poll goes on.
            self.timers.set_chore(Chore::Reclaim, Some(step.now));
        }
    }

    /// Asks the clients of a scope, the most idle first; those that have given back nothing of what
    /// they were asked for come after all others, in turn. `false`: none of those that were looked
    /// at could be asked.
    fn ask(&mut self, scope: ScopeId, mapped: bool, count: usize, step: &mut Step) -> bool {
        let (mut asked, begin, kind) = (0, KEEPS | self.clients.acts(), usize::from(mapped));
        for _ in 0..RECLAIM_LOOKS {
            let first = self.ledger[scope].askable[kind].first_key();
            let Some((key, number)) = first.filter(|(key, _)| asked < count && *key <= begin)
            else {
                return true;
            };
            let now = self.ask_key(number);
            if key < KEEPS && key != now {
                self.set_ask_key(number, kind, Some(now));
                continue;
            }
            let marked = self.ask_client(number, mapped, (count - asked).max(RECLAIM_BATCH), step);
            asked += marked;
            let has = |asked| self.leases.oldest(number, Shelf::of(mapped, asked)).is_some();
            let [has_others, has_asked] = [false, true].map(has);
            if marked == 0 && has_others {
                // Of ended allocations, more than are swept at a time.
                return asked > 0;
            }
            // Behind all others, or out when it has nothing.
            let key = KEEPS | self.clients.next_act();
            self.set_ask_key(number, kind, (has_others || has_asked).then_some(key));
        }
        let first = self.ledger[scope].askable[kind].first_key();
        asked > 0 || first.is_none_or(|(key, _)| key >= KEEPS)
    }

    /// Where a client belongs in the order in which clients are asked.
    pub(crate) fn ask_key(&mut self, number: u32) -> u64 {
        let client = self.client_mut(number);
        client.act | if client.keeps_asked { KEEPS } else { 0 }
    }

    pub(crate) fn set_ask_key(&mut self, number: u32, kind: usize, key: Option<u64>) {
        let scope = self.scope_of(number);
        self.ledger.set_ask_key(scope, kind, key);
    }

    fn set_keeps_asked(&mut self, number: u32, keeps_asked: bool) {
        self.client_mut(number).keeps_asked = keeps_asked;
        let (key, scope) = (self.ask_key(number), self.scope_of(number));
        for kind in 0..LEASE_KINDS {
            if self.ledger.ask_key(scope, kind).is_some() {
                self.ledger.set_ask_key(scope, kind, Some(key));
            }
        }
    }

    /// Marks up to `most` leases of a client to be asked for, the oldest first; how many.
    fn ask_client(&mut self, number: u32, mapped: bool, most: usize, step: &mut Step) -> usize {
        let (mut asked, mut nothing_to_tell) = (0, false);
        while asked < most.min(MAX_BATCH)
            && let Some(lease) = self.lease_to_ask_for(number, mapped, step)
        {
            nothing_to_tell |= self.leases.ask(lease, stamp(step.now));
            self.may_be_asked_for(lease);
            asked += 1;
        }
        if asked > 0 {
            self.set_keeps_asked(number, true);
            self.counters.reclaims += asked as u64;
            if nothing_to_tell {
                self.eventful.push(ClientId(number));
            }
        }
        asked
    }

    /// Asks for the leases of an allocation, as many of them as clients are asked for at a time.
    /// `true`: there may be an answer soon, to this or to a former time.
    pub(crate) fn ask_for_leases_of(&mut self, slot: u32, step: &mut Step) -> bool {
        let now = stamp(step.now);
        let mut may_come = false;
        for lease in self.leases.first_of(self.allocations[slot].leases, RECLAIM_BATCH) {
            let Lease { client, asked, .. } = self.leases[lease];
            let passed = u64::from(now.wrapping_sub(asked)) << 10;
            let is_due = asked == 0 || passed > RECLAIM_AGAIN_US;
            may_come |= is_due || passed <= RECLAIM_PAUSE_US;
            if !is_due || self.leases[lease].is_to_tell() || self.clients[client].gone {
                continue;
            }
            let is_first = self.leases.ask(lease, now);
            self.may_be_asked_for(lease);
            self.set_keeps_asked(client, true);
            self.counters.reclaims += 1;
            if is_first {
                self.eventful.push(ClientId(client));
            }
        }
        may_come
    }

    /// A lease to ask the client for. What the sweep of an ended allocation has not come to is
    /// swept on the way.
    fn lease_to_ask_for(&mut self, number: u32, mapped: bool, step: &mut Step) -> Option<u32> {
        loop {
            let lease = self.oldest_lease(number, mapped, step)?;
            if self.allocations[self.leases[lease].allocation].is_live() {
                return Some(lease);
            }
            step.allowances.sweeps.take().then(|| self.sweep_lease(lease))?;
        }
    }

    /// The client's oldest lease that it was not asked for, or the one asked for longest ago if
    /// that is long.
    fn oldest_lease(&self, number: u32, mapped: bool, step: &mut Step) -> Option<u32> {
        let oldest = |asked| self.leases.oldest(number, Shelf::of(mapped, asked));
        oldest(false).or_else(|| {
            let lease = oldest(true)?;
            let passed = stamp(step.now).wrapping_sub(self.leases[lease].asked);
            let long = u64::from(passed) << 10 > RECLAIM_AGAIN_US;
            (long && !self.leases[lease].is_to_tell()).then_some(lease)
        })
    }

    /// A lease is where its holder can be asked for it from now on.
    pub(crate) fn may_be_asked_for(&mut self, lease: u32) {
        let Lease { client: holder, mapped, ended, .. } = self.leases[lease];
        let kind = usize::from(mapped);
        let Client { gone, scope, keeps_asked, .. } = self.clients[holder];
        // Behind all others it may stand because it had nothing else to be asked for.
        let is_last = |key| key >= KEEPS && !keeps_asked;
        let is_to_move = self.ledger.ask_key(scope, kind).is_none_or(is_last);
        if !ended && !gone && is_to_move {
            let key = self.ask_key(holder);
            self.ledger.set_ask_key(scope, kind, Some(key));
        }
    }

    /// The lease is given back, or its fd is: nobody need be asked for it.
    pub(crate) fn unask(&mut self, lease: u32) {
        let Lease { client: holder, asked, .. } = self.leases[lease];
        self.leases.tell_no_more(lease);
        if asked != 0 {
            self.set_keeps_asked(holder, false);
            let scope = self.scope_of(holder);
            self.ledger.end_pauses(scope);
        }
    }

    /// The lease's allocation has ended: its holder is told, and asked for it no more.
    pub(crate) fn end_of_lease(&mut self, lease: u32) {
        let Lease { client: holder, asked, .. } = self.leases[lease];
        self.leases.sweep(lease);
        // When nothing is left that it was asked for, it keeps nothing back.
        let is_free = !self.leases.has_any(holder, [Shelf::AskedOpen, Shelf::AskedMapped]);
        if asked != 0 && is_free {
            self.set_keeps_asked(holder, false);
        }
        if !self.clients[holder].gone && self.leases.tell(lease) {
            self.eventful.push(ClientId(holder));
        }
    }

    /// The leases to ask a client for, for one message. None of an ended allocation: the client is
    /// told of the end.
    pub(crate) fn take_reclaims(&mut self, client: u32) -> Vec<LeaseId> {
        let mut slots = self.leases.take_events(client, false);
        slots.retain(|lease| {
            let is_live = self.allocations[self.leases[*lease].allocation].is_live();
            if !is_live {
                self.sweep_lease(*lease);
            }
            is_live
        });
        slots.into_iter().map(|slot| self.leases.id_of(slot)).collect()
    }

    /// Asserts that every client with leases can be asked.
    pub(crate) fn check_askable(&self) {
        for (number, client) in self.clients.iter() {
            let (is_gone, scope) = (client.gone, client.scope);
            let keeps_some = self.leases.has_any(number, [Shelf::AskedOpen, Shelf::AskedMapped]);
            for kind in 0..LEASE_KINDS {
                let is_behind = self.ledger.ask_key(scope, kind).is_some_and(|key| key >= KEEPS);
                assert!(!is_behind || keeps_some, "client {number} is asked last for no reason");
                let shelves = [false, true].map(|asked| Shelf::of(kind == 1, asked));
                let has_none = !self.leases.has_any(number, shelves);
                let can_be_asked = self.ledger.ask_key(scope, kind).is_some();
                assert!(
                    can_be_asked || is_gone || has_none,
                    "client {number} is asked for nothing"
                );
                assert!(!can_be_asked || !is_gone, "client {number} is gone, and asked");
            }
        }
    }
}

/// Whether leases given back help against a full resource: mapped ones (`true`) or open ones.
#[allow(clippy::wildcard_enum_match_arm, reason = "few resources have a rule of their own")]
fn helps(resource: Resource) -> Option<bool> {
    match resource {
        Resource::OpenLeases | Resource::Fds | SHARE_OF_FDS => Some(false),
        Resource::MappedLeases => Some(true),
        _ => None,
    }
}

/// A time as leases keep it: in units of 1024 us, never 0; goes round in 50 days.
fn stamp(now: Now) -> u32 {
    ((now.0 >> 10) as u32).max(1)
}
