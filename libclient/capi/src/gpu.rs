//! GPU memory: allocating it, registering what others allocated, and having imports opened by the
//! driver. Must never touch a stream or the bytes of the memory, nor leave a buffer behind that the
//! caller has no pointer to.

use crate::context::{context, fdbroker_t};
use crate::errors::fdbroker_code_t;
use crate::failure::Failure;
use crate::gpus::{Driver, GpuOpener};
use crate::guard::guard;
use crate::handle::fdbroker_handle_t;
use crate::register::{memory_kind, share_of};
use crate::sized::place;
use crate::slot::refuse_in_callback;
use fdbroker_client::{Deadline, ErrorCode, ImportOpener};
use std::ffi::c_void;
use std::sync::Arc;

/// NVIDIA's libcuda.so.1. Memory is shared as FDBROKER_KIND_CUDA_VMM.
pub const FDBROKER_DRIVER_CUDA: u32 = 1;
/// libze_loader.so.1. Memory is shared as FDBROKER_KIND_DMA_BUF.
pub const FDBROKER_DRIVER_LEVEL_ZERO: u32 = 2;

/// Instead of a device's ordinal: each import is opened on the device that is its owner's GPU,
/// whatever its ordinal here.
pub const FDBROKER_OWNERS_DEVICE: u32 = 0xffff_ffff;

const _: () = {
    assert!(Driver::Cuda as u32 == FDBROKER_DRIVER_CUDA);
    assert!(Driver::LevelZero as u32 == FDBROKER_DRIVER_LEVEL_ZERO);
};

fn driver(act: &str, number: u32) -> Result<Driver, Failure> {
    match number {
        FDBROKER_DRIVER_CUDA => Ok(Driver::Cuda),
        FDBROKER_DRIVER_LEVEL_ZERO => Ok(Driver::LevelZero),
        _ => {
            let text = format!("{act}: driver is {number}; it is one of FDBROKER_DRIVER_*");
            Err(Failure::argument(text))
        }
    }
}

/// How many devices a driver shows to this process. The library finds the driver at run time, in
/// this and all other functions; a driver that has come meanwhile is found by the next call. Needs
/// no context, and sends nothing.
///
/// Errors: FDBROKER_NOT_SUPPORTED (fdbroker_last_error() says what is missing: the driver's
/// library, a symbol in it, a device; or this is a child of fork(2), where drivers do not work),
/// FDBROKER_LOCAL_FD_LIMIT (drivers open some fds), FDBROKER_INVALID_ARGUMENT. *count is 0 then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_gpu_count(
    driver_number: u32,
    count: *mut u32,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointer, as the header states.
        let out = unsafe { place(count, "gpu count: count", 0) }?;
        *out = driver("gpu count", driver_number)?.count()?;
        Ok(())
    })
}

/// Level Zero memory can be used in the context alone that it was made in. Names the program's
/// context (a ze_context_handle_t of the device's driver), in which this library then allocates and
/// imports memory of the device, and in which fdbroker_gpu_register() finds it. Call it before all
/// else with this device; without it the library makes a context of its own. Keep the context until
/// fdbroker_close().
///
/// Errors: FDBROKER_EXISTS (the device is in use here already), FDBROKER_NOT_SUPPORTED (as for
/// fdbroker_gpu_count()), FDBROKER_NOT_CONNECTED (in a forked child), FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_gpu_set_context(
    broker: *mut fdbroker_t,
    device: u32,
    ze_context: *mut c_void,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's context, as the header states.
        let context = unsafe { context(broker, "gpu set context") }?;
        if ze_context.is_null() {
            return Err(Failure::argument("gpu set context: ze_context is NULL"));
        }
        // SAFETY: the caller's promise, as the header states it.
        match unsafe { context.gpus.adopt(device, ze_context) }? {
            true => Ok(()),
            false => {
                let text = format!("gpu set context: device {device} is in use already");
                Err(Failure::new(ErrorCode::Exists, text))
            }
        }
    })
}

