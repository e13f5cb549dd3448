//! Making objects: groups in the making, and objects of bytes that there are. Must never answer
//! success for a write that is not in the memory.

use crate::callbacks::is_open;
use crate::context::{context, fdbroker_t};
use crate::errors::fdbroker_code_t;
use crate::failure::Failure;
use crate::guard::guard;
use crate::objects::{
    FDBROKER_OBJECT_EVICTABLE, FDBROKER_OBJECT_JOB, FDBROKER_OBJECT_KEEP, FDBROKER_OBJECT_NO_KEEP,
    FDBROKER_OBJECT_NO_PIN, FDBROKER_OBJECT_PIN, FDBROKER_OBJECT_REPLACE, FDBROKER_PLACE_CUDA,
    FDBROKER_PLACE_FD, FDBROKER_PLACE_HOST, FDBROKER_PLACE_LEVEL_ZERO, bytes_of,
    fdbroker_new_object_t, fdbroker_object_options_t, objects_of, options_of,
};
use crate::sized::{Input, place, slice_mut, take_back};
use fdbroker_client::layer::lock;
use fdbroker_client::{
    Deadline, Error, ErrorCode, Group, MakersWork, NewObject, ObjectOptions, Objects, Place,
    PutObject, SealError,
};
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

/// All that was put into this stream or queue before (CUstream, ze_command_queue_handle_t).
pub const FDBROKER_WORK_STREAM: u32 = 1;
/// An event (CUevent, ze_event_handle_t).
pub const FDBROKER_WORK_EVENT: u32 = 2;

/// A group of objects in the making. Only one thread at a time may use it.
pub struct fdbroker_object_group_t {
    state: State,
    started: Started,
}

/// Where a started seal puts what becomes of its group, which may be given back before.
pub(crate) type Started = Arc<Mutex<Option<State>>>;

pub(crate) enum State {
    Making(Box<Group>),
    Sealed,
    /// A seal has failed for good.
    Lost,
}

const OF_CREATE: u32 = FDBROKER_OBJECT_JOB
    | FDBROKER_OBJECT_REPLACE
    | FDBROKER_OBJECT_KEEP
    | FDBROKER_OBJECT_NO_KEEP
    | FDBROKER_OBJECT_PIN
    | FDBROKER_OBJECT_NO_PIN
    | FDBROKER_OBJECT_EVICTABLE;

/// The group that a caller's pointer means, in the making.
///
/// # Safety
/// `group` is NULL or a group that no other thread uses meanwhile.
unsafe fn making<'a>(
    group: *mut fdbroker_object_group_t,
    what: &str,
) -> Result<&'a mut Group, Failure> {
    // SAFETY: the caller's promise.
    let Some(this) = (unsafe { group.as_mut() }) else {
        return Err(Failure::argument("group is NULL"));
    };
    if let Some(state) = lock(&this.started).take() {
        this.state = state;
    }
    match &mut this.state {
        State::Making(group) => Ok(group),
        State::Sealed => Err(Failure::new(ErrorCode::Sealed, format!("{what} a group"))),
        State::Lost => Err(Failure::new(ErrorCode::Aborted, format!("{what} a group"))),
    }
}

/// The same, taken out to be sealed. It counts as lost until it is said what has become of it.
///
/// # Safety
/// As for [`making`].
pub(crate) unsafe fn taken<'a>(
    group: *mut fdbroker_object_group_t,
) -> Result<(&'a mut fdbroker_object_group_t, Box<Group>), Failure> {
    // SAFETY: the caller's promise.
    unsafe { making(group, "seal") }?;
    // SAFETY: as above; it is not NULL, as was just seen.
    let this = unsafe { &mut *group };
    match std::mem::replace(&mut this.state, State::Lost) {
        State::Making(group) => Ok((this, group)),
        State::Sealed | State::Lost => Err(Failure::new(ErrorCode::Aborted, "seal a group")),
    }
}

impl fdbroker_object_group_t {
    /// For the caller to give back.
    pub(crate) fn boxed(group: Group) -> *mut Self {
        let state = State::Making(Box::new(group));
        Box::into_raw(Box::new(fdbroker_object_group_t { state, started: Arc::default() }))
    }

    /// For a seal that starts: where it puts what becomes of it.
    pub(crate) fn start<T>(
        &mut self,
        outcome: Result<T, SealError>,
    ) -> Result<(T, Started), Error> {
        Ok((self.state.take_back(outcome)?, Arc::clone(&self.started)))
    }
}

