//! Where a parked request stands among the others. Must never move it.

use crate::api::NONE;
use crate::books::Books;
use crate::books::ledger::{Blocked, ScopeId};
use crate::books::parked::Wait;
use crate::books::rooms::{Number, Place, Rooms, turn_of};

use fdbroker_protocol::Resource;
use std::collections::BTreeSet;

impl Books {
    /// Where a parked request comes among the others, and in whose line.
    pub(crate) fn place(&self, seq: u64) -> (Place, Number) {
        let parked = &self.parked[&seq];
        let domain = self.clients[parked.by.client.0].domain;
        let number = if parked.supplied { NONE } else { domain };
        ((turn_of(&self.clients, number), seq), number)
    }

    /// What a request that goes on to wait for a recall has taken of the room: the recall's place,
    /// or a lease's.
    pub(crate) fn taken(&self) -> (u64, u64) {
        (self.counters.recalls, self.ledger[ScopeId::NODE].account.counted(Resource::OpenLeases))
    }

    /// Whether the first in line for an account comes before a request.
    pub(crate) fn is_behind(&mut self, seq: u64, account: Blocked) -> bool {
        let (place, _) = self.place(seq);
        self.rooms.first(&self.clients, account).is_some_and(|(first, _)| first < place)
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
