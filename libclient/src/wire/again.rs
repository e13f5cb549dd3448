//! Asking again for what the broker was not ready for. Must never tell a caller to do that: until
//! the deadline the library asks.

use crate::deadline::Deadline;
use crate::error::Error;
use crate::limits::{AGAIN_FIRST, AGAIN_LAST};
use crate::wire::connection::Connection;
use std::time::Duration;

/// How often one thing was asked for.
#[derive(Debug)]
pub(crate) struct Again {
    is_last: bool,
}

impl Again {
    pub fn new() -> Self {
        Again { is_last: false }
    }

    /// Whether there is time to ask again. Once more when there is not: the broker then says at
    /// once what is in the way.
    pub fn has_time(&mut self, deadline: Deadline) -> bool {
        !std::mem::replace(&mut self.is_last, deadline.is_answered())
    }

    /// Whether to ask again after this error; otherwise what to tell the caller.
    pub fn is_due(&mut self, error: Error, deadline: Deadline) -> Result<(), Error> {
        if error.asks_again() && self.has_time(deadline) { Ok(()) } else { Err(error.not_again()) }
    }

    /// For how long to pause before the next message: after an answer not at all. What is final is
    /// told to `fail`.
    pub fn settle(
        &mut self,
        answered: Result<(), Error>,
        deadline: Deadline,
        fail: impl FnOnce(Error),
    ) -> Duration {
        let Err(error) = answered else { return Duration::ZERO };
        match self.is_due(error, deadline) {
            Ok(()) => AGAIN_FIRST,
            Err(error) => {
                fail(error);
                Duration::ZERO
            }
        }
    }
}

impl Connection {
    /// Asks until the broker is ready, with pauses that grow; at the latest when the deadline has
    /// come, once more.
    pub fn until_ready<T>(
        &self,
        deadline: Deadline,
        mut ask: impl FnMut() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (mut again, mut pause) = (Again::new(), AGAIN_FIRST);
        loop {
            match ask() {
                Err(error) => again.is_due(error, deadline)?,
                done => return done,
            }
            self.pause(pause.min(deadline.remaining()));
            pause = (pause * 2).min(AGAIN_LAST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fdbroker_protocol::ErrorCode;

    #[test]
    fn is_due_when_time_is_over_then_once_more_and_then_it_has_timed_out() {
        let again = || Error::new(ErrorCode::Again, "register");
        let mut asked = Again::new();
        for _ in 0..3 {
            asked.is_due(again(), Deadline::from_ms(60_000)).unwrap();
        }
        let over = Deadline::from_ms(0);
        asked.is_due(again(), over).unwrap();
        assert_eq!(asked.is_due(again(), over).unwrap_err().code, ErrorCode::TimedOut);
    }

    #[test]
    fn is_due_when_the_cause_of_an_again_is_said_then_the_program_is_told() {
        let error = Error::new(ErrorCode::Again, "get").because("in too many groups");
        let told = Again::new().is_due(error.clone(), Deadline::from_ms(60_000));
        assert_eq!(told, Err(error));
    }
}
