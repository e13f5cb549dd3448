//! Named objects as a C program sees them: what it says of them, and what it is told. Must never
//! keep a pointer of the caller's.

use crate::context::fdbroker_t;
use crate::failure::Failure;
use crate::register::fdbroker_allocation_t;
use crate::sized::{Growable, read, slice};
use fdbroker_client::{
    Deposit, ErrorCode, NewObject, ObjectInfo, ObjectOptions, Objects, PutObject, Touch, cuda,
    level_zero,
};
use std::ffi::{CStr, c_char, c_void};
use std::time::Duration;

/// The names are those of this process's job (its cgroup), not of its user.
pub const FDBROKER_OBJECT_JOB: u32 = 1;
/// To make: other objects may have the names; they lose them when the group is sealed. A name lasts
/// as it was asked to last: the new version inherits from the one that it replaces, at the seal,
/// what its maker has not said of keep, time to live and pin; of several the longest time, and the
/// pin if one has it.
pub const FDBROKER_OBJECT_REPLACE: u32 = 2;
/// To make or touch: the group outlives its creator, for ttl_ms after its last use. To make without
/// this flag: for the time of what it replaces, counted anew, unless FDBROKER_OBJECT_NO_KEEP; else
/// it ends with its creator. It outlives the broker only under a service manager that stores fds:
/// fdbroker_object_stat() says FDBROKER_OBJECT_ENDS_WITH_BROKER where it does not.
pub const FDBROKER_OBJECT_KEEP: u32 = 4;
/// To make or touch: the group ends neither by time nor to make room. To make without this flag: as
/// what it replaces, unless FDBROKER_OBJECT_NO_PIN.
pub const FDBROKER_OBJECT_PIN: u32 = 8;
/// To touch: it may again.
pub const FDBROKER_OBJECT_UNPIN: u32 = 16;
/// To make: the group may end when bytes are short and nobody uses it.
pub const FDBROKER_OBJECT_EVICTABLE: u32 = 32;
/// To get: from the cache of objects if the name still leads there, and into it. One object at a
/// time.
pub const FDBROKER_OBJECT_CACHED: u32 = 64;
/// To make, without FDBROKER_OBJECT_KEEP: no time is inherited.
pub const FDBROKER_OBJECT_NO_KEEP: u32 = 128;
/// To make, without FDBROKER_OBJECT_PIN: no pin is inherited. With FDBROKER_OBJECT_NO_KEEP, too,
/// the group ends with its creator.
pub const FDBROKER_OBJECT_NO_PIN: u32 = 2048;
/// fdbroker_object_get_start(): the broker answers at once, whatever the deadline: what is not
/// there is FDBROKER_NOT_FOUND or FDBROKER_NOT_SEALED. A watch tells when to ask again.
pub const FDBROKER_OBJECT_NO_WAIT: u32 = 4096;
/// Of an info: nothing but its maker's word keeps the memory from being written (GPU memory).
pub const FDBROKER_OBJECT_COOPERATIVE: u32 = 256;
/// Of an info: its creator is gone.
pub const FDBROKER_OBJECT_CREATOR_GONE: u32 = 512;
/// Of an info: the group is kept, and ends with the broker all the same (a private broker, or one
/// whose service manager stores no fds).
pub const FDBROKER_OBJECT_ENDS_WITH_BROKER: u32 = 1024;
/// Of an object that was got: its memory is sealed, nobody can change it any more, and children of
/// fork(2) read it at ptr, too.
pub const FDBROKER_OBJECT_FINAL: u32 = 2048;

/// In fdbroker_new_object_t: expect is meant.
pub const FDBROKER_OBJECT_EXPECT: u32 = 1;
/// In fdbroker_new_object_t: offset is meant.
pub const FDBROKER_OBJECT_AT: u32 = 2;

