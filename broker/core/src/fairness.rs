//! In which order parked requests are served when room appears: those that a supplied fd waits for, then the
//! domains in turn, the one served least recently first, and first come first served within each. Must never serve
//! a domain twice while another has a request that could be served.

use std::collections::BTreeSet;

use crate::Core;
use crate::acquire::Turn;
use crate::api::{Effects, Now};
use crate::ledger::{Blocked, FOR_LEASE, ScopeId};
use crate::limits::{
    LOOKS_PER_TURN, PARKED_ITEMS_PER_STEP, PARKED_SCAN_PER_STEP, RESTARTS_OF_A_SCAN,
};
use crate::state::{Wait, Wish};
use fdbroker_protocol::Resource;

/// Parked requests that wait for room or a reader; those of a domain are in [`crate::state::Domain::waiting`].
#[derive(Debug, Default)]
pub struct Rooms {
    /// Those that a supplied fd waits for: whether the client reads, and the arrival number. For clients that do not read
    /// nothing is to be kept back, so these come first.
    supplied: BTreeSet<(bool, u64)>,
    /// Domains with others that wait: (when it was last served, number).
    turns: BTreeSet<(u64, u32)>,
    /// Turns given out.
    turn: u64,
    /// Requests in all.
    len: usize,
}

impl Rooms {
    /// Nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Turns given out so far.
    pub fn turns_given(&self) -> u64 {
        self.turn
    }

    /// Nobody waits, and so many turns have been given out.
    pub fn after(turn: u64) -> Self {
        Rooms { turn, ..Rooms::default() }
    }

    /// The turn behind all others.
    pub fn last_turn(&mut self) -> u64 {
        self.turn += 1;
        self.turn
    }
}

/// How far a scan has come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scan {
    /// The next of the supplied ones.
    supplied: (bool, u64),
    /// The next domain, by its turn and number.
    at: (u64, u32),
    /// How many requests of that domain it has looked at in this turn.
    looked: usize,
    /// How often it has begun anew.
    restarts: u32,
    /// Room has appeared behind it: it begins anew at its end.
    again: bool,
}

/// Whether a scan has come to its end.
enum Progress {
    Done,
    /// The next step goes on.
    Cut,
}

/// What looking at a request came to.
enum Look {
    /// It has been answered, or the recall that it needs has been begun.
    Served,
    /// It waits on, for room or for a recall that took none.
    Passed,
    /// Nobody behind it can be served.
    Stop,
}

/// What the turn of a domain came to.
enum Turns {
    /// One of its requests was served, or none of them could be.
    Over,
    /// It has others that have not been looked at.
    Unfinished,
    /// Nobody behind it can be served.
    Stop,
}

impl Core {
    /// Puts a parked request among those that wait.
    pub(crate) fn enter_turns(&mut self, seq: u64) {
        self.rooms.len += 1;
        if self.parked[&seq].supplied {
            self.rooms.supplied.insert(self.place_among_supplied(seq));
            return;
        }
        let number = self.domain_of_parked(seq);
        let domain = self.clients.domain_mut(number);
        if domain.waiting.is_empty() {
            self.rooms.turns.insert((domain.turn, number));
        }
        domain.waiting.insert(seq);
    }

    /// Takes a parked request from those that wait; whether it was one of them.
    pub(crate) fn leave_turns(&mut self, seq: u64) -> bool {
        let was_there = if self.parked[&seq].supplied {
            self.rooms.supplied.remove(&self.place_among_supplied(seq))
        } else {
            let number = self.domain_of_parked(seq);
            let domain = self.clients.domain_mut(number);
            let was_there = domain.waiting.remove(&seq);
            if was_there && domain.waiting.is_empty() {
                self.rooms.turns.remove(&(domain.turn, number));
            }
            was_there
        };
        self.rooms.len -= usize::from(was_there);
        was_there
    }

