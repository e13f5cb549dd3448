//! Names of objects: deleted, looked at, listed and kept. Must never write beyond a name or
//! metadata of the caller's.

use crate::context::{context, fdbroker_t};
use crate::errors::fdbroker_code_t;
use crate::failure::Failure;
use crate::guard::guard;
use crate::objects::{
    FDBROKER_OBJECT_JOB, FDBROKER_OBJECT_KEEP, FDBROKER_OBJECT_PIN, FDBROKER_OBJECT_UNPIN,
    check_flags, fdbroker_object_info_t, fdbroker_object_options_t, name_of, names_of, objects_of,
    options_of, room_of,
};
use crate::sized::{Answers, Growable, Output, Results, place, slice, take_back, write};
use fdbroker_client::{Deadline, ErrorCode, ObjectList};
use std::ffi::{c_char, c_void};

/// Takes the names from count objects. Readers keep the memory; it goes with the last of them and
/// the last name of its group. versions[i] is the version that it must have, 0: any; versions NULL:
/// any. Fills all codes (codes may be NULL); answers FDBROKER_OK when all were deleted, else the
/// first failure. flags: FDBROKER_OBJECT_JOB or 0.
///
/// Errors: FDBROKER_NOT_FOUND, FDBROKER_NOT_SEALED (its maker can give it up), FDBROKER_VERSION,
/// FDBROKER_BAD_HANDLE and FDBROKER_TOO_LONG (what cannot be a name: then none is deleted),
/// FDBROKER_TIMED_OUT, FDBROKER_NOT_CONNECTED, FDBROKER_NOT_SUPPORTED (inside a callback),
/// FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_delete(
    broker: *mut fdbroker_t,
    count: usize,
    names: *const *const c_char,
    versions: *const u64,
    flags: u32,
    deadline_ms: u32,
    codes: *mut fdbroker_code_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let mut answers = unsafe { Answers::new(count, Ok(Nothing), codes) }?;
        let delete = || {
            check_flags(flags, FDBROKER_OBJECT_JOB)?;
            // SAFETY: as above.
            let (context, names, versions) = unsafe {
                let versions =
                    if versions.is_null() { &[] } else { slice(versions, count, "versions")? };
                (context(broker, "delete objects")?, names_of(names, count)?, versions)
            };
            let version = |at: usize| versions.get(at).copied().filter(|version| *version != 0);
            let asked: Vec<(&str, Option<u64>)> =
                names.iter().enumerate().map(|(at, name)| (*name, version(at))).collect();
            let objects = objects_of(context, flags);
            Ok(objects.delete_many(&asked, Deadline::from_ms(deadline_ms))?)
        };
        answers.fill(delete())
    })
}

/// Counts as a use of the groups of count names, and sets what keeps them: options->flags are
/// FDBROKER_OBJECT_JOB, KEEP (with ttl_ms), PIN or UNPIN. A new process of the same user takes over
/// kept objects so, by name. Fills all codes (codes may be NULL); answers FDBROKER_OK when all were
/// touched, else the first failure.
///
/// Errors: FDBROKER_NOT_FOUND, FDBROKER_NOT_SEALED, FDBROKER_NO_QUOTA, FDBROKER_NOT_SUPPORTED (of a
/// job; inside a callback), FDBROKER_NOT_PERMITTED, and those of fdbroker_object_delete().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_touch(
    broker: *mut fdbroker_t,
    count: usize,
    names: *const *const c_char,
    options: *const fdbroker_object_options_t,
    deadline_ms: u32,
    codes: *mut fdbroker_code_t,
) -> fdbroker_code_t {
    const OF_TOUCH: u32 =
        FDBROKER_OBJECT_JOB | FDBROKER_OBJECT_KEEP | FDBROKER_OBJECT_PIN | FDBROKER_OBJECT_UNPIN;
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let mut answers = unsafe { Answers::new(count, Ok(Nothing), codes) }?;
        let touch = || {
            // SAFETY: as above.
            let (context, names, options) = unsafe {
                let context = context(broker, "touch objects")?;
                (context, names_of(names, count)?, options_of(options, OF_TOUCH)?)
            };
            let objects = objects_of(context, options.flags);
            let deadline = Deadline::from_ms(deadline_ms);
            Ok(objects.touch(&names, options.to_touch()?, deadline)?)
        };
        answers.fill(touch())
    })
}

/// The results of a call that has only codes.
struct Nothing;

impl Results<()> for Nothing {
    fn put(&mut self, _: usize, _: Option<()>) {}
}

