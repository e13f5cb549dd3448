//! Lanes: processes that do what may take long or hang for ever. They close clients' fds, have the
//! kernel drop fds that are not taken in, read the fdinfo of fds that may be dma-bufs, and read
//! what /proc says of a process. They share this process's table of fds and nothing else, so that
//! it can end while one of them hangs. The loop must never do any of it, nor wait for these
//! processes; and no user's jobs wait for another's.

use crate::fds::jobs::{Calls, Job, NOBODY, Order, Report, Said, Task, act, word};
use crate::fds::lane::{Common, Progress, SAID_BYTES};
use crate::fds::pool::{Kind, LaneOf, Pool};
use crate::limits::{
    FIRST_LANE_PATIENCE, HUNG_CLOSE, LANE_BATCH, LANE_IDLE, LANE_RETRY, LANE_SLOW, LANES_MAX,
    WORDS_PER_CHORE,
};
use crate::node::shared_map::SharedMap;
use fdbroker_core::Lane;
use fdbroker_scm::{ReceivedFds, SendError};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socketpair, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// Tells a lane to end.
const END: &[u8] = &[0];

/// What a lane's process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Starting,
    Idle,
    Working,
    Ending,
}

struct Place {
    serial: u32,
    state: State,
}

/// The sockets by which the lanes at a place get jobs.
struct Line {
    ours: OwnedFd,
    theirs: OwnedFd,
}

impl Line {
    fn new() -> nix::Result<Self> {
        let (ours, theirs) = pair()?;
        let idle = TimeVal::milliseconds(i64::try_from(LANE_IDLE.as_millis()).unwrap_or(i64::MAX));
        setsockopt(&theirs, sockopt::ReceiveTimeout, &idle)?;
        Ok(Line { ours, theirs })
    }

    fn send(&self, bytes: &[u8]) -> Result<(), SendError> {
        fdbroker_scm::send(self.ours.as_fd(), bytes, &[])
    }

    /// Whether the lane has taken the jobs that it was given.
    fn is_read(&self) -> bool {
        fdbroker_scm::unread_bytes(self.ours.as_fd()).is_ok_and(|unread| unread == 0)
    }
}

/// The lanes, seen from the loop.
pub struct Closers {
    common: Common,
    /// The process from which lanes are cloned; `None`: there could be no other one yet.
    spawner: Option<Pid>,
    /// The loop's end of what the spawner is told.
    orders: OwnedFd,
    /// The loop's end of what the spawner and the lanes say.
    said: OwnedFd,
    buffer: Box<[u8]>,
    no_fds: ReceivedFds,
    pool: Pool,
    places: [Option<Place>; LANES_MAX],
    /// Of each place, for as long as there are lanes: a number that one of them reads from must
    /// never become another file's.
    lines: Vec<Line>,
    last_serial: u32,
    /// Jobs that are not reported yet, without those that nobody will report.
    under_way: usize,
    /// Of lanes that have ended.
    reports: Vec<Report>,
    /// No lane could be started for jobs that wait: when to try again.
    short_until: Option<Instant>,
}

/// Two sockets that wait in recvmsg(2) and sendmsg(2) unless told otherwise.
fn pair() -> nix::Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
}

impl Closers {
    /// The spawner, and no lanes: those start when there is something to do. To be called by the
    /// thread of the loop, before there is much memory to copy.
    ///
    /// # Errors
    /// There can be no process, or no fd.
    pub fn new(calls: Calls) -> io::Result<Self> {
        let (orders, their_orders) = pair()?;
        let (said, their_said) = pair()?;
        let memory: File = memfd_create(c"fdbroker-lanes", MFdFlags::MFD_CLOEXEC)?.into();
        let bytes = 8 * LANES_MAX;
        memory.set_len(bytes as u64)?;
        let mut common =
            Common::new(calls, SharedMap::new(&memory, bytes)?, their_orders, their_said)?;
        Ok(Closers {
            spawner: Some(common.spawn()?),
            common,
            orders,
            said,
            buffer: vec![0; SAID_BYTES].into(),
            no_fds: ReceivedFds::with_capacity(0),
            pool: Pool::default(),
            places: [const { None }; LANES_MAX],
            lines: (0..LANES_MAX).map(|_| Line::new()).collect::<Result<_, _>>()?,
            last_serial: 0,
            under_way: 0,
            reports: Vec::new(),
            short_until: None,
        })
    }

