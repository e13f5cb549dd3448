//! The table of entries, their pins, and where their cold parts are: grows by segments without
//! moving, never shrinks. Must never take a lock to read, nor touch memory that nobody asked for.
//!
//! **Why nothing in use is closed.** A user pins, then looks at the entry's state, both
//! sequentially consistent; it uses the memory only if it saw LIVE. A closer marks the state first,
//! then reads the counts, also sequentially consistent. In the one order of all these, either the
//! mark comes before the user's look, and the user sees that the entry is not LIVE, takes its pin
//! back and goes away; or the look, and so the pin before it, comes before the mark and so before
//! the reading of the counts. A pin is taken back on the stripe where it was made, so no count is
//! ever below the pins live on it: a pin that the reading must see keeps its stripe's count, and so
//! the sum, above 0. Pins that come and go while the counts are read can only add.
//!
//! **Why nothing unused is forgotten.** A release takes its pin back, then looks at the state and
//! at the cache's flags; who marks the state DETACHED or sets a flag does it before the counts are
//! read. So either the closer sees the pin gone, or the releaser sees the mark. Of several
//! releasers the last, in that order, reads a sum of 0. An entry that its last release closes is
//! marked so before it is first pinned.
//!
//! Counts of a stripe that do not exist are 0. They are made under the cache's lock, which closers
//! hold as well: those made before a mark are seen, and a thread that pins in a column made after
//! it sees the mark.

use super::entry::{Entry, Zeroed};
use crate::limits::{CACHE_ENTRIES, CACHE_SEGMENT_SHIFT, MAX_PINS, PIN_STRIPES};
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Seats of threads: see [`my_seat`].
pub(super) const SEATS: usize = 2 * PIN_STRIPES;

const SEGMENT: usize = 1 << CACHE_SEGMENT_SHIFT;
const SEGMENTS: usize = CACHE_ENTRIES.div_ceil(1 << CACHE_SEGMENT_SHIFT) as usize;

/// One value per entry of a segment, on the heap. The allocator takes zeroed memory of this size
/// from the kernel, which gives it page by page, as it is touched.
type Column<T> = Box<[T; SEGMENT]>;

fn column<T: Zeroed>() -> Column<T> {
    // SAFETY: all-zero bytes are a value of T, so of an array of it.
    unsafe { Box::new_zeroed().assume_init() }
}

#[derive(Debug)]
pub(super) struct Segments(Box<[OnceLock<Segment>]>);

#[derive(Debug)]
pub(super) struct Segment {
    entries: Column<Entry>,
    /// How many use each: a column per stripe of threads, so that two threads on one entry write to
    /// different lines.
    pins: [OnceLock<Column<AtomicU32>>; PIN_STRIPES],
    /// Where the cold part is, + 1; 0 = nowhere. For the holder of the cache's lock.
    places: Column<AtomicU32>,
    /// By slot: the entry's number + 1 where it is not the slot's own; 0 = none.
    elsewhere: OnceLock<Column<AtomicU32>>,
}

/// Where an entry is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    segment: &'a Segment,
    at: usize,
}

/// Why there is no pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unpinnable {
    /// The stripe has no counts for this entry yet.
    NoCounts,
    /// The stripe has [`MAX_PINS`] for this entry.
    TooMany,
}

impl Segments {
    pub fn new() -> Self {
        Segments((0..SEGMENTS).map(|_| OnceLock::new()).collect())
    }

    /// An entry's row, if its segment has been made.
    #[inline]
    pub fn get(&self, number: u32) -> Option<Row<'_>> {
        let segment = self.0.get((number >> CACHE_SEGMENT_SHIFT) as usize)?.get()?;
        Some(Row { segment, at: number as usize % SEGMENT })
    }

    /// The row, its segment made if need be.
    ///
    /// # Panics
    /// When `number` is not below `CACHE_ENTRIES`.
    pub fn make(&self, number: u32) -> Row<'_> {
        let segment = self.0[(number >> CACHE_SEGMENT_SHIFT) as usize].get_or_init(|| Segment {
            entries: column(),
            pins: [const { OnceLock::new() }; PIN_STRIPES],
            places: column(),
            elsewhere: OnceLock::new(),
        });
        Row { segment, at: number as usize % SEGMENT }
    }
}

