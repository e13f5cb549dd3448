//! Which lane a thread serves next. Must never let one user's jobs wait for another's, nor give calls that can hang the threads that
//! are kept for closes that end.

use crate::fds::jobs::{Job, Report};
use crate::limits::{HUNG_CLOSE, LANE_BATCH, LANE_SLOW, LANES_FOR_ACCEPTED, LANES_MAX};
use fdbroker_core::Lane;
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

/// What a lane is for. One user's jobs of one kind wait for each other, and for nobody else's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Closes, and looks.
    Close(Lane),
    /// Drops a message that was refused.
    Drop,
    /// Reads what /proc says.
    Process,
    /// Reads the configuration.
    Reread,
    /// Opens memory for readers.
    Open,
}

impl Kind {
    /// A job of it, as the log names it.
    pub fn job(self) -> &'static str {
        match self {
            Kind::Close(Lane::Accepted) => "the close of an fd that was held",
            Kind::Close(Lane::Refused) => "the close of an fd that was refused",
            Kind::Drop => "the close of fds of a message that was refused",
            Kind::Process => "a look at a process",
            Kind::Reread => "a read of the configuration",
            Kind::Open => "the opening of memory for readers",
        }
    }
}

/// A lane, by its user and what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaneOf {
    /// Whose jobs.
    pub uid: u32,
    /// Of this kind.
    pub kind: Kind,
}

impl LaneOf {
    /// Whether a call of it can hang for ever.
    fn can_hang(self) -> bool {
        matches!(self.kind, Kind::Close(Lane::Refused) | Kind::Drop | Kind::Reread | Kind::Open)
    }

    /// What it closes are accepted fds, or others.
    pub fn lane(self) -> Lane {
        if self.kind == Kind::Close(Lane::Accepted) { Lane::Accepted } else { Lane::Refused }
    }
}

/// Lanes and threads. The jobs are bounded by the fd table: each has an open fd, and those are charged by the core or
/// counted per uid.
#[derive(Default)]
pub struct Pool {
    /// Lanes with a job that waits or is under way.
    lanes: HashMap<LaneOf, VecDeque<Job>>,
    /// Lanes with a job that waits and none under way: first those whose calls all end, then those whose calls can hang.
    ready: [VecDeque<LaneOf>; 2],
    /// Which of the two is next.
    next: usize,
    /// The lane of each thread that is not idle, and since when its job is under way.
    working: Vec<(LaneOf, Instant)>,
    pub(super) threads: usize,
    pub(super) idle: usize,
    /// Not taken by the loop yet.
    pub(super) reports: Vec<Report>,
    /// The loop has ended: so do threads without a job.
    pub(super) ended: bool,
}

impl Pool {
    /// One more job.
    pub fn add(&mut self, of: LaneOf, job: Job) {
        let jobs = self.lanes.entry(of).or_insert_with(|| {
            self.ready[usize::from(of.can_hang())].push_back(of);
            VecDeque::new()
        });
        jobs.push_back(job);
    }

    /// Threads that may still take a lane whose calls can hang: the others are kept for closes that end.
    fn room_for_hangs(&self) -> usize {
        let at_work = self.working.iter().filter(|(of, _)| of.can_hang()).count();
        (LANES_MAX - LANES_FOR_ACCEPTED).saturating_sub(at_work)
    }

    /// Lanes that a thread could take now.
    pub fn takeable(&self) -> usize {
        self.ready[0].len() + self.ready[1].len().min(self.room_for_hangs())
    }

    /// Counts a thread to be started, if one is needed.
    pub fn wants_thread(&mut self) -> bool {
        let is_wanted = self.takeable() > self.idle && self.threads < LANES_MAX;
        self.threads += usize::from(is_wanted);
        is_wanted
    }

    /// Moves some jobs of the next lane to `jobs`: lanes take turns, and so do the two kinds.
    pub fn take(&mut self, jobs: &mut Vec<Job>) -> Option<LaneOf> {
        let has_room = self.room_for_hangs() > 0;
        let may = |kind: usize| !self.ready[kind].is_empty() && (kind == 0 || has_room);
        let kind = [self.next, 1 - self.next].into_iter().find(|kind| may(*kind))?;
        self.next = 1 - kind;
        let of = self.ready[kind].pop_front()?;
        let waiting = self.lanes.get_mut(&of)?;
        jobs.extend(waiting.drain(..LANE_BATCH.min(waiting.len())));
        self.working.push((of, Instant::now()));
        Some(of)
    }

    /// Some of a lane's jobs are done. `true`: the loop has to be told.
    pub fn report(&mut self, of: LaneOf, reports: &mut Vec<Report>) -> bool {
        let at_work = self.working.iter_mut().find(|(at_work, _)| *at_work == of);
        at_work.into_iter().for_each(|(_, since)| *since = Instant::now());
        // Once is enough until the loop has taken them.
        let is_first = self.reports.is_empty();
        self.reports.append(reports);
        is_first
    }

    /// The jobs taken from a lane are done.
    pub fn done(&mut self, of: LaneOf) {
        self.working.retain(|(at_work, _)| *at_work != of);
        match self.lanes.get(&of).is_some_and(|jobs| !jobs.is_empty()) {
            true => self.ready[usize::from(of.can_hang())].push_back(of),
            false => {
                self.lanes.remove(&of);
            }
        }
    }

    /// The lanes whose job has not returned for so long that it hangs.
    pub fn hung(&self) -> Vec<LaneOf> {
        let now = Instant::now();
        let hung = self.working.iter().filter(|(_, since)| now - *since > HUNG_CLOSE);
        hung.map(|(of, _)| *of).collect()
    }

    /// The uids whose accepted fds take long to close now, in order; and whether that can be otherwise soon.
    pub fn slow(&self) -> (Vec<u32>, bool) {
        let now = Instant::now();
        let is_accepted = |of: &LaneOf| of.lane() == Lane::Accepted;
        let is_slow = |of: &LaneOf, since: Instant| is_accepted(of) && now - since > LANE_SLOW;
        let slow = self.working.iter().filter(|(of, since)| is_slow(of, *since));
        let mut slow: Vec<u32> = slow.map(|(of, _)| of.uid).collect();
        slow.sort_unstable();
        (slow, self.lanes.keys().any(is_accepted))
    }
}
