//! Notices that wait until the application asks for them, where a library thread serves recalls
//! alone. Must never run a callback on the library thread, nor keep more than the client's own
//! things can cause.

use crate::callbacks::{Callbacks, FDBROKER_NOTICE_RECLAIM, fdbroker_notice_t};
use crate::limits::RECLAIMS_KEPT;
use fdbroker_client::{Error, Wake, lock};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, TryLockError};
use std::time::{Duration, Instant};

/// The queue of one context, and the fd that says when there is something in it.
pub(crate) struct Notices {
    waiting: Mutex<VecDeque<fdbroker_notice_t>>,
    /// Rings while `waiting` has something that was put in since it was emptied last.
    wake: Wake,
    /// The thread that calls the callback. Only ever tried.
    seat: Mutex<()>,
}

impl Notices {
    pub fn new() -> Result<Self, Error> {
        let wake = Wake::new(true)?;
        Ok(Notices { waiting: Mutex::default(), wake, seat: Mutex::default() })
    }

    pub fn push(&self, notice: fdbroker_notice_t) {
        let mut waiting = lock(&self.waiting);
        // The broker asks again for what it still wants.
        if notice.kind == FDBROKER_NOTICE_RECLAIM && waiting.len() >= RECLAIMS_KEPT {
            return;
        }
        waiting.push_back(notice);
        drop(waiting);
        self.wake.kick();
    }

    /// Another one after the program has closed the one before.
    pub fn event_fd(&self) -> Result<RawFd, Error> {
        Ok(self.wake.mended()?.polled().as_raw_fd())
    }

    /// Passes on what is there; waits up to `timeout` for something when there is nothing.
    pub fn dispatch(&self, callbacks: &Callbacks, timeout: Duration) {
        let until = Instant::now() + timeout;
        while !self.pass_on(callbacks) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let ms = left.as_nanos().div_ceil(1_000_000);
            let timeout = PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX);
            // A signal, or another thread that was first: it looks again.
            let bell = self.wake.bell();
            let _ = poll(&mut [PollFd::new(bell.polled(), PollFlags::POLLIN)], timeout);
        }
    }

    /// Whether there was something, or another thread is at it.
    fn pass_on(&self, callbacks: &Callbacks) -> bool {
        let _seat = match self.seat.try_lock() {
            Ok(seat) => seat,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return true,
        };
        // Without room for another one the queue is looked at when the program asks.
        let _ = self.wake.mended();
        // Before the queue: what is put in after this rings again.
        self.wake.take_kicks();
        let all = std::mem::take(&mut *lock(&self.waiting));
        all.iter().for_each(|notice| callbacks.tell(notice));
        !all.is_empty()
    }
}
