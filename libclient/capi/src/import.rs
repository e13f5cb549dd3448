//! Consumers that want memory: imports through the cache, their pins in plain structs.
//! Must never leave a pin behind that the caller does not have.

use crate::context::{context, fdbroker_t};
use crate::errors::{FDBROKER_OK, fdbroker_code_t};
use crate::failure::Failure;
use crate::guard::{guard, guard_value};
use crate::handle::{fdbroker_handle_t, many, one};
use crate::sized::{Answers, Results, place, plain};
use fdbroker_client::{Access, AllocationId, CachedImport, Deadline, ImportMode, Pin};
use std::ffi::c_void;

/// Map for reading.
pub const FDBROKER_IMPORT_READ: u32 = 0;
/// Map for reading and writing.
pub const FDBROKER_IMPORT_WRITE: u32 = 1;
/// Combined with the others by |: what this import opens is closed by its last release, whatever
/// the settings of the import cache. Memory that is in the cache already serves this import, too,
/// and stays there.
pub const FDBROKER_IMPORT_NO_CACHE: u32 = 2;

/// Memory of another process, mapped here and in use. Filled in by the library; to be released
/// once.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fdbroker_import_t {
    /// The allocation's first byte plus the handle's offset. In a forked child only if
    /// fdbroker_import_is_final(); else a touch is a SIGSEGV there.
    pub ptr: *mut c_void,
    /// From ptr to the allocation's end, in bytes.
    pub size_bytes: u64,
    /// For the library; 0: no import.
    pub pin: u64,
    pub slot: u32,
    pub generation: u32,
}

const NONE: fdbroker_import_t =
    fdbroker_import_t { ptr: std::ptr::null_mut(), size_bytes: 0, pin: 0, slot: 0, generation: 0 };

/// Maps the memory of a handle; flags are FDBROKER_IMPORT_*, combined by |. When it is in the
/// import cache and current, that takes no message and no system call. The memory stays mapped
/// until fdbroker_import_release(), even when the allocation ends: ask fdbroker_import_is_current()
/// after reading and before trusting the bytes. On failure *import is all zero, and nothing is left
/// behind. Waits until the deadline at most.
///
/// Errors: those of fdbroker_acquire(); FDBROKER_AGAIN while the cache is suspended
/// (fdbroker_suspend()), FDBROKER_NO_QUOTA also when a strict cache (cache_strict of
/// fdbroker_options_t) is full of memory in use, FDBROKER_BAD_HANDLE also when the offset is
/// outside the allocation, FDBROKER_NOT_SUPPORTED also for memory that the CPU cannot map and that
/// has no opener (fdbroker_set_opener()).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_import(
    broker: *mut fdbroker_t,
    handle: *const fdbroker_handle_t,
    flags: u32,
    deadline_ms: u32,
    import: *mut fdbroker_import_t,
) -> fdbroker_code_t {
    // A hit does nothing that can panic. SAFETY: the caller's pointers, as the header states.
    match unsafe { hit(broker, handle, flags, import) } {
        true => FDBROKER_OK,
        // SAFETY: as above.
        false => guard(|| unsafe {
            import_all(broker, 1, handle, flags, deadline_ms, import, std::ptr::null_mut())
        }),
    }
}

/// The same from the import cache or not at all: sends nothing, never waits, makes no system call,
/// also inside a callback.
///
/// Errors: FDBROKER_AGAIN (the memory is not in the cache, or not current now: fdbroker_import()
/// can tell, and fdbroker_last_error() stays as it was), FDBROKER_NOT_CONNECTED (in a forked
/// child), FDBROKER_INVALID_ARGUMENT. *import is all zero then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_import_hit(
    broker: *mut fdbroker_t,
    handle: *const fdbroker_handle_t,
    flags: u32,
    import: *mut fdbroker_import_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let out = unsafe { place(import, "import", NONE) }?;
        // SAFETY: as above.
        let (context, handle) = unsafe { (context(broker, "import")?, one(handle)?) };
        let found = context.cache.hit(&handle, mode(flags)?.access);
        *out = taken_apart(found.ok_or(Failure::NotReady)?);
        Ok(())
    })
}

