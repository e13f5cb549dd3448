//! Host memory: arenas made at first use, buffers known by their address.
//! Must never register or free one under its lock.

use crate::errors::fdbroker_code_t;
use crate::failure::Failure;
use crate::guard::guard;
use crate::handle::fdbroker_handle_t;
use crate::limits::{ARENA_BYTES, ARENA_LEAST_BYTES};
use crate::open::{context, fdbroker_t};
use crate::slot::is_in_callback;
use fdbroker_client::{
    Arena, Client, Deadline, Error, ErrorCode, Handle, HostBuffer, HostMemory, IsolatedBuffer,
    IsolatedMemory, Share,
};
use nix::sys::resource::{Resource, getrlimit};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
        let buffer = context.host.alloc(&context.client, memory, len, deadline)?;
        if let Some(handle) = handle {
            *handle = buffer.register(deadline)?.into();
        }
        *out = buffer.as_ptr().cast();
        context.host.keep(buffer);
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
        let buffer = context.host.state().buffers.remove(&ptr.addr());
        let buffer = buffer.ok_or_else(|| {
            let text = format!("host free: {ptr:p} begins no buffer of this context, or was freed");
            Failure::new(ErrorCode::BadHandle, text)
        })?;
        drop(buffer);
        Ok(())
    })
}

/// The host memory of a context.
pub(crate) struct Host {
    /// As asked for; 0 = the default.
    arena_bytes: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    // Field order is drop order, though buffers keep their arena.
    buffers: BTreeMap<usize, Arc<Buffer>>,
    arenas: [Option<Arena>; 2],
}

#[derive(Debug)]
pub(crate) enum Buffer {
    Arena(HostBuffer),
    Isolated(IsolatedBuffer),
}

/// What there is.
pub(crate) struct Usage {
    pub registered: u64,
    pub bytes: u64,
    pub used: u64,
}

impl Host {
    pub fn new(arena_bytes: u64) -> Self {
        Host { arena_bytes, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn alloc(
        &self,
        client: &Client,
        memory: u32,
        len: usize,
        deadline: Deadline,
    ) -> Result<Buffer, Failure> {
        let isolated = |memory| {
            let buffer = IsolatedBuffer::new(client, memory, len, Share::Uid, deadline)?;
            Ok(Buffer::Isolated(buffer))
        };
        match memory {
            FDBROKER_HOST_ARENA => self.alloc_in(client, 0, HostMemory::Memfd, len),
            FDBROKER_HOST_UDMABUF => self.alloc_in(client, 1, HostMemory::Udmabuf, len),
            FDBROKER_HOST_ISOLATED => isolated(IsolatedMemory::Memfd),
            FDBROKER_HOST_DMA_HEAP => isolated(IsolatedMemory::DmaHeap),
            _ => Err(Failure::argument(format!("host alloc: no memory has the number {memory}"))),
        }
    }

    fn alloc_in(
        &self,
        client: &Client,
        at: usize,
        memory: HostMemory,
        len: usize,
    ) -> Result<Buffer, Failure> {
        let arena = {
            let mut state = self.state();
            match &state.arenas[at] {
                Some(arena) => arena.clone(),
                // Under the lock, so that there is one of a kind: some system calls, no message.
                None => {
                    let made = self.make_arena(client, memory)?;
                    state.arenas[at].insert(made).clone()
                }
            }
        };
        Ok(Buffer::Arena(arena.alloc(len)?))
    }

    /// One of the size asked for; without one, the largest of the default and its halves that the system gives.
    fn make_arena(&self, client: &Client, memory: HostMemory) -> Result<Arena, Failure> {
        let most = most_bytes();
        if self.arena_bytes > most {
            let asked = self.arena_bytes;
            let text = format!("host alloc: arena_bytes is {asked}, but RLIMIT_FSIZE is {most}");
            return Err(Failure::new(ErrorCode::Internal, text));
        }
        let asked = if self.arena_bytes == 0 { ARENA_BYTES.min(most) } else { self.arena_bytes };
        let mut bytes = usize::try_from(asked).unwrap_or(usize::MAX);
        loop {
            match Arena::new(client, memory, bytes) {
                Err(Error { code: ErrorCode::Internal, .. })
                    if self.arena_bytes == 0 && bytes / 2 >= ARENA_LEAST_BYTES =>
                {
                    bytes /= 2;
                }
                made => return Ok(made?),
            }
        }
    }

    fn keep(&self, buffer: Buffer) {
        self.state().buffers.insert(buffer.as_ptr().addr(), Arc::new(buffer));
    }

    /// The handle of the buffer that `address` is in; `None`: it is in none.
    pub fn handle_at(&self, address: usize, deadline: Deadline) -> Result<Option<Handle>, Failure> {
        let found = {
            let state = self.state();
            let below = state.buffers.range(..=address).next_back();
            below.map(|(base, buffer)| (address - base, Arc::clone(buffer)))
        };
        // The clone keeps the buffer should another thread free it meanwhile.
        let Some((offset, buffer)) = found.filter(|(offset, buffer)| *offset < buffer.span())
        else {
            return Ok(None);
        };
        Ok(Some(buffer.register(deadline)?.at(offset as u64)))
    }

    pub fn usage(&self) -> Usage {
        let state = self.state();
        let mut usage = Usage { registered: 0, bytes: 0, used: 0 };
        for arena in state.arenas.iter().flatten() {
            usage.bytes += arena.len() as u64;
        }
        for buffer in state.buffers.values() {
            usage.used += buffer.span() as u64;
            usage.registered += u64::from(buffer.handle().is_some());
            if let Buffer::Isolated(_) = **buffer {
                usage.bytes += buffer.span() as u64;
            }
        }
        usage
    }
}

impl Buffer {
    fn as_ptr(&self) -> *mut u8 {
        match self {
            Buffer::Arena(buffer) => buffer.as_mut_ptr(),
            Buffer::Isolated(buffer) => buffer.as_mut_ptr(),
        }
    }

    fn span(&self) -> usize {
        match self {
            Buffer::Arena(buffer) => buffer.span(),
            Buffer::Isolated(buffer) => buffer.span(),
        }
    }

    fn handle(&self) -> Option<Handle> {
        match self {
            Buffer::Arena(buffer) => buffer.handle(),
            Buffer::Isolated(buffer) => buffer.handle(),
        }
    }

    /// Its handle, registered anew if need be and it can be.
    fn register(&self, deadline: Deadline) -> Result<Handle, Failure> {
        match self {
            // In a callback only what is registered already can be had: registering waits.
            Buffer::Arena(buffer) if is_in_callback() => match buffer.handle() {
                Some(handle) => Ok(handle),
                None => Ok(buffer.register(deadline)?),
            },
            Buffer::Arena(buffer) => Ok(buffer.register(deadline)?),
            Buffer::Isolated(buffer) => buffer.handle().ok_or_else(|| {
                let text = "get handle: the only fd of this isolated memory went with the broker that had \
                            it (or it was revoked); allocate anew";
                Failure::new(ErrorCode::Stale, text)
            }),
        }
    }
}

/// The largest memfd that this process may have: beyond RLIMIT_FSIZE, ftruncate(2) raises SIGXFSZ.
fn most_bytes() -> u64 {
    getrlimit(Resource::RLIMIT_FSIZE).map_or(u64::MAX, |(soft, _)| soft)
}
