//! Which lane a process serves next. Must never let one user's jobs wait for another's, nor give
//! calls that can hang the processes that are kept for closes that end.

use crate::fds::jobs::Task;
use crate::limits::{LANE_BATCH, LANES_FOR_ACCEPTED, LANES_MAX};
use fdbroker_core::Lane;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// What a lane is for. One user's jobs of one kind wait for each other, and for nobody else's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Closes fds, and reads the fdinfo of those that only it tells of.
    Close(Lane),
    /// Drops a message that was refused.
    Drop,
    /// Reads what /proc says.
    Process,
    /// Reads the configuration again.
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
    pub uid: u32,
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

/// Jobs that a process is at.
pub struct Batch {
    pub of: LaneOf,
    /// Number of the process, below `LANES_MAX`.
    pub place: usize,
    /// Since when the next one to be reported is under way.
    pub since: Instant,
    pub tasks: Vec<Task>,
    /// How many of them are reported.
    pub done: usize,
}

/// Lanes, and what processes are at. The jobs are bounded by the fd table: each has an open fd, and
/// those are charged by the core or counted per uid.
#[derive(Default)]
pub struct Pool {
    /// Lanes with a job that waits or is under way.
    lanes: HashMap<LaneOf, VecDeque<Task>>,
    /// Lanes with a job that waits and none under way: first those whose calls all end, then those
    /// whose calls can hang.
    ready: [VecDeque<LaneOf>; 2],
    /// Which of the two is next.
    next: usize,
    working: Vec<Batch>,
}

impl Pool {
    pub fn add(&mut self, of: LaneOf, task: Task) {
        let tasks = self.lanes.entry(of).or_insert_with(|| {
            self.ready[usize::from(of.can_hang())].push_back(of);
            VecDeque::new()
        });
        tasks.push_back(task);
    }

    /// Processes that may still take a lane whose calls can hang: the others are kept for closes
    /// that end.
    fn room_for_hangs(&self) -> usize {
        let at_work = self.working.iter().filter(|batch| batch.of.can_hang()).count();
        (LANES_MAX - LANES_FOR_ACCEPTED).saturating_sub(at_work)
    }

    /// Lanes that a process could take now.
    pub fn takeable(&self) -> usize {
        let [end, can_hang] = &self.ready;
        if can_hang.is_empty() {
            end.len()
        } else {
            end.len() + can_hang.len().min(self.room_for_hangs())
        }
    }

    /// Gives some jobs of the next lane to the process at `place`: lanes take turns, and so do the
    /// two kinds.
    pub fn take(&mut self, place: usize) -> Option<&Batch> {
        let has_room = self.room_for_hangs() > 0;
        let may = |kind: usize| !self.ready[kind].is_empty() && (kind == 0 || has_room);
        let kind = [self.next, 1 - self.next].into_iter().find(|kind| may(*kind))?;
        self.next = 1 - kind;
        let of = self.ready[kind].pop_front()?;
        let waiting = self.lanes.get_mut(&of)?;
        let tasks = waiting.drain(..LANE_BATCH.min(waiting.len())).collect();
        self.working.push(Batch { of, place, since: Instant::now(), tasks, done: 0 });
        self.working.last()
    }

    /// What processes are at.
    pub fn working(&mut self) -> impl Iterator<Item = &mut Batch> {
        self.working.iter_mut()
    }

    /// What the process at `place` is at.
    pub fn batch(&mut self, place: usize) -> Option<&mut Batch> {
        self.working.iter_mut().find(|batch| batch.place == place)
    }

    /// The process at `place` is at nothing more. The jobs from `rest` on go back to their lane.
    pub fn done(&mut self, place: usize, rest: usize) {
        let Some(at) = self.working.iter().position(|batch| batch.place == place) else { return };
        let Batch { of, tasks, .. } = self.working.swap_remove(at);
        let Some(waiting) = self.lanes.get_mut(&of) else { return };
        tasks.into_iter().skip(rest).rev().for_each(|task| waiting.push_front(task));
        if waiting.is_empty() {
            drop(self.lanes.remove(&of))
        } else {
            self.ready[usize::from(of.can_hang())].push_back(of)
        }
    }

    /// What processes are at whose job has not returned for so long. `is_begun`: whether the
    /// process at this place has taken its jobs; it may only wait for a processor.
    pub fn late(&mut self, time: Duration, is_begun: impl Fn(usize) -> bool) -> Vec<LaneOf> {
        let now = Instant::now();
        let mut late = Vec::new();
        for batch in &mut self.working {
            match now - batch.since > time {
                true if is_begun(batch.place) => late.push(batch.of),
                true => batch.since = now,
                false => {}
            }
        }
        late
    }

    /// Whether accepted fds wait to be closed, or are being closed.
    pub fn has_accepted(&self) -> bool {
        self.lanes.keys().any(|of| of.lane() == Lane::Accepted)
    }
}
