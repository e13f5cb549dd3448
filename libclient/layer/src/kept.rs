//! Fds that a program has closed and will most likely fetch again: kept for a moment with their
//! leases, which stay open at the broker. Never an import: what the driver does is the program's
//! matter. Must never keep an fd of memory that has ended, nor one that the broker wants for
//! others.
//!
//! The fd of what is fetched again and again is duplicated when the program closes it, at a high
//! number. Each fetch that finds it here uses it, without a message, and has it stay for another
//! moment. What is fetched once or twice costs nothing for this.

use crate::hidden::{self, Hidden};
use crate::lease::{Fd, Fetched, OpenFd};
use crate::limits::{KEPT_BYTES, KEPT_TIME, PRESSED_TIME, RECENT, SOON_AGAIN, TIMES};
use fdbroker_client::layer::lock;
use fdbroker_client::{AllocationId, Handle};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What a process keeps.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<Shelf>);

#[derive(Debug, Default)]
struct Shelf {
    fds: Vec<(Arc<Hidden>, Arc<OpenFd>, Instant)>,
    /// What was granted last, when, and how often without a longer pause.
    recent: VecDeque<(AllocationId, Instant, u32)>,
    /// When the broker was last short of what this process has.
    pressed: Option<Instant>,
}

impl Shelf {
    fn has(&self, handle: &Handle) -> bool {
        self.fds.iter().any(|(_, open, _)| open.handle.prefix == handle.prefix)
    }
}

impl Kept {
    /// The fd of what is asked for, if it is here and its allocation lives. It stays here.
    pub(crate) fn lend(&self, is_it: impl Fn(&Handle) -> bool) -> Option<Fetched> {
        let mut shelf = lock(&self.0);
        let place = shelf.fds.iter().position(|(_, open, _)| is_it(&open.handle))?;
        let (hidden, open, until) = &mut shelf.fds[place];
        if open.is_current() && hidden.proved().is_some() {
            *until = Instant::now() + KEPT_TIME;
            return Some(Fetched { fd: Fd::Kept(Arc::clone(hidden)), open: Arc::clone(open) });
        }
        let gone = shelf.fds.swap_remove(place);
        drop(shelf);
        drop(gone);
        None
    }

    /// Whether the fd of a handle is here.
    pub(crate) fn has(&self, handle: &Handle) -> bool {
        lock(&self.0).has(handle)
    }

    /// Notes a grant. Whether it is one of what is granted again and again.
    pub(crate) fn is_again(&self, id: AllocationId) -> bool {
        hidden::begin();
        let (mut shelf, now) = (lock(&self.0), Instant::now());
        let before = shelf.recent.iter().position(|(recent, ..)| *recent == id);
        let before = before.and_then(|place| shelf.recent.remove(place));
        let before = before.filter(|(_, at, _)| now - *at < SOON_AGAIN);
        let times = before.map_or(0, |(.., times)| times);
        shelf.recent.truncate(RECENT - 1);
        shelf.recent.push_front((id, now, times.saturating_add(1)));
        times >= TIMES
    }

    /// Keeps what the program has closed, if there is room that nobody misses.
    pub(crate) fn put(&self, hidden: Hidden, open: Arc<OpenFd>) {
        let (mut shelf, now) = (lock(&self.0), Instant::now());
        let bytes = |open: &OpenFd| open.info.facts.size_bytes;
        let sum = shelf
            .fds
            .iter()
            .map(|(_, open, _)| bytes(open))
            .fold(bytes(&open), u64::saturating_add);
        let is_pressed = shelf.pressed.is_some_and(|at| now - at < PRESSED_TIME);
        let has_room = shelf.fds.len() < open.room && sum <= KEPT_BYTES;
        // Looked at under the lock: of an end after this the process is told when it is in there.
        if !is_pressed
            && has_room
            && !shelf.has(&open.handle)
            && hidden.proved().is_some()
            && open.is_current()
        {
            shelf.fds.push((Arc::new(hidden), open, now + KEPT_TIME));
            return;
        }
        drop(shelf);
        // The fd goes before its lease.
        drop(hidden);
    }

    /// Gives back what was kept long enough. When the next ones will have been.
    pub(crate) fn tend(&self) -> Option<Duration> {
        let now = Instant::now();
        self.give_back(|_, until| until <= now);
        let next = lock(&self.0).fds.iter().map(|(.., until)| *until).min()?;
        Some(next.saturating_duration_since(now))
    }

    /// An allocation has ended.
    pub(crate) fn end(&self, id: AllocationId) {
        self.give_back(|open, _| open.info.id == id);
    }

    /// The broker is short of what is here, or away.
    pub(crate) fn press(&self) {
        lock(&self.0).pressed = Some(Instant::now());
        self.give_back(|_, _| true);
    }

    fn give_back(&self, is_one: impl Fn(&OpenFd, Instant) -> bool) {
        let gone: Vec<_> =
            lock(&self.0).fds.extract_if(.., |(_, open, until)| is_one(open, *until)).collect();
        drop(gone);
    }
}
