//! Host memory: allocating and freeing it. Must never leave a buffer behind that the caller has no pointer to.

use crate::arenas::Source;
use crate::context::{context, fdbroker_t};
use crate::errors::fdbroker_code_t;
use crate::failure::Failure;
use crate::guard::guard;
use crate::handle::fdbroker_handle_t;
use fdbroker_client::{Deadline, ErrorCode, HostMemory, IsolatedMemory};
use std::ffi::c_void;

/// A range of the memfd arena: recallable, costs no fd.
pub const FDBROKER_HOST_ARENA: u32 = 0;
/// A range of an arena, exported as dma-bufs by /dev/udmabuf: recallable.
pub const FDBROKER_HOST_UDMABUF: u32 = 1;
/// A memfd of its own, so that a consumer sees nothing else: resident.
pub const FDBROKER_HOST_ISOLATED: u32 = 2;
/// A buffer of /dev/dma_heap/system: resident.
pub const FDBROKER_HOST_DMA_HEAP: u32 = 3;

/// Allocates size_bytes (more than 0, in whole pages) of memory to share with processes of the same user: *ptr is
/// mapped and writable, the caller's until fdbroker_host_free(). It is registered within the deadline; for the arenas
/// handle may be NULL, and fdbroker_get_handle() registers it later. On failure *ptr is NULL, *handle all zero, and
/// nothing is left behind. What was written in an arena before may still be there.
///
/// A forked child shares the pages with its parent.
///
/// Errors: FDBROKER_NO_QUOTA (the arena or a cap is full), FDBROKER_NOT_SUPPORTED (this memory is absent here; or inside
/// a callback, when it is to be registered), FDBROKER_LOCAL_FD_LIMIT, FDBROKER_INTERNAL (the system has no memory), as
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

/// Frees host memory: it is unregistered, every holder is told, and the pages are used anew when the last consumer
/// has released them. Never waits (fdbroker_flush() does, until its handle is stale for all); also inside a
/// callback.
///
/// Errors: FDBROKER_BAD_HANDLE (unknown pointer, not the first byte, or freed before; nothing changes),
/// FDBROKER_NOT_CONNECTED (in a forked child: it is the parent's), FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_host_free(
    broker: *mut fdbroker_t,
    ptr: *mut c_void,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's context, as the header states.
        let context = unsafe { context(broker, "host free") }?;
        if context.arenas.free(ptr.addr()) {
            return Ok(());
        }
        let text = format!("host free: {ptr:p} begins no buffer of this context, or was freed");
        Err(Failure::new(ErrorCode::BadHandle, text))
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
