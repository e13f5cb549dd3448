//! The fd behind a virtual fd: what the crate of virtual fds asks a layer for. Must never wait for
//! ever, nor with a lock held.

use crate::connection::{Connected, Connection, State, is_absent};
use crate::lease::OpenFd;
use crate::limits::{RESTART_WAIT, RETRY_PAUSE, WAIT, WAIT_MOST_S, WAIT_SAID_AFTER};
use fdbroker_client::{Deadline, Error, ErrorCode, Grant, own_fds};
use fdbroker_virtual_fds::{Granted, OWN_FDS_MOST, Source, VirtualFd};
use nix::errno::Errno;
use std::ops::RangeInclusive;
use std::os::fd::RawFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

impl<S: State> Source for Connection<S> {
    fn grant(&self, number: VirtualFd) -> Result<Granted, Errno> {
        if self.has_ended() {
            return Err(Errno::EBADF);
        }
        let connected = S::connection().connected().ok_or(Errno::EBADF)?;
        match acquire(connected, number) {
            Ok(Grant { fd, lease, info }) => {
                Ok(Granted { fd, lease: Arc::new(OpenFd::new(lease, info)) })
            }
            Err(error) => {
                if is_absent(&error) {
                    self.say_absent(&error);
                }
                Err(errno_of(&error))
            }
        }
    }

    fn end(&self, number: VirtualFd) -> Result<(), Errno> {
        S::close(self.known().ok_or(Errno::EBADF)?, number)
    }

    fn end_range(&self, numbers: &RangeInclusive<u32>) {
        let Some(connected) = self.known() else { return };
        for number in S::numbers(connected) {
            if numbers.contains(&number.number().cast_unsigned()) {
                // As often as it is open; another thread may close it, too.
                while S::close(connected, number).is_ok() {}
            }
        }
    }

    fn is_own(&self, fd: RawFd) -> bool {
        own_fds::is_own(fd)
    }

    fn own_fds(&self, fds: &mut [RawFd; OWN_FDS_MOST]) -> usize {
        own_fds::list(fds)
    }

    fn has_used_driver(&self) -> bool {
        // Without a broker a process that cannot be seen stays unseen, as it is for the kernel.
        Connection::has_used_driver(self) && S::connection().connected().is_some()
    }
}

fn acquire<S: State>(connected: &Connected<S>, number: VirtualFd) -> Result<Grant, Error> {
    patiently::<S, _>(|deadline| connected.neighbours.acquire(&connected.client, number, deadline))
}

/// Tries again, and waits for what can change: a silent owner, a full cap, a broker that comes back
/// after a crash. `attempt` gets the deadline of one try.
///
/// # Errors
/// Those of `attempt`.
pub fn patiently<S: State, T>(
    mut attempt: impl FnMut(Deadline) -> Result<T, Error>,
) -> Result<T, Error> {
    let begin = Instant::now();
    let wait = wait();
    let mut is_said = false;
    loop {
        let elapsed = begin.elapsed();
        let left = wait.saturating_sub(elapsed);
        // Until the line is due no try lasts longer than that.
        let part = if is_said { left } else { left.min(WAIT_SAID_AFTER.saturating_sub(elapsed)) };
        let error = match attempt(Deadline::after(part)) {
            Err(error) if is_passing(&error) => error,
            outcome => return outcome,
        };
        let elapsed = begin.elapsed();
        let is_over = elapsed >= wait || S::connection().has_ended();
        if is_over || is_absent(&error) && elapsed >= RESTART_WAIT {
            return Err(error);
        }
        if !is_said && elapsed >= WAIT_SAID_AFTER {
            S::say_waiting(&error);
            is_said = true;
        }
        std::thread::sleep(RETRY_PAUSE.min(wait - elapsed));
    }
}

fn is_passing(error: &Error) -> bool {
    matches!(
        error.code,
        ErrorCode::OwnerSilent
            | ErrorCode::TimedOut
            | ErrorCode::Again
            | ErrorCode::NoQuota
            | ErrorCode::NotConnected
            | ErrorCode::ShuttingDown
    )
}

fn errno_of(error: &Error) -> Errno {
    match error.code {
        ErrorCode::LocalFdLimit | ErrorCode::NoQuota => Errno::EMFILE,
        // A broker that is gone may come back: EBADF would say that the memory has ended.
        ErrorCode::OwnerSilent
        | ErrorCode::TimedOut
        | ErrorCode::Again
        | ErrorCode::NotConnected
        | ErrorCode::ShuttingDown => Errno::EAGAIN,
        _ => Errno::EBADF,
    }
}

/// FDBROKER_LAYER_WAIT, in seconds. What is no number counts as not set.
fn wait() -> Duration {
    static SECONDS: OnceLock<Duration> = OnceLock::new();
    *SECONDS.get_or_init(|| {
        let set = std::env::var("FDBROKER_LAYER_WAIT").ok();
        let seconds = set.and_then(|text| text.trim().parse::<u64>().ok());
        seconds.map_or(WAIT, |seconds| Duration::from_secs(seconds.min(WAIT_MOST_S)))
    })
}
