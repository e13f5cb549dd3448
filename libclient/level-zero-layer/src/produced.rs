//! The allocations that this process exports: their keys counted as the driver counts its handles, their fds exported
//! again when the broker recalls them. Must never leave a key alive whose memory is freed, nor close the driver's fd.

use crate::below;
use crate::key::{Bytes, Prefix, fd_of};
use crate::limits::RELIEF_EXPORTS;
use fdbroker_client::{ErrorCode, Recall, RecallAnswer};
use level_zero_sys::*;
use nix::fcntl::{FcntlArg, fcntl};
use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

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

/// An exported allocation, with the Gets that are not Put.
struct Entry {
    allocation: Allocation,
    /// Keys given out by Get and not yet Put.
    gets: u64,
    /// How many of these Gets the driver still counts: fewer when its export was given back early.
    driver_gets: u64,
    /// The driver's handle of the last Get.
    driver: Bytes,
    /// Its key in `by_age` while `driver_gets` is not 0.
    age: u64,
    /// The prefixes of all handles that the broker has given it: a reconnect may add one.
    prefixes: Vec<Prefix>,
}

/// The allocations that this process exports, by address and by key. They do not overlap.
#[derive(Default)]
pub struct Produced {
    by_base: BTreeMap<usize, Entry>,
    by_prefix: HashMap<Prefix, usize>,
    /// The bases of the allocations that the driver holds an export of, oldest export first.
    by_age: BTreeMap<u64, usize>,
    last_age: u64,
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
            self.take_overlapping(&allocation);
            let entry = Entry {
                allocation,
                gets: 0,
                driver_gets: 0,
                driver: *driver,
                age: 0,
                prefixes: Vec::new(),
            };
            self.by_base.insert(allocation.base, entry);
        }
        let entry = self.by_base.get_mut(&allocation.base).expect("there or just inserted");
        entry.gets += 1;
        entry.driver_gets += 1;
        entry.driver = *driver;
        if entry.driver_gets == 1 {
            self.last_age += 1;
            entry.age = self.last_age;
            self.by_age.insert(entry.age, allocation.base);
        }
    }

    /// Takes back one `count`: this Get got no key. The program has the driver's own handle, and the driver counts it.
    pub fn uncount(&mut self, allocation: &Allocation) {
        let Some(entry) = self.entry(allocation) else { return };
        entry.gets -= 1;
        entry.driver_gets = entry.driver_gets.saturating_sub(1);
        let (gets, driver_gets, age) = (entry.gets, entry.driver_gets, entry.age);
        if driver_gets == 0 {
            self.by_age.remove(&age);
        }
        if gets == 0 {
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

    /// Counts one Put of a key; the allocation's base when it was the last one.
    pub fn put(&mut self, prefix: &Prefix) -> Option<usize> {
        // A key that is finished, or another process's, is no error, as with the driver.
        let base = *self.by_prefix.get(prefix)?;
        let entry = self.by_base.get_mut(&base).expect("of each key there is the entry");
        entry.gets -= 1;
        entry.give_back_down_to(entry.gets);
        (entry.gets == 0).then_some(base)
    }

    /// Forgets the allocation at `base`.
    pub fn take(&mut self, base: usize) {
        let Some(entry) = self.by_base.remove(&base) else { return };
        self.by_age.remove(&entry.age);
        for prefix in &entry.prefixes {
            self.by_prefix.remove(prefix);
        }
    }

    fn take_overlapping(&mut self, allocation: &Allocation) {
        let end = allocation.base.saturating_add(allocation.size_bytes);
        while let Some((base, entry)) = self.by_base.range(..end).next_back() {
            if base + entry.allocation.size_bytes <= allocation.base {
                return;
            }
            let base = *base;
            self.take(base);
        }
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

    /// Gives the oldest exports back to the driver, which closes their fds; answers how many. Leaves the export of
    /// `newest`, and exports that are on their way to the broker.
    pub fn relieve(&mut self, newest: Option<usize>) -> usize {
        if below::PUT.get().is_none() {
            return 0;
        }
        let may_go =
            |base: &&usize| Some(**base) != newest && !self.by_base[*base].prefixes.is_empty();
        let bases: Vec<usize> =
            self.by_age.values().filter(may_go).take(RELIEF_EXPORTS).copied().collect();
        for base in &bases {
            let entry = self.by_base.get_mut(base).expect("what has an age is there");
            entry.give_back_down_to(0);
            self.by_age.remove(&entry.age);
        }
        bases.len()
    }

    /// Exports an allocation again: the broker has closed its fd, and another process wants the memory. The caller
    /// keeps this table locked throughout: the memory must not be freed, nor the driver taken apart, while it is
    /// exported.
    ///
    /// # Errors
    /// STALE: the memory is gone. SHUTTING_DOWN: this process is about to end. LOCAL_FD_LIMIT, AGAIN: not now.
    pub fn recall(&mut self, recall: &Recall) -> Result<RecallAnswer, ErrorCode> {
        if self.has_ended {
            return Err(ErrorCode::ShuttingDown);
        }
        let base = usize::try_from(recall.base).map_err(|_| ErrorCode::Stale)?;
        let found = self.by_base.get(&base).map(|entry| entry.allocation);
        let found = found.filter(|one| one.id == recall.owner_allocation_id);
        let allocation = found.ok_or(ErrorCode::Stale)?;
        let fd = match export_again(&allocation) {
            Err(ErrorCode::LocalFdLimit) if self.relieve(Some(base)) > 0 => {
                export_again(&allocation)?
            }
            other => other?,
        };
        let now = describe(allocation.context.0, address(base)).ok_or(ErrorCode::Stale)?;
        Ok(RecallAnswer { owner_allocation_id: now.id, ..RecallAnswer::unchanged(recall, fd) })
    }
}

impl Entry {
    /// Puts handles to the driver until it counts no more than `gets` of them.
    fn give_back_down_to(&mut self, gets: u64) {
        let Some(put) = below::PUT.get() else { return };
        while self.driver_gets > gets {
            self.driver_gets -= 1;
            let handle = ze_ipc_mem_handle_t::from_bytes(self.driver);
            // SAFETY: a handle of a Get that was not Put, and the context it is from. What it answers changes nothing.
            unsafe { put(self.allocation.context.0, handle) };
        }
    }
}

/// A duplicate of a new export; the export itself goes back to the driver.
fn export_again(allocation: &Allocation) -> Result<OwnedFd, ErrorCode> {
    let get = below::GET.get().ok_or(ErrorCode::NotSupported)?;
    let mut handle = ze_ipc_mem_handle_t::default();
    let context = allocation.context.0;
    // SAFETY: memory and context live: the caller has the lock without which neither ends; `handle` is a local.
    match unsafe { get(context, address(allocation.base), &raw mut handle) } {
        SUCCESS => {}
        ze_result_t::ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY => return Err(ErrorCode::LocalFdLimit),
        _ => return Err(ErrorCode::Again),
    }
    let copy = duplicate(fd_of(&handle.to_bytes()));
    if let Some(put) = below::PUT.get() {
        // SAFETY: as above; the handle was got just now.
        unsafe { put(context, handle) };
    }
    copy
}

fn duplicate(fd: RawFd) -> Result<OwnedFd, ErrorCode> {
    if fd < 0 {
        return Err(ErrorCode::UnsupportedFd);
    }
    // SAFETY: the driver's, open until the handle is Put.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let copy = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(0)).map_err(|_| ErrorCode::LocalFdLimit)?;
    // SAFETY: the call just made it, for nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
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
