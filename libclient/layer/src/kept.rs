//! Fds that a program has closed and will most likely fetch again: kept for a moment with their
//! leases, which stay open at the broker, and hidden from the program. Never an import: what the
//! driver does is the program's matter. Must never keep an fd of memory that has ended, nor one
//! that the broker wants for others, nor leave one to a child.
//!
//! The fd of what is fetched again and again is duplicated when the program closes it, at a high
//! number. The next fetch takes that, without a message. What is fetched once or twice costs
//! nothing for this.

use crate::lease::OpenFd;
use crate::limits::{
    HIGH_FD_MOST, KEPT_BYTES, KEPT_FDS, KEPT_TIME, PRESSED_TIME, RECENT, SOON_AGAIN, TIMES,
};
use fdbroker_client::{AllocationId, Handle, lock};
use fdbroker_scm::File;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::resource::{Resource, getrlimit};
use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

/// The hidden fds: a process in the upper half, an fd in the lower; 0: free.
static HIDDEN: [AtomicU64; KEPT_FDS] = [const { AtomicU64::new(0) }; KEPT_FDS];

/// One of them. Closed by its drop, if its number still is what it was.
#[derive(Debug)]
pub(crate) struct Hidden {
    fd: RawFd,
    file: Option<File>,
}

/// What a process keeps.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<Shelf>);

#[derive(Debug, Default)]
struct Shelf {
    fds: Vec<(Hidden, Arc<OpenFd>, Instant)>,
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

/// Whether an fd is hidden. No lock, no memory.
pub(crate) fn is_hidden(fd: RawFd) -> bool {
    HIDDEN.iter().any(|place| {
        let value = place.load(Ordering::Acquire);
        // The process is asked for only where the number fits.
        value != 0 && fd_of(value) == fd && value == word(fd)
    })
}

/// Writes the hidden fds, as many as there is room for. How many.
pub(crate) fn list(room: &mut [RawFd]) -> usize {
    let all = HIDDEN.iter().map(|place| fd_of(place.load(Ordering::Acquire)));
    all.filter(|fd| is_hidden(*fd)).zip(room).map(|(fd, room)| *room = fd).count()
}

/// Duplicates an fd that the program is about to close, and hides the duplicate. `None`: there is
/// no room. No lock, no memory.
pub(crate) fn hide(fd: RawFd) -> Option<RawFd> {
    let place = HIDDEN.iter().find(|place| place.load(Ordering::Relaxed) == 0)?;
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    let least = RawFd::try_from(soft / 2).unwrap_or(HIGH_FD_MOST).min(HIGH_FD_MOST);
    // SAFETY: the caller's fd, which it closes after this.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let number = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(least)).ok()?;
    if place.compare_exchange(0, word(number), Ordering::AcqRel, Ordering::Relaxed).is_err() {
        // SAFETY: made above, and nobody knows it.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
        return None;
    }
    Some(number)
}

fn word(fd: RawFd) -> u64 {
    u64::from(std::process::id()) << 32 | u64::from(fd.cast_unsigned())
}

fn fd_of(value: u64) -> RawFd {
    value.to_le_bytes()[..4].try_into().map_or(-1, RawFd::from_le_bytes)
}

impl Hidden {
    /// `fd`: of [`hide`]; `file`: what it is.
    pub(crate) fn new(fd: RawFd, file: Option<File>) -> Self {
        Hidden { fd, file }
    }

    /// The program may have closed it, in a way that nobody saw.
    fn proved(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: only looked at, unless it is what was kept.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd) };
        (self.file.is_some() && File::of(fd) == self.file).then_some(fd)
    }

    /// At the number that a new fd gets.
    fn duplicate(&self) -> Option<OwnedFd> {
        self.proved()?.try_clone_to_owned().ok()
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let own = word(self.fd);
        let is_own = |place: &AtomicU64| {
            place.compare_exchange(own, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let is_ours = self.proved().is_some();
        // Out of the list first: what is there may not be closed. A child has none there.
        if HIDDEN.iter().any(is_own) && is_ours {
            // SAFETY: proved to be what `hide` made, and nobody uses it any more.
            drop(unsafe { OwnedFd::from_raw_fd(self.fd) });
        }
    }
}

/// A child of fork(3) closes what its parent has hidden.
extern "C" fn close_in_child() {
    for place in &HIDDEN {
        let value = place.swap(0, Ordering::AcqRel);
        if value != 0 {
            // SAFETY: a number; the parent's copy is another.
            unsafe { libc::close(fd_of(value)) };
        }
    }
}

impl Kept {
    /// Takes the fd of what is asked for, if it is here, its allocation lives and an fd is free.
    pub(crate) fn take(&self, is_it: impl Fn(&OpenFd) -> bool) -> Option<(OwnedFd, Arc<OpenFd>)> {
        let mut shelf = lock(&self.0);
        let place = shelf.fds.iter().position(|(_, open, _)| is_it(open))?;
        let (hidden, open, _) = shelf.fds.swap_remove(place);
        drop(shelf);
        let fd = if open.is_current() { hidden.duplicate() } else { None };
        drop(hidden);
        fd.map(|fd| (fd, open))
    }

    /// Whether the fd of a handle is here.
    pub(crate) fn has(&self, handle: &Handle) -> bool {
        lock(&self.0).has(handle)
    }

    /// Notes a grant. Whether it is one of what is granted again and again.
    pub(crate) fn is_again(&self, id: AllocationId) -> bool {
        static AT_FORK: Once = Once::new();
        // SAFETY: the layer stays loaded; the handler makes system calls and atomic stores alone.
        AT_FORK.call_once(|| _ = unsafe { libc::pthread_atfork(None, None, Some(close_in_child)) });
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
            shelf.fds.push((hidden, open, now + KEPT_TIME));
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
