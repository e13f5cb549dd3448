//! The library thread: sleeps until there is something to serve, and serves it; ended and joined
//! with its client. Must never run the application's signal handlers, nor outlive the code it runs.

use super::seat::Seat;
use super::server::{Came, left};
use super::session::Session;
use crate::books::wake::Bell;
use crate::error::Error;
use crate::interrupt::{Condvar, wait_until};
use crate::limits::{HANG_UP_PAUSE, RECONNECT_LAST, THREAD_END_TIMEOUT};
use crate::sync::lock;
use crate::wire::poll::{came, poll_many};
use fdbroker_protocol::ErrorCode;
use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::{SigSet, SigmaskHow};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The thread of one client.
#[derive(Debug)]
pub(crate) struct LibraryThread {
    handle: JoinHandle<()>,
    end: Arc<End>,
    seat: Arc<Mutex<Seat>>,
}

/// Told by the thread when nothing is left for it to do: so that the wait for it has a bound,
/// unlike join.
#[derive(Debug, Default)]
struct End {
    has_come: Mutex<bool>,
    changed: Condvar,
}

/// Tells it on drop, hence after a panic too.
struct TellEnd(Arc<End>);

impl Drop for TellEnd {
    fn drop(&mut self) {
        *lock(&self.0.has_come) = true;
        self.0.changed.notify_all();
    }
}

impl LibraryThread {
    /// Starts it, all signals blocked: handlers are for the application's threads.
    pub fn start(session: Arc<Session>) -> Result<Self, Error> {
        let (seat, bell) = (Seat::new(&session), session.common.wake.bell());
        Self::start_in(Arc::new(Mutex::new(seat)), bell, session)
    }

    /// Starts another in its seat when the program has closed the fds that would wake it. It ends
    /// when it looks: it may sleep until then, where nobody reaches it.
    pub fn relieve(&mut self, session: &Arc<Session>) -> Result<(), Error> {
        let wake = &session.common.wake;
        let lost = wake.bell();
        if !wake.is_lost() {
            return Ok(());
        }
        let Some(bell) = wake.renew(&lost)? else { return Ok(()) };
        let next = Self::start_in(Arc::clone(&self.seat), Arc::clone(&bell), Arc::clone(session));
        *self = next.inspect_err(|_| wake.lose(&bell))?;
        Ok(())
    }

    fn start_in(
        seat: Arc<Mutex<Seat>>,
        bell: Arc<Bell>,
        session: Arc<Session>,
    ) -> Result<Self, Error> {
        let end = Arc::new(End::default());
        let all = SigSet::all();
        let before = all.thread_swap_mask(SigmaskHow::SIG_SETMASK);
        let (told, its_seat) = (TellEnd(Arc::clone(&end)), Arc::clone(&seat));
        let started = std::thread::Builder::new().name("fdbroker".into()).spawn(move || {
            // Dropped last.
            let _told = told;
            run(&session, &its_seat, bell);
            drop((session, its_seat));
        });
        if let Ok(before) = before {
            // The mask came from the kernel a moment ago: setting it again cannot fail.
            let _ = before.thread_set_mask();
        }
        let handle = started.map_err(|error| {
            // A process whose children are in another PID namespace than itself has this answer.
            let hint = match error.raw_os_error() {
                Some(libc::EINVAL) => {
                    " (after unshare(CLONE_NEWPID) no thread can start; fork first)"
                }
                _ => "",
            };
            let context = format!("cannot start the library thread: {error}{hint}");
            Error::new(ErrorCode::Internal, context)
        })?;
        Ok(LibraryThread { handle, end, seat })
    }

    /// Waits until it is gone, code, stack and all: the library may be unloaded after. It has been
    /// told to end. A callback that hangs is not waited for, and must then not be unloaded.
    pub fn join(self) {
        if self.handle.thread().id() == std::thread::current().id() {
            return;
        }
        let until = Instant::now() + THREAD_END_TIMEOUT;
        let mut ended = lock(&self.end.has_come);
        while !*ended {
            if Instant::now() >= until {
                return log::warn!(
                    "a callback does not end: its thread is left behind; do not unload its code"
                );
            }
            ended = wait_until(&self.end.changed, &self.end.has_come, ended, until);
        }
        drop(ended);
        if self.handle.join().is_err() {
            log::error!("the library thread panicked");
        }
    }

    /// Lets go of it without a word, as a forked child must: the thread is its parent's, and the
    /// memory behind the handle may be gone.
    pub fn forget(self) {
        std::mem::forget(self);
    }
}

fn run(session: &Session, seat: &Mutex<Seat>, mut bell: Arc<Bell>) {
    let wake = &session.common.wake;
    let mut taken = lock(seat);
    if !wake.is_over(&bell) {
        taken.take(&bell);
    }
    while !session.is_stopping() {
        if wake.is_over(&bell) {
            return;
        }
        if wake.is_known_as_lost() {
            match wake.renew(&bell) {
                Ok(Some(other)) => bell = other,
                // Another thread has taken over.
                Ok(None) => return,
                Err(error) => {
                    log::error!("the library thread has lost its fds: {error}");
                    std::thread::sleep(RECONNECT_LAST);
                    continue;
                }
            }
            taken.take(&bell);
        }
        let connection = taken.server.connection(session);
        let interest = taken.server.prepare(session, &connection);
        taken.watch(session, Arc::clone(&connection), &interest);
        if wake.is_known_as_lost() {
            continue;
        }
        let idle = || taken.server.idle_time(session, &connection, &interest);
        let patience = connection.attend().map_or_else(idle, |due| left(&due));
        let patience = interest.within.map_or(patience, |within| within.min(patience));
        let has_rung = wait(taken, &bell, patience);
        taken = lock(seat);
        if wake.is_over(&bell) {
            return;
        }
        if session.is_stopping() {
            break;
        }
        let news = if has_rung { taken.server.look(&connection, &interest) } else { Came::NOTHING };
        if taken.server.serve(session, &connection, &news).later {
            std::thread::sleep(HANG_UP_PAUSE);
        }
    }
    session.kill_all();
}

/// Waits for the bell, out of the seat; whether it has rung. By poll(2): it does nothing to what
/// has the number, should that be another's.
fn wait(taken: MutexGuard<'_, Seat>, bell: &Bell, patience: Duration) -> bool {
    let hello = taken.server.hello_socket().map_or(bell.polled().as_raw_fd(), |it| it.as_raw_fd());
    drop(taken);
    // SAFETY: a number to be polled, whatever has become of it.
    let hello = unsafe { BorrowedFd::borrow_raw(hello) };
    let mut fds = [bell.polled(), hello].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    poll_many(&mut fds, patience);
    !came(&fds[0]).is_empty()
}