/// Serves a hit, without an array of one. `false`: no hit, or an argument that is not valid.
///
/// # Safety
/// The pointers are as the header states.
#[inline]
unsafe fn hit(
    broker: *mut fdbroker_t,
    handle: *const fdbroker_handle_t,
    flags: u32,
    import: *mut fdbroker_import_t,
) -> bool {
    // SAFETY: the caller's promise. `hit` takes no lock and looks for a fork itself.
    let (Some(context), Some(handle), Some(import)) =
        (unsafe { (broker.as_ref(), handle.as_ref(), import.as_mut()) })
    else {
        return false;
    };
    let hit = access(flags).and_then(|access| context.cache.hit(&handle.get(), access));
    hit.map(|hit| *import = taken_apart(hit)).is_some()
}

pub(crate) fn mode(flags: u32) -> Result<ImportMode, Failure> {
    let keep = flags & FDBROKER_IMPORT_NO_CACHE == 0;
    match access(flags) {
        Some(access) => Ok(ImportMode::from(access).keep(keep)),
        None => {
            let text = format!("import: flags {flags:#x}: only FDBROKER_IMPORT_* are known");
            Err(Failure::argument(text))
        }
    }
}

#[inline]
fn access(flags: u32) -> Option<Access> {
    match flags & !FDBROKER_IMPORT_NO_CACHE {
        FDBROKER_IMPORT_READ => Some(Access::Read),
        FDBROKER_IMPORT_WRITE => Some(Access::ReadWrite),
        _ => None,
    }
}

/// Maps count handles. Memory that is not in the cache comes 253 per message, and the fds are
/// closed as they come: a soft limit of 32 fds is enough for any number. Fills all imports and all
/// codes (codes may be NULL) in the order of the handles; the import of a failure is all zero. The
/// same handle twice gives two imports of one mapping. Answers FDBROKER_OK when all were mapped,
/// else the first failure.
///
/// Errors: for each handle those of fdbroker_import().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_import_many(
    broker: *mut fdbroker_t,
    count: usize,
    handles: *const fdbroker_handle_t,
    flags: u32,
    deadline_ms: u32,
    imports: *mut fdbroker_import_t,
    codes: *mut fdbroker_code_t,
) -> fdbroker_code_t {
    // SAFETY: the caller's pointers, as the header states.
    guard(|| unsafe { import_all(broker, count, handles, flags, deadline_ms, imports, codes) })
}

/// # Safety
/// The pointers are as the header states.
unsafe fn import_all(
    broker: *mut fdbroker_t,
    count: usize,
    handles: *const fdbroker_handle_t,
    flags: u32,
    deadline_ms: u32,
    imports: *mut fdbroker_import_t,
    codes: *mut fdbroker_code_t,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let mut answers = unsafe { answers(count, imports, codes) }?;
    let import = || {
        // SAFETY: as above.
        let (context, handles) = unsafe { (context(broker, "import")?, many(handles, count)?) };
        Ok(context.cache.import_many(&handles, mode(flags)?, Deadline::from_ms(deadline_ms))?)
    };
    answers.fill(import().map(|imports| imports.into_iter().map(|one| one.map(taken_apart))))
}

/// The caller's arrays for imports and codes.
///
/// # Safety
/// `imports` and `codes` are NULL or point to `count` of them, which nobody else uses meanwhile.
pub(crate) unsafe fn answers<'a>(
    count: usize,
    imports: *mut fdbroker_import_t,
    codes: *mut fdbroker_code_t,
) -> Result<Answers<'a, impl Results<fdbroker_import_t> + use<'a>>, Failure> {
    // SAFETY: the caller's promise.
    unsafe { Answers::new(count, plain(imports, count, "import", || NONE), codes) }
}

#[inline]
pub(crate) fn taken_apart(import: CachedImport<'_>) -> fdbroker_import_t {
    let (ptr, size_bytes, id) = (import.as_ptr().cast(), import.len() as u64, import.id());
    let pin = import.into_pin().to_u64();
    fdbroker_import_t { ptr, size_bytes, pin, slot: id.slot, generation: id.generation }
}

