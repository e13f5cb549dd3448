//! What a forked child does with its copy of the parent's context: keeps it, and leaves it alone.
//! Must never take a lock or free what another thread of the parent may have been changing at the fork.

use crate::context::fdbroker_t;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Contexts closed in a child, one linked to the next, so that a leak checker sees that they are meant to stay.
static KEPT: AtomicPtr<fdbroker_t> = AtomicPtr::new(std::ptr::null_mut());

/// Puts the copy aside. Its tables may have been copied in the middle of a change, so that even freeing them is
/// unsafe; its sockets are closed by exec(2), and the broker watches the parent's process, not its sockets.
pub(crate) fn keep(context: Box<fdbroker_t>) {
    let context = Box::into_raw(context);
    let mut before = KEPT.load(Ordering::Relaxed);
    loop {
        // SAFETY: ours alone until it is in the list.
        unsafe { (*context).next_kept.store(before, Ordering::Relaxed) };
        match KEPT.compare_exchange_weak(before, context, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => before = now,
        }
    }
}
