//! The host memory of a context: arenas made at first use, buffers known by their address.
//! Must never register or free a buffer under its lock.

use crate::failure::Failure;
use crate::limits::{ARENA_BYTES, ARENA_LEAST_BYTES};
use crate::slot::is_in_callback;
use fdbroker_client::layer::lock;
use fdbroker_client::{
    Arena, Client, Deadline, ErrorCode, Handle, HostBuffer, HostMemory, IsolatedBuffer,
    IsolatedMemory, Share,
};
use nix::sys::resource::{Resource, getrlimit};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Where a buffer is to come from.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    Arena(HostMemory),
    Isolated(IsolatedMemory),
}

/// All host memory of a context.
pub(crate) struct Arenas {
    /// Address space of each arena; 0: the default.
    arena_bytes: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By their first address.
    buffers: BTreeMap<usize, Arc<Buffer>>,
    memfd_arena: Option<Arena>,
    udmabuf_arena: Option<Arena>,
}

#[derive(Debug)]
pub(crate) enum Buffer {
    Arena(HostBuffer),
    Isolated(IsolatedBuffer),
}

/// The counters of host memory.
pub(crate) struct Usage {
    /// Buffers that are registered now.
    pub registered: u64,
    /// Address space of the arenas and of the isolated buffers.
    pub bytes: u64,
    /// Of these bytes, those in buffers that are not freed.
    pub used: u64,
    /// Of these bytes, those that are freed and not used again yet.
    pub held_back: u64,
}

impl Arenas {
    pub fn new(arena_bytes: u64) -> Self {
        Arenas { arena_bytes, state: Mutex::default() }
    }

    pub fn alloc(
        &self,
        client: &Client,
        source: Source,
        len: usize,
        deadline: Deadline,
    ) -> Result<Buffer, Failure> {
        match source {
            Source::Arena(memory) => Ok(Buffer::Arena(self.arena(client, memory)?.alloc(len)?)),
            Source::Isolated(memory) => {
                let buffer = IsolatedBuffer::new(client, memory, len, Share::Uid, deadline)?;
                Ok(Buffer::Isolated(buffer))
            }
        }
    }

    /// The arena of this kind of memory, made at its first use, and anew when its fd is gone.
    fn arena(&self, client: &Client, memory: HostMemory) -> Result<Arena, Failure> {
        let mut state = lock(&self.state);
        let place = match memory {
            HostMemory::Memfd => &mut state.memfd_arena,
            HostMemory::Udmabuf | _ => &mut state.udmabuf_arena,
        };
        // One whose fd the program has closed is of no use to buffers to come. Those that it has
        // keep it.
        if let Some(arena) = place.as_ref().filter(|arena| arena.can_be_shared()) {
            return Ok(arena.clone());
        }
        // Under the lock, so that there is one of each kind: a few system calls, no message.
        Ok(place.insert(self.make_arena(client, memory)?).clone())
    }

    /// An arena of the size asked for. Without one: the largest of the default and its halves that
    /// the system gives.
    fn make_arena(&self, client: &Client, memory: HostMemory) -> Result<Arena, Failure> {
        let (asked, most) = (self.arena_bytes, most_bytes());
        let refused = |why: &str| {
            let text = format!("host alloc: arena_bytes is {asked}, but {why}");
            Failure::argument(text)
        };
        if asked > most {
            return Err(refused(&format!("RLIMIT_FSIZE is {most}")));
        }
        let first = if asked == 0 { ARENA_BYTES.min(most) } else { asked };
        let mut bytes = usize::try_from(first).unwrap_or(usize::MAX);
        loop {
            match Arena::new(client, memory, bytes) {
                Err(error) if error.code == ErrorCode::Internal && asked != 0 => {
                    return Err(refused(&error.to_string()));
                }
                Err(error)
                    if error.code == ErrorCode::Internal && bytes / 2 >= ARENA_LEAST_BYTES =>
                {
                    bytes /= 2;
                }
                made => return Ok(made?),
            }
        }
    }

    /// Keeps a buffer until [`Arenas::free`].
    pub fn keep(&self, buffer: Buffer) {
        lock(&self.state).buffers.insert(buffer.as_ptr().addr(), Arc::new(buffer));
    }

    /// Frees the buffer that begins at `address`; whether there was one.
    pub fn free(&self, address: usize) -> bool {
        // Dropped here, after the lock.
        let buffer = lock(&self.state).buffers.remove(&address);
        buffer.is_some()
    }

    /// The handle of the buffer that `address` points into; `None`: it points into none.
    pub fn handle_at(&self, address: usize, deadline: Deadline) -> Result<Option<Handle>, Failure> {
        let found = {
            let state = lock(&self.state);
            let below = state.buffers.range(..=address).next_back();
            below.map(|(base, buffer)| (address - base, Arc::clone(buffer)))
        };
        // The clone keeps the buffer alive when another thread frees it meanwhile.
        let Some((offset, buffer)) = found.filter(|(offset, buffer)| *offset < buffer.span())
        else {
            return Ok(None);
        };
        Ok(Some(buffer.register(deadline)?.at(offset as u64)))
    }

    /// Uses again what is held back because a broker that was lost knew its leases; how many bytes.
    pub fn reclaim(&self) -> u64 {
        let arenas = {
            let state = lock(&self.state);
            [state.memfd_arena.clone(), state.udmabuf_arena.clone()]
        };
        arenas.iter().flatten().map(|arena| arena.reclaim_orphans() as u64).sum()
    }

    pub fn usage(&self) -> Usage {
        let state = lock(&self.state);
        let mut usage = Usage { registered: 0, bytes: 0, used: 0, held_back: 0 };
        for arena in [&state.memfd_arena, &state.udmabuf_arena].into_iter().flatten() {
            usage.bytes += arena.len() as u64;
            usage.held_back += arena.held_back_bytes() as u64;
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
    pub fn as_ptr(&self) -> *mut u8 {
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

    /// The buffer's handle; it is registered first when it is not, or no more.
    pub fn register(&self, deadline: Deadline) -> Result<Handle, Failure> {
        match self {
            // Inside a callback only a handle that is there already can be had, because registering
            // waits.
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
