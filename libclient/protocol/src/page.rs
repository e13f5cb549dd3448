//! Layout of the generation page: one u32 per slot, shared by the broker (writer) and its clients
//! (read-only maps), and the liveness word that the kernel marks when the broker dies. Layout only:
//! must never map it, which the daemon and the library do.

/// First eight bytes of the page.
pub const PAGE_MAGIC: u64 = u64::from_le_bytes(*b"FDBPAGE1");
/// The highest generation that an allocation can have.
pub const LAST_GENERATION: u32 = u32::MAX - 1;
/// Stands for a generation while the slot's owner, after a crash of the broker, may still name its
/// allocation: nothing of the slot is current, and nobody knows yet whether it has ended.
pub const UNCONFIRMED: u32 = u32::MAX;
/// Version of this layout; a library takes no page of another version.
pub const PAGE_VERSION: u32 = 2;
/// Bytes before the first generation: one page, so that the generations start page-aligned.
pub const PAGE_HEADER_BYTES: usize = 4096;

/// The header at offset 0. All fields are native-endian: the page never leaves the node. Fields
/// other than `liveness` and `generation_high` are written once, before any client can map the
/// page.
#[derive(Debug, zerocopy::FromBytes)]
#[repr(C)]
pub struct PageHeader {
    /// [`PAGE_MAGIC`].
    pub magic: u64,
    /// [`PAGE_VERSION`].
    pub version: u32,
    /// Number of generations after the header.
    pub slots: u32,
    /// Random per start of the broker; equals `HelloReply::incarnation`.
    pub incarnation: u64,
    /// Robust futex owned by a thread of the broker that lives as long as the process: its TID
    /// while alive; the kernel sets [`FUTEX_OWNER_DIED`] the moment that thread ends, however it
    /// ends (robust futex ABI, Documentation/locking/robust-futex-ABI.rst). 0 = never owned.
    pub liveness: std::sync::atomic::AtomicU32,
    /// Highest generation ever given out by any broker on this page: a new broker starts above it,
    /// so that no old handle can name a new allocation.
    pub generation_high: std::sync::atomic::AtomicU32,
    /// The owner's robust list entry (a `struct robust_list`: one pointer), meaningful to the
    /// broker process alone. It lives beside the futex because the kernel finds the word at a fixed
    /// offset.
    pub robust_list_entry: u64,
}

/// Offset in bytes of `PageHeader::liveness`.
pub const LIVENESS_OFFSET: usize = std::mem::offset_of!(PageHeader, liveness);

/// Bit that the kernel sets in the liveness word when the owner has died (linux/futex.h).
pub const FUTEX_OWNER_DIED: u32 = 0x4000_0000;
/// Bits of the liveness word that hold the owner's TID (linux/futex.h).
pub const FUTEX_TID_MASK: u32 = 0x3fff_ffff;

/// Bytes of a page of `slots` generations.
pub const fn page_bytes(slots: u32) -> usize {
    PAGE_HEADER_BYTES + slots as usize * size_of::<u32>()
}

/// Offset in bytes of the generation of `slot`: live generation, 0 when the slot has no live
/// allocation, or [`UNCONFIRMED`]. Written with release order before any holder is told; read with
/// acquire order.
pub const fn generation_offset(slot: u32) -> usize {
    PAGE_HEADER_BYTES + slot as usize * size_of::<u32>()
}

/// Whether the liveness word says that the broker lives.
pub const fn is_alive(liveness: u32) -> bool {
    liveness & FUTEX_TID_MASK != 0 && liveness & FUTEX_OWNER_DIED == 0
}

const _: () = assert!(size_of::<PageHeader>() <= PAGE_HEADER_BYTES);
const _: () = assert!(LIVENESS_OFFSET.is_multiple_of(4));
