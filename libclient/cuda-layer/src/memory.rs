//! This process's records, and what follows from them at the driver and at the broker. Must never
//! hold their lock over a call of either, nor make a forked child wait for a lock of its parent's.

use crate::blocks::Blocks;
use crate::driver;
use crate::records::{Close, Done, Id, Records};
use crate::result::{
    CuMemHandle, CuResult, HANDLE_TYPE_POSIX_FD, INVALID_HANDLE, INVALID_VALUE, SUCCESS,
};
use fdbroker_client::{
    Client, Deadline, EarlyRegistration, ErrorCode, Recall, RecallAnswer, Registration,
};
use fdbroker_layer::{CLOSE_TIMEOUT, SharedLease, settle};
use fdbroker_virtual_fds::VirtualFd;
use std::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub type Memory = Records<Registration, EarlyRegistration, SharedLease>;
pub type Pieces = Blocks<SharedLease>;
pub type Follows = Done<Registration, EarlyRegistration, SharedLease>;

/// The records of one process. A child's parent's are never freed: a thread that the child does not
/// have may hold their lock.
struct OfProcess {
    process: u32,
    records: Mutex<Memory>,
    blocks: Mutex<Pieces>,
    /// The driver takes itself apart: no recall may call it.
    has_ended: AtomicBool,
}

static CURRENT: AtomicPtr<OfProcess> = AtomicPtr::new(null_mut());

/// This process's records. A parent's are left alone: what it has is not a child's to end.
pub fn records() -> MutexGuard<'static, Memory> {
    current().records.lock().unwrap_or_else(PoisonError::into_inner)
}

/// This process's blocks, as the records. Neither lock is taken while the other is held.
pub fn blocks() -> MutexGuard<'static, Pieces> {
    current().blocks.lock().unwrap_or_else(PoisonError::into_inner)
}

fn current() -> &'static OfProcess {
    let process = std::process::id();
    let before = CURRENT.load(Ordering::Acquire);
    // SAFETY: null, or a box that is never freed.
    let known = unsafe { before.as_ref() }.filter(|current| current.process == process);
    known.unwrap_or_else(|| install(process, before))
}

/// Makes this process's records, in the place of none or of a parent's, unless another thread was
/// faster.
fn install(process: u32, before: *mut OfProcess) -> &'static OfProcess {
    let made = Box::into_raw(Box::new(OfProcess {
        process,
        records: Mutex::default(),
        blocks: Mutex::default(),
        has_ended: AtomicBool::new(false),
    }));
    match CURRENT.compare_exchange(before, made, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: made above, never freed.
        Ok(_) => unsafe { &*made },
        Err(faster) => {
            // SAFETY: made above, and nobody has seen it.
            drop(unsafe { Box::from_raw(made) });
            // SAFETY: what is installed is never freed; only threads of this process install.
            unsafe { &*faster }
        }
    }
}

/// Refuses every recall from now on.
pub fn end() {
    current().has_ended.store(true, Ordering::Release);
}

/// Does what follows from a change. `client`: none has ever been, so there are no registrations; or
/// a callback, which must not wait.
pub fn follow(follows: Follows, client: Option<&Client>) {
    if let Some(client) = client {
        let take = |early| client.take_early(early, Deadline::after(CLOSE_TIMEOUT)).ok();
        let made = follows.early.into_iter().filter_map(take);
        client.unregister_soon(follows.registrations.into_iter().chain(made));
    }
    follows.handles.into_iter().for_each(driver::release);
    if let Some(client) = client.filter(|_| follows.is_closing) {
        // One wait is for all that has ended before. Whether the memory is the device's again after
        // it or not: the call has ended it.
        let ends = records().ends();
        if settle(client).is_ok() {
            records().note_settled(ends);
        }
    }
    drop(follows.leases);
}

/// Closes a number once. `false`: this process has none of it.
pub fn close(client: &Client, number: VirtualFd) -> bool {
    // The lock is let go before the broker is told.
    let begun = records().begin_close(number);
    match begun {
        Close::Unknown => return false,
        Close::Counted => {}
        Close::Last(id, registration) => {
            client.unregister_soon([registration]);
            let follows = records().end_close(id);
            follow(follows, Some(client));
        }
    }
    true
}

/// Ends the registration of memory that was shared by a handle, if it was.
pub fn unshare(client: Option<&Client>, handle: CuMemHandle) {
    let begun = records().begin_unshare(handle);
    let Some((id, registration)) = begun else { return };
    if let Some(client) = client {
        client.unregister_soon([registration]);
    }
    let follows = records().end_close(id);
    follow(follows, client);
}

/// Exports an allocation again, on the library's thread.
pub fn recall(recall: &Recall) -> Result<RecallAnswer, ErrorCode> {
    let current = current();
    if current.has_ended.load(Ordering::Acquire) {
        return Err(ErrorCode::ShuttingDown);
    }
    let id: Id = recall.facts.owner_allocation_id;
    let handle = records().begin_recall(id).ok_or(ErrorCode::Stale)?;
    let exported = export(handle);
    let follows = records().unpin(id);
    // What was held back for this recall alone. It has no registration any more.
    follow(follows, None);
    match exported {
        Ok(fd) => Ok(RecallAnswer::unchanged(recall, fd)),
        Err(INVALID_VALUE | INVALID_HANDLE) => Err(ErrorCode::Stale),
        // The driver lacks an fd, or other things that come back.
        Err(_) => Err(ErrorCode::Again),
    }
}

/// Has the driver export memory as an fd.
pub fn export(handle: u64) -> Result<OwnedFd, CuResult> {
    let below = driver::EXPORT.get().ok_or(driver::MISSING)?;
    let mut fd: c_int = -1;
    // SAFETY: the driver writes one int there, by the type of handle asked for.
    match unsafe { below((&raw mut fd).cast(), handle, HANDLE_TYPE_POSIX_FD, 0) } {
        // SAFETY: the driver has just made this fd for us, and nobody else knows it.
        SUCCESS => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        code => Err(code),
    }
}
