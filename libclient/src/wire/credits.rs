//! Deposit credits: how many fds this client may send before the broker has made room for more.
//! Must never send an fd beyond the credit: the broker would end the connection.

use crate::books::wake::Wake;
use crate::interrupt::{Condvar, now, wait_until};
use crate::limits::ROW_GAP;
use crate::sync::lock;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The credits of one connection, shared by its threads.
#[derive(Debug)]
pub(crate) struct Credits {
    state: Mutex<State>,
    changed: Condvar,
    /// Deposits with no more time between them come in a row.
    row_gap: Duration,
    /// The answers that bring credits may be read by nobody but the thread that serves.
    wake: Wake,
}

#[derive(Debug)]
struct State {
    /// May be claimed now.
    available: u32,
    /// Claimed, and no answer yet. A reply's credits may have been counted before the broker saw
    /// these, so they are taken off what it grants: it may look like less than there is, never like
    /// more.
    in_flight: u32,
    /// Threads that wait for a change: a notification nobody waits for would cost a syscall.
    waiting: u32,
    /// A thread is asking the broker for credit.
    asking: bool,
    /// When fds were answered for last.
    answered_at: Option<Instant>,
    closed: bool,
}

/// What a thread may do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Send so many fds; then `answered`, `failed` or `give_back`.
    Granted(u32),
    /// Ask the broker (a register of 0 items), then call `asked`, then claim again.
    Ask,
    /// The deposit's deadline has passed.
    TimedOut,
    /// The connection is lost.
    Closed,
}

impl Credits {
    pub fn new(granted: u32, wake: Wake) -> Self {
        let (available, in_flight, waiting) = (granted, 0, 0);
        let (asking, answered_at, closed) = (false, None, false);
        let state = State { available, in_flight, waiting, asking, answered_at, closed };
        Credits { state: Mutex::new(state), changed: Condvar::new(), row_gap: ROW_GAP, wake }
    }

    /// Claims 1 to `wanted` credits, waiting until `until` while answers or another asker may bring
    /// some.
    pub fn claim(&self, wanted: u32, until: Instant) -> Claim {
        let mut state = lock(&self.state);
        loop {
            if state.closed {
                return Claim::Closed;
            }
            if state.available > 0 {
                let claimed = wanted.min(state.available);
                state.available -= claimed;
                state.in_flight += claimed;
                return Claim::Granted(claimed);
            }
            if state.in_flight == 0 && !state.asking {
                state.asking = true;
                return Claim::Ask;
            }
            if now() >= until {
                return Claim::TimedOut;
            }
            state.waiting += 1;
            if state.waiting == 1 {
                self.wake.kick();
            }
            state = wait_until(&self.changed, &self.state, state, until);
            state.waiting -= 1;
        }
    }

    /// Claims those of `wanted` that are there now, maybe none; then as after a claim.
    pub fn claim_at_hand(&self, wanted: u32) -> u32 {
        let mut state = lock(&self.state);
        let claimed = if state.closed { 0 } else { wanted.min(state.available) };
        state.available -= claimed;
        state.in_flight += claimed;
        claimed
    }

    /// Whether fds were answered for a moment ago, so that more will most likely follow.
    pub fn is_in_a_row(&self) -> bool {
        lock(&self.state).answered_at.is_some_and(|at| at.elapsed() < self.row_gap)
    }

    /// Whether threads wait for the answers to others' requests.
    pub fn is_awaited(&self) -> bool {
        lock(&self.state).waiting > 0
    }

    /// The asker has its answer, or has given up.
    pub fn asked(&self) {
        self.change(|state| state.asking = false);
    }

    /// The reply to a message of `sent` fds says that there are `granted` credits now.
    /// Called in the order in which replies are read.
    pub fn answered(&self, sent: u32, granted: u32) {
        self.change(|state| {
            state.in_flight = state.in_flight.saturating_sub(sent);
            state.available = granted.saturating_sub(state.in_flight);
            if sent > 0 {
                state.answered_at = Some(Instant::now());
            }
        });
    }