/// Allocates memory of a device that other processes can open: size_bytes, more than 0, rounded up
/// to what the driver shares (CUDA: 2 MiB on most devices). device is the driver's ordinal, share a
/// FDBROKER_SHARE_* number. *ptr is a device address, for kernels and copies, to be given back by
/// fdbroker_gpu_free(). The memory is registered within the deadline, and the library answers its
/// recalls. handle may be NULL: it is then registered later, by fdbroker_get_handle(). What the
/// memory contains is undefined. On failure *ptr is NULL, *handle all zero, and nothing is left
/// behind.
///
/// CUDA memory belongs to the device's primary context, which the runtime API uses, too. An export
/// is an fd of this process until the broker has it (Level Zero: two), so own_fds of
/// fdbroker_options_t must be 1 (2) or more, and one more beside an arena of host memory.
///
/// Errors: FDBROKER_NOT_SUPPORTED (no such driver or device, as for fdbroker_gpu_count(); the
/// device shares no memory by fds; own_fds is too small; or inside a callback), FDBROKER_INTERNAL
/// (the driver's words, such as that the device has no memory left), FDBROKER_LOCAL_FD_LIMIT, those
/// of fdbroker_register(), FDBROKER_NOT_CONNECTED, FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_gpu_alloc(
    broker: *mut fdbroker_t,
    driver_number: u32,
    device: u32,
    size_bytes: u64,
    share: u32,
    deadline_ms: u32,
    ptr: *mut *mut c_void,
    handle: *mut fdbroker_handle_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let (out, mut handle) = unsafe { (ptr.as_mut(), handle.as_mut()) };
        if let Some(handle) = &mut handle {
            **handle = fdbroker_handle_t::NONE;
        }
        let out = out.ok_or_else(|| Failure::argument("gpu alloc: ptr is NULL"))?;
        *out = std::ptr::null_mut();
        // SAFETY: as above.
        let context = unsafe { context(broker, "gpu alloc") }?;
        refuse_in_callback("gpu alloc")?;
        let len = usize::try_from(size_bytes).ok().filter(|len| *len > 0);
        let len = len.ok_or_else(|| {
            Failure::argument(format!("gpu alloc: {size_bytes} bytes; ask for at least one"))
        })?;
        let (driver, share) = (driver("gpu alloc", driver_number)?, share_of("gpu alloc", share)?);
        let buffer = context.gpus.alloc(driver, device, len, share)?;
        if let Some(handle) = handle {
            *handle = buffer.register(Deadline::from_ms(deadline_ms))?.into();
        }
        *out = buffer.ptr();
        context.gpus.keep(buffer, false);
        Ok(())
    })
}

/// Frees memory of fdbroker_gpu_alloc(): its registration ends, and every holder is told. Consumers
/// that have it open keep it until they release it. No kernel and no copy may be using it: the
/// library knows no streams and waits for none. Never waits for the broker; fdbroker_flush() does.
///
/// Errors: FDBROKER_BAD_HANDLE (not the first byte of a buffer, or freed before; nothing changes),
/// FDBROKER_NOT_CONNECTED (in a forked child: the memory is the parent's),
/// FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_gpu_free(
    broker: *mut fdbroker_t,
    ptr: *mut c_void,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's context, as the header states.
        let context = unsafe { context(broker, "gpu free") }?;
        if ptr.is_null() {
            return Err(Failure::argument("gpu free: ptr is NULL"));
        }
        if context.gpus.free(ptr.addr() as u64) {
            Ok(())
        } else {
            let text = format!("gpu free: {ptr:p} begins no GPU memory of this context");
            Err(Failure::given_back(text))
        }
    })
}

/// The handle of device memory that anybody in this process allocated, with the offset of ptr in
/// it: the driver says which allocation ptr lies in. The first call registers it, recallable, and
/// the library answers its recalls; later calls for any address in it send nothing. device is the
/// ordinal of the device that the memory is on. Memory of fdbroker_gpu_alloc() is found, too.
///
/// CUDA: memory that cuMemMap() mapped, of an allocation made with
/// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, as PyTorch's expandable segments are. A tensor there
/// may lie in several mappings, each with a handle of its own. Memory of cuMemAlloc() and
/// cudaMalloc() can be shared under fdbroker run --cuda=malloc alone, from 2 MiB on. Level Zero:
/// all memory that zeMemGetIpcHandle() takes.
///
/// Until fdbroker_gpu_retire() the broker's fd keeps the memory allocated, also when its owner
/// frees it.
///
/// Errors: FDBROKER_STALE (no device memory is at ptr, or it was freed meanwhile),
/// FDBROKER_NOT_SUPPORTED (this memory cannot be shared; fdbroker_last_error() says why; otherwise
/// as for fdbroker_gpu_alloc()), FDBROKER_LOCAL_FD_LIMIT, those of fdbroker_register(),
/// FDBROKER_NOT_CONNECTED, FDBROKER_INVALID_ARGUMENT. *handle is all zero then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_gpu_register(
    broker: *mut fdbroker_t,
    driver_number: u32,
    device: u32,
    ptr: *const c_void,
    share: u32,
    deadline_ms: u32,
    handle: *mut fdbroker_handle_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let out = unsafe { place(handle, "gpu register: handle", fdbroker_handle_t::NONE) }?;
        // SAFETY: as above.
        let context = unsafe { context(broker, "gpu register") }?;
        refuse_in_callback("gpu register")?;
        let (address, deadline) = (ptr.addr() as u64, Deadline::from_ms(deadline_ms));
        let of = (driver("gpu register", driver_number)?, device);
        let share = share_of("gpu register", share)?;
        let (gpus, exports) = (&context.gpus, &context.exports);
        *out = match gpus.handle_at(address, deadline)? {
            Some(handle) => handle.into(),
            None => gpus.export(exports, of, address, share, deadline)?.into(),
        };
        Ok(())
    })
}

