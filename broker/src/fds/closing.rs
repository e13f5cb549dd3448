//! How many fds of each uid are with the lanes. At a bound, messages of the uid that have fds wait,
//! or are refused. Must never count a job that no report ends.

use crate::clock;
use crate::fds::jobs::{NOBODY, Report};
use crate::limits::{
    ARRIVED_CLOSINGS_PER_UID, HUNG_CLOSE, REFUSED_FDS_PER_UID, refused_fds, turned_away,
};
use fdbroker_core::{Now, Part};
use fdbroker_protocol::{MAX_BATCH, Resource, Scope, Status};
use std::collections::HashMap;

#[derive(Clone, Copy, Debug, Default)]
struct ClosingOf {
    /// Fds that came with a message and were not kept.
    arrived: u32,
    /// Fds that the core does not know of, and event sockets of ended connections, in whose queues
    /// such fds may lie.
    refused: u32,
    /// Main sockets of ended connections.
    sockets: u32,
    /// An fd is being looked at, and a message waits for that.
    is_looked_at: bool,
    /// Since when there are as many as may be and none of them came back.
    full_since: Option<Now>,
}

/// How a uid's messages with fds may be read. Never with room for fewer fds than a message can
/// have: the kernel would close the others on the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// With all their fds.
    Free,
    /// Not now: fds are being closed. Until then they should be.
    Wait(Now),
    /// Not at all, because closes of earlier fds hang: a lane drops them.
    WithoutFds,
}

#[derive(Default)]
pub struct Closing {
    /// No entry = none.
    of: HashMap<u32, ClosingOf>,
    /// Refused fds and event sockets of all uids: a main socket has a place of its own until it is
    /// closed. When a whole message more would be above `most_refused`, no message with fds is
    /// read.
    refused: u32,
    most_refused: u64,
    share_factor: u64,
    /// Since when a whole message more would be above that.
    short_since: Option<Now>,
    /// Sockets turned away. At `most_turned_away` no further connection is accepted.
    turned_away: u32,
    most_turned_away: u64,
}

impl Closing {
    /// None, in a process that may have `table_fds` open.
    pub fn new(table_fds: u64, share_factor: u64) -> Self {
        Closing {
            share_factor,
            most_refused: refused_fds(table_fds),
            most_turned_away: turned_away(table_fds),
            ..Closing::default()
        }
    }

    /// A lane gets a job that ends with this report.
    pub fn begin(&mut self, report: Report, now: Now) {
        self.count(report, true, now);
    }

    /// The job with this report is done.
    pub fn end(&mut self, report: Report, now: Now) {
        self.count(report, false, now);
    }

    fn count(&mut self, report: Report, is_more: bool, now: Now) {
        let step = |count: u32| if is_more { count + 1 } else { count - 1 };
        let uid = match report {
            Report::Held(_)
            | Report::Uncharged
            | Report::Process(..)
            | Report::Caller(..)
            | Report::Reread(_)
            | Report::Carried(_) => return,
            // Few at a time, in places of their own.
            Report::Opened(..) | Report::Replaced => return,
            Report::TurnedAway(_) => {
                self.turned_away = step(self.turned_away);
                return;
            }
            Report::Arrived(_, uid) | Report::Looked(uid, _) | Report::Retired(_, uid) => uid,
            Report::Refused(uid) | Report::Dropped(uid) | Report::RetiredEvent(_, uid) => uid,
        };
        let of = self.of.entry(uid).or_default();
        match report {
            Report::Arrived(..) => of.arrived = step(of.arrived),
            Report::Looked(..) => of.is_looked_at = is_more,
            Report::Retired(..) => of.sockets = step(of.sockets),
            _ => (of.refused, self.refused) = (step(of.refused), step(self.refused)),
        }
        let refused = of.refused + of.sockets;
        // Full until half of them are closed: else each close would wake every client that waits.
        let share = if of.full_since.is_some() { 2 } else { 1 };
        // Its part of the places beside those for a whole message: a single user leaves some to
        // others, as do several.
        let most = self.most_refused - MAX_BATCH as u64;
        let part = Part { held: of.refused.into(), used: self.refused.into(), most };
        let is_full = of.is_looked_at
            || refused >= REFUSED_FDS_PER_UID / share
            || (of.refused > 0 && part.room(self.share_factor) == 0)
            || of.arrived >= ARRIVED_CLOSINGS_PER_UID / share;
        // Slow closes come back one by one: only what does not come back hangs.
        let since = of.full_since.filter(|_| is_more).unwrap_or(now);
        of.full_since = is_full.then_some(since);
        if refused == 0 && of.arrived == 0 && !of.is_looked_at {
            self.of.remove(&uid);
        }
        let is_short = u64::from(self.refused) + MAX_BATCH as u64 > self.most_refused;
        self.short_since = is_short.then(|| self.short_since.unwrap_or(now));
    }

