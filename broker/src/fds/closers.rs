//! Lanes: threads that do what may take long or hang for ever. They close clients' fds, have the kernel drop fds that are
//! not taken in, read the fdinfo of fds that may be dma-bufs, and read what /proc says of a process. The loop must never do
//! any of it, nor wait for these threads; and no user's jobs wait for another's.

use crate::fds::jobs::{Calls, Job, NOBODY, OpenedFd, Report};
use crate::fds::pool::{Kind, LaneOf, Pool};
use crate::limits::{LANE_IDLE, LANE_REPORT, MESSAGES_IN_A_SOCKET, THREAD_STACK_BYTES};
use fdbroker_core::Lane;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// What tells the loop that reports wait. Called from the lanes' threads.
pub type WakeFn = Arc<dyn Fn() + Send + Sync>;

/// The lanes, seen from the loop.
pub struct Closers {
    shared: Arc<Shared>,
    /// Jobs of this wake, handed over in one go by [`Closers::flush`].
    outbox: Vec<(LaneOf, Job)>,
    /// Jobs that are not reported yet.
    under_way: usize,
    /// No thread could be started for jobs that wait.
    is_thread_missing: bool,
}

struct Shared {
    pool: Mutex<Pool>,
    filled: Condvar,
    calls: Calls,
    wake: WakeFn,
}

impl Shared {
    /// Nothing that runs under this lock can panic half-way, so a poisoned one is still whole.
    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread that has been counted. `false`: the system has none.
    fn start_thread(self: &Arc<Self>) -> bool {
        let shared = Arc::clone(self);
        let thread = std::thread::Builder::new().name("lane".into()).stack_size(THREAD_STACK_BYTES);
        match thread.spawn(move || shared.run()) {
            Ok(_) => true,
            Err(error) => {
                log::error!("fds are closed late: no thread can be started: {error}");
                self.pool().threads -= 1;
                false
            }
        }
    }

    /// Serves lanes until there has been none to serve for a while. An idle thread costs the loop: with a second thread,
    /// the kernel counts references at each use of an fd.
    fn run(self: Arc<Self>) {
        let (mut jobs, mut reports) = (Vec::new(), Vec::new());
        let mut pool = self.pool();
        loop {
            if let Some(of) = pool.take(&mut jobs) {
                let wants_thread = pool.wants_thread();
                drop(pool);
                if wants_thread {
                    self.start_thread();
                }
                self.work(of, &mut jobs, &mut reports);
                pool = self.pool();
                pool.done(of);
                continue;
            }
            if pool.ended {
                break;
            }
            pool.idle += 1;
            let (guard, timeout) =
                self.filled.wait_timeout(pool, LANE_IDLE).unwrap_or_else(PoisonError::into_inner);
            pool = guard;
            pool.idle -= 1;
            if timeout.timed_out() && pool.takeable() == 0 {
                break;
            }
        }
        pool.threads -= 1;
    }

    /// Does the jobs. What takes no time is reported in one go: else the loop is woken for each.
    fn work(&self, of: LaneOf, jobs: &mut Vec<Job>, reports: &mut Vec<Report>) {
        let mut since = Instant::now();
        let last = jobs.len();
        for (number, job) in (1..).zip(jobs.drain(..)) {
            reports.push(job.run(&self.calls, of.lane()));
            if number == last || since.elapsed() > LANE_REPORT {
                let is_first = self.pool().report(of, reports);
                if is_first {
                    (self.wake)();
                }
                since = Instant::now();
            }
        }
    }
}

