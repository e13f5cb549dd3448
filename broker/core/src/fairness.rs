//! Parked requests by what they wait for, and the order in which they are looked at when it comes. In line for room in an
//! account stand the requests of each domain by arrival. When something of the account comes back the first request of the
//! domain that was served least recently is looked at, and so on until one finds the account full. Must never look at
//! those behind that one, nor serve a domain twice while another has a request that could be served.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

use crate::Core;
use crate::acquire::Turn;
use crate::api::{Effects, Now};
use crate::clients::Clients;
use crate::ledger::{Blocked, ScopeId};
use crate::limits::{
    LISTENERS_WOKEN_PER_LOOK, LOOKS_PER_TURN, PARKED_ITEMS_PER_STEP, PARKED_LOOKS_PER_STEP,
};
use crate::parked::Wait;
use crate::slots::NONE;
use crate::work::visit;
use fdbroker_protocol::Resource;

/// The number of a domain; or [`NONE`], for all requests that a supplied fd waits for: these go first.
type Number = u32;

/// Requests of a domain that wait for room in an account.
#[derive(Debug)]
struct Line {
    /// When the domain had been served last, as far as the account knows.
    turn: u64,
    arrivals: BTreeSet<u64>,
}

/// The place of a request: when its domain was served last, and its arrival. The least one is served first.
type Place = (u64, u64);

/// Parked requests that wait for room, or for their client to read.
#[derive(Debug, Default)]
pub struct Rooms {
    lines: BTreeMap<(Blocked, Number), Line>,
    /// The lines of each account, by the turns that they know.
    order: BTreeSet<(Blocked, u64, Number)>,
    /// Requests that hold nobody up: the account, when the request was made ready for it, and its arrival.
    listeners: BTreeSet<(Blocked, u64, u64)>,
    /// Accounts whose listeners are to be made ready: those that were not since then.
    heard: BTreeMap<Blocked, u64>,
    /// Requests to be looked at, by arrival within each domain.
    ready: BTreeSet<(Number, u64)>,
    /// Domains that have ready requests, by when they were served last.
    turns: BTreeSet<(u64, Number)>,
    /// Accounts of the node that are not known to be full: the first in line of each is ready.
    open: BTreeSet<Blocked>,
    /// Turns given out.
    turn: u64,
    /// The domain whose turn is under way, and how many of its requests have been looked at in it.
    looks: (Number, usize),
    /// Goes on with each event.
    clock: u64,
    /// Requests in all.
    len: usize,
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

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn enter(&mut self, account: Blocked, (turn, seq): Place, number: Number) {
        visit(1);
        let Rooms { lines, order, .. } = self;
        let line = lines.entry((account, number)).or_insert_with(|| {
            order.insert((account, turn, number));
            Line { turn, arrivals: BTreeSet::new() }
        });
        line.arrivals.insert(seq);
    }

