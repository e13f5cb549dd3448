//! An object that was got: a range of its group's memory, which is open here as long as any object
//! of it is. Must never hand out a safe reference into memory that somebody may still write.

use super::memory::{Opened, Placed, Shared};
use crate::books::lease::Lease;
use crate::error::Error;
use crate::map::check_range;
use fdbroker_protocol::{AllocationId, ErrorCode, MemoryKind};
use std::sync::Arc;

/// A sealed object, readable here without a copy. Its bytes never change, whatever becomes of its
/// name, its maker and the broker.
///
/// The objects of a group share one mapping and one lease, which is given back when the last of
/// them and of their clones is dropped. A child of fork(2) reads the bytes of host memory, too,
/// whatever it drops; the lease is its parent's until it connects.
#[derive(Clone, Debug)]
#[must_use = "dropping the last clone gives it back"]
pub struct Object(Arc<Inner>);

/// One count for all of it: an object is cloned at each use of the cache.
#[derive(Debug)]
struct Inner {
    memory: Arc<Shared>,
    place: Placed,
    name: Arc<str>,
    metadata: Box<[u8]>,
}

impl Object {
    pub(super) fn new(
        memory: Arc<Shared>,
        place: Placed,
        name: Arc<str>,
        metadata: Box<[u8]>,
    ) -> Self {
        Object(Arc::new(Inner { memory, place, name, metadata }))
    }

    /// Its name when it was got.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Given when its group was sealed, above all versions before.
    pub fn version(&self) -> u64 {
        self.0.place.version
    }

    /// Its size in bytes; may be 0.
    pub fn len(&self) -> usize {
        self.0.place.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.place.len == 0
    }

    /// All of it, up to 4096 bytes.
    pub fn metadata(&self) -> &[u8] {
        &self.0.metadata
    }

    /// How its memory is opened: memfd, cuda-vmm and so on.
    pub fn kind(&self) -> MemoryKind {
        self.0.memory.info().facts.kind
    }

    /// Its group's allocation. Objects of one group have the same.
    pub fn id(&self) -> AllocationId {
        self.0.memory.info().id
    }

    /// The lease that holds the memory of its group; administrators name it by its number.
    pub fn lease(&self) -> &Lease {
        self.0.memory.lease()
    }

    /// Whether its group still has a name (if it is the only one of its group: whether it is still
    /// what its name leads to), the broker lives, and counts this use of it. No syscall. The bytes
    /// stay good all the same.
    pub fn is_current(&self) -> bool {
        self.0.memory.lease().is_current()
    }

    /// Whether nobody can change the bytes any more, by the kernel's seals; a child of fork(2) has
    /// them, too.
    pub fn is_final(&self) -> bool {
        self.0.memory.sealed_bytes().is_some()
    }

    /// The bytes: host memory that is sealed against writing.
    ///
    /// # Errors
    /// NOT_SUPPORTED: memory of a GPU, or foreign memory that only its maker's word keeps from
    /// being written; [`Object::read_at`] copies it. NOT_CONNECTED: such memory in a child of
    /// fork(2).
    pub fn bytes(&self) -> Result<&[u8], Error> {
        if let Some(bytes) = self.0.memory.sealed_bytes() {
            return Ok(&bytes[self.0.place.offset..self.0.place.offset + self.0.place.len]);
        }
        self.0.memory.check_process()?;
        Err(Error::new(ErrorCode::NotSupported, format!("bytes of {}", self.0.name))
            .because("its memory is not sealed by the kernel; copy it with read_at"))
    }

    /// Copies out `into.len()` bytes from `offset`, of whatever memory.
    ///
    /// # Errors
    /// BAD_HANDLE: out of bounds. INTERNAL: the driver's words. NOT_CONNECTED or NOT_SUPPORTED in a
    /// child of fork(2), but for memory that has [`Object::bytes`].
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        check_range(offset, into.len(), self.0.place.len)?;
        self.0.memory.read_at(self.0.place.offset + offset, into)
    }

    /// First byte, if the CPU can read it there: for C. In a child of fork(2) only where there are
    /// [`Object::bytes`].
    pub fn as_ptr(&self) -> Option<*const u8> {
        match self.0.memory.opened() {
            Opened::Host(import) => Some(import.as_ptr().wrapping_add(self.0.place.offset)),
            Opened::Device(_) => None,
        }
    }

    /// First byte, a device address of this process, if it was opened for a device. No kernel may
    /// write there: others read it, too. Good as long as an object of its group is held.
    pub fn device_ptr(&self) -> Option<u64> {
        let base = match self.0.memory.opened() {
            Opened::Host(_) => return None,
            Opened::Device(import) => import.memory.device_ptr(),
        };
        Some(base + self.0.place.offset as u64)
    }

    /// The ordinal of that device, of its driver; `None`: host memory.
    pub fn device(&self) -> Option<u32> {
        self.0.memory.device()
    }

    /// Before anybody else has it.
    pub(super) fn set_metadata(&mut self, metadata: Box<[u8]>) {
        let inner = Arc::get_mut(&mut self.0).expect("it is not handed over yet");
        inner.metadata = metadata;
    }

    /// Whether its memory is in use by another object, too.
    pub(super) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1 || Arc::strong_count(&self.0.memory) > 1
    }
}