impl Closers {
    /// Lanes without threads: those start when there is something to do.
    pub fn new(calls: Calls, wake: WakeFn) -> Self {
        let (pool, filled) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { pool, filled, calls, wake });
        Closers { shared, outbox: Vec::new(), under_way: 0, is_thread_missing: false }
    }

    /// Gives an fd of `uid` away to be closed, with the next [`flush`](Self::flush).
    pub fn close(&mut self, fd: OwnedFd, uid: u32, lane: Lane, report: Report) {
        self.outbox.push((LaneOf { uid, kind: Kind::Close(lane) }, Job::Close(fd, report)));
    }

    /// Has an fd of `uid` looked at, and closed, likewise.
    pub fn look(&mut self, fd: OwnedFd, uid: u32) {
        self.outbox.push((LaneOf { uid, kind: Kind::Close(Lane::Refused) }, Job::Look(fd, uid)));
    }

    /// Has the next message of a client of `uid` dropped, with its fds; `socket` is a duplicate. Not behind closes that hang.
    pub fn drop_next(&mut self, socket: OwnedFd, uid: u32) {
        let job = Job::Drop(socket, 1, Report::Dropped(uid));
        self.outbox.push((LaneOf { uid, kind: Kind::Drop }, job));
    }

    /// Has all messages of the ended connection of a client of `uid` dropped; `socket` is a duplicate.
    pub fn empty(&mut self, socket: OwnedFd, uid: u32) {
        let job = Job::Drop(socket, MESSAGES_IN_A_SOCKET, Report::Refused(uid));
        self.outbox.push((LaneOf { uid, kind: Kind::Close(Lane::Refused) }, job));
    }

    /// Has the first messages of a carrier dropped; `socket` is a duplicate. What lies there are accepted fds.
    pub fn drop_carried(&mut self, socket: OwnedFd, most: usize, carrier: u32) {
        let job = Job::Drop(socket, most, Report::Carried(carrier));
        self.outbox.push((LaneOf { uid: NOBODY, kind: Kind::Close(Lane::Accepted) }, job));
    }

    /// Has the facts about process `pid` of `uid` read, for the connection `number` with this serial.
    pub fn ask(&mut self, pid: u32, uid: u32, number: usize, serial: u64) {
        let job = Job::Process(pid, number, serial);
        self.outbox.push((LaneOf { uid, kind: Kind::Process }, job));
    }

    /// Has the memory of a seal of `uid` opened for readers; `fd` is a duplicate.
    pub fn open(&mut self, fd: OwnedFd, uid: u32, number: u64, opened: OpenedFd) {
        self.outbox.push((LaneOf { uid, kind: Kind::Open }, Job::Open(fd, number, opened)));
    }

    /// Has the configuration read again: it may lie on a disk that takes its time.
    pub fn reread(&mut self, read: Box<dyn FnOnce() + Send + Sync>) {
        self.outbox.push((LaneOf { uid: NOBODY, kind: Kind::Reread }, Job::Reread(read)));
    }

    /// Hands this wake's jobs to the threads. Waits at most for a few words to be changed under a lock.
    pub fn flush(&mut self) {
        if self.outbox.is_empty() && !self.is_thread_missing {
            return;
        }
        self.under_way += self.outbox.len();
        let mut pool = self.shared.pool();
        for (of, job) in self.outbox.drain(..) {
            pool.add(of, job);
        }
        let to_wake = pool.takeable().min(pool.idle);
        // At most one: it starts further ones itself.
        let wants_thread = pool.wants_thread();
        drop(pool);
        (0..to_wake).for_each(|_| self.shared.filled.notify_one());
        self.is_thread_missing = wants_thread && !self.shared.start_thread();
    }

    /// Moves what has been done since the last call to `done`.
    pub fn take_reports(&mut self, done: &mut impl Extend<Report>) {
        let mut pool = self.shared.pool();
        self.under_way -= pool.reports.len();
        done.extend(pool.reports.drain(..));
    }

    /// Whether there are jobs that are not reported yet.
    pub fn is_busy(&self) -> bool {
        self.under_way > 0
    }

    /// As for [`Pool::hung`].
    pub fn hung(&self) -> Vec<LaneOf> {
        self.shared.pool().hung()
    }

    /// As for [`Pool::slow`].
    pub fn slow(&self) -> (Vec<u32>, bool) {
        let (slow, is_at_it) = self.shared.pool().slow();
        (slow, is_at_it || self.is_thread_missing)
    }
}

