//! Lanes without a loop: closes that hang wait for a pipe, which a process can that shares nothing
//! but fds.

use super::*;
use crate::fds::jobs::Process;
use crate::limits::LANES_MAX;
use fdbroker_core::Ticket;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{PipeReader, PipeWriter};
use std::sync::Arc;

/// Lanes whose close waits for a pipe, where `hangs` says so.
struct Bench {
    closers: Closers,
    release: Option<PipeWriter>,
    _hang: PipeReader,
}

impl Bench {
    fn new(hangs: impl Fn(Lane) -> bool + Send + Sync + 'static) -> Bench {
        let (hang, release) = std::io::pipe().unwrap();
        let until = hang.as_raw_fd();
        let calls = Calls::real(|_, _| Process::default());
        let close = move |fd, lane| {
            if hangs(lane) {
                // SAFETY: the bench keeps it open.
                let until = unsafe { BorrowedFd::borrow_raw(until) };
                // A word lets one go on, the end all.
                let _ = nix::unistd::read(until, &mut [0]);
            }
            drop(fd);
        };
        let closers = Closers::new(Calls { close: Arc::new(close), ..calls }).unwrap();
        Bench { closers, release: Some(release), _hang: hang }
    }

    /// Gives a pipe away; its other end tells whether it is closed.
    fn close(&mut self, uid: u32, lane: Lane, report: Report) -> PipeReader {
        let (reader, writer) = std::io::pipe().unwrap();
        self.closers.close(writer.into(), uid, lane, report);
        reader
    }

    /// Turns until so much is reported.
    fn wait(&mut self, count: usize) -> Vec<Report> {
        let until = Instant::now() + Duration::from_secs(20);
        let mut reports = Vec::new();
        while reports.len() < count {
            assert!(Instant::now() < until, "{reports:?}, and no more");
            let mut ready = [PollFd::new(self.closers.as_fd(), PollFlags::POLLIN)];
            poll(&mut ready, PollTimeout::from(20u8)).unwrap();
            self.closers.hung();
            self.closers.take_reports(&mut reports);
        }
        reports
    }

    fn wait_until_slow(&mut self, expected: &(Vec<u32>, bool)) {
        let until = Instant::now() + Duration::from_secs(20);
        while self.closers.slow() != *expected {
            assert!(Instant::now() < until, "{:?}, not {expected:?}", self.closers.slow());
            std::thread::sleep(LANE_SLOW);
            self.closers.take_reports(&mut Vec::new());
        }
    }