/// A memfd of its own, mapped for writing until it is sealed.
pub const FDBROKER_PLACE_HOST: u32 = 0;
/// One CUDA VMM allocation on a device.
pub const FDBROKER_PLACE_CUDA: u32 = 1;
/// One Level Zero allocation on a device.
pub const FDBROKER_PLACE_LEVEL_ZERO: u32 = 2;
/// Memory behind an fd of the program's.
pub const FDBROKER_PLACE_FD: u32 = 3;

/// The state of an object that can be had.
pub const FDBROKER_OBJECT_IS_SEALED: u32 = 2;
/// The state of one whose group is not sealed.
pub const FDBROKER_OBJECT_IS_MAKING: u32 = 1;

/// One object, to be made.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fdbroker_new_object_t {
    /// sizeof(fdbroker_new_object_t), set by the caller; in an array: of the first one, for all.
    pub struct_size: u64,
    /// 1 to 255 bytes of UTF-8, NUL-terminated; "/" by habit.
    pub name: *const c_char,
    /// Its size in bytes; may be 0.
    pub size_bytes: u64,
    /// fdbroker_object_put(): what it is to be. Else NULL.
    pub bytes: *const c_void,
    /// Opaque; the library copies it.
    pub metadata: *const c_void,
    /// The number of these bytes, at most 4096.
    pub metadata_bytes: u64,
    /// With FDBROKER_OBJECT_EXPECT: the version that the name must have when the group is sealed;
    /// 0: none.
    pub expect: u64,
    /// With FDBROKER_OBJECT_AT: where in the group's memory it begins, in bytes. Else behind the
    /// one before, aligned.
    pub offset: u64,
    /// FDBROKER_OBJECT_EXPECT and FDBROKER_OBJECT_AT, combined by |.
    pub flags: u32,
    pub reserved: u32,
}

// SAFETY: repr(C), struct_size first, no padding (4 + 4 at the end); pointers may hold any bits
// until used.
unsafe impl Growable for fdbroker_new_object_t {
    const NAME: &'static str = "fdbroker_new_object_t";
    const LEAST_BYTES: u64 = 24;
}

/// How objects are made, got or touched. Zero but struct_size, or NULL: host memory, names of the
/// user, which must be free.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fdbroker_object_options_t {
    /// sizeof(fdbroker_object_options_t), set by the caller.
    pub struct_size: u64,
    /// FDBROKER_OBJECT_*, combined by |.
    pub flags: u32,
    /// To make: FDBROKER_PLACE_*. To get: FDBROKER_PLACE_CUDA or FDBROKER_PLACE_LEVEL_ZERO opens
    /// GPU memory for this device.
    pub place: u32,
    /// The device's ordinal.
    pub device: u32,
    /// FDBROKER_PLACE_FD: the fd, which the caller keeps.
    pub fd: i32,
    /// With FDBROKER_OBJECT_KEEP: how long the group lives after its last use, in ms; 0: as long as
    /// the broker allows.
    pub ttl_ms: u64,
    /// To make: bytes of memory beside those of the objects, for fdbroker_object_add().
    pub room_bytes: u64,
    /// FDBROKER_PLACE_FD: kind, size_bytes, fd_offset, device and driver data of that memory. A
    /// memfd is sealed against writing when the group is.
    pub memory: *const fdbroker_allocation_t,
}

// SAFETY: repr(C), struct_size first, no padding (4 * 4, then 8 each); the pointer may hold any
// bits until used.
unsafe impl Growable for fdbroker_object_options_t {
    const NAME: &'static str = "fdbroker_object_options_t";
    const LEAST_BYTES: u64 = 16;
    fn absent() -> Self {
        fdbroker_object_options_t { place: FDBROKER_PLACE_HOST, fd: -1, ..Self::zeroed() }
    }
}

