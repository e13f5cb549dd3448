//! Ends a wait when the program wants that, after a signal handler of its own has run in the
//! waiting thread: how Ctrl-C stops a call. For a thread that is told to stop all deadlines have
//! passed: it leaves as it does at a deadline, and what comes later is given back.
//! Must never ask the program while a lock is held or the thread reads for others, nor ask in a
//! thread of which the program has not said that it may.

use crate::limits::{BEYOND_DEADLINES, INTERRUPT_LOOK};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

thread_local! {
    /// Asked after a signal, and now and then: whether the call is to end.
    static CHECK: RefCell<Option<Rc<dyn Fn() -> bool>>> = const { RefCell::new(None) };
    static STANDING: Cell<Standing> = const { Cell::new(Standing::Waits) };
}

/// How it stands with the thread's waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Waits,
    /// A handler may have run: to be asked about out of all locks.
    Signalled,
    /// The program is being asked. Calls of its handlers are not interrupted.
    Asked,
    /// The call is to end.
    Stopped,
}

/// Has waits of this thread ask `check` after a signal handler has run in it; true ends the call,
/// which then fails as at its deadline. To be called again before the thread's next call, when
/// [`take_interrupt`] does not say that it was stopped.
pub fn set_interrupt(check: impl Fn() -> bool + 'static) {
    STANDING.set(Standing::Waits);
    CHECK.set(Some(Rc::new(check)));
}

/// Undoes [`set_interrupt`]: waits of this thread go on, whatever comes.
pub fn clear_interrupt() {
    STANDING.set(Standing::Waits);
    CHECK.set(None);
}

/// Whether the call that has just ended was stopped. The next one waits again.
pub fn take_interrupt() -> bool {
    let was_stopped = STANDING.get() == Standing::Stopped;
    if was_stopped {
        STANDING.set(Standing::Waits);
    }
    was_stopped
}

/// Whether this thread may be interrupted.
pub(crate) fn is_set() -> bool {
    CHECK.try_with(|check| check.borrow().is_some()).unwrap_or(false)
}

/// How long a wait may last before the program is asked, at most `timeout`.
pub(crate) fn slice(timeout: Duration) -> Duration {
    if is_set() { timeout.min(INTERRUPT_LOOK) } else { timeout }
}

/// A wait has ended early, or was long enough for a signal to have come.
pub(crate) fn note_signal() {
    if STANDING.get() == Standing::Waits && is_set() {
        STANDING.set(Standing::Signalled);
    }
}

/// Whether [`ask`] has something to ask.
pub(crate) fn is_signalled() -> bool {
    STANDING.get() == Standing::Signalled
}

/// Asks the program, if a handler may have run. Its handlers run in here.
pub(crate) fn ask() {
    if !is_signalled() {
        return;
    }
    let Some(check) = CHECK.try_with(|check| check.borrow().clone()).ok().flatten() else { return };
    STANDING.set(Standing::Asked);
    let stops = check();
    STANDING.set(if stops { Standing::Stopped } else { Standing::Waits });
}

/// The time, for comparing with the deadline of a wait: beyond all of them once it is to end.
pub(crate) fn now() -> Instant {
    let now = Instant::now();
    if STANDING.get() == Standing::Stopped { now + BEYOND_DEADLINES } else { now }
}

