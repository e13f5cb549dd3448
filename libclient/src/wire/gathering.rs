//! When a one-way message goes that may wait for others: with the next message, when enough of them
//! are queued, when a grant message has been handed over and none was just before, or when the
//! library thread sends it. Must never let one wait that nobody would send.
//!
//! All of this is under the outbox's lock. So a message that is to wait for the library thread is
//! queued before that thread looks, and one that comes after the thread has left its place
//! (`look_away`) goes at once.

use crate::limits::{GATHER_MOST, GATHER_TIME, PRESSED_TIME};
use std::time::{Duration, Instant};

/// See the file's head.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    /// Grant messages that are being handed over; the end of the last judges what is queued.
    handed_over: u32,
    /// The library thread is there to send what is due: it sleeps, or does what cannot hang.
    is_attended: bool,
    /// When it looks; `None`: it has to be called.
    due: Option<Instant>,
    /// Of the last message that could have waited.
    last: Option<Instant>,
    /// When the broker was last short of what this client gives back.
    pressed: Option<Instant>,
}

/// What becomes of a message that was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fate {
    Waits,
    Goes,
    /// Too many are queued.
    Overflows,
}

impl Gathering {
    /// Judges a lease just reported as mapped, with `count` messages in the queue.
    pub fn mapped(&mut self, count: usize, now: Instant) -> Fate {
        match self.handed_over {
            0 => self.given_back(count, now),
            _ => Fate::Waits,
        }
    }

    /// Judges a lease just given back. One after a while without any goes at once: most often it is
    /// alone.
    pub fn given_back(&mut self, count: usize, now: Instant) -> Fate {
        let is_alone = !is_recent(self.last.replace(now), GATHER_TIME, now);
        let is_pressed = is_recent(self.pressed, PRESSED_TIME, now);
        if is_alone || is_pressed || count >= GATHER_MOST || !self.is_attended {
            Fate::Goes
        } else {
            Fate::Waits
        }
    }

    /// Something waits. Whether the library thread has to be called for it.
    pub fn calls(&mut self, now: Instant) -> bool {
        let calls = self.is_attended && self.due.is_none();
        if calls {
            self.due = Some(now + GATHER_TIME);
        }
        calls
    }

    pub fn begin_handing_over(&mut self) {
        self.handed_over += 1;
    }

    /// Judges what waited for it, if it was the last one: `count` messages.
    pub fn end_handing_over(&mut self, count: usize, now: Instant) -> Fate {
        self.handed_over -= 1;
        match (self.handed_over, count) {
            (0, 1..) => self.given_back(count, now),
            _ => Fate::Waits,
        }
    }

    /// The broker is short of what this client gives back.
    pub fn press(&mut self, now: Instant) {
        self.pressed = Some(now);
    }

    /// The library thread is there from now on; when it is to look.
    pub fn attend(&mut self) -> Option<Instant> {
        self.is_attended = true;
        self.due
    }

    /// The library thread is not there for a while.
    pub fn look_away(&mut self) {
        (self.is_attended, self.due) = (false, None);
    }

    /// Whether what is queued may wait longer. The library thread asks when it looks.
    pub fn is_early(&mut self, now: Instant) -> bool {
        self.due = self.due.filter(|due| now < *due);
        self.due.is_some()
    }
}

fn is_recent(time: Option<Instant>, span: Duration, now: Instant) -> bool {
    time.is_some_and(|time| now.saturating_duration_since(time) < span)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: usize = 3;

    /// One whose library thread sleeps, and the time of a release that went alone.
    fn attended() -> (Gathering, Instant) {
        let (mut gathering, now) = (Gathering::default(), Instant::now());
        assert_eq!(gathering.attend(), None);
        assert_eq!(gathering.given_back(COUNT, now), Fate::Goes, "alone");
        (gathering, now)
    }

    #[test]
    fn given_back_when_others_were_a_moment_ago_then_waits_for_the_library_thread() {
        let (mut gathering, now) = attended();
        let later = now + GATHER_TIME / 2;
        assert_eq!(gathering.given_back(COUNT, later), Fate::Waits);
        assert!(gathering.calls(later));
        assert_eq!(gathering.mapped(COUNT, later), Fate::Waits);
        assert!(!gathering.calls(now + GATHER_TIME), "it knows");
        assert_eq!(gathering.attend(), Some(later + GATHER_TIME));
        assert!(gathering.is_early(later) && !gathering.is_early(later + GATHER_TIME));
        assert!(gathering.calls(later + GATHER_TIME), "it has looked");
        assert_eq!(gathering.given_back(COUNT, later + GATHER_TIME), Fate::Goes, "alone");
    }

    #[test]
    fn given_back_when_enough_wait_then_goes() {
        let (mut gathering, now) = attended();
        assert_eq!(gathering.given_back(GATHER_MOST - 1, now), Fate::Waits);
        assert_eq!(gathering.given_back(GATHER_MOST, now), Fate::Goes);
    }

    #[test]
    fn given_back_when_no_library_thread_is_there_then_goes() {
        let (mut gathering, now) = (Gathering::default(), Instant::now());
        assert_eq!([0; 3].map(|_| gathering.given_back(COUNT, now)), [Fate::Goes; 3]);
        gathering.attend();
        assert_eq!(gathering.given_back(COUNT, now), Fate::Waits);
        gathering.look_away();
        assert_eq!(gathering.given_back(COUNT, now), Fate::Goes);
    }

    #[test]
    fn given_back_when_the_broker_was_short_within_a_second_then_goes() {
        let (mut gathering, now) = attended();
        gathering.press(now);
        let last = now + PRESSED_TIME - GATHER_TIME / 2;
        assert_eq!([now, last].map(|time| gathering.given_back(COUNT, time)), [Fate::Goes; 2]);
        assert_eq!(gathering.given_back(COUNT, now + PRESSED_TIME), Fate::Waits);
    }

    #[test]
    fn mapped_when_a_grant_message_is_handed_over_then_waits_for_its_end() {
        let (mut gathering, now) = (Gathering::default(), Instant::now());
        gathering.press(now);
        gathering.begin_handing_over();
        gathering.begin_handing_over();
        assert_eq!(gathering.mapped(2 * GATHER_MOST, now), Fate::Waits);
        assert!(!gathering.calls(now), "nobody is there");
        assert_eq!(gathering.given_back(COUNT, now), Fate::Goes);
        gathering.attend();
        assert!(gathering.calls(now), "lest the end does not come");
        assert_eq!(gathering.end_handing_over(COUNT, now), Fate::Waits, "another one goes on");
        assert_eq!(gathering.end_handing_over(COUNT, now), Fate::Goes);
        assert_eq!(gathering.mapped(COUNT, now), Fate::Goes);
    }

    #[test]
    fn end_handing_over_when_others_were_a_moment_ago_then_waits_for_them() {
        let (mut gathering, now) = attended();
        let mut hand_over = |count| {
            gathering.begin_handing_over();
            gathering.mapped(count, now);
            gathering.end_handing_over(count, now)
        };
        assert_eq!([0, 1, GATHER_MOST].map(&mut hand_over), [Fate::Waits, Fate::Waits, Fate::Goes]);
        gathering.look_away();
        gathering.begin_handing_over();
        assert_eq!(gathering.end_handing_over(1, now), Fate::Goes, "nobody would send it");
    }
}
