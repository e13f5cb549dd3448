//! Notices that wait until the application asks for them, where a library thread serves recalls alone.
//! Must never run a callback on the library thread, nor keep more than the client's own things can cause.

use crate::callbacks::{Callbacks, FDBROKER_NOTICE_RECLAIM, fdbroker_notice_t};
use crate::limits::RECLAIMS_KEPT;
use fdbroker_client::{Error, ErrorCode};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// The queue of one context, and the fd that says when there is something in it.
pub(crate) struct Notices {
    waiting: Mutex<VecDeque<fdbroker_notice_t>>,
    /// Readable while `waiting` has something that was put in since it was emptied last.
    event: EventFd,
    /// The thread that calls the callback. Only ever tried.
    seat: Mutex<()>,
}

impl Notices {
    pub fn new() -> Result<Self, Error> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let event = event.map_err(|errno| {
            Error::new(ErrorCode::LocalFdLimit, format!("open: no fd for notices: {errno}"))
        })?;
        Ok(Notices { waiting: Mutex::default(), event, seat: Mutex::default() })
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<fdbroker_notice_t>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn push(&self, notice: fdbroker_notice_t) {
        let mut waiting = self.waiting();
        // The broker asks again for what it still wants.
        if notice.kind == FDBROKER_NOTICE_RECLAIM && waiting.len() >= RECLAIMS_KEPT {
            return;
        }
        waiting.push_back(notice);
        drop(waiting);
        // EAGAIN means that 2^64 - 2 notices are counted: it is readable all the same.
        let _ = self.event.write(1);
    }

    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
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
            let _ = poll(&mut [PollFd::new(self.event_fd(), PollFlags::POLLIN)], timeout);
        }
    }

    /// Whether there was something, or another thread is at it.
    fn pass_on(&self, callbacks: &Callbacks) -> bool {
        let _seat = match self.seat.try_lock() {
            Ok(seat) => seat,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return true,
        };
        // Before the queue: what is put in after this makes it readable again. EAGAIN: nothing was put in.
        let _ = self.event.read();
        let all = std::mem::take(&mut *self.waiting());
        all.iter().for_each(|notice| callbacks.tell(notice));
        !all.is_empty()
    }
}
