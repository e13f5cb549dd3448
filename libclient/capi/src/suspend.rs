//! A checkpoint of the process: the import cache closes what is not in use, and opens it again
//! afterwards. Must never say that nothing is in use while a lease is held.

use crate::context::{context, fdbroker_t};
use crate::errors::fdbroker_code_t;
use crate::failure::Failure;
use crate::guard::guard;
use crate::handle::fdbroker_handle_t;
use crate::sized::{place, slice_mut};
use fdbroker_client::{Deadline, ErrorCode, Handle};

/// The caller's array and counter.
struct Names<'a> {
    array: &'a mut [fdbroker_handle_t],
    count: &'a mut usize,
}

impl Names<'_> {
    /// Empty: all zero.
    ///
    /// # Safety
    /// `array` is NULL or points to `room` handles, `count` is NULL or to be written; nobody else
    /// uses them meanwhile.
    unsafe fn new(
        room: usize,
        array: *mut fdbroker_handle_t,
        count: *mut usize,
    ) -> Result<Self, Failure> {
        // SAFETY: the caller's promise.
        let count = unsafe { place(count, "count", 0) }?;
        // SAFETY: as above.
        let array = match unsafe { slice_mut(array, room) }? {
            None if room > 0 => return Err(Failure::argument("handles is NULL")),
            array => array.unwrap_or_default(),
        };
        array.fill(fdbroker_handle_t::NONE);
        Ok(Names { array, count })
    }

    fn write(&mut self, handles: impl ExactSizeIterator<Item = Handle>) {
        *self.count = handles.len();
        self.array.iter_mut().zip(handles).for_each(|(to, handle)| *to = handle.into());
    }
}

/// Before a checkpoint of this process (CRIU, cuda-checkpoint): closes all memory in the import
/// cache that no import uses, and gives its leases back. Until fdbroker_resume(), what its last
/// import releases is closed at once, and nothing is opened: an import of memory that is not open
/// answers FDBROKER_AGAIN. The connection, the event fd and the library thread stay, and recalls
/// are answered. Waits until the deadline for imports of other threads that are under way.
///
/// FDBROKER_OK: nothing is in use. FDBROKER_AGAIN: *count is the number of allocations that are,
/// and the first room of them are in handles (NULL: room is 0), without their hints: imports not
/// released, and leases not given back, whose fds are the program's to close. Release them, and
/// call again to see what is left. End requests (fdbroker_request_t) before: the fds that one has
/// got, and that no test has handed out yet, are not named.
///
/// Errors: FDBROKER_TIMED_OUT (another thread's import has not ended; it is suspended all the
/// same), FDBROKER_NOT_SUPPORTED (inside a callback), FDBROKER_NOT_CONNECTED (in a forked child),
/// FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_suspend(
    broker: *mut fdbroker_t,
    deadline_ms: u32,
    room: usize,
    handles: *mut fdbroker_handle_t,
    count: *mut usize,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let (mut names, context) =
            unsafe { (Names::new(room, handles, count)?, context(broker, "suspend")?) };
        let in_use = context.cache.suspend(Deadline::from_ms(deadline_ms))?;
        names.write(in_use.iter().copied());
        match in_use.first() {
            None => Ok(()),
            Some(first) => {
                let (count, id) = (in_use.len(), first.id());
                let text = format!("suspend: {count} allocations are in use, {id} is the first");
                Err(Failure::new(ErrorCode::Again, text))
            }
        }
    })
}

/// After the checkpoint: ends the suspend, and imports anew what it has closed, so that the import
/// cache is as it was. *count is the number of handles that it could not import. The first room of
/// them are in handles (NULL: room is 0), without their hints, and the reasons in codes (may be
/// NULL): FDBROKER_STALE or FDBROKER_OWNER_GONE when the allocation has ended meanwhile;
/// FDBROKER_NOT_CONNECTED and others when a later import may get it. Nothing is suspended:
/// FDBROKER_OK, and *count is 0.
///
/// Errors: the first of those in codes; FDBROKER_NOT_CONNECTED (there is no broker now, and *count
/// is 0: it is still suspended, try again), FDBROKER_NOT_SUPPORTED (inside a callback),
/// FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_resume(
    broker: *mut fdbroker_t,
    deadline_ms: u32,
    room: usize,
    handles: *mut fdbroker_handle_t,
    codes: *mut fdbroker_code_t,
    count: *mut usize,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let (mut names, codes, context) = unsafe {
            (Names::new(room, handles, count)?, slice_mut(codes, room)?, context(broker, "resume")?)
        };
        let failed = context.cache.resume(Deadline::from_ms(deadline_ms))?;
        names.write(failed.iter().map(|(handle, _)| *handle));
        let failures = failed.into_iter().map(|(_, error)| Failure::from(error));
        let mut first = Ok(());
        let mut codes = codes.unwrap_or_default().iter_mut();
        for failure in failures {
            if let Some(code) = codes.next() {
                *code = failure.code();
            }
            first = first.and(Err(failure));
        }
        first
    })
}
