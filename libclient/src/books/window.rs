//! The export window: how many new exports this process may have open at once. Field order matters
//! in its users: an fd is closed before its place is free. Must never hold an fd.

use super::wake::Wake;
use crate::interrupt::{Condvar, now, wait_until};
use crate::sync::lock;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Places for exports on their way to the broker: as many as were declared in hello. Recalls go
/// before registrations: consumers wait for them.
#[derive(Debug)]
pub(crate) struct Window {
    state: Mutex<WindowState>,
    freed: Condvar,
    wake: Wake,
}

#[derive(Debug)]
struct WindowState {
    free: u32,
    /// A recall has found none free: the next is its, and it is kicked.
    recall_waits: bool,
}

impl Window {
    pub fn new(size: u32, wake: Wake) -> Self {
        let state = Mutex::new(WindowState { free: size, recall_waits: false });
        Window { state, freed: Condvar::new(), wake }
    }

    /// Takes 1 to `wanted` places, waiting for the first until `until`; `None` when none came free.
    pub fn take(self: &Arc<Self>, wanted: u32, until: Instant) -> Option<Places> {
        let mut state = lock(&self.state);
        while state.free == 0 || state.recall_waits {
            if now() >= until {
                return None;
            }
            state = wait_until(&self.freed, &self.state, state, until);
        }
        Some(self.taken(&mut state, wanted))
    }

    /// Takes one for a recall, without waiting. `None`: a kick tells when there is one.
    pub fn take_for_recall(self: &Arc<Self>) -> Option<Places> {
        let mut state = lock(&self.state);
        state.recall_waits = state.free == 0;
        if state.recall_waits {
            return None;
        }
        let places = self.taken(&mut state, 1);
        drop(state);
        self.freed.notify_all();
        Some(places)
    }

    /// No recall waits any more.
    pub fn end_recalls(&self) {
        lock(&self.state).recall_waits = false;
        self.freed.notify_all();
    }

    fn taken(self: &Arc<Self>, state: &mut WindowState, wanted: u32) -> Places {
        let taken = wanted.clamp(1, state.free);
        state.free -= taken;
        Places { window: Arc::clone(self), taken }
    }
}

/// Places taken; given back on drop, after the exports have been closed.
#[derive(Debug)]
pub(crate) struct Places {
    window: Arc<Window>,
    taken: u32,
}

impl Places {
    pub fn count(&self) -> usize {
        self.taken as usize
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        let mut state = lock(&self.window.state);
        state.free += self.taken;
        let recall_waits = state.recall_waits;
        drop(state);
        if recall_waits { self.window.wake.kick() } else { self.window.freed.notify_all() }
    }
}
