//! What is known of an allocation, wherever it is known: one record for messages, saved state,
//! views, library and C. Must never have a fact that only one of these has.

use crate::gpu::{Gpu, GpuItem};
use crate::memory::MemoryKind;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

/// What an owner says of its memory, and each holder may know: kind, device, size, and where in its
/// fd it is. Made by [`Facts::new`] and the methods named as the fields.
// A new fact goes here and into `FactsItem`; the conversions between the two name every field. Who
// writes it down elsewhere takes a `FactsItem` apart, which does not compile before the new fact
// has a place there, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Facts {
    /// What the fd is.
    pub kind: MemoryKind,
    /// The owner's own number of the device: it gets it back in recalls. It says nothing to others:
    /// each process counts its devices anew.
    pub device: u32,
    /// The GPU that it is on, as its owner claims.
    pub gpu: Gpu,
    /// Size in bytes: bounds every offset.
    pub size_bytes: u64,
    /// Where in the fd it begins, in bytes.
    pub fd_offset: u64,
    /// The owner's id of it (Level Zero's `ze_memory_allocation_properties_t.id`, CUDA's buffer
    /// id): another id at the same address is another allocation.
    pub owner_allocation_id: u64,
}

impl Facts {
    /// Where nothing is known: a handle that is refused, an allocation of before a crash.
    pub const NONE: Facts = Facts::new(MemoryKind::Memfd, 0);

    /// From offset 0 of the fd, on device 0 and no GPU, without an id.
    pub const fn new(kind: MemoryKind, size_bytes: u64) -> Self {
        Facts { kind, device: 0, gpu: Gpu::NONE, size_bytes, fd_offset: 0, owner_allocation_id: 0 }
    }

    /// With another [`Facts::kind`](field@Facts::kind).
    #[must_use]
    pub const fn kind(self, kind: MemoryKind) -> Self {
        Facts { kind, ..self }
    }

    /// With another [`Facts::device`](field@Facts::device).
    #[must_use]
    pub const fn device(self, device: u32) -> Self {
        Facts { device, ..self }
    }

    /// With another [`Facts::gpu`](field@Facts::gpu).
    #[must_use]
    pub const fn gpu(self, gpu: Gpu) -> Self {
        Facts { gpu, ..self }
    }

    /// With another [`Facts::size_bytes`](field@Facts::size_bytes).
    #[must_use]
    pub const fn size_bytes(self, size_bytes: u64) -> Self {
        Facts { size_bytes, ..self }
    }

    /// With another [`Facts::fd_offset`](field@Facts::fd_offset).
    #[must_use]
    pub const fn fd_offset(self, fd_offset: u64) -> Self {
        Facts { fd_offset, ..self }
    }

    /// With another [`Facts::owner_allocation_id`](field@Facts::owner_allocation_id).
    #[must_use]
    pub const fn owner_allocation_id(self, owner_allocation_id: u64) -> Self {
        Facts { owner_allocation_id, ..self }
    }

    /// Whether it is memory of the host. A dma-buf is, unless its owner names a GPU.
    pub fn is_of_host(&self) -> bool {
        match self.kind {
            MemoryKind::Memfd => true,
            MemoryKind::CudaVmm => false,
            MemoryKind::DmaBuf => self.gpu.is_none(),
        }
    }
}

/// [`Facts`] in messages and records, 53 bytes: the 3 bytes after them are each message's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct FactsItem {
    /// Size in bytes.
    pub size_bytes: U64,
    /// Where in the fd it begins, in bytes.
    pub fd_offset: U64,
    /// The owner's id of it.
    pub owner_allocation_id: U64,
    /// The GPU that it is on.
    pub gpu: GpuItem,
    /// The owner's own number of the device.
    pub device: U32,
    /// A [`MemoryKind`].
    pub kind: u8,
}

impl From<Facts> for FactsItem {
    fn from(facts: Facts) -> Self {
        let Facts { kind, device, gpu, size_bytes, fd_offset, owner_allocation_id } = facts;
        FactsItem {
            size_bytes: size_bytes.into(),
            fd_offset: fd_offset.into(),
            owner_allocation_id: owner_allocation_id.into(),
            gpu: gpu.into(),
            device: device.into(),
            kind: kind as u8,
        }
    }
}

impl FactsItem {
    /// What it says; `None`: this release knows no such kind, or no such GPU.
    pub fn get(&self) -> Option<Facts> {
        let FactsItem { size_bytes, fd_offset, owner_allocation_id, gpu, device, kind } = *self;
        let gpu = gpu.get();
        if !gpu.is_sound() {
            return None;
        }
        Some(Facts {
            kind: MemoryKind::from_number(kind)?,
            device: device.get(),
            gpu,
            size_bytes: size_bytes.get(),
            fd_offset: fd_offset.get(),
            owner_allocation_id: owner_allocation_id.get(),
        })
    }
}