/// An object that was got, to be given back once by fdbroker_object_release().
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fdbroker_object_t {
    /// sizeof(fdbroker_object_t), set by the caller; in an array: of the first one, the library
    /// sets the others.
    pub struct_size: u64,
    /// Its bytes, for reading; NULL: memory of a device. In a forked child only with
    /// FDBROKER_OBJECT_FINAL in flags.
    pub ptr: *const c_void,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Given when its group was sealed, above all versions before.
    pub version: u64,
    /// All of its metadata; good until the release.
    pub metadata: *const c_void,
    /// The number of these bytes.
    pub metadata_bytes: u64,
    /// Its address on the device that it was opened for; 0: host memory.
    pub device_ptr: u64,
    /// For the library; 0: none.
    pub object: u64,
    /// FDBROKER_KIND_*.
    pub kind: u32,
    pub slot: u32,
    pub generation: u32,
    /// With device_ptr: the ordinal of that device, of CUDA when kind is FDBROKER_KIND_CUDA_VMM,
    /// else of Level Zero.
    pub device: u32,
    /// FDBROKER_OBJECT_FINAL or 0.
    pub flags: u32,
    pub reserved: u32,
}

// SAFETY: repr(C), struct_size first, no padding (8 each, then 6 * 4); pointers may hold any bits
// until used.
unsafe impl Growable for fdbroker_object_t {
    const NAME: &'static str = "fdbroker_object_t";
    const LEAST_BYTES: u64 = 64;
}

/// What is known of an object.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fdbroker_object_info_t {
    /// sizeof(fdbroker_object_info_t), set by the caller; in an array: of the first one, the
    /// library sets the others.
    pub struct_size: u64,
    /// Its name, NUL-terminated.
    pub name: [c_char; 256],
    /// Its version; 0 while it is being made.
    pub version: u64,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Where in its group's memory it begins, in bytes.
    pub offset: u64,
    /// Its group's number.
    pub group: u64,
    /// The size of its group's memory, in bytes.
    pub group_bytes: u64,
    /// Since it was sealed, or its group was begun.
    pub age_ms: u64,
    /// Left to its group if nobody uses it; UINT64_MAX: no end by time.
    pub ttl_left_ms: u64,
    /// FDBROKER_OBJECT_IS_*; 0: nothing is known of the name.
    pub state: u32,
    /// FDBROKER_OBJECT_KEEP, PIN, EVICTABLE, COOPERATIVE, CREATOR_GONE and ENDS_WITH_BROKER,
    /// combined by |.
    pub flags: u32,
    /// FDBROKER_KIND_*.
    pub kind: u32,
    /// The number of bytes of its metadata: fdbroker_object_metadata() copies them.
    pub metadata_bytes: u32,
    /// Names that its group has.
    pub group_names: u32,
    /// Leases of its group.
    pub leases: u32,
    /// Its creator's pid as the broker sees it.
    pub creator_pid: u32,
    pub slot: u32,
    pub generation: u32,
    pub reserved: u32,
}

// SAFETY: repr(C), struct_size first, no padding (8, 256, 7 * 8, 10 * 4 bytes), integers only.
unsafe impl Growable for fdbroker_object_info_t {
    const NAME: &'static str = "fdbroker_object_info_t";
    const LEAST_BYTES: u64 = 272;
}

const _: () = assert!(size_of::<fdbroker_object_info_t>().is_multiple_of(8));

impl From<&ObjectInfo> for fdbroker_object_info_t {
    fn from(info: &ObjectInfo) -> Self {
        let mut flags = 0;
        for (is_set, flag) in [
            (info.kept, FDBROKER_OBJECT_KEEP),
            (info.pinned, FDBROKER_OBJECT_PIN),
            (info.evictable, FDBROKER_OBJECT_EVICTABLE),
            (info.cooperative, FDBROKER_OBJECT_COOPERATIVE),
            (info.creator_gone, FDBROKER_OBJECT_CREATOR_GONE),
            (info.ends_with_broker, FDBROKER_OBJECT_ENDS_WITH_BROKER),
        ] {
            flags |= if is_set { flag } else { 0 };
        }
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        fdbroker_object_info_t {
            name: c_name(&info.name),
            version: info.version,
            size_bytes: info.size_bytes,
            offset: info.offset,
            group: info.group,
            group_bytes: info.group_bytes,
            age_ms: ms(info.age),
            ttl_left_ms: info.ttl_left.map_or(u64::MAX, ms),
            state: info.state as u32,
            flags,
            kind: info.kind as u32,
            metadata_bytes: u32::try_from(info.metadata_bytes).unwrap_or(u32::MAX),
            group_names: info.group_names,
            leases: info.leases,
            creator_pid: info.creator_pid,
            slot: info.id.slot,
            generation: info.id.generation,
            ..Self::absent()
        }
    }
}

