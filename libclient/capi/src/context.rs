//! The context: what one `fdbroker_open` has made, how a caller's pointer becomes one, and the
//! copies in a forked child, which are kept and left alone. Must never take a lock before it knows
//! that this process is the one that opened it, nor free a copy.

use crate::arenas::Arenas;
use crate::callbacks::Callbacks;
use crate::failure::Failure;
use crate::gpus::Gpus;
use crate::leases::Leases;
use crate::notices::Notices;
use crate::object_table::ObjectTable;
use fdbroker_client::{Client, Exports, ImportCache, Objects};
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A context: a connection to the node's broker, with its leases, host memory and import cache. One
/// per process is enough: all threads can share it.
pub struct fdbroker_t {
    pub(crate) arenas: Arenas,
    pub(crate) gpus: Arc<Gpus>,
    pub(crate) exports: Exports,
    pub(crate) cache: ImportCache,
    pub(crate) leases: Arc<Leases>,
    pub(crate) object_table: Arc<ObjectTable>,
    pub(crate) objects: Objects,
    pub(crate) job_objects: Objects,
    pub(crate) callbacks: Arc<Callbacks>,
    /// Where the library thread serves recalls alone.
    pub(crate) notices: Option<Arc<Notices>>,
    pub(crate) socket: CString,
    pub(crate) client: Client,
    pub(crate) print_stats: bool,
    /// The next of the contexts that are kept.
    pub(crate) next_kept: AtomicPtr<fdbroker_t>,
}

const fn is_shared<T: Send + Sync>() {}
const _: () = is_shared::<fdbroker_t>();

/// The context behind the caller's pointer; an error in a forked child. Takes no lock.
///
/// # Safety
/// `broker` is NULL, or a context that nobody closes while the result is used.
#[inline]
pub(crate) unsafe fn context<'a>(
    broker: *const fdbroker_t,
    what: &str,
) -> Result<&'a fdbroker_t, Failure> {
    // SAFETY: the caller's promise.
    match unsafe { broker.as_ref() } {
        Some(context) if !context.client.is_forked_copy() => Ok(context),
        found => Err(no_context(found.is_none(), what)),
    }
}

#[cold]
fn no_context(is_null: bool, what: &str) -> Failure {
    if is_null {
        Failure::argument("broker is NULL")
    } else {
        fdbroker_client::layer::forked(what).into()
    }
}

/// The contexts closed in a child, as a linked list: a leak checker then sees that they are kept on
/// purpose.
static KEPT: AtomicPtr<fdbroker_t> = AtomicPtr::new(std::ptr::null_mut());

/// Puts the copy aside. Its tables may have been copied in the middle of a change, so even freeing
/// them is unsafe. exec(2) closes its sockets, and the broker watches the parent's process, not the
/// sockets.
pub(crate) fn keep_copy(context: Box<fdbroker_t>) {
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