/// Says that memory which fdbroker_gpu_register() has registered is about to be freed: its
/// registration ends at once, every holder is told, and the broker closes its fd. Call it before
/// the driver's function that frees; after it, only the first address finds the memory. Never
/// waits; also inside a callback.
///
/// Errors: FDBROKER_BAD_HANDLE (nothing at ptr was registered so; nothing changes),
/// FDBROKER_NOT_SUPPORTED (no such driver or device), FDBROKER_NOT_CONNECTED (in a forked child),
/// FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_gpu_retire(
    broker: *mut fdbroker_t,
    driver_number: u32,
    device: u32,
    ptr: *const c_void,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's context, as the header states.
        let context = unsafe { context(broker, "gpu retire") }?;
        let of = (driver("gpu retire", driver_number)?, device);
        if context.gpus.retire(&context.exports, of, ptr.addr() as u64)? {
            Ok(())
        } else {
            let text = format!("gpu retire: nothing at {ptr:p} was registered");
            Err(Failure::given_back(text))
        }
    })
}

/// Has a driver open all memory of a kind that fdbroker_import() does not find in the cache: ptr of
/// an import is then a device address, and the memory stays open until fdbroker_import_release().
/// So it has what host memory has: hits without a message, batches, imports without waiting,
/// limits, suspend and resume. kind is that of the handle (fdbroker_handle_parse()):
/// FDBROKER_KIND_CUDA_VMM, or FDBROKER_KIND_DMA_BUF for Level Zero, whose dma-bufs of host memory
/// then go to the driver, too. device is an ordinal, or FDBROKER_OWNERS_DEVICE. A context opens
/// each allocation once; a program that needs it on two devices has a context for each.
/// fdbroker_set_opener() of the same kind replaces this, and with NULL functions undoes it.
///
/// FDBROKER_IMPORT_READ maps CUDA memory for reading where the driver can do that; Level Zero has
/// no such mapping, and there the program must keep to it. Before a release no kernel and no copy
/// may be using the memory any more.
///
/// Errors: FDBROKER_NOT_SUPPORTED (no such driver or device, as for fdbroker_gpu_count(); nothing
/// changes), FDBROKER_LOCAL_FD_LIMIT, FDBROKER_NOT_CONNECTED (in a forked child),
/// FDBROKER_INVALID_ARGUMENT. An import then also answers FDBROKER_NOT_SUPPORTED (the device cannot
/// reach that memory; or, with FDBROKER_OWNERS_DEVICE, this process does not see the owner's GPU,
/// or the owner has not said which it is: fdbroker_last_error() names it, and what is seen) and
/// FDBROKER_UNSUPPORTED_FD (the driver does not know the fd).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_set_gpu_opener(
    broker: *mut fdbroker_t,
    kind: u32,
    driver_number: u32,
    device: u32,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's context, as the header states.
        let context = unsafe { context(broker, "set an opener") }?;
        let kind = memory_kind("set an opener", kind)?;
        let driver = driver("set an opener", driver_number)?;
        let device = (device != FDBROKER_OWNERS_DEVICE).then_some(device);
        match device {
            Some(ordinal) => context.gpus.open(driver, ordinal)?,
            None if driver.count()? == 0 => {
                let text = "set an opener: the driver shows no device";
                return Err(Failure::new(ErrorCode::NotSupported, text));
            }
            None => {}
        }
        let gpus = Arc::clone(&context.gpus);
        let opener: Arc<dyn ImportOpener> = Arc::new(GpuOpener { gpus, driver, device });
        Ok(context.cache.set_opener(kind, Some(opener))?)
    })
}
