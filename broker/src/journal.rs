//! What the log says of bad input, refusals, silent owners, evictions and calls that hang, and what
//! is counted of them. Must never write more lines about a user than are bounded per minute, nor
//! keep more than a number for each user.

use crate::limits::{LOG_LINES_PER_UID, LOG_UIDS, SINGLE_LINES};
use fdbroker_core::{Note, Now};
use fdbroker_protocol::admin::{self, EventKind};
use fdbroker_protocol::{
    AllocationId, ByLogTopic, ByResource, ByScope, ErrorCode, LogTopic, Resource, Scope, Status,
};
use log::Level;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// The time in which lines are counted.
const PERIOD_US: u64 = 60_000_000;

#[derive(Debug, Default)]
pub struct Journal {
    /// Whether there are users to be told apart.
    is_shared: bool,
    period: u64,
    /// Lines of the period, by uid.
    lines: ByLogTopic<HashMap<u32, u32>>,
    /// Lines left out in the period.
    left_out: ByLogTopic<u64>,
    /// In all periods before.
    left_out_before: ByLogTopic<u64>,
    refusals: ByScope<ByResource<u64>>,
    hangs: u64,
    /// Sockets that were put back.
    mended: u64,
}

/// The counts of a [`Journal`] for a successor, each table in its order.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct SavedJournal {
    pub refusals: Vec<Vec<u64>>,
    pub hangs: u64,
    pub mended: u64,
    pub left_out: Vec<u64>,
}

impl Journal {
    pub fn new(is_shared: bool) -> Self {
        Journal { is_shared, ..Journal::default() }
    }

    /// The same with nothing counted.
    pub fn emptied(&self) -> Self {
        Journal::new(self.is_shared)
    }

    /// How much a line about it matters. A program is told itself of what it is refused, when it
    /// has not got it by asking again: where one user has the broker nobody else is to know.
    fn level(&self, topic: LogTopic) -> Level {
        match topic {
            LogTopic::Evictions => Level::Info,
            LogTopic::Refusals if !self.is_shared => Level::Info,
            _ => Level::Warn,
        }
    }

    /// Whether a line about `uid` may be written now; if not, it is counted, and the count is named
    /// when the minute is over.
    pub fn allows(&mut self, topic: LogTopic, uid: u32, now: Now) -> bool {
        self.turn_to(now);
        let most = match topic {
            LogTopic::Evictions | LogTopic::Sockets => SINGLE_LINES,
            _ => LOG_LINES_PER_UID,
        };
        let uids = &mut self.lines[topic];
        if uids.contains_key(&uid) || uids.len() < LOG_UIDS {
            let lines = uids.entry(uid).or_default();
            *lines = lines.saturating_add(1);
            if *lines <= most {
                return true;
            }
        }
        self.left_out[topic] = self.left_out[topic].saturating_add(1);
        false
    }

    /// Begins a new period if it is time to.
    fn turn_to(&mut self, now: Now) {
        let period = now.0 / PERIOD_US;
        if std::mem::replace(&mut self.period, period) == period {
            return;
        }
        for topic in LogTopic::ALL {
            let left_out = std::mem::take(&mut self.left_out[*topic]);
            if left_out > 0 {
                let level = self.level(*topic);
                log::log!(level, "{left_out} further lines about {} were left out", topic.help());
            }
            let before = &mut self.left_out_before[*topic];
            *before = before.saturating_add(left_out);
            self.lines[*topic].clear();
        }
    }

    /// Something has happened: says it, if it is of a kind that the log tells of.
    pub fn hear(&mut self, note: &Note, now: Now) {
        let topic = match note.kind {
            EventKind::Refusal => LogTopic::Refusals,
            EventKind::Silent => LogTopic::SilentOwners,
            EventKind::Evict => LogTopic::Evictions,
            _ => return,
        };
        let Note { pid, domain, size_bytes, status, .. } = *note;
        if topic == LogTopic::Refusals {
            self.count_refusal(&status);
        }
        let uid = domain.uid;
        if !self.allows(topic, uid, now) {
            return;
        }
        let AllocationId { slot, generation } =
            note.id.unwrap_or(AllocationId { slot: 0, generation: 0 });
        let what = format_args!("allocation {slot}.{generation} of {size_bytes} bytes");
        match topic {
            LogTopic::SilentOwners => log::warn!(
                "pid {pid} (uid {uid}) has not answered a recall in time: {what}; others cannot have it until it answers"
            ),
            LogTopic::Evictions => {
                log::info!("an fd of pid {pid} (uid {uid}) is closed: {what}; it can be recalled");
            }
            _ => log::log!(self.level(topic), "pid {pid} (uid {uid}) is refused: {status}"),
        }
    }

    fn count_refusal(&mut self, status: &Status) {
        let scope = status.scope();
        let resource = Resource::from_number(status.resource);
        if let (Err(ErrorCode::NoQuota), Some(scope), Some(resource)) =
            (status.result(), scope, resource)
        {
            let count = &mut self.refusals[scope][resource];
            *count = count.saturating_add(1);
        }
    }

