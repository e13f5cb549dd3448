//! The generation page, mapped read-only: says with two loads whether an allocation lives. Must
//! never write the page, never unmap the addresses while a client lives, and never say "current"
//! without a live connection.

use crate::error::Error;
use crate::limits::PAGE_RESERVED_SLOTS;
use crate::map::{Access, cannot_map};
use crate::sync::lock;
use fdbroker_protocol::page::{
    FUTEX_OWNER_DIED, LIVENESS_OFFSET, PAGE_MAGIC, PAGE_VERSION, PageHeader, UNCONFIRMED,
    generation_offset, is_alive, page_bytes,
};
use fdbroker_protocol::{AllocationId, ErrorCode};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::mem::offset_of;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of address space kept, a multiple of every page size there is (4, 16, 64 KiB).
const RESERVED_BYTES: usize = page_bytes(PAGE_RESERVED_SLOTS).next_multiple_of(64 * 1024);

/// What a page of a connection must be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageFacts {
    /// Slots, from hello's reply.
    pub slots: u32,
    /// The broker's incarnation, from hello's reply.
    pub incarnation: u64,
}

/// What the page says of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The allocation lives, and so does its broker.
    Current,
    /// It has ended, said a broker that lives.
    Ended,
    /// No broker lives that could say, or its owner has not told the broker yet; after a restart in
    /// order the same page goes on.
    Unknown,
}

/// How a broker stands, as the liveness word of its page says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Serves,
    /// It has ended in order: its connections may go on with the next one.
    HasLeft,
    /// It was killed: they do not, whoever still has them open.
    WasKilled,
}

impl Standing {
    fn of(word: u32) -> Self {
        match word & FUTEX_OWNER_DIED != 0 {
            true => Standing::WasKilled,
            false if is_alive(word) => Standing::Serves,
            false => Standing::HasLeft,
        }
    }

    /// Of the broker whose page this is, mapped or not. A page that cannot be read says nothing.
    pub fn by_page(page: BorrowedFd<'_>) -> Self {
        let mut word = [0; size_of::<u32>()];
        match nix::sys::uio::pread(page, &mut word, LIVENESS_OFFSET as i64) {
            Ok(read) if read == word.len() => Standing::of(u32::from_ne_bytes(word)),
            _ => Standing::Serves,
        }
    }
}

/// A fixed range of addresses that shows the broker's page while connected and zeros otherwise.
/// Zeros read as "the broker is dead", so a reader needs no lock and no flag.
#[derive(Debug)]
pub(crate) struct PageRegion {
    base: NonNull<u8>,
    /// Epoch of the connection whose page is mapped; 0 = none.
    mapped: Mutex<u64>,
}

// SAFETY: the addresses stay mapped and readable for as long as the value lives, and are only read
// through atomics, or replaced as a whole by the kernel under `mapped`.
unsafe impl Send for PageRegion {}
// SAFETY: as above.
unsafe impl Sync for PageRegion {}

impl PageRegion {
    /// Keeps the addresses; nothing is current yet.
    pub fn reserve() -> Result<Self, Error> {
        let length = NonZeroUsize::new(RESERVED_BYTES).expect("a constant above zero");
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { mmap_anonymous(None, length, ProtFlags::PROT_READ, flags) }
            .map_err(|errno| cannot_map(RESERVED_BYTES, Access::Read, errno).error)?;
        Ok(PageRegion { base: base.cast(), mapped: Mutex::new(0) })
    }

    /// Checks that `fd` is the page of this connection, then shows it.
    pub fn show(&self, epoch: u64, fd: BorrowedFd<'_>, facts: PageFacts) -> Result<(), Error> {
        check(fd, facts)?;
        let length = page_bytes(facts.slots).min(RESERVED_BYTES);
        let length = NonZeroUsize::new(length).expect("a header is more than nothing");
        let mut mapped = lock(&self.mapped);
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
        // SAFETY: `base` is ours for RESERVED_BYTES, which `length` does not exceed; the kernel
        // replaces the mapping in one step, and readers use atomic loads of whatever is there. The
        // file is at least this long (checked) and the broker never shortens it.
        unsafe { mmap(Some(self.address()), length, ProtFlags::PROT_READ, flags, fd, 0) }
            .map_err(|errno| Error::os(ErrorCode::Internal, "cannot map the page", errno))?;
        *mapped = epoch;
        Ok(())
    }