    /// Has a task done in its turn, with the next [`flush`](Self::flush).
    pub fn add(&mut self, uid: u32, kind: Kind, task: Task) {
        self.under_way += 1;
        self.pool.add(LaneOf { uid, kind }, task);
    }

    /// Gives an fd of `uid` away to be closed, with the next [`flush`](Self::flush).
    pub fn close(&mut self, fd: OwnedFd, uid: u32, lane: Lane, report: Report) {
        let act = if lane == Lane::Accepted { act::CLOSE_ACCEPTED } else { act::CLOSE };
        self.add(uid, Kind::Close(lane), (Job::with(act, fd, 0), report));
    }

    /// Has the first messages of a carrier dropped; `socket` is a duplicate. What lies there are
    /// accepted fds.
    pub fn drop_carried(&mut self, socket: OwnedFd, most: usize, carrier: u32) {
        let task = (Job::with(act::DROP, socket, most), Report::Carried(carrier));
        self.add(NOBODY, Kind::Close(Lane::Accepted), task);
    }

    /// Has the facts about process `pid` of `uid` read, for the connection `number` with this
    /// serial.
    pub fn ask(&mut self, pid: u32, uid: u32, number: usize, serial: u64) {
        let job = Job { act: act::PROCESS, number: pid, ..Job::default() };
        self.add(uid, Kind::Process, (job, Report::Process(number, serial, Default::default())));
    }

    /// The same for the caller with this number, whose pod counts.
    pub fn ask_for_pod(&mut self, pid: u32, uid: u32, number: u64) {
        let job = Job { act: act::PROCESS_OF_POD, number: pid, ..Job::default() };
        self.add(uid, Kind::Process, (job, Report::Caller(number, Default::default())));
    }

    /// Has the memory of a seal of `uid` opened for readers; `fd` is a duplicate.
    pub fn open(&mut self, fd: OwnedFd, uid: u32, number: u64) {
        let task = (Job::with(act::OPEN, fd, 0), Report::Opened(number, Err(0)));
        self.add(uid, Kind::Open, task);
    }

    /// Has the configuration read again: it may lie on a disk that takes its time. `memfd` begins
    /// with its path, and stays open until the report.
    pub fn reread(&mut self, memfd: BorrowedFd<'_>) {
        let task = (Job::lent(act::READ, memfd), Report::Reread(Err(0)));
        self.add(NOBODY, Kind::Reread, task);
    }

    /// Hands the jobs to the processes.
    pub fn flush(&mut self) {
        while self.pool.takeable() > 0 {
            let Some(at) = self.place_in(State::Idle) else { return self.start() };
            self.give(at);
        }
    }

    fn place_in(&self, state: State) -> Option<usize> {
        let is_in = |place: &Option<Place>| place.as_ref().is_some_and(|it| it.state == state);
        self.places.iter().position(is_in)
    }

    fn give(&mut self, at: usize) {
        let (Some(place), Some(batch)) = (&mut self.places[at], self.pool.take(at)) else { return };
        let mut jobs = [Job::default(); LANE_BATCH];
        let all = jobs.iter_mut().zip(&batch.tasks);
        let count = all.map(|(job, task)| *job = task.0).count();
        Progress(&self.common.progress, at).set(0, 0);
        match self.lines[at].send(jobs[..count].as_bytes()) {
            Ok(()) => place.state = State::Working,
            Err(error) => {
                // Its line is empty, so the system has no memory for it. Another one is tried
                // later.
                log::debug!("a lane does not get its jobs: {error}");
                self.pool.done(at, 0);
                self.end(at);
            }
        }
    }

    /// Has one more lane started, if that is wanted. One at a time: each that is ready has the next
    /// one started.
    fn start(&mut self) {
        let is_late = self.short_until.is_none_or(|until| Instant::now() > until);
        let free = self.places.iter().position(Option::is_none);
        let (true, Some(at), None) = (is_late, free, self.place_in(State::Starting)) else {
            return;
        };
        if let Err(error) = self.start_at(at) {
            self.note_short(&error);
        }
    }

