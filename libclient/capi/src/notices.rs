//! Notices that wait until the application asks for them, where a library thread serves recalls
//! alone, or the application reads them one by one. Must never run a callback on the library
//! thread, nor keep more than the client's own things can cause.

use crate::callbacks::{
    Callbacks, FDBROKER_NOTICE_LOST, FDBROKER_NOTICE_RECLAIM, fdbroker_notice_t,
};
use crate::limits::{NOTICES_KEPT, RECLAIMS_KEPT};
use fdbroker_client::layer::lock;
use fdbroker_client::{Due, Error, Wake};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, TryLockError};
use std::time::{Duration, Instant};

/// The queue of one context, and the fd that says when there is something in it.
pub(crate) struct Notices {
    waiting: Mutex<VecDeque<fdbroker_notice_t>>,
    /// Where the application reads them one by one.
    read: Option<Mutex<Read>>,
    /// Rings while `waiting` has something that was put in since it was emptied last.
    wake: Wake,
    /// The thread that calls the callback. Only ever tried.
    seat: Mutex<()>,
}

/// What goes with reading.
#[derive(Default)]
struct Read {
    /// Notices that there was no room for.
    lost: u64,
    due: Option<(Due, u64)>,
}

impl Notices {
    /// `are_read`: one by one.
    pub fn new(are_read: bool) -> Result<Self, Error> {
        let (wake, read) = (Wake::new(true)?, are_read.then(Mutex::default));
        Ok(Notices { waiting: Mutex::default(), read, wake, seat: Mutex::default() })
    }

    pub fn push(&self, notice: fdbroker_notice_t) {
        let mut waiting = lock(&self.waiting);
        if let Some(read) = &self.read {
            let mut read = lock(read);
            if waiting.len() >= NOTICES_KEPT {
                waiting.pop_front();
                read.lost += 1;
            }
            waiting.push_back(notice);
            if let Some((due, token)) = &read.due {
                due.tell(*token);
            }
            return;
        }
        // The broker asks again for what it still wants.
        if notice.kind == FDBROKER_NOTICE_RECLAIM && waiting.len() >= RECLAIMS_KEPT {
            return;
        }
        waiting.push_back(notice);
        drop(waiting);
        self.wake.kick();
    }

    /// The next one, the loss of others first; `None`: none waits, or they are not to be read.
    pub fn next(&self) -> Option<fdbroker_notice_t> {
        let mut waiting = lock(&self.waiting);
        let lost = std::mem::take(&mut lock(self.read.as_ref()?).lost);
        if lost == 0 {
            return waiting.pop_front();
        }
        let struct_size = size_of::<fdbroker_notice_t>() as u64;
        let (kind, owner_allocation_id) = (FDBROKER_NOTICE_LOST, lost);
        Some(fdbroker_notice_t { struct_size, kind, owner_allocation_id, ..Default::default() })
    }

    /// From now on each tells; `false`: they are not to be read.
    pub fn tell(&self, due: &Due, token: u64) -> bool {
        let Some(read) = &self.read else { return false };
        let _waiting = lock(&self.waiting);
        lock(read).due = Some((due.clone(), token));
        due.tell(token);
        true
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
