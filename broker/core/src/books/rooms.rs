//! Fairness among requests that wait: what each waits for, and the order in which they are looked
//! at when it comes. In line for room in an account stand the requests of each domain by arrival.
//! When something of the account comes back, the first request of the domain that was served least
//! recently is looked at, and so on until one finds the account full. Must never look at those
//! behind that one, nor serve a domain twice while another has a request that could be served.
//!
//! An example: the node's leases are used up. Domain A has 1,000 requests in line, B came later
//! with two. One lease comes back: A is served, which has waited longer. The next one goes to B,
//! which was served least recently, the third one to A, the fourth one to B. For each lease two
//! requests are looked at, and not 1,002: the one that gets it, and the one behind, which finds the
//! account full again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

use crate::api::NONE;
use crate::books::clients::Clients;
use crate::books::ledger::Blocked;

use crate::work::visit;

/// The number of a domain; or [`NONE`], for all requests that a supplied fd waits for: these go
/// first.
pub(crate) type Number = u32;

/// Requests of a domain that wait for room in an account.
#[derive(Debug)]
pub(crate) struct Line {
    /// When the domain had been served last, as far as the account knows.
    pub(crate) turn: u64,
    pub(crate) arrivals: BTreeSet<u64>,
}

/// The place of a request: when its domain was served last, and its arrival. The least one is
/// served first.
pub(crate) type Place = (u64, u64);

/// Parked requests that wait for room, or for their client to read.
#[derive(Debug, Default)]
pub struct Rooms {
    pub(crate) lines: BTreeMap<(Blocked, Number), Line>,
    /// The lines of each account, by the turns that they know.
    pub(crate) order: BTreeSet<(Blocked, u64, Number)>,
    /// Requests that hold nobody up: the account, when the request was made ready for it, and its
    /// arrival.
    pub(crate) listeners: BTreeSet<(Blocked, u64, u64)>,
    /// Accounts whose listeners are to be made ready: those that were not since then.
    pub(crate) heard: BTreeMap<Blocked, u64>,
    /// Requests to be looked at, by arrival within each domain.
    pub(crate) ready: BTreeSet<(Number, u64)>,
    /// Domains that have ready requests, by when they were served last.
    pub(crate) turns: BTreeSet<(u64, Number)>,
    /// Accounts of the node that are not known to be full: the first in line of each is ready.
    pub(crate) open: BTreeSet<Blocked>,
    /// Turns given out.
    pub(crate) turn: u64,
    /// The domain whose turn is under way, and how many of its requests have been looked at in it.
    pub(crate) looks: (Number, usize),
    /// Goes on with each event.
    pub(crate) clock: u64,
    /// Requests in all.
    pub(crate) len: usize,
}

impl Rooms {
    /// Nobody waits, and so many turns have been given out.
    pub fn after(turn: u64) -> Self {
        Rooms { turn, ..Rooms::default() }
    }

    /// Nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Nobody is to be looked at.
    pub fn is_idle(&self) -> bool {
        self.ready.is_empty() && self.heard.is_empty()
    }

    /// Turns given out so far.
    pub fn turns_given(&self) -> u64 {
        self.turn
    }

    /// The turn behind all others.
    pub fn last_turn(&mut self) -> u64 {
        self.turn += 1;
        self.turn
    }

    /// The account after this one that requests are in line for.
    pub fn account_after(&self, account: Option<Blocked>) -> Option<Blocked> {
        visit(1);
        let from = account.map_or(Unbounded, |it| Excluded((it, u64::MAX, NONE)));
        self.order.range((from, Unbounded)).next().map(|it| it.0)
    }

    pub(crate) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub(crate) fn enter(&mut self, account: Blocked, (turn, seq): Place, number: Number) {
        visit(1);
        let Rooms { lines, order, .. } = self;
        let line = lines.entry((account, number)).or_insert_with(|| {
            order.insert((account, turn, number));
            Line { turn, arrivals: BTreeSet::new() }
        });
        line.arrivals.insert(seq);
    }

    pub(crate) fn leave(&mut self, account: Blocked, number: Number, seq: u64) {
        visit(1);
        let line = self.lines.get_mut(&(account, number)).expect("it is in line");
        line.arrivals.remove(&seq);
        if line.arrivals.is_empty() {
            self.order.remove(&(account, line.turn, number));
            self.lines.remove(&(account, number));
        }
    }

    /// Whether requests are in line for an account.
    pub fn has_line(&self, account: Blocked) -> bool {
        visit(1);
        self.lines.range((account, 0)..=(account, NONE)).next().is_some()
    }

    /// The first request in line for an account, and its domain. Mends the order of the lines as
    /// far as it is looked at.
    pub(crate) fn first(&mut self, clients: &Clients, account: Blocked) -> Option<(Place, Number)> {
        loop {
            visit(1);
            let (of, known, number) = *self.order.range((account, 0, 0)..).next()?;
            if of != account {
                return None;
            }
            let line = self.lines.get_mut(&(account, number)).expect("it is in the order");
            line.turn = turn_of(clients, number);
            if line.turn == known {
                let seq = *line.arrivals.first().expect("a line without requests is dropped");
                return Some(((known, seq), number));
            }
            self.order.remove(&(account, known, number));
            self.order.insert((account, line.turn, number));
        }
    }

    pub(crate) fn make_ready(&mut self, (turn, seq): Place, number: Number) {
        visit(1);
        self.ready.insert((number, seq));
        self.turns.insert((turn, number));
    }

    pub(crate) fn first_ready(&self, number: Number) -> Option<u64> {
        visit(1);
        let (of, seq) = *self.ready.range((number, 0)..).next()?;
        (of == number).then_some(seq)
    }

    /// A request is not to be looked at any more; whether it was.
    pub(crate) fn unready(&mut self, (turn, seq): Place, number: Number) -> bool {
        let was_ready = self.ready.remove(&(number, seq));
        if was_ready && self.first_ready(number).is_none() {
            self.turns.remove(&(turn, number));
        }
        was_ready
    }

    /// The request whose turn it is.
    pub(crate) fn next(&self) -> Option<u64> {
        self.turns.first().and_then(|(_, number)| self.first_ready(*number))
    }
}

pub(crate) fn turn_of(clients: &Clients, number: Number) -> u64 {
    if number == NONE { 0 } else { clients.domain(number).turn }
}
