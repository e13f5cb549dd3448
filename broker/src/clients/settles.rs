//! Requests of a client that wait until fds of its own have been closed. Must never grow beyond
//! [`SETTLES_PER_CLIENT`].

use crate::limits::SETTLES_PER_CLIENT;
use fdbroker_core::RequestId;
use std::collections::VecDeque;

/// Those of one client, in their order.
#[derive(Debug, Default)]
pub struct Settles {
    /// How many fds of the client have been closed since it connected.
    closed: u64,
    /// How many there are to be, and who waits for it.
    waiting: VecDeque<(u64, RequestId)>,
}

impl Settles {
    /// The request waits until `closing` more fds have been closed. `false`: too many wait.
    pub fn wait(&mut self, request: RequestId, closing: u64) -> bool {
        let is_room = self.waiting.len() < SETTLES_PER_CLIENT;
        if is_room {
            self.waiting.push_back((self.closed + closing, request));
        }
        is_room
    }

    /// One fd more has been closed.
    pub fn note_closed(&mut self) {
        self.closed += 1;
    }

    /// A request that waits no longer.
    pub fn take_settled(&mut self) -> Option<RequestId> {
        let (target, request) = *self.waiting.front()?;
        if target > self.closed {
            return None;
        }
        self.waiting.pop_front();
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settles_when_fds_are_closed_then_each_is_answered_after_those_of_its_time() {
        let mut settles = Settles::default();
        assert!(settles.wait(RequestId(1), 0));
        assert_eq!(settles.take_settled(), Some(RequestId(1)));
        settles.note_closed();
        assert!(settles.wait(RequestId(2), 1) && settles.wait(RequestId(3), 2));
        assert_eq!(settles.take_settled(), None);
        settles.note_closed();
        assert_eq!((settles.take_settled(), settles.take_settled()), (Some(RequestId(2)), None));
        settles.note_closed();
        assert_eq!((settles.take_settled(), settles.take_settled()), (Some(RequestId(3)), None));
    }

    #[test]
    fn settles_when_too_many_wait_then_refused() {
        let mut settles = Settles::default();
        let waiting = (0..=SETTLES_PER_CLIENT as u64).filter(|id| settles.wait(RequestId(*id), 1));
        assert_eq!(waiting.count(), SETTLES_PER_CLIENT);
    }
}