    /// Waits until the lanes at work have begun so many jobs.
    fn wait_until_begun(&mut self, jobs: u32) {
        let until = Instant::now() + Duration::from_secs(20);
        let progress = &self.closers.common.progress;
        let working = self.closers.pool.working();
        let places: Vec<usize> = working.map(|batch| batch.place).collect();
        while places.iter().map(|at| Progress(progress, *at).get().0).sum::<u32>() < jobs {
            assert!(Instant::now() < until, "not begun");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn lanes(&self) -> usize {
        self.closers.places.iter().flatten().count()
    }

    /// The processes of its lanes.
    fn pids(&self) -> Vec<Pid> {
        let spawner = self.closers.spawner.unwrap();
        let children = std::fs::read_to_string(format!("/proc/{spawner}/task/{spawner}/children"));
        let pids = children.unwrap();
        pids.split_whitespace().map(|pid| Pid::from_raw(pid.parse().unwrap())).collect()
    }

    /// Kills `pid`, and waits until all lanes have ended.
    fn kill_with_lanes(&self, pid: Pid) {
        let lanes = self.pids();
        kill(pid, Signal::SIGKILL).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        let stat = |pid: &Pid| std::fs::read_to_string(format!("/proc/{pid}/stat"));
        let lives = |pid: &Pid| stat(pid).is_ok_and(|stat| !stat.contains(") Z"));
        while lanes.iter().any(lives) {
            assert!(Instant::now() < until, "{lanes:?} live");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn held(number: u32) -> Report {
    Report::Held(Ticket(number))
}

fn is_open(reader: &PipeReader) -> bool {
    poll(&mut [PollFd::new(reader.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(0)
}

#[test]
fn close_when_flushed_then_reported_in_order_and_no_process_before() {
    let mut bench = Bench::new(|_| false);
    bench.closers.flush();
    assert_eq!(bench.lanes(), 0);
    (0..3).for_each(|number| drop(bench.close(7, Lane::Accepted, held(number))));
    bench.closers.flush();
    assert_eq!(bench.wait(3), [0, 1, 2].map(held));
    assert!(!bench.closers.is_busy());
    assert_eq!(bench.lanes(), 1, "one lane, one process");
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
fn close_when_more_users_hang_than_there_are_processes_then_accepted_fds_go_on() {
    let mut bench = Bench::new(|lane| lane == Lane::Refused);
    let users = 2 * LANES_MAX as u32;
    for uid in 0..users {
        bench.close(uid, Lane::Refused, Report::Refused(uid));
        bench.close(uid, Lane::Accepted, held(uid));
    }
    bench.closers.flush();
    let reports = bench.wait(users as usize);
    assert!(reports.iter().all(|report| matches!(report, Report::Held(_))));
    assert!(bench.lanes() <= LANES_MAX);
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
    bench.wait_until_slow(&(vec![], false));
}

#[test]
fn lane_when_it_dies_in_a_close_then_that_is_never_reported_and_the_rest_is_closed_by_another() {
    let mut bench = Bench::new(|_| true);
    let fds = [0, 1, 2, 3].map(|number| bench.close(7, Lane::Accepted, held(number)));
    bench.closers.flush();
    // Only the first close returns.
    std::io::Write::write_all(bench.release.as_mut().unwrap(), b"1").unwrap();
    assert_eq!(bench.wait(1), [held(0)]);
    assert!(!is_open(&fds[0]) && is_open(&fds[1]));
    bench.wait_until_begun(2);
    bench.kill_with_lanes(bench.pids()[0]);
    bench.release.take();
    assert_eq!(bench.wait(2), [held(2), held(3)]);
    assert!(is_open(&fds[1]), "nobody closes it again");
    assert!(!bench.closers.is_busy());
}

#[test]
fn spawner_when_it_dies_then_another_one_starts_lanes_and_nothing_but_the_jobs_at_hand_is_lost() {
    let mut bench = Bench::new(|lane| lane == Lane::Refused);
    bench.close(7, Lane::Refused, Report::Refused(7));
    bench.close(7, Lane::Refused, Report::Refused(8));
    bench.close(7, Lane::Accepted, held(1));
    bench.closers.flush();
    assert_eq!(bench.wait(1), [held(1)]);
    bench.wait_until_begun(1);
    bench.kill_with_lanes(bench.closers.spawner.unwrap());
    bench.release.take();
    bench.close(9, Lane::Accepted, held(2));
    bench.closers.flush();
    let reports = bench.wait(2);
    assert!(reports.contains(&Report::Refused(8)) && reports.contains(&held(2)), "{reports:?}");
    bench.close(9, Lane::Accepted, held(3));
    bench.closers.flush();
    assert_eq!(bench.wait(1), [held(3)]);
}

#[test]
fn lanes_when_idle_for_a_while_then_their_processes_end() {
    let mut bench = Bench::new(|_| false);
    bench.close(7, Lane::Accepted, held(1));
    bench.closers.flush();
    bench.wait(1);
    assert_eq!(bench.pids().len(), 1);
    let until = Instant::now() + Duration::from_secs(20);
    while bench.lanes() > 0 {
        assert!(Instant::now() < until, "it stays");
        std::thread::sleep(LANE_SLOW);
        bench.closers.take_reports(&mut Vec::new());
    }
    assert!(bench.pids().is_empty());
}

#[test]
fn signals_when_sent_to_a_lane_then_none_ends_or_stops_it() {
    let mut bench = Bench::new(|_| false);
    bench.close(7, Lane::Accepted, held(1));
    bench.closers.flush();
    bench.wait(1);
    for signal in
        [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGTSTP, Signal::SIGUSR1]
    {
        kill(bench.pids()[0], signal).unwrap();
    }
    bench.close(7, Lane::Accepted, held(2));
    bench.closers.flush();
    assert_eq!(bench.wait(1), [held(2)]);
}