    fn place_among_supplied(&self, seq: u64) -> (bool, u64) {
        (self.parked[&seq].wait != Wait::Reader, seq)
    }

    fn domain_of_parked(&mut self, seq: u64) -> u32 {
        let client = self.parked[&seq].client.0;
        self.client_mut(client).domain
    }

    /// The domain has had its turn: the others come before it.
    fn end_turn(&mut self, number: u32) {
        let turn = self.rooms.last_turn();
        let domain = self.clients.domain_mut(number);
        let former = std::mem::replace(&mut domain.turn, turn);
        if self.rooms.turns.remove(&(former, number)) {
            self.rooms.turns.insert((turn, number));
        }
    }

    /// Room has appeared: everybody who waits is looked at, from the beginning.
    pub(crate) fn start_scan(&mut self) {
        let restarts = match &mut self.scan_from {
            Some(scan) if scan.restarts == RESTARTS_OF_A_SCAN => {
                scan.again = true;
                return;
            }
            Some(scan) => scan.restarts + 1,
            None => 0,
        };
        self.scans += 1;
        self.scan_full.clear();
        self.scan_from = Some(Scan { restarts, ..Scan::default() });
    }

    /// Serves parked requests in their order while there is room. A later one passes by those that wait for caps
    /// which it does not need itself.
    pub(crate) fn scan(&mut self, now: Now, fx: &mut Effects) {
        self.scanned_items = 0;
        let Some(mut scan) = self.scan_from.take() else { return };
        match self.scan_on(now, &mut scan, fx) {
            Progress::Cut => self.scan_from = Some(scan),
            Progress::Done if scan.again => self.start_scan(),
            Progress::Done => {}
        }
    }

    fn scan_on(&mut self, now: Now, scan: &mut Scan, fx: &mut Effects) -> Progress {
        let mut looks = PARKED_SCAN_PER_STEP;
        while let Some((reads, seq)) = self.rooms.supplied.range(scan.supplied..).next().copied() {
            if looks == 0 || self.has_scanned_enough(fx) {
                return Progress::Cut;
            }
            looks -= 1;
            scan.supplied = (reads, seq + 1);
            if let (true, Look::Stop) = (reads, self.look(now, seq, fx)) {
                return Progress::Done;
            }
        }
        // A domain that is served goes to the end, and so comes up again.
        while let Some((turn, number)) = self.rooms.turns.range(scan.at..).next().copied() {
            if scan.at != (turn, number) {
                (scan.at, scan.looked) = ((turn, number), 0);
            }
            if looks == 0 || self.has_scanned_enough(fx) {
                return Progress::Cut;
            }
            let allowed = looks.min(LOOKS_PER_TURN - scan.looked);
            let (looked, turns) = self.give_turn(now, number, allowed, fx);
            looks -= looked;
            scan.looked += looked;
            match turns {
                Turns::Stop => return Progress::Done,
                // The step ends, and not the turn: the next step goes on with it.
                Turns::Unfinished if scan.looked < LOOKS_PER_TURN => continue,
                // Those that it cannot serve must not hold up the others.
                Turns::Unfinished => self.end_turn(number),
                Turns::Over => {}
            }
            (scan.at, scan.looked) = ((turn, number + 1), 0);
        }
        Progress::Done
    }

    /// Looks at the requests of a domain until one is served, or as many as allowed; how many it looked at.
    fn give_turn(
        &mut self,
        now: Now,
        number: u32,
        allowed: usize,
        fx: &mut Effects,
    ) -> (usize, Turns) {
        for looked in 1..=allowed {
            let (scan, from) = self.clients.domain(number).looked;
            let from = if scan == self.scans { from } else { 0 };
            let next = self.clients.domain(number).waiting.range(from..).next().copied();
            let Some(seq) = next else { return (looked, Turns::Over) };
            self.clients.domain_mut(number).looked = (self.scans, seq + 1);
            match self.look(now, seq, fx) {
                Look::Stop => return (looked, Turns::Stop),
                Look::Served => {
                    self.end_turn(number);
                    return (looked, Turns::Over);
                }
                Look::Passed if self.has_scanned_enough(fx) => {
                    return (looked, Turns::Unfinished);
                }
                Look::Passed => {}
            }
        }
        (allowed, Turns::Unfinished)
    }