impl State {
    /// Takes back a group that can be sealed again.
    fn take_back<T>(&mut self, outcome: Result<T, SealError>) -> Result<T, Error> {
        outcome.map_err(|SealError { error, group, .. }| {
            if let Some(group) = group {
                *self = State::Making(group);
            }
            error
        })
    }

    /// What a seal has come to.
    pub(crate) fn sealed(
        &mut self,
        version: Option<&mut u64>,
        outcome: Result<u64, SealError>,
    ) -> Result<(), Failure> {
        let sealed = self.take_back(outcome)?;
        *self = State::Sealed;
        version.into_iter().for_each(|out| *out = sealed);
        Ok(())
    }
}

/// The caller's objects.
///
/// # Safety
/// `objects` is NULL or points to `count` structs of its `struct_size` bytes, whose pointers point
/// to what they say.
unsafe fn new_objects<'a>(
    objects: *const fdbroker_new_object_t,
    count: usize,
) -> Result<Vec<NewObject<'a>>, Failure> {
    // SAFETY: the caller's promise.
    let input = unsafe { Input::new(objects, count) }?;
    // SAFETY: as above.
    (0..count).map(|index| unsafe { input.get(index)?.to_new() }).collect()
}

/// Begins a group of count objects, at most 253: memory for them, writable by this process alone,
/// and charged from now on. Others see that the names are being made. Write the objects
/// (fdbroker_object_data(), fdbroker_object_write()), seal the group, and give it back by
/// fdbroker_object_close(), which gives up one that is not sealed. options NULL: all defaults. On
/// failure *group is NULL.
///
/// Host memory is a memfd that this call makes, sizes and allocates, so that this process's cgroup
/// pays for its pages. What is 64 MiB or more and does not fit into what the machine and the
/// process's cgroups (v2) have left is not allocated. The group keeps one fd open in this process
/// until it is sealed.
///
/// Errors: FDBROKER_EXISTS (a name is in use or being made, without FDBROKER_OBJECT_REPLACE or
/// FDBROKER_OBJECT_EXPECT), FDBROKER_TOO_LONG (a name, metadata, or too many objects),
/// FDBROKER_BAD_HANDLE (a name that cannot be, two of one name, objects outside the memory),
/// FDBROKER_NO_QUOTA, FDBROKER_NOT_SUPPORTED (the place is absent here, the broker has no objects,
/// objects of a job are to be kept or pinned, or inside a callback), FDBROKER_INTERNAL (no memory),
/// FDBROKER_UNSUPPORTED_FD, FDBROKER_LOCAL_FD_LIMIT, FDBROKER_TIMED_OUT, FDBROKER_NOT_CONNECTED,
/// FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_create(
    broker: *mut fdbroker_t,
    count: usize,
    objects: *const fdbroker_new_object_t,
    options: *const fdbroker_object_options_t,
    deadline_ms: u32,
    group: *mut *mut fdbroker_object_group_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let out = unsafe { place(group, "group", null_mut()) }?;
        // SAFETY: as above.
        let made = unsafe {
            creating(broker, count, objects, options, |objects, new, place, how| {
                objects.create(new, place, how, Deadline::from_ms(deadline_ms))
            })
        }?;
        *out = fdbroker_object_group_t::boxed(made);
        Ok(())
    })
}

/// Has `create` begin, or start to begin, the group that a caller asks for.
///
/// # Safety
/// The pointers are as the header states.
pub(crate) unsafe fn creating<T>(
    broker: *mut fdbroker_t,
    count: usize,
    objects: *const fdbroker_new_object_t,
    options: *const fdbroker_object_options_t,
    create: impl FnOnce(&Objects, &[NewObject<'_>], Place<'_>, ObjectOptions) -> Result<T, Error>,
) -> Result<T, Failure> {
    // SAFETY: the caller's promise.
    let (context, new, options) = unsafe {
        let context = context(broker, "create objects")?;
        (context, new_objects(objects, count)?, options_of(options, OF_CREATE)?)
    };
    let how = options.to_make()?;
    let create = |place: Place<'_>| create(objects_of(context, options.flags), &new, place, how);
    Ok(match options.place {
        FDBROKER_PLACE_HOST => create(Place::Host)?,
        FDBROKER_PLACE_CUDA => create(Place::Cuda(&options.cuda()?))?,
        FDBROKER_PLACE_LEVEL_ZERO => create(Place::LevelZero(&options.level_zero()?))?,
        FDBROKER_PLACE_FD => {
            // SAFETY: as above.
            let deposit = unsafe { options.deposit() }?;
            if !is_open(options.fd) {
                let text = format!("create: fd {} is not open", options.fd);
                return Err(Failure::argument(text));
            }
            // SAFETY: it is open, and the caller keeps it so over the call.
            create(Place::Fd(unsafe { BorrowedFd::borrow_raw(options.fd) }, &deposit))?
        }
        place => {
            let text = format!("create: place {place}: only FDBROKER_PLACE_* are known");
            return Err(Failure::argument(text));
        }
    })
}

/// Adds count objects to a group, all of them or none, in the room that options->room_bytes has
/// left. They are counted on from those before.
///
/// Errors: those of fdbroker_object_create(); FDBROKER_SEALED, FDBROKER_ABORTED (the broker that
/// had the group is gone).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_add(
    group: *mut fdbroker_object_group_t,
    count: usize,
    objects: *const fdbroker_new_object_t,
    deadline_ms: u32,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let (group, new) = unsafe { (making(group, "add to")?, new_objects(objects, count)?) };
        group.add(&new, Deadline::from_ms(deadline_ms))?;
        Ok(())
    })
}

