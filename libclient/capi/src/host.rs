//! Host memory: allocating and freeing it. Must never leave a buffer behind that the caller has no
//! pointer to.

use crate::arenas::Source;
use crate::context::{context, fdbroker_t};
use crate::errors::fdbroker_code_t;
use crate::failure::Failure;
use crate::guard::guard;
use crate::handle::fdbroker_handle_t;
use fdbroker_client::{Deadline, HostMemory, IsolatedMemory};
use std::ffi::c_void;

/// A range of an arena, a memfd: recallable, no fd of its own.
pub const FDBROKER_HOST_ARENA: u32 = 0;
/// A range of an arena, exported as a dma-buf (/dev/udmabuf): recallable.
pub const FDBROKER_HOST_UDMABUF: u32 = 1;
/// A memfd of its own, so consumers see no other memory: resident.
pub const FDBROKER_HOST_ISOLATED: u32 = 2;
/// A buffer of /dev/dma_heap/system: resident.
pub const FDBROKER_HOST_DMA_HEAP: u32 = 3;

/// Allocates memory that processes of the same user can share: size_bytes, more than 0, rounded up
/// to whole pages. memory is a FDBROKER_HOST_* number; "resident" there means that the broker keeps
/// an fd of it all the time. *ptr is mapped and writable, to be given back by fdbroker_host_free().
/// The memory is registered within the deadline. handle may be NULL: a buffer of an arena is then
/// registered later, by fdbroker_get_handle(). On failure *ptr is NULL, *handle all zero, and
/// nothing is left behind. A buffer of an arena may still contain bytes of an earlier one.
///
/// A forked child shares the pages with its parent, until the parent frees the memory: then its
/// bytes are undefined there.
///
/// Errors: FDBROKER_NO_QUOTA (the arena or a cap is full), FDBROKER_NOT_SUPPORTED (this kind of
/// memory is not available here; or inside a callback, where nothing can be registered),
/// FDBROKER_LOCAL_FD_LIMIT, FDBROKER_INTERNAL (the system has no memory left), those of
/// fdbroker_register(), FDBROKER_NOT_CONNECTED, FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_host_alloc(
    broker: *mut fdbroker_t,
    memory: u32,
    size_bytes: u64,
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
        let out = out.ok_or_else(|| Failure::argument("ptr is NULL"))?;
        *out = std::ptr::null_mut();
        // SAFETY: as above.
        let context = unsafe { context(broker, "host alloc") }?;
        let len = usize::try_from(size_bytes).ok().filter(|len| *len > 0);
        let len = len.ok_or_else(|| {
            Failure::argument(format!("host alloc: {size_bytes} bytes; ask for at least one"))
        })?;
        let deadline = Deadline::from_ms(deadline_ms);
        let buffer = context.arenas.alloc(&context.client, source(memory)?, len, deadline)?;
        if let Some(handle) = handle {
            *handle = buffer.register(deadline)?.into();
        }
        *out = buffer.as_ptr().cast();
        context.arenas.keep(buffer);
        Ok(())
    })
}

/// Frees host memory: its registration ends, every holder is told, and its pages are used anew once
/// the last consumer has released them. Never waits; fdbroker_flush() waits until the handle is
/// stale in every process. Also inside a callback.
///
/// Errors: FDBROKER_BAD_HANDLE (not the first byte of a buffer, or freed before; nothing changes),
/// FDBROKER_NOT_CONNECTED (in a forked child: the memory is the parent's),
/// FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_host_free(
    broker: *mut fdbroker_t,
    ptr: *mut c_void,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's context, as the header states.
        let context = unsafe { context(broker, "host free") }?;
        if ptr.is_null() {
            return Err(Failure::argument("host free: ptr is NULL"));
        }
        if context.arenas.free(ptr.addr()) {
            return Ok(());
        }
        Err(Failure::given_back(format!("host free: {ptr:p} begins no buffer of this context")))
    })
}

/// Uses memory of arenas again that was freed and of which no broker knows now. Memory that was
/// freed around the loss of a broker comes back by itself: when the next broker's grace time
/// (limits.grace_ms) is over and its last consumer has released it. That does not happen while
/// there is no broker, nor when the next one knows nothing of the one before, or this process came
/// back too late. Call this only when no process has memory mapped that this context freed then.
/// bytes (may be NULL) gets how many bytes. Never waits; also inside a callback.
///
/// Errors: FDBROKER_NOT_CONNECTED (in a forked child), FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_host_reclaim(
    broker: *mut fdbroker_t,
    bytes: *mut u64,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let (context, out) = unsafe { (context(broker, "host reclaim")?, bytes.as_mut()) };
        let reclaimed = context.arenas.reclaim();
        if let Some(out) = out {
            *out = reclaimed;
        }
        Ok(())
    })
}

fn source(memory: u32) -> Result<Source, Failure> {
    match memory {
        FDBROKER_HOST_ARENA => Ok(Source::Arena(HostMemory::Memfd)),
        FDBROKER_HOST_UDMABUF => Ok(Source::Arena(HostMemory::Udmabuf)),
        FDBROKER_HOST_ISOLATED => Ok(Source::Isolated(IsolatedMemory::Memfd)),
        FDBROKER_HOST_DMA_HEAP => Ok(Source::Isolated(IsolatedMemory::DmaHeap)),
        _ => Err(Failure::argument(format!("host alloc: no memory has the number {memory}"))),
    }
}
