//! Two threads that close fds: one for fds the broker accepted (a last close can take
//! milliseconds), one for refused fds (a close may hang for ever). The loop must never close a
//! client's fd itself, nor wait for these threads.

use crate::limits::THREAD_STACK_BYTES;
use fdbroker_core::{Lane, Ticket};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// What closes an fd; replaced by tests with something slower.
pub type CloseFn = Arc<dyn Fn(OwnedFd) + Send + Sync>;

/// What tells the loop that reports wait. Called from the closers' threads.
pub type WakeFn = Arc<dyn Fn() + Send + Sync>;

/// What is said of an fd once it is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// It was held; the core charged it under this ticket.
    Held(Ticket),
    /// It came with a message of this uid and was not kept; the core charged it under this ticket.
    Arrived(Ticket, u32),
    /// The core never saw it; it counts against this uid's refused fds.
    Refused(u32),
}

/// An fd to close.
#[derive(Debug)]
struct Job {
    fd: OwnedFd,
    report: Report,
}

/// One thread's queue. Its length is bounded by the fd table: every entry is an open fd, and those
/// are charged by the core or counted per uid.
#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    filled: Condvar,
}

#[derive(Default)]
struct QueueState {
    jobs: Vec<Job>,
    ended: bool,
}

#[derive(Default)]
struct Reports(Mutex<Vec<Report>>);

/// Both closers, seen from the loop.
pub struct Closers {
    lanes: [LaneHandle; 2],
    reports: Arc<Reports>,
}

struct LaneHandle {
    queue: Arc<Queue>,
    /// Jobs of this wake, handed over in one go by [`Closers::flush`].
    outbox: Vec<Job>,
}

impl Closers {
    /// Starts both threads.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub fn start(close: CloseFn, wake: WakeFn) -> io::Result<Self> {
        let reports = Arc::new(Reports::default());
        let start = |name: &str| -> io::Result<LaneHandle> {
            let queue = Arc::new(Queue::default());
            let (its_queue, its_reports) = (Arc::clone(&queue), Arc::clone(&reports));
            let (close, wake) = (Arc::clone(&close), Arc::clone(&wake));
            std::thread::Builder::new()
                .name(name.to_owned())
                .stack_size(THREAD_STACK_BYTES)
                .spawn(move || run(&its_queue, &its_reports, &close, &wake))?;
            Ok(LaneHandle { queue, outbox: Vec::new() })
        };
        let lanes = [start("close-accepted")?, start("close-refused")?];
        Ok(Closers { lanes, reports })
    }

    /// Gives an fd away to be closed, with the next [`flush`](Self::flush).
    pub fn close(&mut self, fd: OwnedFd, lane: Lane, report: Report) {
        let lane = match lane {
            Lane::Accepted => &mut self.lanes[0],
            Lane::Refused => &mut self.lanes[1],
        };
        lane.outbox.push(Job { fd, report });
    }

    /// Hands this wake's fds to the threads. Waits at most for a swap of two vectors.
    pub fn flush(&mut self) {
        for lane in &mut self.lanes {
            if !lane.outbox.is_empty() {
                lock(&lane.queue.state).jobs.append(&mut lane.outbox);
                lane.queue.filled.notify_one();
            }
        }
    }

    /// Moves what has been closed since the last call to `closed`.
    pub fn take_reports(&self, closed: &mut Vec<Report>) {
        closed.append(&mut lock(&self.reports.0));
    }
}

impl Drop for Closers {
    /// Lets the threads end when they have nothing more to close. Waits for neither: one may hang
    /// for ever.
    fn drop(&mut self) {
        self.flush();
        for lane in &self.lanes {
            lock(&lane.queue.state).ended = true;
            lane.queue.filled.notify_one();
        }
    }
}

fn run(queue: &Queue, reports: &Reports, close: &CloseFn, wake: &WakeFn) {
    let mut jobs = Vec::new();
    while wait_for_jobs(queue, &mut jobs) {
        for Job { fd, report } in jobs.drain(..) {
            close(fd);
            let mut reports = lock(&reports.0);
            reports.push(report);
            // Once is enough until the loop has taken them.
            let is_first = reports.len() == 1;
            drop(reports);
            if is_first {
                wake();
            }
        }
    }
}

/// Swaps the queue's jobs into the empty `jobs`; `false` when there are none and no more will come.
fn wait_for_jobs(queue: &Queue, jobs: &mut Vec<Job>) -> bool {
    let mut state = lock(&queue.state);
    while state.jobs.is_empty() {
        if state.ended {
            return false;
        }
        state = queue.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
    std::mem::swap(&mut state.jobs, jobs);
    true
}

/// Nothing that runs under these locks can panic half-way, so a poisoned one is still whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn any_fd() -> OwnedFd {
        nix::sys::eventfd::EventFd::new().unwrap().into()
    }

    fn wait_reports(closers: &Closers, woken: &mpsc::Receiver<()>, count: usize) -> Vec<Report> {
        let mut reports = Vec::new();
        while reports.len() < count {
            woken.recv().unwrap();
            closers.take_reports(&mut reports);
        }
        reports
    }

    #[test]
    fn close_when_flushed_then_reported_in_order() {
        let (sender, woken) = mpsc::sync_channel(1);
        let wake: WakeFn = Arc::new(move || {
            let _ = sender.try_send(());
        });
        let mut closers = Closers::start(Arc::new(drop), wake).unwrap();
        for number in 0..3 {
            closers.close(any_fd(), Lane::Accepted, Report::Held(Ticket(number)));
        }
        closers.flush();
        let reports = wait_reports(&closers, &woken, 3);
        assert_eq!(reports, [0, 1, 2].map(|number| Report::Held(Ticket(number))));
    }

    #[test]
    fn close_when_refused_lane_never_returns_then_accepted_lane_goes_on() {
        let (sender, woken) = mpsc::sync_channel(1);
        let wake: WakeFn = Arc::new(move || {
            let _ = sender.try_send(());
        });
        let (release, hang) = mpsc::channel::<()>();
        let hang = Mutex::new(hang);
        let close: CloseFn = Arc::new(move |fd| {
            if std::thread::current().name() == Some("close-refused") {
                let _ = lock(&hang).recv();
            }
            drop(fd);
        });
        let mut closers = Closers::start(close, wake).unwrap();

        closers.close(any_fd(), Lane::Refused, Report::Refused(1000));
        closers.close(any_fd(), Lane::Accepted, Report::Held(Ticket(7)));
        closers.flush();

        assert_eq!(wait_reports(&closers, &woken, 1), [Report::Held(Ticket(7))]);
        release.send(()).unwrap();
        assert_eq!(wait_reports(&closers, &woken, 1), [Report::Refused(1000)]);
    }
}
