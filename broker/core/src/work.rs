//! Counts the records that a step visits: invariant 9 says that they are few, however much there
//! is. The containers count, not their callers. Must never count in a build without debug
//! assertions: there a grant pays nothing.

use std::cell::Cell;

use crate::limits::{VISITS_PER_ITEM, VISITS_PER_STEP};

thread_local! {
    /// Records visited since the step began.
    static NOW: Cell<u64> = const { Cell::new(0) };
    /// Records that the last step visited, and its bound.
    static LAST: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    /// The most that any step visited, with the bound of that step.
    static MOST: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// So many records were visited.
#[inline]
pub(crate) fn visit(records: u64) {
    if cfg!(debug_assertions) {
        NOW.set(NOW.get() + records);
    }
}

/// A step begins.
pub(crate) fn begin() {
    if cfg!(debug_assertions) {
        NOW.set(0);
    }
}

/// A step has ended whose message had so many items.
///
/// # Panics
/// When it has visited more records than it may.
pub(crate) fn end(items: usize) {
    if cfg!(debug_assertions) {
        let (visited, most) = (NOW.get(), VISITS_PER_STEP + VISITS_PER_ITEM * items as u64);
        LAST.set((visited, most));
        MOST.set(MOST.get().max((visited, most)));
        assert!(
            visited <= most,
            "invariant 9: a step of {items} items visited {visited} records, bound {most}"
        );
    }
}

/// Records that the last step or poll on this thread visited, and the most that it might have;
/// zeros in a build without debug assertions.
pub fn last() -> (u64, u64) {
    LAST.get()
}

/// The most records that a step or poll on this thread has visited, and the bound of that step;
/// zeros as above.
pub fn most() -> (u64, u64) {
    MOST.get()
}