    fn start_at(&mut self, at: usize) -> io::Result<()> {
        if self.spawner.is_none() {
            self.spawner = Some(self.common.spawn()?);
        }
        self.last_serial = self.last_serial.wrapping_add(1);
        let serial = self.last_serial;
        let order = Order {
            place: u32::try_from(at).unwrap_or(u32::MAX),
            serial,
            line: self.lines[at].theirs.as_raw_fd(),
        };
        fdbroker_scm::send(self.orders.as_fd(), order.as_bytes(), &[]).map_err(io::Error::other)?;
        self.places[at] = Some(Place { serial, state: State::Starting });
        Ok(())
    }

    /// Waits for the first lane: without one no client is let in.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_first(&mut self) -> io::Result<()> {
        if self.places.iter().all(Option::is_none) {
            self.start_at(0)?;
        }
        let until = Instant::now() + FIRST_LANE_PATIENCE;
        while self.place_in(State::Starting).is_some() && Instant::now() < until {
            let _ = poll(&mut [PollFd::new(self.said.as_fd(), PollFlags::POLLIN)], 100_u8);
            self.listen();
        }
        self.flush();
        if self.short_until.is_none() { Ok(()) } else { Err(Errno::EAGAIN.into()) }
    }

    fn note_short(&mut self, error: &io::Error) {
        if self.short_until.is_none() {
            log::error!(
                "clients wait to be let in, and fds are closed late: no process can be started for it (see TasksMax and the limits of pids): {error}"
            );
        }
        self.short_until = Some(Instant::now() + LANE_RETRY);
    }

    /// Moves what has been done since the last call to `done`. Whether there may be more.
    pub fn take_reports(&mut self, done: &mut impl Extend<Report>) -> bool {
        let is_more = self.listen();
        self.under_way -= self.reports.len();
        done.extend(self.reports.drain(..));
        self.flush();
        is_more
    }

    /// Hears what lanes say. Whether there may be more.
    fn listen(&mut self) -> bool {
        for _ in 0..WORDS_PER_CHORE {
            let heard = fdbroker_scm::recv(self.said.as_fd(), &mut self.buffer, &mut self.no_fds);
            let Ok(message) = heard else { return false };
            if let Ok((said, _)) = Said::read_from_prefix(&self.buffer) {
                self.hear(said, message.len);
            }
        }
        true
    }

    /// A lane, or the spawner about it, says something.
    fn hear(&mut self, said: Said, length: usize) {
        let at = said.place as usize;
        let place = self.places.get_mut(at).and_then(Option::as_mut);
        let Some(place) = place.filter(|place| place.serial == said.serial) else { return };
        match said.word {
            word::READY => {
                self.short_until = None;
                place.state = State::Idle;
            }
            word::IDLE if place.state == State::Idle => self.end(at),
            word::DONE => {
                let Some(batch) = self.pool.batch(at) else { return };
                let text = self.buffer.get(size_of::<Said>()..length).unwrap_or_default();
                let done = batch.tasks.iter().take(said.done as usize).skip(batch.done);
                let process = &self.common.calls.process;
                let reports = done.map(|(_, report)| report.completed(said.value, text, process));
                self.reports.extend(reports);
                (batch.done, batch.since) = (batch.done.max(said.done as usize), Instant::now());
                if batch.done >= batch.tasks.len() {
                    self.pool.done(at, usize::MAX);
                    place.state = State::Idle;
                }
            }
            word::ENDED => self.bury(at),
            word::NOT_STARTED => {
                self.places[at] = None;
                self.note_short(&Errno::from_raw(i32::try_from(said.value).unwrap_or(0)).into());
            }
            _ => {}
        }
    }

    /// Has a lane that does nothing end.
    fn end(&mut self, at: usize) {
        let Some(place) = &mut self.places[at] else { return };
        let _ = self.lines[at].send(END);
        place.state = State::Ending;
    }

    /// A lane has ended. What it has not begun goes to another one; the job at hand is as if it
    /// hung.
    fn bury(&mut self, at: usize) {
        self.places[at] = None;
        let Line { theirs, .. } = &self.lines[at];
        let has_begun = self.lines[at].is_read();
        // The next lane there must not do it once more.
        while fdbroker_scm::recv(theirs.as_fd(), &mut self.buffer, &mut self.no_fds).is_ok() {}
        let Some(batch) = self.pool.batch(at) else { return };
        let (begun, done) = Progress(&self.common.progress, at).get();
        let (begun, done) = if has_begun { (begun as usize, done as usize) } else { (0, 0) };
        let done = done.max(batch.done);
        let reported = batch.tasks.iter().take(done).skip(batch.done).map(|(_, report)| *report);
        self.reports.extend(reported);
        if let Some((_, report)) = batch.tasks.get(done).filter(|_| begun > done) {
            log::warn!(
                "{} of uid {} is given up, and stays charged: its process has ended",
                batch.of.kind.job(),
                batch.of.uid
            );
            match report.of_dead(&self.common.calls.process) {
                Some(report) => self.reports.push(report),
                None => self.under_way -= 1,
            }
        }
        self.pool.done(at, begun.max(done));
    }

    /// Whether there are jobs that are not reported yet.
    pub fn is_busy(&self) -> bool {
        self.under_way > 0
    }

    /// Whether something is reported that no message of a lane tells.
    pub fn has_reports(&self) -> bool {
        !self.reports.is_empty()
    }

    /// The lanes whose job has not returned for so long that it hangs.
    pub fn hung(&mut self) -> Vec<LaneOf> {
        self.look_at_spawner();
        self.late(HUNG_CLOSE)
    }

    /// The uids whose accepted fds take long to close now, in order; and whether that can be
    /// otherwise soon.
    pub fn slow(&mut self) -> (Vec<u32>, bool) {
        let slow = self.late(LANE_SLOW).into_iter();
        let accepted = slow.filter(|of| of.lane() == Lane::Accepted);
        let mut slow: Vec<u32> = accepted.map(|of| of.uid).collect();
        slow.sort_unstable();
        let is_short = self.short_until.is_some() && self.pool.takeable() > 0;
        (slow, self.pool.has_accepted() || is_short)
    }

    fn late(&mut self, time: Duration) -> Vec<LaneOf> {
        self.catch_up();
        self.pool.late(time, |at| self.lines[at].is_read())
    }

    /// What is done although the lane has not said so: it waits in the next one.
    fn catch_up(&mut self) {
        for batch in self.pool.working() {
            let done = Progress(&self.common.progress, batch.place).get().1 as usize;
            let tasks = batch.tasks.iter().take(done).skip(batch.done);
            let before = self.reports.len();
            // What looks for something says at once what it has found.
            self.reports.extend(tasks.map(|(_, report)| *report).take_while(Report::is_complete));
            let count = self.reports.len() - before;
            if count > 0 {
                (batch.done, batch.since) = (batch.done + count, Instant::now());
            }
        }
    }

    /// All lanes end with the spawner. Nothing tells of its end; so whoever looks for lanes that
    /// hang looks for it.
    fn look_at_spawner(&mut self) {
        let Some(spawner) = self.spawner else { return };
        if waitpid(spawner, Some(WaitPidFlag::WNOHANG)) == Ok(WaitStatus::StillAlive) {
            return;
        }
        log::warn!(
            "the process from which lanes are started has ended; another one takes its place"
        );
        self.spawner = None;
        while self.listen() {}
        (0..LANES_MAX).for_each(|at| self.bury(at));
        self.flush();
    }
}

impl AsFd for Closers {
    /// Readable when lanes have said something.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.said.as_fd()
    }
}

impl Drop for Closers {
    /// For whoever goes on without a broker, as tests do: lanes end at once, and what they have not
    /// closed stays open.
    fn drop(&mut self) {
        if let Some(spawner) = self.spawner {
            let _ = kill(spawner, Signal::SIGKILL);
            let _ = waitpid(spawner, None);
        }
    }
}

#[cfg(test)]
#[path = "../../tests/unit/closers.rs"]
mod tests;
