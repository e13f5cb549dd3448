//! Signals that end a command, read from an fd like other input, so that children and directories
//! are always cleaned up. Must never pass the signal mask on to a program: [`restore`] undoes it.

use crate::error::{Context, Error, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// `ssi_code` of a signal that the kernel itself sent, such as for Ctrl-C (`SI_KERNEL`,
/// asm-generic/siginfo.h): the whole foreground process group has received it.
const SI_KERNEL: i32 = 0x80;

/// A signal that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    pub signal: Signal,
    /// The terminal sent it, and so every process of the foreground group has it.
    pub by_terminal: bool,
}

/// A signalfd of SIGINT, SIGTERM, SIGHUP and some others. All of them are blocked.
#[derive(Debug)]
pub struct Signals(SignalFd);

impl Signals {
    /// Blocks SIGINT, SIGTERM, SIGHUP and SIGCHLD in this thread, and in all threads and children
    /// that it starts later.
    pub fn take_over() -> Result<Self> {
        Self::take_over_with(&[Signal::SIGCHLD])
    }

    /// Blocks SIGINT, SIGTERM, SIGHUP and `others`.
    pub fn take_over_with(others: &[Signal]) -> Result<Self> {
        let mut set = SigSet::empty();
        let ends = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
        ends.iter().chain(others).for_each(|signal| set.add(*signal));
        set.thread_block().context(|| "block signals")?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let fd = SignalFd::with_flags(&set, flags).context(|| "open a signalfd")?;
        Ok(Signals(fd))
    }

    /// The next signal, if one has arrived.
    pub fn next(&self) -> Option<Received> {
        let info = self.0.read_signal().ok().flatten()?;
        let number = i32::try_from(info.ssi_signo).ok()?;
        let signal = Signal::try_from(number).ok()?;
        Some(Received { signal, by_terminal: info.ssi_code == SI_KERNEL })
    }

    /// Waits until `input` can be read, a signal arrives, or the reader of stdout is gone (`watch |
    /// head -1`): the next write, which would fail, may never come.
    ///
    /// # Errors
    /// [`Error::OutputClosed`] when the reader of stdout is gone.
    pub fn wait_beside(&self, input: &impl AsFd) -> Result<()> {
        let stdout = std::io::stdout();
        let mut fds = [
            PollFd::new(input.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.as_fd(), PollFlags::POLLIN),
            // Only errors: the reader of the pipe or socket is gone, or the terminal.
            PollFd::new(stdout.as_fd(), PollFlags::empty()),
        ];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) if fds[2].any() == Some(true) => Err(Error::OutputClosed),
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno).context(|| "wait for events"),
        }
    }

    /// The next signal that asks this process to end.
    pub fn next_end(&self) -> Option<Received> {
        std::iter::from_fn(|| self.next()).find(|received| received.signal != Signal::SIGCHLD)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Makes the kernel continue the process of `command` (SIGCONT) when the thread that starts it
/// ends. This process stops its children while it counts fds; if it is killed then, nobody else
/// would continue them. Set before exec, since the child may be stopped at once.
pub fn wake_when_orphaned(command: &mut Command) {
    let arrange = || {
        // Without it only the rare case above is lost.
        let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGCONT);
        Ok(())
    };
    // SAFETY: between fork and exec, it makes one system call and touches no memory of the parent.
    unsafe { command.pre_exec(arrange) };
}

/// Unblocks every signal: the first thing in a child that inherited the mask.
pub fn restore() {
    // Cannot fail: the set and the operation are valid.
    let _ = SigSet::empty().thread_set_mask();
}
