//! Whether a thread is inside a layer already: a signal's handler may interrupt it there and close
//! or duplicate a number. Must never let such a call wait for a lock that its own thread has.

use crate::limits::DEFERRED_CLOSES;
use fdbroker_protocol::VirtualFd;
use std::cell::Cell;
use std::sync::atomic::{AtomicI32, Ordering};

thread_local! {
    /// How deep this thread is in calls of a layer.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Numbers that handlers have closed meanwhile; 0: none.
static DEFERRED: [AtomicI32; DEFERRED_CLOSES] = [const { AtomicI32::new(0) }; DEFERRED_CLOSES];

/// One call of a layer on this thread.
pub struct Inside(());

impl Inside {
    pub fn enter() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        Inside(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// Whether this thread is in a call of a layer.
pub fn is_inside() -> bool {
    DEPTH.get() > 0
}

/// Leaves a close for the end of the call that was interrupted. `false`: there is no room.
pub fn defer(number: VirtualFd) -> bool {
    let put = |place: &AtomicI32| {
        place.compare_exchange(0, number.number(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    DEFERRED.iter().any(put)
}

/// A close that was left, once no call of a layer is under way on this thread.
pub fn take_deferred() -> Option<VirtualFd> {
    if is_inside() {
        return None;
    }
    let mut taken = DEFERRED.iter().filter(|place| place.load(Ordering::Relaxed) != 0);
    taken.find_map(|place| VirtualFd::new(place.swap(0, Ordering::AcqRel)))
}
