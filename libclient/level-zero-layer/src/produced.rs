//! The allocations that this process exports: their keys counted as the driver counts its handles, their fds given to the
//! broker again when it recalls them. Must never leave a key alive whose memory is freed, close the driver's fd, nor Put
//! a handle that the program has not Put: other programs may know its fd by its number.

use crate::below;
use crate::key::{Bytes, Prefix, fd_of};
use fdbroker_client::{ErrorCode, Recall, RecallAnswer};
use level_zero_sys::*;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::stat::fstat;
use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

const SUCCESS: ze_result_t = ze_result_t::ZE_RESULT_SUCCESS;

/// A context of the program. It lives as long as an entry names it: zeContextDestroy ends its entries first.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Context(ze_context_handle_t);

// SAFETY: an opaque name; the specification lets any thread use it.
unsafe impl Send for Context {}

/// One allocation, as the driver describes it.
#[derive(Clone, Copy)]
pub struct Allocation {
    context: Context,
    pub base: usize,
    pub size_bytes: usize,
    /// The driver's number. No other allocation of this process ever gets it, unlike the address.
    pub id: u64,
}

impl Allocation {
    /// From its base to behind its last byte: no other allocation of the process has an address in it.
    fn range(&self) -> Range<usize> {
        self.base..self.base.saturating_add(self.size_bytes)
    }
}

/// An exported allocation, with the Gets that are not Put.
struct Entry {
    allocation: Allocation,
    /// Keys given out by Get and not yet Put. The driver counts them, too: its fd is open while there is one.
    gets: u64,
    /// The driver's handle of the first Get.
    driver: Bytes,
    /// The file behind its fd; `None`: there was none.
    file: Option<FileId>,
    /// The prefixes of all handles that the broker has given it: a reconnect may add one.
    prefixes: Vec<Prefix>,
}

/// Device and inode of a file, equal in every duplicate of an fd: stat(2).
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileId {
    device: libc::dev_t,
    inode: libc::ino_t,
}

impl FileId {
    fn of(fd: BorrowedFd<'_>) -> Option<Self> {
        fstat(fd).ok().map(|file| FileId { device: file.st_dev, inode: file.st_ino })
    }
}

/// The allocations that this process exports, by address and by key. They do not overlap.
#[derive(Default)]
pub struct Produced {
    by_base: BTreeMap<usize, Entry>,
    by_prefix: HashMap<Prefix, usize>,
    has_ended: bool,
}

impl Produced {
    /// From now on every recall is refused.
    pub fn end(&mut self) {
        self.has_ended = true;
    }

    /// Counts one more Get. An entry of other memory in this range goes: that memory was freed.
    pub fn count(&mut self, allocation: Allocation, driver: &Bytes) {
        let is_same = |entry: &Entry| entry.allocation.id == allocation.id;
        if !self.by_base.get(&allocation.base).is_some_and(is_same) {
            for base in self.overlapping(&allocation.range()) {
                self.take(base);
            }
            let file = borrowed(fd_of(driver)).and_then(FileId::of);
            let entry = Entry { allocation, gets: 0, driver: *driver, file, prefixes: Vec::new() };
            self.by_base.insert(allocation.base, entry);
        }
        let entry = self.by_base.get_mut(&allocation.base).expect("there or just inserted");
        entry.gets += 1;
    }

    /// Takes back one `count`: this Get got no key. The program has the driver's own handle, and the driver counts it.
    pub fn uncount(&mut self, allocation: &Allocation) {
        let Some(entry) = self.entry(allocation) else { return };
        entry.gets -= 1;
        if entry.gets == 0 {
            self.take(allocation.base);
        }
    }

    /// Adds the prefix of a handle that the broker gave this allocation.
    pub fn know_as(&mut self, allocation: &Allocation, prefix: Prefix) {
        let Some(entry) = self.entry(allocation) else { return };
        if !entry.prefixes.contains(&prefix) {
            entry.prefixes.push(prefix);
            self.by_prefix.insert(prefix, allocation.base);
        }
    }

    fn entry(&mut self, allocation: &Allocation) -> Option<&mut Entry> {
        let entry = self.by_base.get_mut(&allocation.base)?;
        (entry.allocation.id == allocation.id).then_some(entry)
    }

    /// Counts one Put of a key, and Puts the driver's handle; the allocation's base when it was the last one.
    pub fn put(&mut self, prefix: &Prefix) -> Option<usize> {
        // A key that is finished, or another process's, is no error, as with the driver.
        let base = *self.by_prefix.get(prefix)?;
        let entry = self.by_base.get_mut(&base).expect("of each key there is the entry");
        entry.gets -= 1;
        if let Some(put) = below::PUT.get() {
            let handle = ze_ipc_mem_handle_t::from_bytes(entry.driver);
            // SAFETY: a handle of a Get that was not Put, and the context it is from. What it answers changes nothing.
            unsafe { put(entry.allocation.context.0, handle) };
        }
        (entry.gets == 0).then_some(base)
    }

