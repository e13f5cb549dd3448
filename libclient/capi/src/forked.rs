//! The copies of contexts in a forked child: kept and left alone. Must never take a lock, nor free
//! memory that another thread of the parent may have been changing at the fork.

use crate::context::fdbroker_t;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The contexts closed in a child, as a linked list: a leak checker then sees that they are kept on
/// purpose.
static KEPT: AtomicPtr<fdbroker_t> = AtomicPtr::new(std::ptr::null_mut());

/// Puts the copy aside. Its tables may have been copied in the middle of a change, so even freeing
/// them is unsafe. exec(2) closes its sockets, and the broker watches the parent's process, not the
/// sockets.
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