impl<'a> Row<'a> {
    #[inline]
    pub fn entry(self) -> &'a Entry {
        &self.segment.entries[self.at % SEGMENT]
    }

    #[inline]
    fn count(self, stripe: usize) -> Option<&'a AtomicU32> {
        let column = self.segment.pins.get(stripe)?.get()?;
        Some(&column[self.at % SEGMENT])
    }

    /// Adds a pin of the stripe.
    #[inline]
    pub fn pin(self, stripe: usize) -> Result<(), Unpinnable> {
        let count = self.count(stripe).ok_or(Unpinnable::NoCounts)?;
        if count.fetch_add(1, Ordering::SeqCst) >= MAX_PINS {
            count.fetch_sub(1, Ordering::SeqCst);
            return Err(Unpinnable::TooMany);
        }
        Ok(())
    }

    /// The stripe's count, made if need be. The caller holds the cache's lock.
    pub fn make_count(self, stripe: usize) -> &'a AtomicU32 {
        let column = self.segment.pins[stripe].get_or_init(column);
        &column[self.at % SEGMENT]
    }

    /// Takes back a pin that the caller has.
    #[inline]
    pub fn unpin(self, stripe: usize) {
        if let Some(count) = self.count(stripe) {
            let before = count.fetch_sub(1, Ordering::SeqCst);
            debug_assert!(before > 0, "a pin was taken back twice");
        }
    }

    /// Takes back a pin that the caller says to have; `false`: there is none. For a moment the
    /// count of none may then look like one of very many, by which nothing is closed: look at the
    /// entry again, as after a release.
    #[inline]
    pub fn try_unpin(self, stripe: usize) -> bool {
        let Some(count) = self.count(stripe) else { return false };
        let is_pinned = count.fetch_sub(1, Ordering::SeqCst) != 0;
        if !is_pinned {
            count.fetch_add(1, Ordering::SeqCst);
        }
        is_pinned
    }

    /// All pins. See the file's head for what it says.
    pub fn pins(self) -> u64 {
        let counts = (0..PIN_STRIPES).filter_map(|stripe| self.count(stripe));
        counts.map(|count| u64::from(count.load(Ordering::SeqCst))).sum()
    }

    /// Where the cold part is. The caller holds the cache's lock.
    pub fn place(self) -> Option<u32> {
        self.segment.places[self.at].load(Ordering::Relaxed).checked_sub(1)
    }

    /// Notes where the cold part is. The caller holds the cache's lock.
    pub fn set_place(self, place: Option<u32>) {
        let word = place.map_or(0, |place| place + 1);
        self.segment.places[self.at].store(word, Ordering::Relaxed);
    }

    /// The entry that stands for this slot, if it is not the slot's own.
    #[inline]
    pub fn elsewhere(self) -> Option<u32> {
        let column = self.segment.elsewhere.get()?;
        column[self.at % SEGMENT].load(Ordering::Acquire).checked_sub(1)
    }

    /// Says which entry stands for this slot. The caller holds the cache's lock.
    pub fn set_elsewhere(self, number: Option<u32>) {
        let word = number.map_or(0, |number| number + 1);
        if word == 0 && self.segment.elsewhere.get().is_none() {
            return;
        }
        let elsewhere = self.segment.elsewhere.get_or_init(column);
        elsewhere[self.at].store(word, Ordering::Release);
    }
}

/// The calling thread's stripe.
#[inline]
pub(super) fn my_stripe() -> usize {
    my_seat() % PIN_STRIPES
}

/// The calling thread's place among all: below `PIN_STRIPES` it is the thread's alone, for as long
/// as the process lives.
#[inline]
pub(super) fn my_seat() -> usize {
    // No destructor, so that it works while the thread ends, and in a library that is unloaded.
    thread_local!(static SEAT: Cell<u8> = const { Cell::new(u8::MAX) });
    let mine = usize::from(SEAT.get());
    if mine < SEATS {
        return mine;
    }
    let mine = next_seat();
    SEAT.set(mine);
    mine.into()
}

/// Round robin: the threads of a process fill the stripes evenly. The first of each stripe has a
/// seat of its own, all later ones share another.
#[cold]
fn next_seat() -> u8 {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let seat = if number < PIN_STRIPES { number } else { PIN_STRIPES + number % PIN_STRIPES };
    seat.try_into().expect("a few seats")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn try_unpin_when_nothing_is_pinned_then_refused_and_the_count_stays() {
        let segments = Segments::new();
        assert!(segments.get(7).is_none(), "nothing is made by looking");
        let row = segments.make(7);
        assert!(!row.try_unpin(3), "not even a count");
        row.make_count(3);
        assert!(!row.try_unpin(3));
        assert!(!row.try_unpin(PIN_STRIPES), "no such stripe");
        assert_eq!(row.pins(), 0);
        row.pin(3).unwrap();
        assert_eq!(row.pins(), 1);
        assert_eq!(segments.make(8).pins(), 0, "another entry");
        assert!(row.try_unpin(3) && !row.try_unpin(3));
    }

    #[test]
    fn pin_when_too_often_then_refused_and_the_count_stays() {
        let segments = Segments::new();
        let row = segments.make(CACHE_ENTRIES - 1);
        assert_eq!(row.pin(0), Err(Unpinnable::NoCounts));
        row.make_count(0).store(MAX_PINS, Ordering::SeqCst);
        assert_eq!(row.pin(0), Err(Unpinnable::TooMany));
        assert_eq!(row.pins(), MAX_PINS.into());
    }

    #[test]
    fn my_stripe_when_two_threads_then_two_stripes() {
        let mine = my_stripe();
        assert_eq!(mine, my_stripe());
        let others: Vec<_> = (1..PIN_STRIPES).map(|_| std::thread::spawn(my_stripe)).collect();
        assert!(others.into_iter().any(|other| other.join().unwrap() != mine));
    }

    #[test]
    fn my_seat_when_below_the_stripes_then_no_other_thread_has_it() {
        let seats: Vec<_> = (0..3 * PIN_STRIPES).map(|_| std::thread::spawn(my_seat)).collect();
        let mut seats: Vec<usize> = seats.into_iter().map(|one| one.join().unwrap()).collect();
        assert!(seats.iter().all(|seat| *seat < SEATS));
        seats.retain(|seat| *seat < PIN_STRIPES);
        seats.sort_unstable();
        assert!(seats.is_sorted_by(|one, two| one < two), "{seats:?}");
    }
}