/// Says what is known of count names, in their order; state is 0 where nothing is. flags:
/// FDBROKER_OBJECT_JOB or 0. On failure all elements of infos are zero but struct_size.
///
/// Errors: FDBROKER_BAD_HANDLE and FDBROKER_TOO_LONG (what cannot be a name), FDBROKER_TIMED_OUT,
/// FDBROKER_NOT_CONNECTED, FDBROKER_NOT_SUPPORTED (inside a callback), FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_stat(
    broker: *mut fdbroker_t,
    count: usize,
    names: *const *const c_char,
    flags: u32,
    deadline_ms: u32,
    infos: *mut fdbroker_object_info_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let mut out = unsafe { Output::new(infos, count) }?;
        (0..count).for_each(|index| out.set(index, &Growable::absent()));
        check_flags(flags, FDBROKER_OBJECT_JOB)?;
        // SAFETY: as above.
        let (context, names) =
            unsafe { (context(broker, "stat objects")?, names_of(names, count)?) };
        let objects = objects_of(context, flags);
        let found = objects.stat_many(&names, Deadline::from_ms(deadline_ms))?;
        for (index, info) in found.iter().enumerate() {
            if let Some(info) = info {
                out.set(index, &info.into());
            }
        }
        Ok(())
    })
}

/// Copies the metadata of an object: at most room bytes, to buffer. *bytes, unless NULL, is how
/// many it has (at most 4096). flags: FDBROKER_OBJECT_JOB or 0.
///
/// Errors: FDBROKER_NOT_FOUND, FDBROKER_TOO_LONG (the room is too small: what fits is copied), and
/// those of fdbroker_object_stat().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_metadata(
    broker: *mut fdbroker_t,
    name: *const c_char,
    flags: u32,
    deadline_ms: u32,
    buffer: *mut c_void,
    room: usize,
    bytes: *mut u64,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let (room, bytes) = unsafe { (room_of(buffer, room.min(MOST), "buffer")?, bytes.as_mut()) };
        check_flags(flags, FDBROKER_OBJECT_JOB)?;
        // SAFETY: as above.
        let (context, name) = unsafe { (context(broker, "stat an object")?, name_of(name)?) };
        let info = objects_of(context, flags).stat(name, Deadline::from_ms(deadline_ms))?;
        bytes.into_iter().for_each(|out| *out = info.metadata.len() as u64);
        let fits = room.len().min(info.metadata.len());
        room[..fits].copy_from_slice(&info.metadata[..fits]);
        if fits == info.metadata.len() {
            Ok(())
        } else {
            let text =
                format!("metadata of {name}: {} bytes, room for {fits}", info.metadata.len());
            Err(Failure::new(ErrorCode::TooLong, text))
        }
    })
}

/// Bytes of metadata that there can be.
const MOST: usize = fdbroker_protocol::limits::METADATA_BYTES;

/// A list under way. Only one thread at a time may use it.
pub struct fdbroker_object_list_t {
    list: ObjectList,
}

/// Begins to list the names that begin with prefix ("": all), in the order of their bytes, those
/// being made included. It asks the broker page by page, so names that come or go meanwhile may be
/// in it or not. deadline_ms is for all pages. To be given back by fdbroker_object_list_close().
/// flags: FDBROKER_OBJECT_JOB or 0. On failure *list is NULL.
///
/// Errors: FDBROKER_NOT_CONNECTED (in a forked child), FDBROKER_BAD_HANDLE (the prefix is not
/// UTF-8), FDBROKER_INVALID_ARGUMENT.
/// fdbroker_object_list_next() answers all others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_list(
    broker: *mut fdbroker_t,
    prefix: *const c_char,
    flags: u32,
    deadline_ms: u32,
    list: *mut *mut fdbroker_object_list_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let out = unsafe { place(list, "list", std::ptr::null_mut()) }?;
        check_flags(flags, FDBROKER_OBJECT_JOB)?;
        // SAFETY: as above.
        let (context, prefix) = unsafe { (context(broker, "list objects")?, name_of(prefix)?) };
        let list = objects_of(context, flags).list(prefix, Deadline::from_ms(deadline_ms));
        *out = Box::into_raw(Box::new(fdbroker_object_list_t { list }));
        Ok(())
    })
}

/// The next of a list: *has_one is 1 and *info says what is known of it; or *has_one is 0 and the
/// list is over. After an error it is over, too.
///
/// Errors: FDBROKER_TOO_LONG (the prefix), FDBROKER_TIMED_OUT, FDBROKER_NOT_CONNECTED,
/// FDBROKER_NOT_SUPPORTED (inside a callback), FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_list_next(
    list: *mut fdbroker_object_list_t,
    info: *mut fdbroker_object_info_t,
    has_one: *mut i32,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let (list, out) = unsafe { (list.as_mut(), place(has_one, "has_one", 0)?) };
        // SAFETY: as above.
        unsafe { write(info, &fdbroker_object_info_t::absent()) }?;
        let list = list.ok_or_else(|| Failure::argument("list is NULL"))?;
        if let Some(found) = list.list.next().transpose()? {
            // SAFETY: as above.
            unsafe { write(info, &(&found).into()) }?;
            *out = 1;
        }
        Ok(())
    })
}

/// Gives a list back. NULL: does nothing. Must come before fdbroker_close().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_list_close(
    list: *mut fdbroker_object_list_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: made by fdbroker_object_list, and this is its last use.
        unsafe { take_back(list) }
    })
}