/// 1 when the allocation of an import has not ended, and the broker lives and knows of the import;
/// else 0. After a reconnect it is 1 again for an import that the broker took over. 0 also for
/// NULL, for an import given back, and in a forked child. Makes no system call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_import_is_current(
    broker: *mut fdbroker_t,
    import: *const fdbroker_import_t,
) -> i32 {
    guard_value(0, || {
        // SAFETY: the caller's pointers, as the header states.
        let context = unsafe { context(broker, "look at an import") }?;
        // SAFETY: as above.
        let import =
            unsafe { import.as_ref() }.ok_or_else(|| Failure::argument("import is NULL"))?;
        let id = AllocationId { slot: import.slot, generation: import.generation };
        let pin = Pin::from_u64(import.pin);
        Ok(pin.is_some_and(|pin| context.cache.is_current(pin, id)).into())
    })
}

/// 1 when nobody can change the memory of an import any more: it was imported for reading, and is a
/// memfd sealed against writing and shrinking. A forked child reads it, too. Else 0, also for NULL,
/// and for an import given back. Takes no lock; also in a forked child.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_import_is_final(
    broker: *mut fdbroker_t,
    import: *const fdbroker_import_t,
) -> i32 {
    guard_value(0, || {
        // SAFETY: the caller's pointers, as the header states.
        let (context, import) = unsafe { (broker.as_ref(), import.as_ref()) };
        let pin = import.and_then(|import| Pin::from_u64(import.pin));
        Ok(context.zip(pin).is_some_and(|(context, pin)| context.cache.is_final(pin)).into())
    })
}

/// Gives an import back and zeroes the struct. Pointers into the memory must not be used any more;
/// the mapping may stay in the cache for the next import. Never waits; also inside a callback. Give
/// each import back once, not also a copy of its struct.
///
/// Errors: FDBROKER_BAD_HANDLE (given back before, or all zero; nothing changes),
/// FDBROKER_NOT_CONNECTED (in a forked child: the import is the parent's),
/// FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_import_release(
    broker: *mut fdbroker_t,
    import: *mut fdbroker_import_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let context = unsafe { context(broker, "release") }?;
        // SAFETY: as above.
        let import =
            unsafe { import.as_mut() }.ok_or_else(|| Failure::argument("import is NULL"))?;
        let pin = Pin::from_u64(std::mem::replace(import, NONE).pin)
            .ok_or_else(|| Failure::given_back("release: this import is empty"))?;
        Ok(context.cache.release(pin)?)
    })
}

/// On which device memory is open here that fdbroker_set_gpu_opener() has had opened:
/// *driver_number is a FDBROKER_DRIVER_* number, *device the driver's ordinal in this process. A
/// context opens each allocation once, so this is where it was opened first. Never waits; sends
/// nothing.
///
/// Errors: FDBROKER_BAD_HANDLE (an import that no driver has opened, or given back before; both are
/// 0 then), FDBROKER_NOT_CONNECTED (in a forked child), FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_import_device(
    broker: *mut fdbroker_t,
    import: *const fdbroker_import_t,
    driver_number: *mut u32,
    device: *mut u32,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let (out, ordinal, import) = unsafe {
            let out = place(driver_number, "import device: driver_number", 0)?;
            (out, place(device, "import device: device", 0)?, import.as_ref())
        };
        // SAFETY: as above.
        let context = unsafe { context(broker, "import device") }?;
        let import = import.ok_or_else(|| Failure::argument("import device: import is NULL"))?;
        let found = Some(import.ptr.addr() as u64).filter(|_| import.pin != 0);
        match found.and_then(|at| context.gpus.device_of_import(at)) {
            Some((driver, number)) => {
                (*out, *ordinal) = (driver as u32, number);
                Ok(())
            }
            None => Err(Failure::given_back("import device: no driver has opened this import")),
        }
    })
}

/// Closes all unused entries of the import cache. *closed, unless NULL, is their number. Also
/// inside a callback.
///
/// Errors: FDBROKER_NOT_CONNECTED (in a forked child), FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_empty_cache(
    broker: *mut fdbroker_t,
    closed: *mut u64,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let (context, out) = unsafe { (context(broker, "empty the cache")?, closed.as_mut()) };
        let count = context.cache.empty();
        if let Some(out) = out {
            *out = count as u64;
        }
        Ok(())
    })
}