impl Drop for Closers {
    /// Lets the threads end when they have nothing more to do. Waits for none: one may hang for ever.
    fn drop(&mut self) {
        self.flush();
        self.shared.pool().ended = true;
        self.shared.filled.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fds::jobs::{CloseFn, Process};
    use crate::limits::{LANE_SLOW, LANES_MAX};
    use fdbroker_core::Ticket;
    use std::sync::mpsc;

    /// Lanes whose close waits for a word, where `hangs` says so.
    struct Bench {
        closers: Closers,
        woken: mpsc::Receiver<()>,
        release: Option<mpsc::Sender<()>>,
    }

    impl Bench {
        fn new(hangs: impl Fn(Lane) -> bool + Send + Sync + 'static) -> Bench {
            let (sender, woken) = mpsc::sync_channel(1);
            let wake: WakeFn = Arc::new(move || {
                let _ = sender.try_send(());
            });
            let (release, hang) = mpsc::channel::<()>();
            let hang = Mutex::new(hang);
            let close: CloseFn = Arc::new(move |fd, lane| {
                if hangs(lane) {
                    // Held by the one that waits, so the others wait here: until the sender is gone.
                    let _ = hang.lock().unwrap().recv();
                }
                drop(fd);
            });
            let calls = Calls { close, ..Calls::real(Arc::new(|_| Process::default())).unwrap() };
            Bench { closers: Closers::new(calls, wake), woken, release: Some(release) }
        }

        fn close(&mut self, uid: u32, lane: Lane, report: Report) {
            let fd = nix::sys::eventfd::EventFd::new().unwrap().into();
            self.closers.close(fd, uid, lane, report);
        }

        fn wait(&mut self, count: usize) -> Vec<Report> {
            let mut reports = Vec::new();
            while reports.len() < count {
                self.woken.recv_timeout(std::time::Duration::from_secs(20)).expect("reports");
                self.closers.take_reports(&mut reports);
            }
            reports
        }

        fn wait_until_slow(&self, expected: &(Vec<u32>, bool)) {
            let until = Instant::now() + std::time::Duration::from_secs(20);
            while self.closers.slow() != *expected {
                assert!(Instant::now() < until, "{:?}, not {expected:?}", self.closers.slow());
                std::thread::sleep(LANE_SLOW);
            }
        }

        fn threads(&self) -> usize {
            self.closers.shared.pool().threads
        }
    }

    fn held(number: u32) -> Report {
        Report::Held(Ticket(number))
    }

    #[test]
    fn close_when_flushed_then_reported_in_order_and_no_thread_before() {
        let mut bench = Bench::new(|_| false);
        bench.closers.flush();
        assert_eq!(bench.threads(), 0);
        (0..3).for_each(|number| bench.close(7, Lane::Accepted, held(number)));
        bench.closers.flush();
        assert_eq!(bench.wait(3), [0, 1, 2].map(held));
        assert!(!bench.closers.is_busy());
        assert_eq!(bench.threads(), 1, "one lane, one thread");
    }

    #[test]
    fn close_when_a_users_lane_hangs_then_other_users_and_its_accepted_fds_go_on() {
        let mut bench = Bench::new(|lane| lane == Lane::Refused);
        bench.close(7, Lane::Refused, Report::Refused(7));
        bench.close(7, Lane::Accepted, held(1));
        bench.close(8, Lane::Accepted, held(2));
        bench.closers.flush();
        let mut reports = bench.wait(2);
        reports.sort_by_key(|report| *report != held(1));
        assert_eq!(reports, [held(1), held(2)]);
        bench.release.take();
        assert_eq!(bench.wait(1), [Report::Refused(7)]);
    }

    #[test]
    fn close_when_more_users_hang_than_there_are_threads_then_accepted_fds_go_on() {
        let mut bench = Bench::new(|lane| lane == Lane::Refused);
        let users = 2 * u32::try_from(LANES_MAX).unwrap();
        for uid in 0..users {
            bench.close(uid, Lane::Refused, Report::Refused(uid));
            bench.closers.flush();
        }
        for uid in 0..users {
            bench.close(uid, Lane::Accepted, held(uid));
            bench.closers.flush();
        }
        let reports = bench.wait(users as usize);
        assert!(reports.iter().all(|report| matches!(report, Report::Held(_))));
        assert!(bench.threads() <= LANES_MAX);
        bench.release.take();
        assert_eq!(bench.wait(users as usize).len(), users as usize);
    }

    #[test]
    fn close_when_one_takes_long_then_its_user_is_slow_until_it_is_done() {
        let mut bench = Bench::new(|_| true);
        bench.close(7, Lane::Accepted, held(0));
        bench.close(8, Lane::Refused, Report::Refused(8));
        bench.closers.flush();
        bench.wait_until_slow(&(vec![7], true));
        bench.release.take();
        bench.wait(2);
        // A lane ends just after its last report.
        bench.wait_until_slow(&(vec![], false));
    }
}
