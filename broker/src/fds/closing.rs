//! How many fds of each uid are with the lanes. At a bound, messages of the uid that have fds wait, or are refused. Must never
//! count a job that no report ends.

use crate::clock;
use crate::fds::jobs::{NOBODY, Report};
use crate::limits::{
    ARRIVED_CLOSINGS_PER_UID, HUNG_CLOSE, REFUSED_FDS_PER_UID, refused_fds, turned_away,
};
use fdbroker_core::Now;
use fdbroker_protocol::MAX_BATCH;
use std::collections::HashMap;

/// Of one uid.
#[derive(Clone, Copy, Debug, Default)]
struct ClosingOf {
    /// Fds that came with a message and were not kept.
    arrived: u32,
    /// Fds that the core does not know of.
    refused: u32,
    /// Sockets of ended connections, in whose queues such fds lie.
    sockets: u32,
    /// An fd is being looked at, and a message waits for that.
    is_looked_at: bool,
    /// Since when there are as many as may be.
    full_since: Option<Now>,
}

/// How a uid's messages with fds may be read. Never with room for fewer fds than a message can have: the kernel would
/// close the others on the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// With all their fds.
    Free,
    /// Not now: fds are being closed. Until then they should be.
    Wait(Now),
    /// Not at all, because closes of earlier fds hang: a lane drops them.
    WithoutFds,
}

/// See the module.
pub struct Closing {
    /// No entry = none.
    of: HashMap<u32, ClosingOf>,
    /// Refused fds and sockets of all uids. Above `most_refused` no message with fds is read.
    refused: u64,
    most_refused: u64,
    /// Since when a whole message more would be above that.
    short_since: Option<Now>,
    /// Sockets turned away. At `most_turned_away` no further connection is accepted.
    turned_away: u64,
    most_turned_away: u64,
}

impl Closing {
    /// None, in a process that may have `table_fds` open.
    pub fn new(table_fds: u64) -> Self {
        Closing {
            of: HashMap::new(),
            refused: 0,
            most_refused: refused_fds(table_fds),
            short_since: None,
            turned_away: 0,
            most_turned_away: turned_away(table_fds),
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
            Report::Held(_) | Report::Uncharged | Report::Process(..) | Report::Reread => return,
            Report::TurnedAway(_) => {
                self.turned_away =
                    if is_more { self.turned_away + 1 } else { self.turned_away - 1 };
                return;
            }
            Report::Arrived(_, uid) | Report::Looked(uid, _) | Report::Retired(_, uid) => uid,
            Report::Refused(uid) | Report::Dropped(uid) => uid,
        };
        let of = self.of.entry(uid).or_default();
        let former = of.refused + of.sockets;
        match report {
            Report::Arrived(..) => of.arrived = step(of.arrived),
            Report::Looked(..) => of.is_looked_at = is_more,
            Report::Retired(..) => of.sockets = step(of.sockets),
            _ => of.refused = step(of.refused),
        }
        let refused = of.refused + of.sockets;
        // Full until half of them are closed: else each close would wake every client that waits.
        let share = if of.full_since.is_some() { 2 } else { 1 };
        let is_full = of.is_looked_at
            || refused >= REFUSED_FDS_PER_UID / share
            || of.arrived >= ARRIVED_CLOSINGS_PER_UID / share;
        of.full_since = is_full.then(|| of.full_since.unwrap_or(now));
        if refused == 0 && of.arrived == 0 && !of.is_looked_at {
            self.of.remove(&uid);
        }
        self.refused = self.refused + u64::from(refused) - u64::from(former);
        let is_short = self.refused + MAX_BATCH as u64 > self.most_refused;
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

    /// Whether so many sockets of ended connections of `uid` hang that it may have no further connection.
    pub fn is_hung(&self, uid: u32) -> bool {
        self.of.get(&uid).is_some_and(|of| of.sockets >= REFUSED_FDS_PER_UID)
    }

    /// Whether another socket could be turned away. One that is accepted cannot be given back, and whoever closes it closes
    /// what lies in it.
    pub fn may_turn_away(&self) -> bool {
        self.turned_away < self.most_turned_away
    }
}
