//! Dispatch mode: no library thread; the application serves when an fd is readable, and every call
//! that waits serves too. Must never wait for another thread that serves, nor let two serve at
//! once.

use super::seat::Seat;
use super::server::Interest;
use super::session::Session;
use crate::books::roles::{Dispatcher, Served};
use crate::books::wake::Bell;
use crate::error::Error;
use crate::interrupt::{ask, now};
use crate::limits::{HELLO_SLICE, IDLE, LIVENESS_LOOK, SEND_SLICE};
use crate::own_fds::raised;
use crate::sync::is_in_callback;
use crate::wire::poll::poll_many;
use fdbroker_protocol::ErrorCode;
use nix::poll::{PollFd, PollFlags};
use nix::sys::epoll::EpollFlags;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

/// The seat of the thread that serves. Its bell is the fd that says when.
#[derive(Debug)]
pub(crate) struct Dispatch {
    session: Arc<Session>,
    /// Only ever tried: callbacks run under it.
    seat: Mutex<TimedSeat>,
}

#[derive(Debug)]
struct TimedSeat {
    seat: Seat,
    timer: Timer,
}

/// Rings a bell when something is to be tried again without an event. All timers look alike: one is
/// known by being in the bell.
#[derive(Debug)]
struct Timer {
    bell: Arc<Bell>,
    fd: ManuallyDrop<TimerFd>,
    is_set: bool,
}

impl Timer {
    fn new(bell: &Arc<Bell>) -> Result<Self, Error> {
        let failed = |errno| Error::no_fd(ErrorCode::Internal, "event fd", errno);
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).map_err(failed)?;
        // SAFETY: it owns its fd, which nobody else has; nix has no way to take it out.
        let fd =
            raised(unsafe { OwnedFd::from_raw_fd(ManuallyDrop::new(timer).as_fd().as_raw_fd()) })?;
        bell.add(fd.as_fd(), EpollFlags::EPOLLIN).map_err(failed)?;
        // SAFETY: it is a timer's.
        let fd = ManuallyDrop::new(unsafe { TimerFd::from_owned_fd(fd) });
        Ok(Timer { bell: Arc::clone(bell), fd, is_set: false })
    }

    /// `false`: its number is not its own any more. The bell was looked at.
    fn set(&mut self, within: Option<Duration>) -> bool {
        if within.is_none() && !self.is_set {
            return true;
        }
        if self.bell.modify(self.fd.as_fd(), EpollFlags::EPOLLIN).is_err() {
            return false;
        }
        let set = match within {
            // Zero would turn it off.
            Some(within) => {
                let within = TimeSpec::from(within.max(Duration::from_nanos(1)));
                self.fd.set(Expiration::OneShot(within), TimerSetTimeFlags::empty())
            }
            None => self.fd.unset(),
        };
        self.is_set = within.is_some();
        if let Err(errno) = set {
            // It takes numbers only, and these are in range.
            log::error!("the event fd's timer cannot be set: {errno}");
        }
        true
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if self.bell.is_here() && self.bell.modify(self.fd.as_fd(), EpollFlags::EPOLLIN).is_ok() {
            // SAFETY: not used any more; dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}

impl Dispatch {
    pub fn new(session: Arc<Session>) -> Result<Self, Error> {
        let seat = Seat::new(&session);
        let timer = Timer::new(&seat.bell)?;
        Ok(Dispatch { session, seat: Mutex::new(TimedSeat { seat, timer }) })
    }

    /// Serves, and waits up to `timeout` for something when there is nothing. How many things.
    pub fn run(&self, timeout: Duration) -> usize {
        let until = Instant::now() + timeout.min(IDLE);
        loop {
            let served = self.serve();
            let left = until.saturating_duration_since(now());
            match served {
                Some(Served { count, .. }) if count > 0 => return count,
                _ if left.is_zero() => return 0,
                Some(Served { later: false, .. }) => {
                    let slice = left.min(LIVENESS_LOOK);
                    poll_many(&mut [PollFd::new(self.event_fd(), PollFlags::POLLIN)], slice);
                    ask();
                }
                // Readable all the time, and for another thread to do.
                _ => std::thread::sleep(left.min(SEND_SLICE)),
            }
        }
    }

    /// Puts another bell in the place of one that the program has closed.
    fn mend(&self, seat: &mut TimedSeat) -> Result<(), Error> {
        let wake = &self.session.common.wake;
        let bell = wake.mended()?;
        if !Arc::ptr_eq(&bell, &seat.seat.bell) {
            seat.seat.take(&bell);
            // Without it the bell is of no use.
            seat.timer = Timer::new(&bell).inspect_err(|_| wake.lose(&bell))?;
        }
        Ok(())
    }
}

impl Dispatcher for Dispatch {
    fn event_fd(&self) -> BorrowedFd<'_> {
        let number = self.session.common.wake.bell().polled().as_raw_fd();
        // SAFETY: open until the client is dropped or the program closes it, and then only polled.
        unsafe { BorrowedFd::borrow_raw(number) }
    }

    fn serve(&self) -> Option<Served> {
        let session = &*self.session;
        if is_in_callback() {
            return None;
        }
        let mut seat = match self.seat.try_lock() {
            Ok(seat) => seat,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        if session.is_stopping() {
            return Some(Served::default());
        }
        if let Err(error) = self.mend(&mut seat) {
            log::error!(
                "no event fd in the place of the one that this program has closed: {error}"
            );
            return Some(Served { count: 0, later: true });
        }
        let TimedSeat { seat, timer } = &mut *seat;
        let connection = seat.server.connection(session);
        // Everything is looked at: what was of interest may be long ago.
        let all = PollFlags::POLLIN;
        let interest = Interest { events: all, socket: all, within: None };
        let came = seat.server.look(&connection, &interest);
        let served = seat.server.serve(session, &connection, &came);
        let connection = seat.server.connection(session);
        let interest = seat.server.prepare(session, &connection);
        seat.watch(session, connection, &interest);
        let hello = seat.server.hello_socket().map(|_| HELLO_SLICE);
        if !timer.set([interest.within, hello].into_iter().flatten().min()) {
            session.common.wake.lose(&seat.bell);
        }
        Some(served)
    }
}