    fn leave(&mut self, account: Blocked, number: Number, seq: u64) {
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

    /// The first request in line for an account, and its domain. Mends the order of the lines as far as it is looked at.
    fn first(&mut self, clients: &Clients, account: Blocked) -> Option<(Place, Number)> {
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

    fn make_ready(&mut self, (turn, seq): Place, number: Number) {
        visit(1);
        self.ready.insert((number, seq));
        self.turns.insert((turn, number));
    }

    fn first_ready(&self, number: Number) -> Option<u64> {
        visit(1);
        let (of, seq) = *self.ready.range((number, 0)..).next()?;
        (of == number).then_some(seq)
    }

    /// A request is not to be looked at any more; whether it was.
    fn unready(&mut self, (turn, seq): Place, number: Number) -> bool {
        let was_ready = self.ready.remove(&(number, seq));
        if was_ready && self.first_ready(number).is_none() {
            self.turns.remove(&(turn, number));
        }
        was_ready
    }

    /// The request whose turn it is.
    fn next(&self) -> Option<u64> {
        self.turns.first().and_then(|(_, number)| self.first_ready(*number))
    }
}

fn turn_of(clients: &Clients, number: Number) -> u64 {
    if number == NONE { 0 } else { clients.domain(number).turn }
}

impl Core {
    /// Where a parked request comes among the others, and in whose line.
    fn place(&self, seq: u64) -> (Place, Number) {
        let parked = &self.parked[&seq];
        let domain = self.clients[parked.client.0].domain;
        let number = if parked.supplied { NONE } else { domain };
        ((turn_of(&self.clients, number), seq), number)
    }

    /// A parked request waits for what it says from now on.
    pub(crate) fn enter_rooms(&mut self, seq: u64) {
        let wait = self.parked[&seq].wait;
        self.rooms.len += usize::from(wait != Wait::Recall);
        if let Wait::Room(account) = wait {
            let (place, number) = self.place(seq);
            self.ledger.block(account);
            self.rooms.enter(account, place, number);
            match self.is_behind(seq, account) {
                // What the first one waits for may be another account by now, as shares go down, too.
                true => self.wake(account),
                // Those before which it has come found the account full; but it may have made some room itself.
                false => self.look_soon(seq),
            }
        }
    }

    /// A parked request does not wait for this any more. Whoever was behind it may go on.
    pub(crate) fn leave_rooms(&mut self, seq: u64) {
        let wait = self.parked[&seq].wait;
        self.rooms.len -= usize::from(wait != Wait::Recall);
        if let Wait::Room(account) = wait {
            let (_, number) = self.place(seq);
            self.rooms.leave(account, number, seq);
            self.hear_of(account);
            let scope = self.ledger.unblock(account);
            self.forget_scope_if_unused(scope);
        }
    }

    /// A parked request is looked at in its turn.
    pub(crate) fn look_soon(&mut self, seq: u64) {
        let (place, number) = self.place(seq);
        self.rooms.make_ready(place, number);
    }

    /// A parked request is not looked at; whether it was to be.
    pub(crate) fn look_no_more(&mut self, seq: u64) -> bool {
        let (place, number) = self.place(seq);
        self.rooms.unready(place, number)
    }

    /// Has a parked request looked at when something comes back of the accounts that it waits for beside the one that it is
    /// in line for.
    pub(crate) fn listen(&mut self, seq: u64) {
        let mut accounts = std::mem::take(&mut self.also_blocked);
        let wait = self.parked[&seq].wait;
        match wait {
            Wait::Recall | Wait::Reader => accounts.clear(),
            Wait::Room(account) => {
                // There it is looked at when its place in line comes.
                accounts.retain(|other| *other != account);
                // Those behind it follow once it is served.
                if !self.is_behind(seq, account) {
                    accounts.extend(account.beyond_share());
                }
            }
            Wait::Space(account) => {
                accounts.extend([Some(account), account.beyond_share()].into_iter().flatten())
            }
        }
        accounts.sort_unstable();
        accounts.dedup();
        let parked = self.parked.get_mut(&seq).expect("it is parked");
        if parked.listens.iter().map(|(account, _)| account).eq(&accounts) {
            return;
        }
        let now = self.rooms.tick();
        let listens = accounts.iter().map(|account| (*account, now)).collect();
        let former = std::mem::replace(&mut parked.listens, listens);
        for account in accounts {
            self.rooms.listeners.insert((account, now, seq));
            self.ledger.block(account);
        }
        for (account, since) in former {
            self.rooms.listeners.remove(&(account, since, seq));
            let scope = self.ledger.unblock(account);
            self.forget_scope_if_unused(scope);
        }
    }

    /// The first in line for an account is looked at in its turn.
    fn wake(&mut self, account: Blocked) {
        self.rooms.open.remove(&account);
        if let Some((place, number)) = self.rooms.first(&self.clients, account) {
            self.rooms.make_ready(place, number);
            if account.scope == ScopeId::NODE {
                self.rooms.open.insert(account);
            }
        }
    }

    /// Something of an account has come back, or nobody is before the others for it any more.
    fn hear_of(&mut self, account: Blocked) {
        self.wake(account);
        let now = self.rooms.tick();
        self.rooms.heard.insert(account, now);
    }

    /// Makes those ready that wait for an account of which something has come back.
    fn wake_all(&mut self) {
        while let Some(account) = self.ledger.next_freed() {
            self.hear_of(account);
        }
        for _ in 0..LISTENERS_WOKEN_PER_LOOK {
            let Some((account, until)) = self.rooms.heard.first_key_value() else { return };
            let (account, until) = (*account, *until);
            let next = self.rooms.listeners.range((account, 0, 0)..(account, until, 0)).next();
            let Some((_, since, seq)) = next.copied() else {
                self.rooms.heard.remove(&account);
                continue;
            };
            let now = self.rooms.tick();
            self.rooms.listeners.remove(&(account, since, seq));
            self.rooms.listeners.insert((account, now, seq));
            let listens = &mut self.parked.get_mut(&seq).expect("listeners are parked").listens;
            let listen = listens.iter_mut().find(|listen| listen.0 == account);
            listen.expect("it listens to the account").1 = now;
            self.look_soon(seq);
        }
    }

    /// Looks at ready requests, a few a step, the domains in turn. A later one passes by those that wait for caps which it
    /// does not need itself.
    pub(crate) fn serve_waiting(&mut self, now: Now, fx: &mut Effects) {
        let mut items = 0;
        for _ in 0..PARKED_LOOKS_PER_STEP {
            self.wake_all();
            if items >= PARKED_ITEMS_PER_STEP || fx.granted.len() >= PARKED_ITEMS_PER_STEP {
                return;
            }
            let Some(seq) = self.rooms.next() else { return };
            items += self.parked[&seq].items();
            self.look(now, seq, fx);
        }
        self.wake_all();
    }

    fn look(&mut self, now: Now, seq: u64, fx: &mut Effects) {
        let (place, number) = self.place(seq);
        self.rooms.unready(place, number);
        let taken = self.taken();
        let wait = self.retry(now, seq, Turn::InLine(seq), fx);
        if let Some(Wait::Room(account)) = wait {
            match self.is_behind(seq, account) {
                true => self.wake(account),
                false => _ = self.rooms.open.remove(&account),
            }
        }
        let looks = if self.rooms.looks.0 == number { self.rooms.looks.1 + 1 } else { 1 };
        self.rooms.looks = (number, looks);
        // One that joined a recall under way, or waits for an owner to come back, had nothing of the room.
        let is_served = match wait {
            None => true,
            Some(Wait::Recall) => self.taken() != taken,
            Some(_) => false,
        };
        if is_served || looks >= LOOKS_PER_TURN {
            self.end_turn(number);
        }
    }

    /// The domain has had its turn: the others come before it.
    fn end_turn(&mut self, number: Number) {
        self.rooms.looks = (number, 0);
        if number == NONE {
            return;
        }
        let turn = self.rooms.last_turn();
        let former = std::mem::replace(&mut self.clients.domain_mut(number).turn, turn);
        if self.rooms.turns.remove(&(former, number)) {
            self.rooms.turns.insert((turn, number));
        }
        // Others may be the first in line for what it has left.
        let open = std::mem::take(&mut self.rooms.open);
        open.into_iter().for_each(|account| self.wake(account));
    }

    /// What a request that goes on to wait for a recall has taken of the room: the recall's place, or a lease's.
    fn taken(&self) -> (u64, u64) {
        (self.counters.recalls, self.ledger[ScopeId::NODE].account.counted(Resource::OpenLeases))
    }

    /// Whether the first in line for an account comes before a request.
    pub(crate) fn is_behind(&mut self, seq: u64, account: Blocked) -> bool {
        let (place, _) = self.place(seq);
        self.rooms.first(&self.clients, account).is_some_and(|(first, _)| first < place)
    }

    /// Whether a parked request is looked at in its turn.
    pub(crate) fn is_looked_at_soon(&self, seq: u64) -> bool {
        self.rooms.ready.contains(&(self.place(seq).1, seq))
    }

    /// Asserts that everybody who waits is where it is found, once.
    pub(crate) fn check_rooms(&mut self) {
        let (mut len, mut in_line, mut listens) = (0, 0, 0);
        for (seq, parked) in &self.parked {
            len += usize::from(parked.wait != Wait::Recall);
            let (_, number) = self.place(*seq);
            if let Wait::Room(account) = parked.wait {
                let line = &self.rooms.lines[&(account, number)];
                assert!(line.arrivals.contains(seq), "request {seq} is not in line");
                assert!(self.rooms.order.contains(&(account, line.turn, number)), "a lost line");
                in_line += 1;
            }
            for (account, since) in &parked.listens {
                assert!(self.rooms.listeners.contains(&(*account, *since, *seq)), "{seq} is deaf");
                listens += 1;
            }
        }
        let Rooms { lines, order, listeners, ready, turns, .. } = &self.rooms;
        let all: usize = lines.values().map(|line| line.arrivals.len()).sum();
        assert_eq!((len, in_line, listens), (self.rooms.len, all, listeners.len()), "who waits");
        assert_eq!(lines.len(), order.len(), "lines of accounts");
        let numbers: BTreeSet<Number> = ready.iter().map(|(number, _)| *number).collect();
        let right = numbers.iter().map(|number| (turn_of(&self.clients, *number), *number));
        assert_eq!(*turns, right.collect(), "domains that have ready requests");
        for (number, seq) in ready {
            assert!(self.parked.contains_key(seq), "{seq} is ready, and of nobody");
            assert_eq!(self.place(*seq).1, *number, "{seq} is ready in another line");
        }
    }
}
