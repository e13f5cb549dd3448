//! Signals as events of the loop: SIGTERM and SIGINT end the daemon in order, a second one at once,
//! SIGHUP is answered in the log. Must never run code in a signal handler.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::fd::{AsFd, BorrowedFd};

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// End in order.
    End,
    /// Read the configuration again.
    Reload,
}

/// The signals, blocked and readable from an fd.
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
    mask: SigSet,
}

impl Signals {
    /// Blocks the signals in the calling thread and in those it starts from now on.
    ///
    /// # Errors
    /// Those of signalfd(2) and pthread_sigmask(3).
    pub fn block() -> nix::Result<Self> {
        let mask: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
        mask.thread_block()?;
        let fd = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Signals { fd, mask })
    }

    /// The next signal, `None` when there is no more.
    pub fn read(&self) -> Option<Request> {
        let info = self.fd.read_signal().ok()??;
        match i32::try_from(info.ssi_signo) {
            Ok(libc::SIGHUP) => Some(Request::Reload),
            _ => Some(Request::End),
        }
    }

    /// From now on the next signal does what it does by default: it ends the process at once.
    pub fn unblock(&self) {
        if let Err(error) = self.mask.thread_unblock() {
            log::warn!("signals stay blocked: {error}");
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
