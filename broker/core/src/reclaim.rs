//! Reclaim: clients are asked to give back leases that they do not use, the most idle first, when a cap on leases
//! or fds is in the way. Must never ask for a lease of an ended allocation, nor again for one just asked for; what
//! is asked for stays the client's until it gives it back.

use crate::Core;
use crate::api::{ClientId, LeaseId, Now};
use crate::clients::Client;
use crate::ledger::{Blocked, LEASE_KINDS, SHARE_OF_FDS, ScopeId};
use crate::limits::{
    PARKED_LOOKS_PER_STEP, RECLAIM_AGAIN_US, RECLAIM_BATCH, RECLAIM_LOOKS, RECLAIM_PAUSE_US,
};
use crate::lists::List;
use crate::state::{Lease, LeaseLinks, LeaseList};
use crate::timers::Chore;
use fdbroker_protocol::{MAX_BATCH, Resource};

/// Which of a client's lists a lease is in; their place in [`Client::leases`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Shelf {
    /// The client has its fd.
    Open,
    /// Open, and the client was asked for it.
    AskedOpen,
    /// Imported.
    Mapped,
    /// Imported, and the client was asked for it.
    AskedMapped,
    /// Its allocation has ended.
    Ended,
}

impl Shelf {
    /// How many there are.
    pub const COUNT: usize = 5;
    /// All of them.
    pub const ALL: [Shelf; Self::COUNT] =
        [Shelf::Open, Shelf::AskedOpen, Shelf::Mapped, Shelf::AskedMapped, Shelf::Ended];

    fn of(mapped: bool, asked: bool) -> Self {
        match (mapped, asked) {
            (false, false) => Shelf::Open,
            (true, false) => Shelf::Mapped,
            (false, true) => Shelf::AskedOpen,
            (true, true) => Shelf::AskedMapped,
        }
    }
}

/// In the key of a client that has given back nothing of what it was asked for.
const KEEPS: u64 = 1 << 63;

/// Whether leases given back help against a full resource: mapped ones (`true`) or open ones.
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

impl Core {
    /// The client has done something for itself: it is the least idle now.
    pub(crate) fn touch(&mut self, client: ClientId) {
        let act = self.clients.next_act();
        if let Some(client) = self.client(client) {
            client.act = act;
        }
    }

    /// Asks for leases whose return will help against `blocked`, for at least `count` where there are so many.
    /// Looks again after a pause, as long as somebody waits.
    pub(crate) fn reclaim(&mut self, blocked: Blocked, count: usize) {
        let Some(mapped) = helps(blocked.resource) else { return };
        let again = self.now.after(RECLAIM_PAUSE_US);
        let at = self.timers.chore(Chore::Reclaim).map_or(again, |at| at.min(again));
        self.timers.set_chore(Chore::Reclaim, Some(at));
        let scope = match blocked.resource {
            SHARE_OF_FDS => self.scope_of_share(blocked.scope),
            _ => blocked.scope,
        };
        let kind = usize::from(mapped);
        if self.ledger[scope].pauses[kind] > self.now {
            return;
        }
        if self.ask(scope, mapped, count.clamp(1, MAX_BATCH)) {
            self.ledger.pause(scope, kind, again);
        } else {
            // The order was not as it seemed: the next poll goes on.
            self.timers.set_chore(Chore::Reclaim, Some(self.now));
        }
    }

