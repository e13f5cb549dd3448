//! Memory with an fd of its own, deposited when it is made: resident in the broker, and no fd here.
//! Must never keep the fd: what is deposited is the only way to it.

use super::dma_heap;
use super::memfd::{sealed, whole_pages};
use super::pool::{check_window, next_allocation_id};
use crate::api::client::Client;
use crate::deadline::Deadline;
use crate::deposit::{Deposit, Registration};
use crate::error::Error;
use crate::map::{Access, AtFork, Mapping, check_range};
use fdbroker_protocol::{AllocationId, Facts, Handle, MemoryKind, Share};
use std::os::fd::{AsFd, OwnedFd};

/// Where the memory of an [`IsolatedBuffer`] comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IsolatedMemory {
    /// A sealed memfd of its own: whoever gets it sees this buffer and nothing else.
    Memfd,
    /// A buffer of the system's dma-heap (/dev/dma_heap/system): a real dma-buf, its pages
    /// allocated at once.
    DmaHeap,
}

impl IsolatedMemory {
    /// Its name: `isolated`, `dma-heap`.
    pub fn name(self) -> &'static str {
        match self {
            IsolatedMemory::Memfd => "isolated",
            IsolatedMemory::DmaHeap => "dma-heap",
        }
    }

    /// What its fds are.
    pub fn kind(self) -> MemoryKind {
        match self {
            IsolatedMemory::Memfd => MemoryKind::Memfd,
            IsolatedMemory::DmaHeap => MemoryKind::DmaBuf,
        }
    }

    /// Whether it works here.
    ///
    /// # Errors
    /// NOT_SUPPORTED, with what is missing (for dma-heap: no device, or no right to open it).
    /// LOCAL_FD_LIMIT.
    pub fn available(self) -> Result<(), Error> {
        match self {
            IsolatedMemory::Memfd => Ok(()),
            IsolatedMemory::DmaHeap => dma_heap::probe(),
        }
    }

    /// `span` bytes of zeros, whole pages.
    fn allocate(self, span: usize) -> Result<OwnedFd, Error> {
        match self {
            IsolatedMemory::Memfd => sealed(c"fdbroker-isolated", span),
            IsolatedMemory::DmaHeap => dma_heap::allocate(span),
        }
    }
}

/// Memory of its own, mapped and writable here, registered from the beginning.
///
/// Its only fd is with the broker, which cannot ask for it again: it is *resident*, never evicted,
/// and charged to this client as long as it is registered. The process holds no fd for it. As
/// nobody sees anything else through its fd, it may be shared with anyone ([`Share`]).
///
/// When the broker is lost (not when it restarts in order) it cannot be shared any more, since its
/// fd is gone with it: [`crate::Notice::RegistrationLost`] says so, the memory stays usable here,
/// [`IsolatedBuffer::handle`] is `None`, and only a new buffer can be shared.
///
/// Dropping it ends the registration by one message without an answer, every holder is told, and
/// unmaps the memory here; consumers that have it mapped keep it until they release it.
#[derive(Debug)]
#[must_use = "dropping a buffer frees it"]
pub struct IsolatedBuffer {
    // Field order is drop order: the memory goes before the connection.
    mapping: Mapping,
    client: Client,
    registration: Registration,
    memory: IsolatedMemory,
    len: usize,
    owner_allocation_id: u64,
}

