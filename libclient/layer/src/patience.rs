//! How long a program waits for what can change: a silent owner, a full cap, a broker that is away.
//! Must never wait with a lock held, nor at each call for a broker that does not come back.

use crate::connection::{Connected, Connection, State, is_absent};
use crate::limits::{RETRY_PAUSE, WAIT, WAIT_MOST_S, WAIT_SAID_AFTER};
use fdbroker_client::{Deadline, Error, ErrorCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

impl<S: State> Connection<S> {
    /// The connection, made now when there is none, and waited for when the broker is away.
    pub fn awaited(&'static self) -> Option<&'static Connected<S>> {
        let is_lost = || Error::new(ErrorCode::NotConnected, "the broker is away");
        let look = |_| match self.look() {
            Ok(found) if found.client.is_connected() => Ok(found),
            Ok(_) => Err(is_lost()),
            Err(error) => Err(error),
        };
        retry::<S, _>(is_absent, look).inspect_err(|error| self.say_absent(error)).ok()
    }
}

/// Tries again, and waits for what can change. `attempt` gets the deadline of one try.
///
/// # Errors
/// Those of `attempt`.
pub fn patiently<S: State, T>(
    attempt: impl FnMut(Deadline) -> Result<T, Error>,
) -> Result<T, Error> {
    retry::<S, T>(is_passing, attempt)
}

/// The same for a broker that goes away meanwhile, and for nothing else.
///
/// # Errors
/// Those of `attempt`.
pub fn through_outage<S: State, T>(
    mut attempt: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    retry::<S, T>(is_absent, |_| attempt())
}

fn retry<S: State, T>(
    is_passing: fn(&Error) -> bool,
    mut attempt: impl FnMut(Deadline) -> Result<T, Error>,
) -> Result<T, Error> {
    let connection = S::connection();
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
            outcome => {
                if outcome.is_ok() {
                    connection.away.end();
                }
                return outcome;
            }
        };
        let elapsed = begin.elapsed();
        let is_given_up = is_absent(&error)
            && (!connection.is_expected() || connection.away.left_of(wait).is_zero());
        if is_given_up || elapsed >= wait || connection.has_ended() {
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

/// FDBROKER_LAYER_WAIT, in seconds. What is no number counts as not set. Threads that come first at
/// once each read it: a child of fork(2) that copies a lock in the middle would wait for ever.
fn wait() -> Duration {
    static SECONDS: AtomicU64 = AtomicU64::new(UNREAD);
    let mut seconds = SECONDS.load(Ordering::Relaxed);
    if seconds == UNREAD {
        let set = std::env::var("FDBROKER_LAYER_WAIT").ok();
        let set = set.and_then(|text| text.trim().parse::<u64>().ok());
        seconds = set.map_or(WAIT.as_secs(), |seconds| seconds.min(WAIT_MOST_S));
        SECONDS.store(seconds, Ordering::Relaxed);
    }
    Duration::from_secs(seconds)
}

/// No number of seconds that is taken.
const UNREAD: u64 = u64::MAX;