    /// Shows zeros instead of the page of connection `epoch`; another connection's page stays.
    pub fn hide(&self, epoch: u64) {
        let mut mapped = lock(&self.mapped);
        if *mapped != epoch {
            return;
        }
        *mapped = 0;
        let length = NonZeroUsize::new(RESERVED_BYTES).expect("a constant above zero");
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE | MapFlags::MAP_FIXED;
        // SAFETY: replaces exactly the reservation, see `show`.
        let hidden =
            unsafe { mmap_anonymous(Some(self.address()), length, ProtFlags::PROT_READ, flags) };
        if let Err(errno) = hidden {
            // The broker's death still shows on the page itself; only its parting with this one
            // client would not.
            log::error!("cannot hide the generation page: {errno}");
        }
    }

    /// Whether the broker lives and `id` is the live allocation of its slot: two loads.
    pub fn is_current(&self, id: AllocationId) -> bool {
        if id.slot >= PAGE_RESERVED_SLOTS || matches!(id.generation, 0 | UNCONFIRMED) {
            return false;
        }
        is_alive(self.load(LIVENESS_OFFSET))
            && self.load(generation_offset(id.slot)) == id.generation
    }

    /// The same, telling an end from a broker that is gone. Not for the fast path.
    pub fn verdict(&self, id: AllocationId) -> Verdict {
        if self.is_current(id) {
            return Verdict::Current;
        }
        // In this order: a broker that comes back between the first look and this one counts as
        // unknown, or current.
        let was_alive = is_alive(self.load(LIVENESS_OFFSET));
        let is_current = self.is_current(id);
        let is_unconfirmed =
            id.slot < PAGE_RESERVED_SLOTS && self.load(generation_offset(id.slot)) == UNCONFIRMED;
        match was_alive && is_alive(self.load(LIVENESS_OFFSET)) {
            true if is_current => Verdict::Current,
            true if !is_unconfirmed => Verdict::Ended,
            _ => Verdict::Unknown,
        }
    }

    /// How the broker of connection `epoch` stands: one load. A page of another connection says
    /// nothing of it.
    pub fn standing(&self, epoch: u64) -> Standing {
        if *lock(&self.mapped) == epoch {
            Standing::of(self.load(LIVENESS_OFFSET))
        } else {
            Standing::Serves
        }
    }

    fn load(&self, offset: usize) -> u32 {
        debug_assert!(offset.is_multiple_of(4) && offset + 4 <= RESERVED_BYTES);
        // SAFETY: `offset` is aligned and inside the reservation, which stays readable as long as
        // `self` lives; the memory is written by others only as a whole word.
        let word = unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) };
        word.load(Ordering::Acquire)
    }

    fn address(&self) -> NonZeroUsize {
        self.base.addr()
    }
}

impl Drop for PageRegion {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody can read through a value that is being dropped.
        if let Err(errno) = unsafe { munmap(self.base.cast::<c_void>(), RESERVED_BYTES) } {
            log::error!("cannot unmap the generation page: {errno}");
        }
    }
}

/// Reads size and header from the file before it is mapped, so that neither a short file (SIGBUS)
/// nor another broker's page is ever shown.
fn check(fd: BorrowedFd<'_>, facts: PageFacts) -> Result<(), Error> {
    let wrong = |what: String| Error::new(ErrorCode::Protocol, format!("generation page: {what}"));
    let stat = nix::sys::stat::fstat(fd)
        .map_err(|errno| Error::os(ErrorCode::Protocol, "generation page: fstat", errno))?;
    let size = usize::try_from(stat.st_size).unwrap_or(0);
    if size < page_bytes(facts.slots) {
        return Err(wrong(format!("{size} bytes are too few for {} slots", facts.slots)));
    }
    let mut header = [0; size_of::<PageHeader>()];
    let read = nix::sys::uio::pread(fd, &mut header, 0)
        .map_err(|errno| Error::os(ErrorCode::Protocol, "generation page: pread", errno))?;
    if read != header.len() {
        return Err(wrong(format!("{read} bytes of header")));
    }
    let word = |offset: usize| {
        u32::from_ne_bytes(header[offset..offset + 4].try_into().expect("four bytes"))
    };
    let long = |offset: usize| {
        u64::from_ne_bytes(header[offset..offset + 8].try_into().expect("eight bytes"))
    };
    if long(offset_of!(PageHeader, magic)) != PAGE_MAGIC {
        return Err(wrong("it has another magic".into()));
    }
    let version = word(offset_of!(PageHeader, version));
    if version != PAGE_VERSION {
        return Err(wrong(format!("layout {version}, this side knows {PAGE_VERSION}")));
    }
    let slots = word(offset_of!(PageHeader, slots));
    if slots != facts.slots {
        return Err(wrong(format!("{slots} slots, hello said {}", facts.slots)));
    }
    if long(offset_of!(PageHeader, incarnation)) != facts.incarnation {
        return Err(wrong("it is of another start of the broker".into()));
    }
    Ok(())
}