    /// A call on an fd of a user has not returned for long.
    pub fn hang(&mut self, what: &str, uid: u32, now: Now) {
        self.hangs = self.hangs.saturating_add(1);
        if self.allows(LogTopic::Hangs, uid, now) {
            log::warn!(
                "{what} of uid {uid} has not returned for a second; only that user waits for it"
            );
        }
    }

    /// Something is to be said of the socket with this number. Whether a line of it may be written:
    /// they are counted for each socket as for each user.
    pub fn allows_socket(&mut self, number: usize, is_mended: bool, now: Now) -> bool {
        self.mended = self.mended.saturating_add(u64::from(is_mended));
        self.allows(LogTopic::Sockets, u32::try_from(number).unwrap_or_default(), now)
    }

    fn left_out(&self, topic: LogTopic) -> u64 {
        self.left_out_before[topic].saturating_add(self.left_out[topic])
    }

    pub fn save(&self) -> SavedJournal {
        let of = |of: &ByResource<u64>| of.iter().map(|(_, count)| *count).collect();
        SavedJournal {
            refusals: self.refusals.iter().map(|(_, it)| of(it)).collect(),
            hangs: self.hangs,
            mended: self.mended,
            left_out: LogTopic::ALL.iter().map(|topic| self.left_out(*topic)).collect(),
        }
    }

    /// Goes on with the counts of another broker. What is missing there is 0.
    pub fn restore(&mut self, saved: &SavedJournal) {
        for (scope, of) in Scope::ALL.iter().zip(&saved.refusals) {
            for (resource, count) in Resource::ALL.iter().zip(of) {
                self.refusals[*scope][*resource] = *count;
            }
        }
        (self.hangs, self.mended) = (saved.hangs, saved.mended);
        for (topic, count) in LogTopic::ALL.iter().zip(&saved.left_out) {
            self.left_out_before[*topic] = *count;
        }
    }

    /// As administrators see it.
    pub fn record(&self) -> admin::Journal {
        admin::Journal {
            refusals: self.refusals.map(|of| of.map(|count| (*count).into())),
            hangs: self.hangs.into(),
            sockets_mended: self.mended.into(),
            lines_left_out: ByLogTopic::from_fn(|topic| self.left_out(topic).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fdbroker_core::DomainKey;

    const NOW: Now = Now(5);

    fn allowed(journal: &mut Journal, topic: LogTopic, uids: impl Iterator<Item = u32>) -> usize {
        uids.filter(|uid| journal.allows(topic, *uid, NOW)).count()
    }

    #[test]
    fn lines_when_one_uid_floods_then_others_and_other_topics_still_have_lines() {
        let mut journal = Journal::default();
        let flood = || (0..1000).map(|_| 1000);
        let most = LOG_LINES_PER_UID as usize;
        assert_eq!(allowed(&mut journal, LogTopic::BadInput, flood()), most);
        assert_eq!(allowed(&mut journal, LogTopic::Evictions, flood()), 1);
        assert!(journal.allows(LogTopic::BadInput, 1001, NOW));
        assert!(journal.allows(LogTopic::Refusals, 1000, NOW));
        assert!(journal.allows(LogTopic::BadInput, 1000, Now(PERIOD_US)), "a new minute");
        let left_out = journal.record().lines_left_out;
        assert_eq!(left_out.bad_input.get(), 1000 - u64::from(LOG_LINES_PER_UID));
        assert_eq!((left_out.evictions.get(), left_out.refusals.get()), (999, 0));
    }

    #[test]
    fn level_when_one_user_has_the_broker_then_its_refusals_are_no_warnings() {
        let of = |is_shared| Journal::new(is_shared).level(LogTopic::Refusals);
        assert_eq!((of(true), of(false)), (Level::Warn, Level::Info));
        assert_eq!(Journal::new(false).level(LogTopic::SilentOwners), Level::Warn);
    }

    #[test]
    fn lines_when_many_uids_then_memory_is_bounded() {
        let mut journal = Journal::default();
        assert_eq!(allowed(&mut journal, LogTopic::BadInput, 0..10_000), LOG_UIDS);
        assert_eq!(journal.lines.bad_input.len(), LOG_UIDS);
    }

    #[test]
    fn refusals_when_heard_then_counted_by_cap_and_those_without_a_cap_are_not() {
        let mut journal = Journal::default();
        let full = Status::no_quota(Resource::Fds, Scope::Job, 64, 7);
        for status in [full, full, ErrorCode::ShuttingDown.into()] {
            let domain = DomainKey::new(0, 5);
            journal.hear(&Note { domain, status, ..Note::of_node(EventKind::Refusal) }, NOW);
        }
        let refusals = journal.record().refusals;
        assert_eq!(refusals.job.fds.get(), 2);
        let mut successor = Journal::default();
        successor.restore(&journal.save());
        assert_eq!(successor.record(), journal.record());
        let all = refusals.iter().flat_map(|(_, of)| of.iter()).map(|(_, count)| count.get());
        assert_eq!(all.sum::<u64>(), 2);
    }
}