/// The bytes of object index (from 0) of a host group: *ptr, all 0 at first, to be written until
/// the seal; *size_bytes, unless NULL, is their number. Never waits.
///
/// Errors: FDBROKER_BAD_HANDLE (no such object), FDBROKER_NOT_SUPPORTED (GPU or foreign memory),
/// FDBROKER_SEALED, FDBROKER_ABORTED, FDBROKER_NOT_CONNECTED (in a forked child),
/// FDBROKER_INVALID_ARGUMENT. *ptr is NULL then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_data(
    group: *mut fdbroker_object_group_t,
    index: usize,
    ptr: *mut *mut c_void,
    size_bytes: *mut u64,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let out = unsafe { place(ptr, "ptr", null_mut()) }?;
        // SAFETY: as above.
        let (group, size) = unsafe { (making(group, "write to")?, size_bytes.as_mut()) };
        let bytes = group.bytes_mut(index)?;
        *out = bytes.as_mut_ptr().cast();
        if let Some(size) = size {
            *size = bytes.len() as u64;
        }
        Ok(())
    })
}

/// The address of object index (from 0) of a group on a device. Good until the seal. Never waits.
///
/// Errors: those of fdbroker_object_data(); FDBROKER_NOT_SUPPORTED: no memory of a device.
/// *device_ptr is 0 then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_device_ptr(
    group: *mut fdbroker_object_group_t,
    index: usize,
    device_ptr: *mut u64,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let out = unsafe { place(device_ptr, "device_ptr", 0) }?;
        // SAFETY: as above.
        *out = unsafe { making(group, "write to") }?.device_ptr(index)?;
        Ok(())
    })
}

/// Copies count bytes into object index (from 0) at offset, of whatever memory but foreign.
///
/// Errors: those of fdbroker_object_data(); FDBROKER_BAD_HANDLE: out of bounds; FDBROKER_INTERNAL:
/// the driver's words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_write(
    group: *mut fdbroker_object_group_t,
    index: usize,
    offset: u64,
    bytes: *const c_void,
    count: usize,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let (group, bytes) =
            unsafe { (making(group, "write to")?, bytes_of(bytes, count as u64, "bytes")?) };
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        Ok(group.write_at(index, offset, bytes)?)
    })
}

/// Seals a group: from one moment on all its names lead to its objects, with one version (*version,
/// unless NULL), and nobody can write them any more: pointers of fdbroker_object_data() must not be
/// used. A group on a device waits for all work of its context first (Level Zero: for none).
///
/// After FDBROKER_SEALED_BUSY the group is as before: unmap what is still mapped (another mapping
/// of the fd, or a child of _Fork(3) or clone(2)), and seal again. A seal right after a fork(3)
/// waits for the child to begin, for a second at most. After FDBROKER_EXISTS, FDBROKER_VERSION and
/// FDBROKER_NO_QUOTA it can be sealed again, and not be written any more. FDBROKER_NO_QUOTA says so
/// when it is for what the group inherits (FDBROKER_OBJECT_REPLACE).
///
/// Errors: also FDBROKER_SEALED (it is), FDBROKER_ABORTED (the broker that had it is gone),
/// FDBROKER_TIMED_OUT (it may be sealed all the same), FDBROKER_NOT_CONNECTED,
/// FDBROKER_NOT_SUPPORTED (inside a callback), FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_seal(
    group: *mut fdbroker_object_group_t,
    deadline_ms: u32,
    version: *mut u64,
) -> fdbroker_code_t {
    // SAFETY: the caller's pointers, as the header states.
    guard(|| unsafe { seal(group, None, deadline_ms, version) })
}