    /// A message of `sent` fds was refused as a whole: its credits count as used up.
    pub fn failed(&self, sent: u32) {
        self.change(|state| state.in_flight = state.in_flight.saturating_sub(sent));
    }

    /// `count` claimed credits were not used: nothing was sent.
    pub fn give_back(&self, count: u32) {
        self.change(|state| {
            let unused = count.min(state.in_flight);
            state.in_flight -= unused;
            state.available += unused;
        });
    }

    /// The connection is lost.
    pub fn close(&self) {
        self.change(|state| state.closed = true);
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = lock(&self.state);
        change(&mut state);
        if state.waiting > 0 {
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credits(granted: u32) -> Credits {
        Credits::new(granted, Wake::new(false).unwrap())
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    #[test]
    fn claim_when_some_left_then_no_more_than_those() {
        let credits = credits(3);
        assert_eq!(credits.claim(2, soon()), Claim::Granted(2));
        assert_eq!(credits.claim(2, soon()), Claim::Granted(1));
        assert_eq!(credits.claim(1, soon()), Claim::TimedOut);
    }

    #[test]
    fn answered_when_others_in_flight_then_theirs_are_taken_off() {
        let credits = credits(4);
        assert_eq!(credits.claim(2, soon()), Claim::Granted(2));
        assert_eq!(credits.claim(2, soon()), Claim::Granted(2));
        credits.answered(2, 3);
        assert_eq!(credits.claim(9, soon()), Claim::Granted(1));
    }

    #[test]
    fn answered_when_deposits_come_in_a_row_then_it_says_so() {
        let credits = |row_gap| Credits { row_gap, ..credits(1) };
        let (in_a_row, alone) = (credits(Duration::MAX), credits(Duration::ZERO));
        for credits in [&in_a_row, &alone] {
            assert_eq!(credits.claim(1, soon()), Claim::Granted(1));
            assert!(!credits.is_in_a_row());
            credits.answered(1, 0);
        }
        assert!(in_a_row.is_in_a_row());
        assert!(!alone.is_in_a_row());
        // An answer without fds is to one that asked for credit.
        let asked = credits(Duration::MAX);
        asked.answered(0, 1);
        assert!(!asked.is_in_a_row());
    }

    #[test]
    fn claim_when_none_and_nothing_in_flight_then_one_asks_and_others_wait() {
        let credits = credits(0);
        assert_eq!(credits.claim(1, soon()), Claim::Ask);
        assert_eq!(credits.claim(1, soon()), Claim::TimedOut);
        credits.answered(0, 5);
        credits.asked();
        assert_eq!(credits.claim(9, soon()), Claim::Granted(5));
    }

    #[test]
    fn claim_at_hand_when_none_then_nobody_asks() {
        let credits = credits(1);
        assert_eq!(credits.claim_at_hand(2), 1);
        assert_eq!(credits.claim_at_hand(2), 0);
        // One is on its way back, so nobody has to ask.
        assert_eq!(credits.claim(1, soon()), Claim::TimedOut);
        credits.answered(1, 1);
        assert_eq!(credits.claim(1, soon()), Claim::Granted(1));
        credits.close();
        credits.answered(1, 1);
        assert_eq!(credits.claim_at_hand(1), 0);
    }

    #[test]
    fn give_back_when_not_sent_then_available_again() {
        let credits = credits(2);
        assert_eq!(credits.claim(2, soon()), Claim::Granted(2));
        credits.give_back(2);
        assert_eq!(credits.claim(2, soon()), Claim::Granted(2));
    }

    #[test]
    fn claim_when_closed_then_closed() {
        let credits = credits(2);
        credits.close();
        assert_eq!(credits.claim(1, soon()), Claim::Closed);
    }
}