// A buffer never is empty.
#[expect(clippy::len_without_is_empty, reason = "a buffer is never empty")]
impl IsolatedBuffer {
    /// Allocates `len` bytes (more than 0, rounded up to pages, all 0), maps them and registers
    /// them. The fd is open in this process from its making until it is sent, within the export
    /// window ([`Client::register_with`]); for the dma-heap the device is open a moment too.
    ///
    /// # Errors
    /// NO_QUOTA: the broker's caps are full of what cannot be evicted; nothing was allocated, or it
    /// was given back. NOT_SUPPORTED: this memory is absent here, or `own_fds` leaves no export
    /// window. BAD_HANDLE: 0 bytes. INTERNAL: no memory, or no addresses. LOCAL_FD_LIMIT,
    /// TIMED_OUT, NOT_CONNECTED, and as [`Client::register`].
    pub fn new(
        client: &Client,
        memory: IsolatedMemory,
        len: usize,
        share: Share,
        deadline: Deadline,
    ) -> Result<IsolatedBuffer, Error> {
        let span = whole_pages(len)?;
        check_window(client, memory.name())?;
        let owner_allocation_id = next_allocation_id();
        let facts = Facts::new(memory.kind(), span as u64).owner_allocation_id(owner_allocation_id);
        let deposit = Deposit { share, ..facts.into() };
        let mut mapped = None;
        let export = |_| {
            let fd = memory.allocate(span)?;
            // Inherited by a forked child, like any memory of its parent's own.
            let mapping = Mapping::new(fd.as_fd(), 0, span, Access::ReadWrite, AtFork::Inherit)?;
            mapped = Some(mapping);
            Ok(fd)
        };
        let outcomes = client.register_with(&[deposit], export, deadline)?;
        let registration = outcomes.into_iter().next().expect("one outcome per deposit")?;
        let mapping = mapped.expect("what is registered was exported");
        let client = client.clone();
        Ok(IsolatedBuffer { mapping, client, registration, memory, len, owner_allocation_id })
    }

    /// First byte; mapped as long as the buffer lives.
    pub fn as_ptr(&self) -> *const u8 {
        self.mapping.as_ptr()
    }

    /// First byte, to write. Consumers see what is written at once.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.mapping.as_ptr()
    }

    /// Bytes asked for; the memfd has whole pages.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes registered: `len` in whole pages.
    pub fn span(&self) -> usize {
        self.mapping.len()
    }

    /// Where its memory came from.
    pub fn memory(&self) -> IsolatedMemory {
        self.memory
    }

    /// Its id as the owner counts: another one for each buffer, whatever its address.
    pub fn owner_allocation_id(&self) -> u64 {
        self.owner_allocation_id
    }

    /// Whether its handle is good: not after a loss of the broker, nor once the administrator has
    /// revoked it. No syscall.
    pub fn is_shared(&self) -> bool {
        self.client.is_current(self.registration.id())
            && self.client.common().holdings.has(&self.registration)
    }

    /// Its handle, as long as it is good.
    pub fn handle(&self) -> Option<Handle> {
        self.is_shared().then_some(self.registration.handle)
    }

    /// Its allocation, as long as its handle is good.
    pub fn id(&self) -> Option<AllocationId> {
        self.handle().map(|handle| handle.id())
    }

    /// Copies `bytes` in at `offset`, each word written once.
    ///
    /// # Errors
    /// BAD_HANDLE: out of bounds.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        check_range(offset, bytes.len(), self.len)?;
        self.mapping.write_at(offset, bytes)
    }

    /// Copies out `into.len()` bytes from `offset`, each word read once.
    ///
    /// # Errors
    /// BAD_HANDLE: out of bounds.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        check_range(offset, into.len(), self.len)?;
        self.mapping.read_at(offset, into)
    }

    /// The bytes as a slice.
    ///
    /// # Safety
    /// Nobody, in any process, reads or writes the memory while the slice is in use: so before the
    /// handle is passed on, or when the consumers are known to wait.
    pub unsafe fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: mapped for `len` bytes as long as the buffer lives; the rest is the caller's
        // promise.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.len) }
    }

    /// Frees it, like drop.
    pub fn free(self) {}
}

impl Drop for IsolatedBuffer {
    fn drop(&mut self) {
        // A forked child has a copy of the memory's mapping, but not the registration.
        if !self.client.common().process.is_current() {
            return;
        }
        self.client.common().retire([(&self.registration).into()]);
    }
}