/// Sleeps; a handler that stops the call ends it.
pub(crate) fn sleep(pause: Duration) {
    // Another thread has no way to wake it: nobody knows the word.
    let (nobody, asleep) = (Condvar::new(), Mutex::new(()));
    let until = Instant::now() + pause;
    while now() < until {
        drop(wait_until(&nobody, &asleep, lock(&asleep), until));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A condition variable as std's, whose waits also see that a signal handler has run, futex(2).
#[derive(Debug, Default)]
pub(crate) struct Condvar {
    /// Counts the notices.
    turn: AtomicU32,
}

impl Condvar {
    pub const fn new() -> Self {
        Condvar { turn: AtomicU32::new(0) }
    }

    pub fn notify_one(&self) {
        self.notify(1);
    }

    pub fn notify_all(&self) {
        self.notify(i32::MAX);
    }

    fn notify(&self, most: i32) {
        self.turn.fetch_add(1, Ordering::Relaxed);
        let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the word lives over the call, which reads its address alone.
        unsafe { libc::syscall(libc::SYS_futex, self.turn.as_ptr(), operation, most) };
    }

    /// Sleeps unless there was a notice since the count was `turn`.
    fn sleep(&self, turn: u32, timeout: Duration) {
        let timeout = libc::timespec {
            tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: word and time live over the call.
        let slept = unsafe {
            libc::syscall(libc::SYS_futex, self.turn.as_ptr(), operation, turn, &raw const timeout)
        };
        if slept < 0 && nix::errno::Errno::last() == nix::errno::Errno::EINTR {
            note_signal();
        }
    }
}

/// Waits to be notified until `until`; wakes early too, as condition variables do. After a signal
/// the program is asked, out of the lock: nothing else may be held.
pub(crate) fn wait_until<'a, T>(
    condvar: &Condvar,
    mutex: &'a Mutex<T>,
    guard: MutexGuard<'a, T>,
    until: Instant,
) -> MutexGuard<'a, T> {
    let guard = wait_unasked(condvar, mutex, guard, until);
    if !is_signalled() {
        return guard;
    }
    drop(guard);
    ask();
    lock(mutex)
}

/// The same, leaving it to the caller to [`ask`].
pub(crate) fn wait_unasked<'a, T>(
    condvar: &Condvar,
    mutex: &'a Mutex<T>,
    guard: MutexGuard<'a, T>,
    until: Instant,
) -> MutexGuard<'a, T> {
    let turn = condvar.turn.load(Ordering::Relaxed);
    drop(guard);
    let timeout = until.saturating_duration_since(now());
    if !timeout.is_zero() {
        condvar.sleep(turn, slice(timeout));
        if timeout > INTERRUPT_LOOK {
            note_signal();
        }
    }
    lock(mutex)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deadline::Deadline;
    use std::sync::Arc;

    extern "C" fn nothing(_: libc::c_int) {}

    /// Sends this thread a signal after a moment, which a handler without SA_RESTART takes.
    fn signal_soon() -> std::thread::JoinHandle<()> {
        // SAFETY: the handler does nothing; the struct's other fields may be zero.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
            assert_eq!(libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()), 0);
        }
        // SAFETY: has no conditions.
        let (process, thread) = unsafe { (libc::getpid(), libc::gettid()) };
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            // SAFETY: takes numbers; the thread is waiting for this one.
            unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR2) };
        })
    }

    #[test]
    fn wait_when_notified_by_another_thread_then_it_ends() {
        let shared = Arc::new((Mutex::new(0), Condvar::new()));
        let other = Arc::clone(&shared);
        let counts = std::thread::spawn(move || {
            for _ in 0..1000 {
                *lock(&other.0) += 1;
                other.1.notify_one();
            }
        });
        let until = Instant::now() + Duration::from_secs(60);
        let mut count = lock(&shared.0);
        while *count < 1000 && Instant::now() < until {
            count = wait_until(&shared.1, &shared.0, count, until);
        }
        assert_eq!(*count, 1000);
        drop(count);
        counts.join().unwrap();
    }

    #[test]
    fn sleep_when_a_handler_stops_the_call_then_all_deadlines_have_passed_until_it_is_taken() {
        let deadline = Deadline::longest();
        set_interrupt(|| {
            assert!(!is_signalled(), "calls of a handler are not interrupted");
            true
        });
        let signal = signal_soon();
        sleep(Duration::from_secs(3000));
        signal.join().unwrap();
        assert!(deadline.has_passed() && deadline.remaining().is_zero());
        assert!(take_interrupt() && !take_interrupt());
        assert!(!deadline.has_passed());
        clear_interrupt();
    }

    #[test]
    fn sleep_when_a_handler_lets_it_go_on_then_it_lasts() {
        let asked = Rc::new(Cell::new(0));
        let count = Rc::clone(&asked);
        set_interrupt(move || {
            count.set(count.get() + 1);
            false
        });
        let (signal, begun) = (signal_soon(), Instant::now());
        sleep(Duration::from_millis(200));
        assert!(begun.elapsed() >= Duration::from_millis(200));
        assert!(asked.get() >= 1);
        signal.join().unwrap();
        clear_interrupt();
    }
}