    /// How messages of `uid` may be read now.
    pub fn reading(&self, uid: u32, now: Now) -> Reading {
        // Nearly always empty: then nothing is hashed.
        if self.of.is_empty() || uid == NOBODY {
            return Reading::Free;
        }
        let full_since = self.of.get(&uid).and_then(|of| of.full_since);
        let Some(since) = full_since.or(self.short_since) else { return Reading::Free };
        let until = clock::after(since, HUNG_CLOSE);
        if now < until { Reading::Wait(until) } else { Reading::WithoutFds }
    }

    /// Why messages of `uid` that have fds are refused: it has as many as it may, or all uids
    /// together have too many.
    pub fn refusal(&self, uid: u32) -> Status {
        let (scope, most) = match self.of.get(&uid).and_then(|of| of.full_since) {
            Some(_) => (Scope::Domain, REFUSED_FDS_PER_UID.into()),
            None => (Scope::Node, self.most_refused),
        };
        Status::no_quota(Resource::RefusedFds, scope, most, 0)
    }

    /// How many main sockets of ended connections of `uid` are not closed yet.
    pub fn sockets(&self, uid: u32) -> u32 {
        self.of.get(&uid).map_or(0, |of| of.sockets)
    }

    /// Whether another socket could be turned away. One that is accepted cannot be given back, and
    /// whoever closes it closes what lies in it.
    pub fn may_turn_away(&self) -> bool {
        u64::from(self.turned_away) < self.most_turned_away
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fdbroker_core::Ticket;
    use fdbroker_protocol::NO_CAP;

    const NOW: Now = Now(0);

    fn hung() -> Now {
        clock::after(NOW, HUNG_CLOSE)
    }

    fn no_quota(scope: Scope, cap: u64) -> Status {
        Status::no_quota(Resource::RefusedFds, scope, cap, 0)
    }

    #[test]
    fn reading_when_sockets_of_another_uid_hang_then_free_until_the_places_for_all_are_used_up() {
        let mut closing = Closing::new(1024, NO_CAP);
        let (one, other) = (1, 2);
        (0..500).for_each(|number| closing.begin(Report::Retired(number, one), NOW));
        assert_eq!(closing.reading(other, hung()), Reading::Free, "they have places of their own");
        assert_eq!(closing.reading(one, hung()), Reading::WithoutFds);
        assert_eq!(closing.refusal(one), no_quota(Scope::Domain, 64));

        (0..65).for_each(|number| closing.begin(Report::RetiredEvent(number, one), NOW));
        assert_eq!(closing.reading(other, hung()), Reading::WithoutFds);
        assert_eq!(closing.refusal(other), no_quota(Scope::Node, 317), "no bound of its own");

        (0..65).for_each(|number| closing.end(Report::RetiredEvent(number, one), NOW));
        (0..500).for_each(|number| closing.end(Report::Retired(number, one), NOW));
        assert!(closing.of.is_empty() && closing.refused == 0);
    }

    #[test]
    fn reading_when_closes_come_back_one_by_one_then_waits_and_when_none_does_then_without_fds() {
        let mut closing = Closing::new(1024, NO_CAP);
        let uid = 1;
        let close = Report::Arrived(Ticket(0), uid);
        (0..253).for_each(|_| closing.begin(close, NOW));
        let later = clock::after(NOW, HUNG_CLOSE / 2);
        closing.end(close, later);

        assert_eq!(closing.reading(uid, hung()), Reading::Wait(clock::after(later, HUNG_CLOSE)));

        closing.begin(close, hung());
        assert_eq!(closing.reading(uid, clock::after(later, HUNG_CLOSE)), Reading::WithoutFds);
    }

    #[test]
    fn reading_when_single_fds_of_several_uids_hang_then_the_next_uid_finds_places() {
        let mut closing = Closing::new(8192, 8);
        for uid in 0..5 {
            assert_eq!(closing.reading(uid, hung()), Reading::Free, "{uid}");
            while closing.reading(uid, hung()) == Reading::Free {
                closing.begin(Report::Refused(uid), NOW);
            }
        }
        assert_eq!(closing.reading(5, hung()), Reading::Free);
        assert_eq!(closing.refusal(0), no_quota(Scope::Domain, 64));
    }
}
