//! Getting objects: they go out as plain structs, and stay here by token until they are given back.
//! Must never lose an object that the caller does not get.

use crate::context::{context, fdbroker_t};
use crate::errors::fdbroker_code_t;
use crate::failure::Failure;
use crate::guard::{guard, guard_value};
use crate::object_table::ObjectTable;
use crate::objects::{
    FDBROKER_OBJECT_CACHED, FDBROKER_OBJECT_FINAL, FDBROKER_OBJECT_JOB, FDBROKER_PLACE_CUDA,
    FDBROKER_PLACE_HOST, FDBROKER_PLACE_LEVEL_ZERO, bytes_of, fdbroker_object_options_t,
    fdbroker_object_t, names_of, objects_of, options_of, room_of,
};
use crate::sized::{Growable, Output, read, write};
use fdbroker_client::{Deadline, Error, ErrorCode, Object, Objects};
use std::ffi::{c_char, c_void};

/// Gets count objects (1 to 253) of one moment, all or none: never two versions of a group mixed.
/// Waits until they are sealed, until the deadline at most. Each is filled in in the order of the
/// names and given back by fdbroker_object_release(). Objects of one group share one mapping, which
/// stays until the last is given back. options NULL: all defaults. On failure all elements of
/// objects are zero but struct_size.
///
/// options->flags may have FDBROKER_OBJECT_JOB, and FDBROKER_OBJECT_CACHED for one object that is
/// asked for again and again: it is had without a message while its name still leads to it, if it
/// is the only one of its group. options->place and device: where GPU memory is opened; without
/// them CUDA memory is opened for the device with the maker's ordinal, and Level Zero's is mapped
/// for the CPU.
///
/// Errors: FDBROKER_NOT_FOUND, FDBROKER_NOT_SEALED (deadline_ms is 0), FDBROKER_TIMED_OUT
/// (fdbroker_last_error() says whether the name is unknown, or which process makes it),
/// FDBROKER_TOO_LONG, FDBROKER_AGAIN (in more groups than one answer may have fds),
/// FDBROKER_NO_QUOTA, FDBROKER_LOCAL_FD_LIMIT (nothing lost: retry), FDBROKER_NOT_SUPPORTED (GPU
/// memory without a driver; inside a callback), FDBROKER_BAD_HANDLE (what cannot be a name),
/// FDBROKER_INTERNAL (no addresses), FDBROKER_NOT_CONNECTED, FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_get(
    broker: *mut fdbroker_t,
    count: usize,
    names: *const *const c_char,
    options: *const fdbroker_object_options_t,
    deadline_ms: u32,
    objects: *mut fdbroker_object_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let mut out = unsafe { Taken::new(objects, count) }?;
        // SAFETY: as above.
        let (context, names, options) = unsafe {
            let context = context(broker, "get objects")?;
            (context, names_of(names, count)?, options_of(options, OF_GET)?)
        };
        let from = opening(context, &options)?;
        let deadline = Deadline::from_ms(deadline_ms);
        let got = match (options.flags & FDBROKER_OBJECT_CACHED, names.as_slice()) {
            (0, names) => from.get_many(names, deadline)?,
            (_, [name]) => vec![from.get_cached(name, deadline)?],
            _ => return Err(Failure::argument("get: FDBROKER_OBJECT_CACHED is for one object")),
        };
        out.fill(&context.object_table, got);
        Ok(())
    })
}

const OF_GET: u32 = FDBROKER_OBJECT_JOB | FDBROKER_OBJECT_CACHED;

/// The objects that are meant, to be opened for the device that is meant.
pub(crate) fn opening(
    context: &fdbroker_t,
    options: &fdbroker_object_options_t,
) -> Result<Objects, Failure> {
    let objects = objects_of(context, options.flags);
    match options.place {
        FDBROKER_PLACE_HOST => Ok(objects.clone()),
        FDBROKER_PLACE_CUDA => Ok(objects.with_cuda(&options.cuda()?)),
        FDBROKER_PLACE_LEVEL_ZERO => Ok(objects.with_level_zero(&options.level_zero()?)),
        place => Err(Failure::argument(format!("get: place {place} is no device"))),
    }
}

/// The caller's array for objects, all of them nothing at first.
pub(crate) struct Taken<'a> {
    out: Output<'a, fdbroker_object_t>,
}

