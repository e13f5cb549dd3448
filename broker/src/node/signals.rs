//! Signals as events of the loop: SIGTERM and SIGINT end the daemon in order, a second one at once,
//! SIGHUP has the configuration read again. One that was ignored when the daemon started stays
//! ignored, as nohup(1) has it: a launcher signals all processes of a job, and the job's broker
//! ends with the job, not before. Must never run code in a signal handler.

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
        let ignored = ignored();
        let ours = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];
        let mask: SigSet = ours.into_iter().filter(|signal| ignored & bit(*signal) == 0).collect();
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

/// The signals that this process ignores, a bit each (`SigIgn` of proc_pid_status(5)); none when
/// that cannot be read.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Signal N is bit N - 1.
fn bit(signal: Signal) -> u64 {
    1 << (signal as i32 - 1)
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