    /// Asks the clients of a scope, the most idle first; those that have given back nothing of what they were
    /// asked for come after all others, in turn. `false`: none of those that were looked at could be asked.
    fn ask(&mut self, scope: ScopeId, mapped: bool, count: usize) -> bool {
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
            let marked = self.ask_client(number, mapped, (count - asked).max(RECLAIM_BATCH));
            asked += marked;
            let leases = self.client_mut(number).leases;
            let [has_others, has_asked] =
                [false, true].map(|asked| !leases[Shelf::of(mapped, asked) as usize].is_empty());
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
    fn ask_key(&mut self, number: u32) -> u64 {
        let client = self.client_mut(number);
        client.act | if client.keeps_asked { KEEPS } else { 0 }
    }

    fn set_ask_key(&mut self, number: u32, kind: usize, key: Option<u64>) {
        let scope = self.scope_of(number);
        self.ledger.set_ask_key(scope, kind, key);
    }

    /// A gone client is asked for nothing.
    pub(crate) fn ask_no_more(&mut self, number: u32) {
        (0..LEASE_KINDS).for_each(|kind| self.set_ask_key(number, kind, None));
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
    fn ask_client(&mut self, number: u32, mapped: bool, most: usize) -> usize {
        let nothing_to_tell = self.client_mut(number).reclaims.is_empty();
        let mut asked = 0;
        while asked < most.min(MAX_BATCH)
            && let Some(lease) = self.lease_to_ask_for(number, mapped)
        {
            self.unshelve(lease);
            self.leases[lease].asked = stamp(self.now);
            self.shelve(lease);
            self.with_event_list(number, true, |list, links| list.push(links, lease));
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

    /// A lease to ask the client for. What the sweep of an ended allocation has not come to is swept on the way.
    fn lease_to_ask_for(&mut self, number: u32, mapped: bool) -> Option<u32> {
        loop {
            let lease = self.oldest_lease(number, mapped)?;
            if self.allocations[self.leases[lease].allocation].is_live() {
                return Some(lease);
            }
            self.allowances.sweeps.take().then(|| self.sweep_lease(lease))?;
        }
    }

    /// The client's oldest lease that it was not asked for, or the one asked for longest ago if that is long.
    fn oldest_lease(&mut self, number: u32, mapped: bool) -> Option<u32> {
        let leases = self.client_mut(number).leases;
        let fresh = leases[Shelf::of(mapped, false) as usize].first();
        fresh.or_else(|| {
            let lease = leases[Shelf::of(mapped, true) as usize].first()?;
            let passed = stamp(self.now).wrapping_sub(self.leases[lease].asked);
            let long = u64::from(passed) << 10 > RECLAIM_AGAIN_US;
            (long && !self.leases[lease].is_in(LeaseList::Event)).then_some(lease)
        })
    }

    /// Time has passed: whoever still waits for leases to come back is seen to again.
    pub(crate) fn reclaim_again(&mut self) {
        if self.timers.begin_chore(Chore::Reclaim, self.now) {
            self.reclaim_from = Some(None);
        }
        let Some(mut former) = self.reclaim_from.take() else { return };
        for _ in 0..PARKED_LOOKS_PER_STEP {
            let Some(account) = self.rooms.account_after(former) else { return };
            former = Some(account);
            if self.may_make_room(account) {
                self.reclaim(account, 1);
            }
        }
        self.reclaim_from = Some(former);
    }

    // --- a client's lists of leases -----------------------------------------------------------------

    /// The list that a lease belongs in.
    pub(crate) fn shelf_of(&self, lease: u32) -> Shelf {
        let record = &self.leases[lease];
        match record.ended {
            false => Shelf::of(record.mapped, record.asked != 0),
            true => Shelf::Ended,
        }
    }

    /// Puts a lease into its holder's list, at the young end.
    pub(crate) fn shelve(&mut self, lease: u32) {
        let (shelf, holder) = (self.shelf_of(lease), self.leases[lease].client);
        self.with_shelf(holder, shelf, |list, links| list.push(links, lease));
        let kind = usize::from(self.leases[lease].mapped);
        let Client { gone, scope, keeps_asked, .. } = *self.client_mut(holder);
        // Behind all others it may stand because it had nothing else to be asked for.
        let is_last = |key| key >= KEEPS && !keeps_asked;
        let is_to_move = self.ledger.ask_key(scope, kind).is_none_or(is_last);
        if shelf != Shelf::Ended && !gone && is_to_move {
            let key = self.ask_key(holder);
            self.ledger.set_ask_key(scope, kind, Some(key));
        }
    }

    /// Takes a lease out of its holder's list: before what decides on the list changes.
    pub(crate) fn unshelve(&mut self, lease: u32) {
        self.unshelve_from(lease, self.shelf_of(lease));
    }

    fn unshelve_from(&mut self, lease: u32, shelf: Shelf) {
        let holder = self.leases[lease].client;
        self.with_shelf(holder, shelf, |list, links| list.remove(links, lease));
    }

    fn with_shelf(
        &mut self,
        client: u32,
        shelf: Shelf,
        change: impl FnOnce(&mut List, &mut LeaseLinks<'_>),
    ) {
        let Core { clients, leases, .. } = self;
        change(
            &mut clients[client].leases[shelf as usize],
            &mut LeaseLinks(leases, LeaseList::Holder),
        );
    }

    /// Changes the list of a client's leases to be asked for, or of those to be told of as revoked.
    pub(crate) fn with_event_list(
        &mut self,
        client: u32,
        of_live: bool,
        change: impl FnOnce(&mut List, &mut LeaseLinks<'_>),
    ) {
        let Core { clients, leases, .. } = self;
        let holder = &mut clients[client];
        let list = if of_live { &mut holder.reclaims } else { &mut holder.revoked };
        change(list, &mut LeaseLinks(leases, LeaseList::Event));
    }

    /// The lease is imported now: what was asked for was its fd.
    pub(crate) fn shelve_mapped(&mut self, lease: u32) {
        if self.shelf_of(lease) != Shelf::Ended {
            // That it has ended is to be told all the same.
            self.unask(lease);
        }
        self.unshelve(lease);
        (self.leases[lease].mapped, self.leases[lease].asked) = (true, 0);
        self.shelve(lease);
    }

    /// The lease is given back, or its fd is: nobody need be asked for it.
    pub(crate) fn unask(&mut self, lease: u32) {
        let (holder, asked) = (self.leases[lease].client, self.leases[lease].asked != 0);
        let of_live = self.shelf_of(lease) != Shelf::Ended;
        if self.leases[lease].is_in(LeaseList::Event) {
            self.with_event_list(holder, of_live, |list, links| list.remove(links, lease));
        }
        if asked {
            self.set_keeps_asked(holder, false);
            let scope = self.scope_of(holder);
            self.ledger.end_pauses(scope);
        }
    }

    /// The lease's allocation has ended: it is told of as revoked, and asked for no more.
    pub(crate) fn shelve_ended(&mut self, lease: u32) {
        let Lease { client: holder, mapped, asked, .. } = self.leases[lease];
        if self.leases[lease].is_in(LeaseList::Event) {
            self.with_event_list(holder, true, |list, links| list.remove(links, lease));
        }
        self.unshelve_from(lease, Shelf::of(mapped, asked != 0));
        (self.leases[lease].asked, self.leases[lease].ended) = (0, true);
        self.shelve(lease);
        // When nothing is left that it was asked for, it keeps nothing back.
        let client = self.client_mut(holder);
        let mut asked_for = [Shelf::AskedOpen, Shelf::AskedMapped].into_iter();
        let is_free = asked_for.all(|shelf| client.leases[shelf as usize].is_empty());
        if asked != 0 && is_free {
            self.set_keeps_asked(holder, false);
        }
    }

    /// Any lease of a client.
    pub(crate) fn any_lease(&mut self, client: u32) -> Option<u32> {
        self.client_mut(client).leases.iter().find_map(List::first)
    }

    /// Leases of which a client is told in one message: those it is asked for, or revoked ones.
    pub(crate) fn pop_leases(&mut self, client: u32, of_live: bool) -> Vec<u32> {
        let mut slots = Vec::new();
        self.with_event_list(client, of_live, |list, links| {
            slots.extend(std::iter::from_fn(|| list.pop(links)).take(MAX_BATCH));
        });
        slots
    }

    /// The leases to ask a client for, for one message. None of an ended allocation: the client is told of the end.
    pub(crate) fn take_reclaims(&mut self, client: u32) -> Vec<LeaseId> {
        let mut slots = self.pop_leases(client, true);
        slots.retain(|lease| {
            let is_live = self.allocations[self.leases[*lease].allocation].is_live();
            if !is_live {
                self.sweep_lease(*lease);
            }
            is_live
        });
        slots.into_iter().map(|slot| self.lease_id(slot)).collect()
    }

    /// Asserts that every lease is in the list it belongs in, and every client with leases can be asked.
    pub(crate) fn check_shelves(&mut self) {
        let mut shelved = 0;
        for number in self.clients.numbers() {
            let client = self.client_mut(number);
            let (leases, reclaims, revoked) = (client.leases, client.reclaims, client.revoked);
            let (is_gone, scope) = (client.gone, client.scope);
            let mut asked_for = [Shelf::AskedOpen, Shelf::AskedMapped].into_iter();
            let keeps_some = asked_for.any(|shelf| !leases[shelf as usize].is_empty());
            for kind in 0..LEASE_KINDS {
                let is_behind = self.ledger.ask_key(scope, kind).is_some_and(|key| key >= KEEPS);
                assert!(!is_behind || keeps_some, "client {number} is asked last for no reason");
                let shelves = [false, true].map(|asked| Shelf::of(kind == 1, asked) as usize);
                let has_none = shelves.iter().all(|shelf| leases[*shelf].is_empty());
                let can_be_asked = self.ledger.ask_key(scope, kind).is_some();
                assert!(
                    can_be_asked || is_gone || has_none,
                    "client {number} is asked for nothing"
                );
                assert!(!can_be_asked || !is_gone, "client {number} is gone, and asked");
            }
            for shelf in Shelf::ALL {
                let links = &mut LeaseLinks(&mut self.leases, LeaseList::Holder);
                for lease in leases[shelf as usize].checked(links) {
                    let right = (self.leases[lease].client, self.shelf_of(lease));
                    assert_eq!(right, (number, shelf), "lease in a list");
                    shelved += 1;
                }
            }
            for (list, live) in [(reclaims, true), (revoked, false)] {
                for lease in list.checked(&mut LeaseLinks(&mut self.leases, LeaseList::Event)) {
                    assert_eq!(self.shelf_of(lease) != Shelf::Ended, live, "event of a lease");
                    assert!(!live || self.leases[lease].asked != 0, "to ask for, and not asked");
                }
            }
        }
        assert_eq!(shelved, self.leases.len(), "leases in lists");
    }
}
