//! An import under way: one thread asks the broker, the others that want the same wait for it.
//! Must never lose a waiter's pin, nor let anyone wait for a thread that has given up.

use super::entry::tag_of;
use super::pin::Pin;
use crate::deadline::Deadline;
use crate::interrupt::{Condvar, wait_until};
use crate::map::Access;
use crate::sync::lock;
use fdbroker_protocol::{AllocationId, Handle};
use std::sync::{Mutex, MutexGuard};

/// What is under way: the allocation, and the proof that came with it, so that a forged handle
/// delays nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    id: AllocationId,
    tag: u64,
}

impl Key {
    pub fn of(handle: &Handle) -> Self {
        Key { id: handle.id(), tag: tag_of(&handle.prefix) }
    }
}

/// One import under way.
#[derive(Debug)]
pub(super) struct Flight {
    pub access: Access,
    state: Mutex<State>,
    landed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Those to be given a pin each.
    waiters: u32,
    /// Threads that sleep until it ends: most often none, and then nobody is woken.
    sleepers: u32,
    end: Option<End>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// Each waiter has a pin like this.
    Landed(Pin),
    /// Each waiter fetches it itself.
    Failed,
}

impl Flight {
    pub fn new(access: Access) -> Self {
        Flight { access, state: Mutex::default(), landed: Condvar::new() }
    }

    /// It has landed: `pin` makes that many pins, all alike, one for each waiter.
    pub fn land(&self, pin: impl FnOnce(u32) -> Pin) {
        let state = lock(&self.state);
        let end = End::Landed(pin(state.waiters));
        self.end(state, end);
    }

    /// It has failed: the waiters try themselves.
    pub fn fail(&self) {
        self.end(lock(&self.state), End::Failed);
    }

    fn end(&self, mut state: MutexGuard<'_, State>, end: End) {
        state.end = Some(end);
        if state.sleepers > 0 {
            self.landed.notify_all();
        }
    }

    /// One more waits, to be given a pin. Under the table's lock, under which the flight is ended.
    pub fn join(&self) {
        lock(&self.state).waiters += 1;
    }

    /// Waits for the end; `None`: time is over.
    pub fn wait(&self, deadline: Deadline) -> Option<End> {
        let mut state = lock(&self.state);
        loop {
            match state.end {
                Some(end) => return Some(end),
                None if deadline.has_passed() => return None,
                None => {
                    state.sleepers += 1;
                    state = wait_until(&self.landed, &self.state, state, deadline.at());
                    state.sleepers -= 1;
                }
            }
        }
    }

    /// One that has joined takes nothing; the pin that was made for it.
    pub fn leave(&self) -> Option<Pin> {
        let mut state = lock(&self.state);
        match state.end {
            None => state.waiters -= 1,
            Some(End::Failed) => {}
            Some(End::Landed(pin)) => return Some(pin),
        }
        None
    }
}
