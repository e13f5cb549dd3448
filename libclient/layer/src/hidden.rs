//! Fds that the layer has and the program does not know: neither program nor driver can close them.
//! Kept ones are duplicates, at high numbers, of fds that the program has closed. Must never leave
//! one to a child, nor close what is not the layer's any more.

use crate::limits::{FORK_PATIENCE, HIGH_FD_MOST, KEPT_FDS};
use fdbroker_scm::File;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::{SigSet, SigmaskHow};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::yield_now;
use std::time::Instant;

/// The hidden fds: a process in the upper half, an fd in the lower; 0: free.
static HIDDEN: [AtomicU64; KEPT_FDS] = [const { AtomicU64::new(0) }; KEPT_FDS];

/// Hidden fds that are open now and not listed; forks under way, for which nothing is hidden.
static MOVES: AtomicU32 = AtomicU32::new(0);
static FORKS: AtomicU32 = AtomicU32::new(0);

/// A hidden fd begins or ends: a child of this moment would have it, and not know it. No signal is
/// handled meanwhile on this thread: a handler that forks would wait for what it has interrupted.
struct Move {
    /// Those that were blocked before.
    blocked: Option<SigSet>,
}

impl Move {
    /// `None`: a fork is under way. Both sides say what they do before they look at the other.
    fn begin() -> Option<Self> {
        let moves = Move { blocked: SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK).ok() };
        MOVES.fetch_add(1, Ordering::SeqCst);
        (FORKS.load(Ordering::SeqCst) == 0).then_some(moves)
    }

    /// Once no fork is under way, or as if there were none after a while.
    fn begin_late() -> Option<Self> {
        let mut begun = Self::begin();
        let since = Instant::now();
        while begun.is_none() && since.elapsed() < FORK_PATIENCE {
            yield_now();
            begun = Self::begin();
        }
        begun
    }
}

impl Drop for Move {
    fn drop(&mut self) {
        count_down(&MOVES);
        // With those that the thread had before the call cannot fail.
        let _ = self.blocked.map(|blocked| blocked.thread_set_mask());
    }
}

/// A child has begun at 0.
fn count_down(count: &AtomicU32) {
    let _ = count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1));
}

/// One of them. Closed by its drop, if its number still is what it was.
#[derive(Debug)]
pub(crate) struct Hidden {
    fd: RawFd,
    file: Option<File>,
}

/// Has children begin without them. Before the first one is made. Threads that come first at once
/// each register the handler, which changes nothing the second time: a child of fork(2) that copies
/// a lock in the middle would wait for ever.
pub(crate) fn begin() {
    static HAS_HANDLER: AtomicBool = AtomicBool::new(false);
    if !HAS_HANDLER.load(Ordering::Acquire) {
        // SAFETY: the layer stays loaded; the handlers make system calls and atomic stores alone.
        unsafe {
            libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(close_in_child));
        }
        HAS_HANDLER.store(true, Ordering::Release);
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
/// no room, or a fork is under way. No lock, no memory.
pub(crate) fn hide(fd: RawFd) -> Option<RawFd> {
    let place = HIDDEN.iter().find(|place| place.load(Ordering::Relaxed) == 0)?;
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    let least = RawFd::try_from(soft / 2).unwrap_or(HIGH_FD_MOST).min(HIGH_FD_MOST);
    let _move = Move::begin()?;
    // SAFETY: the caller's fd, which it closes after this.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let number = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(least)).ok()?;
    // SAFETY: made by the call above.
    let made = unsafe { OwnedFd::from_raw_fd(number) };
    list_at(place, number).then(|| made.into_raw_fd())
}

fn list_at(place: &AtomicU64, fd: RawFd) -> bool {
    place.compare_exchange(0, word(fd), Ordering::AcqRel, Ordering::Relaxed).is_ok()
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

    /// Hides an fd as it is, if there is room.
    ///
    /// # Errors
    /// The fd: there is none.
    pub(crate) fn of(fd: OwnedFd, file: Option<File>) -> Result<Self, OwnedFd> {
        begin();
        let is_listed = file.is_some() && HIDDEN.iter().any(|place| list_at(place, fd.as_raw_fd()));
        if is_listed { Ok(Hidden { fd: fd.into_raw_fd(), file }) } else { Err(fd) }
    }

    /// The program may have closed it, in a way that nobody saw.
    pub(crate) fn proved(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: only looked at, unless it is what was kept.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd) };
        (self.file.is_some() && File::of(fd) == self.file).then_some(fd)
    }

    /// At the number that a new fd gets. Prove it first.
    pub(crate) fn duplicate(&self) -> Option<OwnedFd> {
        self.as_fd().try_clone_to_owned().ok()
    }
}

impl AsFd for Hidden {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: this value closes it; what else the program does to it is the program's fault.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let own = word(self.fd);
        let is_own = |place: &AtomicU64| {
            place.compare_exchange(own, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let _move = Move::begin_late();
        let is_ours = self.proved().is_some();
        // Out of the list first: what is there may not be closed. A child has none there.
        if HIDDEN.iter().any(is_own) && is_ours {
            // SAFETY: proved to be what `hide` made, and nobody uses it any more.
            drop(unsafe { OwnedFd::from_raw_fd(self.fd) });
        }
    }
}

/// Waits for those that begin or end, but not for a close that hangs.
pub(crate) extern "C" fn before_fork() {
    FORKS.fetch_add(1, Ordering::SeqCst);
    let since = Instant::now();
    while MOVES.load(Ordering::SeqCst) != 0 && since.elapsed() < FORK_PATIENCE {
        yield_now();
    }
}

pub(crate) extern "C" fn after_fork() {
    count_down(&FORKS);
}

/// A child closes what its parent has hidden.
pub(crate) extern "C" fn close_in_child() {
    MOVES.store(0, Ordering::SeqCst);
    FORKS.store(0, Ordering::SeqCst);
    for place in &HIDDEN {
        let value = place.swap(0, Ordering::AcqRel);
        if value != 0 {
            // SAFETY: a number; the parent's copy is another.
            unsafe { libc::close(fd_of(value)) };
        }
    }
}
