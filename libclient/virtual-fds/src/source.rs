//! The layer, as this crate knows it: what gives fds for virtual fds. Must never be called with a
//! lock of this crate held, nor by a child that shares its parent's memory: it would take the
//! parent's connection for its own.

use crate::held::{Deal, Lease, Mark};
use crate::inside::{Inside, defer, is_inside, take_deferred};
use crate::limits::OWN_FDS_MOST;
use crate::{held, process, raw, say, table};
use fdbroker_protocol::VirtualFd;
use nix::errno::Errno;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// An fd for a virtual fd, close-on-exec, and its lease.
pub struct Granted {
    /// Not yet known to the program.
    pub fd: OwnedFd,
    /// Ended when the last duplicate of the fd is closed.
    pub lease: Lease,
}

/// What the layer knows of virtual fds. It is called without any lock of this crate, on any thread
/// of the program, never in a child of vfork(2). In a child of fork(2) it is a copy, which finds
/// the broker anew.
pub trait Source: Send + Sync {
    /// A duplicate of the fd behind a virtual fd. Waits for a recall.
    ///
    /// # Errors
    /// EBADF: it has ended, or there is no such number. EMFILE: no quota, or this process's table
    /// is full. EAGAIN: its owner is silent.
    fn grant(&self, number: VirtualFd) -> Result<Granted, Errno>;

    /// A duplicate of the fd behind a number of this process's own, to be sent and closed: it needs
    /// no lease, since this process has the memory. `None`: a grant is needed.
    fn own(&self, _number: VirtualFd) -> Option<OwnedFd> {
        None
    }

    /// Ends one registration of those that share the number, as close(2) ends an fd.
    ///
    /// # Errors
    /// EBADF: this process has none.
    fn end(&self, number: VirtualFd) -> Result<(), Errno>;

    /// Ends all registrations of this process whose numbers are in the range, as close_range(2)
    /// ends fds.
    fn end_range(&self, numbers: &RangeInclusive<u32>);

    /// The program closes the last fd of a lease. The source may want to keep that for a moment: it
    /// answers a duplicate, which is its own from then on. No lock, no memory.
    fn hide(&self, _fd: RawFd, _lease: &Lease) -> Option<RawFd> {
        None
    }

    /// A lease has no fd any more, but for a duplicate that was hidden. On the thread of leases.
    fn ended(&self, lease: Lease, _hidden: Option<RawFd>) {
        drop(lease);
    }

    /// Gives up what was kept long enough, on the thread of leases. When to be called again;
    /// `None`: after another lease has ended.
    fn tend(&self) -> Option<Duration> {
        None
    }

    /// Whether an fd is the layer's own (a socket, an eventfd): the program cannot close it by
    /// mistake. No lock, no memory. The layer itself can close an fd only when this says no.
    fn is_own(&self, fd: RawFd) -> bool;

    /// Writes the fds for which `is_own` says yes, at most 80, and answers how many.
    fn own_fds(&self, fds: &mut [RawFd; OWN_FDS_MOST]) -> usize;

    /// A child is about to begin that no handler of fork(3) is told of. This and the next two: no
    /// lock, no memory.
    fn before_fork(&self) {}

    /// The parent goes on.
    fn after_fork(&self) {}

    /// In the child, which has a copy of its parent's memory and fds.
    fn begin_child(&self) {}

    /// Whether this program has used the driver, and there is a broker. Only then may it ask for
    /// the fds of a process that it cannot see. May connect: never called in a child of vfork(2).
    fn has_used_driver(&self) -> bool;
}

static SOURCE: OnceLock<&'static dyn Source> = OnceLock::new();

/// What becomes of leases is the source's matter.
const DEAL: &Deal = &Deal {
    ended: |lease, hidden| match SOURCE.get() {
        Some(source) => source.ended(lease, hidden),
        None => drop(lease),
    },
    tend: || SOURCE.get()?.tend(),
};

/// As the crate's `install`.
pub fn install(source: &'static dyn Source) -> bool {
    if std::env::var_os("FDBROKER_LOG").is_some_and(|level| level == "off") {
        say::be_quiet();
    }
    fdbroker_scm::know_stderr();
    process::begin();
    SOURCE.set(source).is_ok()
}

/// The lease of an fd that was granted for a virtual fd: for a driver's function that imports the
/// fd.
pub fn lease_of(fd: RawFd) -> Option<Lease> {
    table::share(fd)?.lease()
}

/// Tells the source now of what the program has closed, and not when the thread of leases gets to
/// it. Not with a lock of the layer's held.
pub fn end_leases() {
    held::end_all(DEAL);
}

/// The same where the source may have kept some of it.
pub fn end_kept_leases() {
    held::end_hidden(DEAL);
}

/// Closes a granted fd that the program has not seen, as if it had closed it.
pub fn let_go(granted: Granted) {
    let Granted { fd, lease } = granted;
    // Without the thread both go at once.
    if let Ok(mark) = Mark::of_lease(Arc::clone(&lease), DEAL) {
        drop(lease);
        close_granted(fd.into_raw_fd(), mark);
    }
}

/// close(2) of a granted fd. The answer is the kernel's.
pub fn close_granted(fd: RawFd, mark: Mark) -> isize {
    let hide = |source: &&dyn Source| source.hide(fd, mark.sole_lease()?);
    SOURCE.get().and_then(hide).into_iter().for_each(|duplicate| mark.hide(duplicate));
    let answer = raw::close(fd);
    // The lease ends after the fd.
    drop(mark);
    answer
}