    /// Whether a step has looked at, or granted, as many items as it may.
    fn has_scanned_enough(&self, fx: &Effects) -> bool {
        self.scanned_items.max(fx.granted.len()) >= PARKED_ITEMS_PER_STEP
    }

    /// A scope is gone: nothing of it is full.
    pub(crate) fn forget_full(&mut self, scope: ScopeId) {
        for resource in Resource::ALL {
            self.scan_full.remove(&Blocked { resource: *resource, scope });
        }
    }

    fn look(&mut self, now: Now, seq: u64, fx: &mut Effects) -> Look {
        if self.is_passed_over(seq) {
            return Look::Passed;
        }
        self.scanned_items += self.parked[&seq].nodes.len();
        let taken = self.taken();
        match self.retry(now, seq, Turn::Scanned, fx) {
            // It joined a recall under way, or waits for an owner to come back: it had nothing of the room.
            Some(Wait::Recall) if self.taken() == taken => Look::Passed,
            None | Some(Wait::Recall) => Look::Served,
            Some(Wait::Reader | Wait::Space(_)) => Look::Passed,
            Some(Wait::Room(Blocked { resource: Resource::Fds, scope: ScopeId::NODE })) => {
                // Whatever a later one wants takes one of these.
                Look::Stop
            }
            Some(Wait::Room(blocked)) => {
                self.scan_full.insert(blocked);
                Look::Passed
            }
        }
    }

    /// What a request that goes on to wait for a recall has taken of the room: the recall's place, or a lease's.
    fn taken(&self) -> (u64, u64) {
        (self.counters.recalls, self.ledger[ScopeId::NODE].account.counted(Resource::OpenLeases))
    }

    /// Whether it is plain without a closer look that a request cannot be served in this scan.
    fn is_passed_over(&mut self, seq: u64) -> bool {
        let parked = &self.parked[&seq];
        let (client, supplied) = (parked.client.0, parked.supplied);
        if let Wish::Credits(_) | Wish::Hello(_) = parked.wish {
            return false;
        }
        if !self.client_mut(client).sendable {
            // But for what is kept back for it.
            return !supplied;
        }
        let ahead = self.ahead(Turn::Scanned, client, FOR_LEASE);
        if let Some(blocked) = ahead {
            self.wait_anew(seq, Wait::Room(blocked), supplied);
        }
        ahead.is_some()
    }

    /// Asserts that everybody who waits for room is where the scan looks, once.
    pub(crate) fn check_turns(&self) {
        let mut len = self.rooms.supplied.len();
        let mut turns = BTreeSet::new();
        for (number, domain) in self.clients.domains(0) {
            len += domain.waiting.len();
            if !domain.waiting.is_empty() {
                turns.insert((domain.turn, number));
            }
            for seq in &domain.waiting {
                let client = self.parked[seq].client.0;
                let of = self.clients.find(client).map(|client| client.domain);
                assert_eq!(of, Some(number), "request {seq} waits in another domain");
            }
        }
        assert_eq!((len, turns), (self.rooms.len, self.rooms.turns.clone()), "who waits");
    }

    /// Whether a parked request is among those that wait for room or a reader.
    pub(crate) fn is_in_turns(&self, seq: u64) -> bool {
        let parked = &self.parked[&seq];
        let client = self.clients.find(parked.client.0);
        match parked.supplied {
            true => self.rooms.supplied.contains(&self.place_among_supplied(seq)),
            false => client
                .is_some_and(|client| self.clients.domain(client.domain).waiting.contains(&seq)),
        }
    }
}