/// A name of at most 255 bytes, NUL-terminated.
pub(crate) fn c_name(name: &str) -> [c_char; 256] {
    let mut room = [0; 256];
    for (to, from) in room[..255].iter_mut().zip(name.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    room
}

/// The options, or their defaults for NULL; flags beyond `known` are refused.
///
/// # Safety
/// `options` is NULL or points to a struct of its `struct_size` bytes.
pub(crate) unsafe fn options_of(
    options: *const fdbroker_object_options_t,
    known: u32,
) -> Result<fdbroker_object_options_t, Failure> {
    let options = if options.is_null() {
        fdbroker_object_options_t::absent()
    } else {
        // SAFETY: the caller's promise.
        unsafe { read(options) }?
    };
    check_flags(options.flags, known)?;
    Ok(options)
}

pub(crate) fn check_flags(flags: u32, known: u32) -> Result<(), Failure> {
    match flags & !known {
        0 => Ok(()),
        unknown => {
            Err(Failure::argument(format!("flags {unknown:#x} have no meaning in this call")))
        }
    }
}

/// The objects that the flags mean.
pub(crate) fn objects_of(context: &fdbroker_t, flags: u32) -> &Objects {
    match flags & FDBROKER_OBJECT_JOB {
        0 => &context.objects,
        _ => &context.job_objects,
    }
}

impl fdbroker_object_options_t {
    fn keep(&self) -> Option<Duration> {
        (self.flags & FDBROKER_OBJECT_KEEP != 0).then(|| Duration::from_millis(self.ttl_ms))
    }

    pub(crate) fn to_make(self) -> Result<ObjectOptions, Failure> {
        let has = |flag: u32| self.flags & flag != 0;
        if has(FDBROKER_OBJECT_KEEP) && has(FDBROKER_OBJECT_NO_KEEP) {
            return Err(Failure::argument("kept and not kept at once"));
        }
        Ok(ObjectOptions::default()
            .replace(has(FDBROKER_OBJECT_REPLACE))
            .keep(self.keep())
            .pin(self.pin(FDBROKER_OBJECT_NO_PIN)?)
            .no_keep(has(FDBROKER_OBJECT_NO_KEEP))
            .evictable(has(FDBROKER_OBJECT_EVICTABLE))
            .room_bytes(self.room_bytes))
    }

    pub(crate) fn to_touch(self) -> Result<Touch, Failure> {
        Ok(Touch::default().keep(self.keep()).pin(self.pin(FDBROKER_OBJECT_UNPIN)?))
    }

    /// Whether it is pinned; `not`: the flag that says that it is not.
    fn pin(&self, not: u32) -> Result<Option<bool>, Failure> {
        match (self.flags & FDBROKER_OBJECT_PIN != 0, self.flags & not != 0) {
            (false, false) => Ok(None),
            (true, true) => Err(Failure::argument("pinned and not pinned at once")),
            (is_pinned, _) => Ok(Some(is_pinned)),
        }
    }

    /// The device that it names.
    pub(crate) fn cuda(&self) -> Result<cuda::Device, Failure> {
        Ok(cuda::Device::open(self.device)?)
    }

    /// The driver's device of this ordinal, by Level Zero.
    pub(crate) fn level_zero(&self) -> Result<level_zero::Device, Failure> {
        Ok(level_zero::Device::open(self.device)?)
    }

    /// What it says of foreign memory.
    ///
    /// # Safety
    /// `memory` is NULL or points to a struct of its `struct_size` bytes, with its driver data.
    pub(crate) unsafe fn deposit(&self) -> Result<Deposit, Failure> {
        // SAFETY: the caller's promise.
        let allocation = unsafe { read(self.memory) }?;
        // SAFETY: as above.
        unsafe { allocation.deposit() }
    }
}

/// One name of the caller's.
///
/// # Safety
/// `name` is NULL or NUL-terminated, and lives as long as the result is used.
pub(crate) unsafe fn name_of<'a>(name: *const c_char) -> Result<&'a str, Failure> {
    if name.is_null() {
        return Err(Failure::argument("a name is NULL"));
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().map_err(|_| Failure::new(ErrorCode::BadHandle, "a name is not UTF-8"))
}

/// The caller's names.
///
/// # Safety
/// `names` is NULL or points to `count` names, each as for [`name_of`].
pub(crate) unsafe fn names_of<'a>(
    names: *const *const c_char,
    count: usize,
) -> Result<Vec<&'a str>, Failure> {
    // SAFETY: the caller's promise.
    let names: &[*const c_char] = unsafe { slice(names, count, "names") }?;
    // SAFETY: as above.
    names.iter().map(|name| unsafe { name_of(*name) }).collect()
}

