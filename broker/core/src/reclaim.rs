//! Reclaim: clients are asked to give back leases that they do not use, the most idle first, when a cap on leases
//! or fds is in the way. Must never ask for a lease of an ended allocation, nor again for one just asked for; what
//! is asked for stays the client's until it gives it back.

use crate::Core;
use crate::api::{ClientId, LeaseId, Now};
use crate::ledger::{Blocked, Holder};
use crate::limits::{
    PARKED_SCAN_PER_STEP, RECLAIM_AGAIN_US, RECLAIM_BATCH, RECLAIM_CLIENTS_PER_STEP,
    RECLAIM_PAUSE_US,
};
use crate::lists::{Link, List, Nodes};
use crate::state::{Client, Lease, LeaseLinks, LeaseList, Wait};
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

/// Until when nobody of an account is asked again: for open leases, for mapped ones.
pub type Pauses = [Now; 2];

/// Clients in the order of their last activity.
pub struct ClientLinks<'a>(pub &'a mut [Option<Box<Client>>]);

impl Nodes for ClientLinks<'_> {
    fn link(&mut self, node: u32) -> &mut Link {
        &mut self.0[node as usize].as_deref_mut().expect("only clients are in the list").idle
    }
}

/// Whether leases given back help against a full resource: mapped ones (`true`) or open ones.
fn helps(resource: Resource) -> Option<bool> {
    match resource {
        Resource::OpenLeases | Resource::Fds => Some(false),
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
        if self.idle.last() != Some(client.0) && self.client(client).is_some() {
            self.idle.remove(&mut ClientLinks(&mut self.clients), client.0);
            self.idle.push(&mut ClientLinks(&mut self.clients), client.0);
        }
    }

    /// Asks for leases whose return will help against `blocked`, for at least `count` where there are so many.
    /// Looks again after a pause, as long as somebody waits.
    pub(crate) fn reclaim(&mut self, blocked: Blocked, count: usize) {
        let Some(mapped) = helps(blocked.resource) else { return };
        let again = Now(self.now.0.saturating_add(RECLAIM_PAUSE_US));
        self.reclaim_at = Some(self.reclaim_at.map_or(again, |at| at.min(again)));
        let now = self.now;
        let pause = &mut self.pauses(blocked.account)[usize::from(mapped)];
        if *pause > now {
            return;
        }
        *pause = again;
        self.ask(blocked.account, mapped, count.clamp(1, MAX_BATCH));
    }

    fn pauses(&mut self, account: Holder) -> &mut Pauses {
        match account {
            Holder::Client(number) => &mut self.client_mut(number).pauses,
            Holder::Job(number) => &mut self.jobs[number].pauses,
            Holder::Domain(number) => &mut self.domains[number].pauses,
            Holder::Node => &mut self.node_pauses,
        }
    }

    /// Something that was asked for has come back: more may be asked for.
    fn end_pauses(&mut self, client: u32) {
        let record = self.client_mut(client);
        record.keeps_asked = false;
        let (job, domain) = (record.job.map(Holder::Job), Holder::Domain(record.domain));
        let accounts = [Some(Holder::Client(client)), job, Some(domain), Some(Holder::Node)];
        for account in accounts.into_iter().flatten() {
            *self.pauses(account) = Pauses::default();
        }
    }

    /// Asks the clients of an account, the most idle first; those that have given back nothing of what they were
    /// asked for come after all others.
    fn ask(&mut self, account: Holder, mapped: bool, count: usize) {
        let mut asked = 0;
        for keeps_asked in [false, true] {
            let mut at = self.idle.first();
            for _ in 0..RECLAIM_CLIENTS_PER_STEP {
                let Some(number) = at.filter(|_| asked < count) else { break };
                at = List::next(&mut ClientLinks(&mut self.clients), number);
                let client = self.client_mut(number);
                let fits = !client.gone && client.keeps_asked == keeps_asked;
                if fits && client.is_of(number, account) {
                    asked += self.ask_client(number, mapped, (count - asked).max(RECLAIM_BATCH));
                }
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
            self.client_mut(number).keeps_asked = true;
            self.counters.reclaims += asked as u64;
            if nothing_to_tell {
                self.eventful.push(ClientId(number));
            }
        }
        asked
    }

    /// The client's oldest lease that it was not asked for, or the one asked for longest ago if that is long.
    fn lease_to_ask_for(&mut self, number: u32, mapped: bool) -> Option<u32> {
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
        if self.reclaim_at.is_some_and(|at| at <= self.now) {
            self.reclaim_at = None;
            self.reclaim_from = Some(0);
        }
        let Some(mut cursor) = self.reclaim_from.take() else { return };
        for _ in 0..PARKED_SCAN_PER_STEP {
            let Some((seq, parked)) = self.parked.range(cursor..).next() else { return };
            cursor = seq + 1;
            if let Wait::Room(blocked) = parked.wait
                && self.may_make_room(blocked)
            {
                self.reclaim(blocked, 1);
            }
        }
        self.reclaim_from = Some(cursor);
    }

    // --- a client's lists of leases -----------------------------------------------------------------

    /// The list that a lease belongs in.
    pub(crate) fn shelf_of(&self, lease: u32) -> Shelf {
        let record = &self.leases[lease];
        match self.allocations[record.allocation].is_live() {
            true => Shelf::of(record.mapped, record.asked != 0),
            false => Shelf::Ended,
        }
    }

    /// Puts a lease into its holder's list, at the young end.
    pub(crate) fn shelve(&mut self, lease: u32) {
        let (shelf, holder) = (self.shelf_of(lease), self.leases[lease].client);
        self.with_shelf(holder, shelf, |list, links| list.push(links, lease));
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
        let mut list = self.client_mut(client).leases[shelf as usize];
        change(&mut list, &mut LeaseLinks(&mut self.leases, LeaseList::Holder));
        self.client_mut(client).leases[shelf as usize] = list;
    }

    /// Changes the list of a client's leases to be asked for, or of those to be told of as revoked.
    pub(crate) fn with_event_list(
        &mut self,
        client: u32,
        of_live: bool,
        change: impl FnOnce(&mut List, &mut LeaseLinks<'_>),
    ) {
        let holder = self.client_mut(client);
        let mut list = if of_live { holder.reclaims } else { holder.revoked };
        change(&mut list, &mut LeaseLinks(&mut self.leases, LeaseList::Event));
        let holder = self.client_mut(client);
        *(if of_live { &mut holder.reclaims } else { &mut holder.revoked }) = list;
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
            self.end_pauses(holder);
        }
    }

    /// The lease's allocation has ended: it is told of as revoked, and asked for no more.
    pub(crate) fn shelve_ended(&mut self, lease: u32) {
        let Lease { client: holder, mapped, asked, .. } = self.leases[lease];
        if self.leases[lease].is_in(LeaseList::Event) {
            self.with_event_list(holder, true, |list, links| list.remove(links, lease));
        }
        self.unshelve_from(lease, Shelf::of(mapped, asked != 0));
        self.leases[lease].asked = 0;
        self.shelve(lease);
        // When nothing is left that it was asked for, it keeps nothing back.
        let client = self.client_mut(holder);
        let asked_for = [Shelf::AskedOpen, Shelf::AskedMapped];
        client.keeps_asked &=
            asked_for.iter().any(|shelf| !client.leases[*shelf as usize].is_empty());
    }

    /// Any lease of a client.
    pub(crate) fn any_lease(&mut self, client: u32) -> Option<u32> {
        self.client_mut(client).leases.iter().find_map(List::first)
    }

    /// The leases to ask a client for, for one message.
    pub(crate) fn take_reclaims(&mut self, client: u32) -> Vec<LeaseId> {
        let mut slots = Vec::new();
        self.with_event_list(client, true, |list, links| {
            slots.extend(std::iter::from_fn(|| list.pop(links)).take(MAX_BATCH));
        });
        slots.into_iter().map(|slot| self.lease_id(slot)).collect()
    }

    /// Asserts that every lease is in the list it belongs in, and every client in the order of activity.
    pub(crate) fn check_shelves(&mut self) {
        let mut shelved = 0;
        let order = self.idle.checked(&mut ClientLinks(&mut self.clients));
        let count = self.clients.iter().flatten().count();
        assert_eq!(order.len(), count, "clients in the order of activity");
        for number in order {
            let client = self.client_mut(number);
            let (leases, reclaims, revoked) = (client.leases, client.reclaims, client.revoked);
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