impl Taken<'_> {
    /// # Safety
    /// `objects` is NULL or points to `count` structs of its `struct_size` bytes that nobody else
    /// uses meanwhile.
    pub unsafe fn new(objects: *mut fdbroker_object_t, count: usize) -> Result<Self, Failure> {
        // SAFETY: the caller's promise.
        let mut out = unsafe { Output::new(objects, count) }?;
        let nothing = fdbroker_object_t::absent();
        (0..count).for_each(|index| out.set(index, &nothing));
        Ok(Taken { out })
    }

    /// Hands the objects over, as many as there is room for.
    pub fn fill(&mut self, table: &ObjectTable, objects: Vec<Object>) {
        for (index, object) in objects.into_iter().enumerate() {
            let mut described = describe(&object);
            described.object = table.insert(object);
            self.out.set(index, &described);
        }
    }
}

fn describe(object: &Object) -> fdbroker_object_t {
    fdbroker_object_t {
        ptr: object.as_ptr().unwrap_or(std::ptr::null()).cast(),
        size_bytes: object.len() as u64,
        version: object.version(),
        metadata: object.metadata().as_ptr().cast(),
        metadata_bytes: object.metadata().len() as u64,
        device_ptr: object.device_ptr().unwrap_or(0),
        device: object.device().unwrap_or(0),
        kind: object.kind() as u32,
        slot: object.id().slot,
        generation: object.id().generation,
        flags: if object.is_final() { FDBROKER_OBJECT_FINAL } else { 0 },
        ..fdbroker_object_t::absent()
    }
}

/// Copies out count bytes from offset of an object, of whatever memory: a device's, too.
///
/// Errors: FDBROKER_BAD_HANDLE (out of bounds; or given back before), FDBROKER_INTERNAL (the
/// driver's words), FDBROKER_NOT_CONNECTED (in a forked child, but for an object with
/// FDBROKER_OBJECT_FINAL), FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_read(
    broker: *mut fdbroker_t,
    object: *const fdbroker_object_t,
    offset: u64,
    into: *mut c_void,
    count: usize,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let (object, into) = unsafe { (read(object)?, room_of(into, count, "into")?) };
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        // SAFETY: as above.
        let is_copy = unsafe { broker.as_ref() }.is_some_and(|it| it.client.is_forked_copy());
        if is_copy && object.flags & FDBROKER_OBJECT_FINAL != 0 {
            // The table is its parent's, and may be locked for good. SAFETY: filled in by this
            // library before the fork, and mapped here.
            let bytes = unsafe { bytes_of(object.ptr, object.size_bytes, "ptr") }?;
            let end = offset.checked_add(count).filter(|end| *end <= bytes.len());
            let end = end
                .ok_or_else(|| Error::new(ErrorCode::BadHandle, "read an object: out of bounds"))?;
            into.copy_from_slice(&bytes[offset..end]);
            return Ok(());
        }
        // SAFETY: as above.
        let context = unsafe { context(broker, "read an object") }?;
        let object = context.object_table.find("read", object.object)?;
        Ok(object.read_at(offset, into)?)
    })
}

/// 1 when the group of an object still has a name (of one that is the only object of its group:
/// when its name still leads to it), and the broker lives and counts this use of it; else 0, also
/// for NULL, for an object given back, and in a forked child. The bytes stay as they are in any
/// case. Makes no system call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_is_current(
    broker: *mut fdbroker_t,
    object: *const fdbroker_object_t,
) -> i32 {
    guard_value(0, || {
        // SAFETY: the caller's pointers, as the header states.
        let (context, object) = unsafe { (context(broker, "look at an object")?, read(object)?) };
        let found = context.object_table.find("look at", object.object)?;
        Ok(found.is_current().into())
    })
}

/// Gives an object back and zeroes the struct but struct_size; pointers into it must not be used
/// any more. Never waits; also inside a callback. Give each object back once, not also a copy of
/// its struct.
///
/// Errors: FDBROKER_BAD_HANDLE (given back before, or none; nothing changes),
/// FDBROKER_NOT_CONNECTED (in a forked child: the object is the parent's),
/// FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_release(
    broker: *mut fdbroker_t,
    object: *mut fdbroker_object_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let (context, taken) = unsafe { (context(broker, "release")?, read(object.cast_const())?) };
        let released = context.object_table.take(taken.object)?;
        // SAFETY: as above.
        unsafe { write(object, &fdbroker_object_t::absent()) }?;
        drop(released);
        Ok(())
    })
}

/// Gives up the objects that FDBROKER_OBJECT_CACHED keeps and nobody uses. *count, unless NULL, is
/// their number. Also inside a callback.
///
/// Errors: FDBROKER_NOT_CONNECTED (in a forked child), FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_empty_cache(
    broker: *mut fdbroker_t,
    count: *mut u64,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let (context, out) = unsafe { (context(broker, "empty the cache")?, count.as_mut()) };
        let emptied = context.objects.empty() + context.job_objects.empty();
        out.into_iter().for_each(|out| *out = emptied as u64);
        Ok(())
    })
}