/// Bytes of the caller's. NULL is allowed only for none.
///
/// # Safety
/// `bytes` is NULL or points to so many bytes, which live as long as the result is used.
pub(crate) unsafe fn bytes_of<'a>(
    bytes: *const c_void,
    count: u64,
    name: &str,
) -> Result<&'a [u8], Failure> {
    let count = usize::try_from(count).ok().filter(|count| *count <= isize::MAX as usize);
    match count {
        None => Err(Failure::argument(format!("{name}: more bytes than there are addresses"))),
        Some(0) => Ok(&[]),
        Some(_) if bytes.is_null() => Err(Failure::argument(format!("{name} is NULL"))),
        // SAFETY: the caller's promise.
        Some(count) => Ok(unsafe { std::slice::from_raw_parts(bytes.cast(), count) }),
    }
}

/// Room of the caller's for so many bytes. NULL is allowed only for none.
///
/// # Safety
/// `room` is NULL or points to so many bytes that nobody else uses while the result is used.
pub(crate) unsafe fn room_of<'a>(
    room: *mut c_void,
    count: usize,
    name: &str,
) -> Result<&'a mut [u8], Failure> {
    match count {
        0 => Ok(&mut []),
        _ if room.is_null() => Err(Failure::argument(format!("{name} is NULL"))),
        _ if count > isize::MAX as usize => {
            Err(Failure::argument(format!("{name}: more bytes than there are addresses")))
        }
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(room.cast(), count) }),
    }
}

impl fdbroker_new_object_t {
    /// # Safety
    /// Its pointers are NULL or point to what they say, which lives as long as the result is used.
    pub(crate) unsafe fn to_new<'a>(self) -> Result<NewObject<'a>, Failure> {
        check_flags(self.flags, FDBROKER_OBJECT_EXPECT | FDBROKER_OBJECT_AT)?;
        let has = |flag: u32| self.flags & flag != 0;
        // SAFETY: the caller's promise.
        unsafe {
            Ok(NewObject::new(name_of(self.name)?, self.size_bytes)
                .metadata(bytes_of(self.metadata, self.metadata_bytes, "metadata")?)
                .expect(has(FDBROKER_OBJECT_EXPECT).then_some(self.expect))
                .offset(has(FDBROKER_OBJECT_AT).then_some(self.offset)))
        }
    }

    /// # Safety
    /// As [`fdbroker_new_object_t::to_new`].
    pub(crate) unsafe fn to_put<'a>(self) -> Result<PutObject<'a>, Failure> {
        // SAFETY: the caller's promise.
        let (new, bytes) =
            unsafe { (self.to_new()?, bytes_of(self.bytes, self.size_bytes, "bytes")?) };
        match new.offset {
            None => Ok(PutObject::new(new.name, bytes).metadata(new.metadata).expect(new.expect)),
            Some(_) => Err(Failure::argument("put: the library places the objects")),
        }
    }
}
