//! How many use an entry: a count per stripe of threads, so that two threads on one entry write to different cache lines.
//! Must never sum to 0 while someone uses the entry.
//!
//! **Why nothing in use is closed.** A user pins, then looks at the entry's state, both sequentially consistent; it uses
//! the memory only if it saw LIVE. Who closes marks the state first, then reads the counts, also sequentially
//! consistent. In the one order of all these, either the mark comes before the user's look, and the user sees that
//! the entry is not LIVE, takes its pin back and goes away; or the look, and so the pin before it, comes before
//! the mark and so before the reading of the counts. A pin is taken back on the stripe where it was made, so
//! no count is ever below the pins live on it: a pin that the reading must see keeps its stripe's count, and so
//! the sum, above 0. Pins that come and go while the counts are read can only add.
//!
//! **Why nothing unused is forgotten.** A release takes its pin back, then looks at the state and at the cache's flags; who
//! marks the state or sets a flag does it before the counts are read. So either the closer sees the pin gone, or the
//! releaser sees the mark. Of several releasers the last, in that order, reads a sum of 0.
//!
//! A stripe's segment that does not exist counts 0. It is made under the cache's lock, which closers hold as well: one
//! that was made before a mark is seen, and who pins in one made after it sees the mark.

use crate::cache::segments::{Segments, Zeroed};
use crate::limits::{MAX_PINS, PIN_STRIPES};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

// SAFETY: an atomic integer.
unsafe impl Zeroed for AtomicU32 {}

/// The counts of all entries.
#[derive(Debug)]
pub(super) struct Pins([Segments<AtomicU32>; PIN_STRIPES]);

/// Why there is no pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unpinnable {
    /// The stripe has no counts for this entry yet.
    NoSegment,
    /// Pinned too often.
    TooMany,
}

impl Pins {
    pub fn new() -> Self {
        Pins(std::array::from_fn(|_| Segments::new()))
    }

    /// Adds a pin of the stripe.
    #[inline]
    pub fn pin(&self, stripe: usize, entry: u32) -> Result<(), Unpinnable> {
        let count = self.0[stripe].get(entry).ok_or(Unpinnable::NoSegment)?;
        if count.fetch_add(1, Ordering::SeqCst) >= MAX_PINS {
            count.fetch_sub(1, Ordering::SeqCst);
            return Err(Unpinnable::TooMany);
        }
        Ok(())
    }

    /// Makes the counts of the stripe that `pin` lacks. The caller holds the cache's lock.
    pub fn make(&self, stripe: usize, entry: u32) -> &AtomicU32 {
        self.0[stripe].make(entry)
    }

    /// Takes back a pin that the caller has.
    #[inline]
    pub fn unpin(&self, stripe: usize, entry: u32) {
        if let Some(count) = self.0[stripe].get(entry) {
            let before = count.fetch_sub(1, Ordering::SeqCst);
            debug_assert!(before > 0, "a pin was taken back twice");
        }
    }

    /// Takes back a pin that the caller says to have; `false`: there is none.
    #[inline]
    pub fn try_unpin(&self, stripe: usize, entry: u32) -> bool {
        let Some(count) = self.0.get(stripe).and_then(|stripe| stripe.get(entry)) else {
            return false;
        };
        let less = |before: u32| before.checked_sub(1);
        count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
    }

    /// All pins of an entry. See above for what it says.
    pub fn sum(&self, entry: u32) -> u64 {
        let counts = self.0.iter().filter_map(|stripe| stripe.get(entry));
        counts.map(|count| u64::from(count.load(Ordering::SeqCst))).sum()
    }
}

/// The calling thread's stripe.
#[inline]
pub(super) fn my_stripe() -> usize {
    // No destructor, so that it works while the thread ends, and in a library that is unloaded.
    thread_local!(static STRIPE: Cell<u8> = const { Cell::new(u8::MAX) });
    let mine = usize::from(STRIPE.get());
    if mine < PIN_STRIPES {
        return mine;
    }
    let mine = next_stripe();
    STRIPE.set(mine);
    mine.into()
}

/// Round robin: the threads of a process fill the stripes evenly.
#[cold]
fn next_stripe() -> u8 {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    (NEXT.fetch_add(1, Ordering::Relaxed) % PIN_STRIPES).try_into().expect("a few stripes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn try_unpin_when_nothing_is_pinned_then_refused_and_the_count_stays() {
        let pins = Pins::new();
        assert!(!pins.try_unpin(3, 7), "not even a segment");
        pins.make(3, 7);
        assert!(!pins.try_unpin(3, 7));
        assert!(!pins.try_unpin(PIN_STRIPES, 7), "no such stripe");
        assert_eq!(pins.sum(7), 0);
        pins.pin(3, 7).unwrap();
        assert_eq!(pins.sum(7), 1);
        assert!(pins.try_unpin(3, 7) && !pins.try_unpin(3, 7));
    }

    #[test]
    fn pin_when_too_often_then_refused_and_the_count_stays() {
        let pins = Pins::new();
        assert_eq!(pins.pin(0, 1), Err(Unpinnable::NoSegment));
        pins.make(0, 1).store(MAX_PINS, Ordering::SeqCst);
        assert_eq!(pins.pin(0, 1), Err(Unpinnable::TooMany));
        assert_eq!(pins.sum(1), MAX_PINS.into());
    }

    #[test]
    fn my_stripe_when_two_threads_then_two_stripes() {
        let mine = my_stripe();
        assert_eq!(mine, my_stripe());
        let others: Vec<_> = (1..PIN_STRIPES).map(|_| std::thread::spawn(my_stripe)).collect();
        assert!(others.into_iter().any(|other| other.join().unwrap() != mine));
    }
}