/// The fd for a virtual fd, not in the table yet.
pub struct Fresh {
    fd: OwnedFd,
    mark: Mark,
}

impl Fresh {
    /// # Errors
    /// Those of [`Source::grant`]; EBADF without a source, and in a child that shares its parent's
    /// memory; EAGAIN in a signal's handler that has interrupted the layer.
    pub fn of(number: VirtualFd) -> Result<Fresh, Errno> {
        Fresh::by(|source| Fresh::granted(source, number))
    }

    /// The same for the time of a message.
    ///
    /// # Errors
    /// Those of [`Fresh::of`].
    pub fn to_send(number: VirtualFd) -> Result<Fresh, Errno> {
        Fresh::by(|source| match guarded(|| Ok(source.own(number)))? {
            // It has no lease to end.
            Some(fd) => Ok(Fresh { fd, mark: Mark::placeholder() }),
            None => Fresh::granted(source, number),
        })
    }

    fn by(make: impl FnOnce(&dyn Source) -> Result<Fresh, Errno>) -> Result<Fresh, Errno> {
        let source = SOURCE.get().filter(|_| process::owns_memory()).ok_or(Errno::EBADF)?;
        if is_inside() {
            return Err(Errno::EAGAIN);
        }
        inside(|| make(*source))
    }

    fn granted(source: &dyn Source, number: VirtualFd) -> Result<Fresh, Errno> {
        let Granted { fd, lease } = guarded(|| source.grant(number))?;
        Ok(Fresh { fd, mark: Mark::of_lease(lease, DEAL)? })
    }

    /// For the time of a call.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Gives the fd to the program, which closes it.
    pub fn keep(self) -> RawFd {
        let fd = self.fd.into_raw_fd();
        table::put(fd, self.mark);
        fd
    }

    /// Gives the program a duplicate instead: `answer` is what duplicated [`Fresh::fd`].
    pub fn keep_duplicate(self, answer: isize) -> isize {
        if answer == self.fd() as isize {
            // It is there already.
            return self.keep() as isize;
        }
        if !raw::is_error(answer) {
            table::put(answer as RawFd, self.mark);
        }
        answer
    }
}

/// Runs a layer's code on this thread. Numbers that a signal's handler closes meanwhile are closed
/// at its end.
pub fn inside<T>(body: impl FnOnce() -> T) -> T {
    let within = Inside::enter();
    let outcome = body();
    drop(within);
    while let Some(number) = take_deferred() {
        // The handler has had its answer.
        let _ = end(number);
    }
    outcome
}

/// close(2) of all virtual fds of a range that this process has exported, as often as it has them
/// open.
pub fn end_range(numbers: RangeInclusive<u32>) {
    let Some(source) = SOURCE.get().filter(|_| process::owns_memory() && !is_inside()) else {
        return;
    };
    inside(|| {
        // A number that has ended meanwhile is an error, and is closed all the same.
        let _ = guarded(|| {
            source.end_range(&numbers);
            Ok(())
        });
    });
}

/// close(2) of a virtual fd. A child does not end what its parent has: it answers 0. So does a
/// signal's handler that has interrupted the layer: its close is made when the layer is done.
///
/// # Errors
/// Those of [`Source::end`].
pub fn end(number: VirtualFd) -> Result<(), Errno> {
    let source = SOURCE.get().ok_or(Errno::EBADF)?;
    if !process::owns_memory() {
        return Ok(());
    }
    if is_inside() {
        return if defer(number) { Ok(()) } else { Err(Errno::EAGAIN) };
    }
    match inside(|| guarded(|| source.end(number))) {
        Err(Errno::EBADF) if process::is_child() => Ok(()),
        ended => ended,
    }
}

/// Makes a child by a call that runs no handler of fork(3). `is_child` looks at its answer.
pub fn forking<T>(call: impl FnOnce() -> T, is_child: impl FnOnce(&T) -> bool) -> T {
    let source = SOURCE.get().filter(|_| process::owns_memory());
    source.inspect(|source| source.before_fork());
    let answer = call();
    if is_child(&answer) {
        begin_child();
    } else {
        source.inspect(|source| source.after_fork());
    }
    answer
}

/// In the child of such a call.
pub fn begin_child() {
    if let Some(source) = SOURCE.get().filter(|_| process::owns_memory()) {
        source.begin_child();
    }
}

/// Whether the fd is the layer's own in the calling process.
#[inline]
pub fn is_own(fd: RawFd) -> bool {
    SOURCE.get().is_some_and(|source| source.is_own(fd)) && process::owns_memory()
}

/// Whether it is a child that shares its parent's memory: it can ask the layer nothing, and will
/// exec.
pub fn is_borrowed() -> bool {
    is_installed() && !process::owns_memory()
}

/// The layer's own fds, in their order; none in a child that shares its parent's memory, which has
/// an fd table of its own.
pub fn own_fds(fds: &mut [RawFd; OWN_FDS_MOST]) -> &[RawFd] {
    let Some(source) = SOURCE.get().filter(|_| process::owns_memory()) else { return &[] };
    let count = source.own_fds(fds).min(fds.len());
    fds[..count].sort_unstable();
    &fds[..count]
}

pub fn is_installed() -> bool {
    SOURCE.get().is_some()
}

pub fn has_used_driver() -> bool {
    SOURCE.get().is_some_and(|source| source.has_used_driver())
}

/// Runs the layer's code; a fault in it must not reach the program. Its words are on stderr
/// already.
fn guarded<T>(body: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
        // The payload's own drop may panic too.
        std::mem::forget(payload);
        Err(Errno::EBADF)
    })
}