    /// Forgets the allocation at `base`.
    pub fn take(&mut self, base: usize) {
        let Some(entry) = self.by_base.remove(&base) else { return };
        for prefix in &entry.prefixes {
            self.by_prefix.remove(prefix);
        }
    }

    /// The bases of the allocations that have an address in this range.
    pub fn overlapping(&self, range: &Range<usize>) -> Vec<usize> {
        let below_its_end = self.by_base.range(..range.end).rev();
        let overlapping =
            below_its_end.take_while(|(_, entry)| entry.allocation.range().end > range.start);
        overlapping.map(|(base, _)| *base).collect()
    }

    /// The base of the allocation that holds an address.
    pub fn containing(&self, address: usize) -> Option<usize> {
        let (base, entry) = self.by_base.range(..=address).next_back()?;
        (address - base < entry.allocation.size_bytes).then_some(*base)
    }

    /// The bases of all allocations of a context.
    pub fn bases_of(&self, context: ze_context_handle_t) -> Vec<usize> {
        let is_of_it = |entry: &&Entry| entry.allocation.context == Context(context);
        self.by_base.values().filter(is_of_it).map(|entry| entry.allocation.base).collect()
    }

    /// A duplicate of an allocation's fd: the broker has closed its own, and another process wants the memory. The caller
    /// keeps this table locked throughout: the memory must not be freed, nor the driver taken apart, meanwhile.
    ///
    /// # Errors
    /// STALE: the memory is gone, or the program has closed the driver's fd. SHUTTING_DOWN: this process is about to end.
    /// LOCAL_FD_LIMIT: no fd is free now.
    pub fn recall(&self, recall: &Recall) -> Result<RecallAnswer, ErrorCode> {
        if self.has_ended {
            return Err(ErrorCode::ShuttingDown);
        }
        let base = usize::try_from(recall.base).map_err(|_| ErrorCode::Stale)?;
        let found = self.by_base.get(&base);
        let found = found.filter(|entry| entry.allocation.id == recall.owner_allocation_id);
        let entry = found.ok_or(ErrorCode::Stale)?;
        let fd = entry.duplicate_fd()?;
        let now = describe(entry.allocation.context.0, address(base)).ok_or(ErrorCode::Stale)?;
        Ok(RecallAnswer { owner_allocation_id: now.id, ..RecallAnswer::unchanged(recall, fd) })
    }
}

impl Entry {
    /// A duplicate of the driver's fd. When the program has closed that fd, its number may be another file's by now.
    fn duplicate_fd(&self) -> Result<OwnedFd, ErrorCode> {
        let fd = borrowed(fd_of(&self.driver)).ok_or(ErrorCode::Stale)?;
        let copy = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(0)).map_err(|errno| match errno {
            Errno::EBADF => ErrorCode::Stale,
            _ => ErrorCode::LocalFdLimit,
        })?;
        // SAFETY: the call just made it, for nobody else.
        let copy = unsafe { OwnedFd::from_raw_fd(copy) };
        let file = FileId::of(copy.as_fd()).ok_or(ErrorCode::Stale)?;
        if Some(file) == self.file { Ok(copy) } else { Err(ErrorCode::Stale) }
    }
}

/// The fd of a driver's handle; `None`: no number of an fd.
fn borrowed<'a>(fd: RawFd) -> Option<BorrowedFd<'a>> {
    // SAFETY: the driver keeps it open until the last Put. If the program has closed it, the calls here only look at what
    // has the number, or answer EBADF.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// The allocation that holds an address, as the driver describes it; `None`: the driver knows none.
pub fn describe(context: ze_context_handle_t, pointer: *const c_void) -> Option<Allocation> {
    let range = below::ADDRESS_RANGE.get()?;
    let properties_of = below::ALLOC_PROPERTIES.get()?;
    let (mut base, mut size_bytes) = (std::ptr::null_mut(), 0);
    // SAFETY: the program's context, and out-pointers to locals; of a pointer only its number is asked.
    let code = unsafe { range(context, pointer, &raw mut base, &raw mut size_bytes) };
    if code != SUCCESS || base.is_null() || size_bytes == 0 {
        return None;
    }
    let mut properties = ze_memory_allocation_properties_t::blank();
    let no_device = std::ptr::null_mut();
    // SAFETY: as above; the device may be null.
    let code = unsafe { properties_of(context, pointer, &raw mut properties, no_device) };
    if code != SUCCESS || properties.type_ == ze_memory_type_t::ZE_MEMORY_TYPE_UNKNOWN {
        return None;
    }
    let (context, base) = (Context(context), base.addr());
    Some(Allocation { context, base, size_bytes, id: properties.id })
}

/// A device address, which is never followed here.
fn address(base: usize) -> *const c_void {
    std::ptr::without_provenance(base)
}