/// The same for a group on a device, waiting for this work alone: what is FDBROKER_WORK_*, work the
/// driver's handle.
///
/// Errors: those of fdbroker_object_seal(); FDBROKER_NOT_SUPPORTED: host memory, or the driver has
/// no such wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_seal_after(
    group: *mut fdbroker_object_group_t,
    what: u32,
    work: *mut c_void,
    deadline_ms: u32,
    version: *mut u64,
) -> fdbroker_code_t {
    guard(|| {
        let work = work_of(what, work)?;
        // SAFETY: the caller's pointers, as the header states.
        unsafe { seal(group, Some(work), deadline_ms, version) }
    })
}

pub(crate) fn work_of(what: u32, work: *mut c_void) -> Result<MakersWork, Failure> {
    match what {
        FDBROKER_WORK_STREAM => Ok(MakersWork::Stream(work)),
        FDBROKER_WORK_EVENT => Ok(MakersWork::Event(work)),
        _ => {
            let text = format!("seal: what is {what}: only FDBROKER_WORK_* are known");
            Err(Failure::argument(text))
        }
    }
}

/// # Safety
/// The pointers are as the header states.
unsafe fn seal(
    group: *mut fdbroker_object_group_t,
    work: Option<MakersWork>,
    deadline_ms: u32,
    version: *mut u64,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let ((this, making), out) = unsafe { (taken(group)?, version.as_mut()) };
    let deadline = Deadline::from_ms(deadline_ms);
    this.state.sealed(
        out,
        match work {
            None => making.seal(deadline),
            // SAFETY: the caller's handle, as the header states.
            Some(work) => unsafe { making.seal_after(work, deadline) },
        },
    )
}

/// Gives a group back: one that is not sealed is given up, and nothing of it is charged any more. A
/// seal that was started goes on; it is given up by fdbroker_request_cancel(), or when it fails.
/// Never waits; also inside a callback. NULL: does nothing. Must come before fdbroker_close().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_close(
    group: *mut fdbroker_object_group_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: made by fdbroker_object_create, and this is its last use.
        unsafe { take_back(group) }
    })
}

/// Makes count host objects of the bytes that objects[i].bytes points to, in groups of at most 253:
/// those of a group can be had from one moment on. *versions, unless NULL, get count versions, in
/// the order of the objects; 0 of those that were not made (the groups before the one that failed
/// are made). options NULL: all defaults; place is FDBROKER_PLACE_HOST.
///
/// Errors: those of fdbroker_object_create() and fdbroker_object_seal().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_object_put(
    broker: *mut fdbroker_t,
    count: usize,
    objects: *const fdbroker_new_object_t,
    options: *const fdbroker_object_options_t,
    deadline_ms: u32,
    versions: *mut u64,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let out = unsafe { slice_mut(versions, count) }?;
        let mut out = out.unwrap_or_default();
        out.fill(0);
        // SAFETY: as above.
        let (objects, puts, how) = unsafe { putting(broker, count, objects, options) }?;
        let deadline = Deadline::from_ms(deadline_ms);
        for group in puts.chunks(MOST) {
            let version: Result<u64, Error> = objects.put_group(group, how, deadline);
            let (first, rest) = out.split_at_mut(group.len().min(out.len()));
            first.fill(version?);
            out = rest;
        }
        Ok(())
    })
}

/// What a caller wants to put.
///
/// # Safety
/// The pointers are as the header states.
pub(crate) unsafe fn putting<'a>(
    broker: *mut fdbroker_t,
    count: usize,
    objects: *const fdbroker_new_object_t,
    options: *const fdbroker_object_options_t,
) -> Result<(&'a Objects, Vec<PutObject<'a>>, ObjectOptions), Failure> {
    // SAFETY: the caller's promise.
    let (context, input, options) = unsafe {
        let context = context(broker, "put objects")?;
        (context, Input::new(objects, count)?, options_of(options, OF_CREATE)?)
    };
    if options.place != FDBROKER_PLACE_HOST {
        return Err(Failure::argument("put: place must be FDBROKER_PLACE_HOST"));
    }
    // SAFETY: as above.
    let put = |index| unsafe { input.get(index)?.to_put() };
    let puts = (0..count).map(put).collect::<Result<_, Failure>>()?;
    Ok((objects_of(context, options.flags), puts, options.to_make()?))
}

/// Objects of a group.
const MOST: usize = fdbroker_protocol::limits::MAX_GROUP;
