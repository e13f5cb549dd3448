//! Watches: what happens to the names of objects. Must never answer an event twice.

use crate::context::{context, fdbroker_t};
use crate::due::{due_of, fdbroker_due_t};
use crate::errors::fdbroker_code_t;
use crate::failure::Failure;
use crate::guard::guard;
use crate::objects::{FDBROKER_OBJECT_JOB, c_name, check_flags, name_of, objects_of};
use crate::sized::{Growable, place, take_back, write};
use fdbroker_client::{Deadline, Watch};
use std::ffi::c_char;

/// The object can be had.
pub const FDBROKER_WATCH_SEALED: u32 = 1;
/// Another object has the name now.
pub const FDBROKER_WATCH_REPLACED: u32 = 2;
/// It is gone: deleted, its time is over, its creator is gone without KEEP, or an administrator has
/// ended it.
pub const FDBROKER_WATCH_DELETED: u32 = 3;
/// It is gone, to make room.
pub const FDBROKER_WATCH_EVICTED: u32 = 4;
/// It was being made, and is not any more.
pub const FDBROKER_WATCH_ABORTED: u32 = 5;
/// Events were lost: version says how many, 0 = nobody knows (the broker was lost). A list tells
/// how it stands.
pub const FDBROKER_WATCH_LOST: u32 = 6;

/// What has happened to a name.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fdbroker_object_event_t {
    /// sizeof(fdbroker_object_event_t), set by the caller.
    pub struct_size: u64,
    /// The name, NUL-terminated; "" for FDBROKER_WATCH_LOST.
    pub name: [c_char; 256],
    /// The version that was sealed, or is gone; 0 of one that was being made.
    pub version: u64,
    /// FDBROKER_WATCH_*; 0: none.
    pub event: u32,
    pub reserved: u32,
}

// SAFETY: repr(C), struct_size first, no padding (8, 256, 8, 4 + 4 bytes), integers only.
unsafe impl Growable for fdbroker_object_event_t {
    const NAME: &'static str = "fdbroker_object_event_t";
    const LEAST_BYTES: u64 = 280;
}

/// A watch. Any thread may use it, several at once.
pub struct fdbroker_object_watch_t {
    watch: Watch,
}

/// From now on tells what happens to names that begin with prefix ("": all), in its order:
/// fdbroker_object_watch_next(). What nobody reads in time is lost, and so is what happens while
/// there is no broker: FDBROKER_WATCH_LOST says so. To be given back by
/// fdbroker_object_watch_close(). flags: FDBROKER_OBJECT_JOB or 0. On failure *watch is NULL.
///
/// Errors: FDBROKER_NO_QUOTA (too many), FDBROKER_TOO_LONG, FDBROKER_BAD_HANDLE (the prefix is not
/// UTF-8), FDBROKER_TIMED_OUT, FDBROKER_NOT_CONNECTED, FDBROKER_NOT_SUPPORTED (inside a callback),
/// FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_watch(
    broker: *mut fdbroker_t,
    prefix: *const c_char,
    flags: u32,
    deadline_ms: u32,
    watch: *mut *mut fdbroker_object_watch_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let out = unsafe { place(watch, "watch", std::ptr::null_mut()) }?;
        check_flags(flags, FDBROKER_OBJECT_JOB)?;
        // SAFETY: as above.
        let (context, prefix) = unsafe { (context(broker, "watch objects")?, name_of(prefix)?) };
        let watch = objects_of(context, flags).watch(prefix, Deadline::from_ms(deadline_ms))?;
        *out = Box::into_raw(Box::new(fdbroker_object_watch_t { watch }));
        Ok(())
    })
}

/// The next event, waiting for it until the deadline. FDBROKER_AGAIN: none has come; event->event
/// is 0 and fdbroker_last_error() stays as it was.
///
/// Errors: FDBROKER_NOT_CONNECTED (no broker: later calls go on when it is back, with
/// FDBROKER_WATCH_LOST first), FDBROKER_NOT_SUPPORTED (inside a callback),
/// FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_watch_next(
    watch: *mut fdbroker_object_watch_t,
    deadline_ms: u32,
    event: *mut fdbroker_object_event_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        unsafe { write(event, &fdbroker_object_event_t::absent()) }?;
        // SAFETY: as above.
        let watch = unsafe { watch.as_ref() }.ok_or_else(|| Failure::argument("watch is NULL"))?;
        let told = watch.watch.next(Deadline::from_ms(deadline_ms))?.ok_or(Failure::NotReady)?;
        let told = fdbroker_object_event_t {
            name: c_name(&told.name),
            version: told.version,
            event: told.event as u32,
            ..fdbroker_object_event_t::absent()
        };
        // SAFETY: as above.
        unsafe { write(event, &told) }
    })
}

/// From now on the watch tells due this token when there is a new event, after
/// fdbroker_object_watch_next() has found none, and once now: read it then, with a deadline of 0,
/// until it answers FDBROKER_AGAIN. It tells the loss of the broker, too; ask now and then whether
/// there is one again.
///
/// Errors: FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_watch_tell(
    watch: *mut fdbroker_object_watch_t,
    due: *mut fdbroker_due_t,
    token: u64,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let (watch, due) = unsafe { (watch.as_ref(), due_of(due)?) };
        watch.ok_or_else(|| Failure::argument("watch is NULL"))?.watch.tell(due, token);
        Ok(())
    })
}

/// Ends a watch. Never waits. NULL: does nothing. Must come before fdbroker_close().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_watch_close(
    watch: *mut fdbroker_object_watch_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: made by fdbroker_object_watch, and this is its last use.
        unsafe { take_back(watch) }
    })
}
