//! The producer's side: handles given out, counted as the driver counts them, put and freed.
//! Must never leave a key alive whose memory is freed, nor close an fd of the driver's.

use crate::below;
use crate::broker::{self, Broker};
use crate::entry::MISSING;
use crate::key::{Bytes, Key, Prefix, fd_of, offset_of};
use crate::limits::{FREE_FDS_PART, REGISTER_TIMEOUT, RELIEF_EXPORTS, RETIRE_TIMEOUT};
use crate::say::{News, once};
use fdbroker_client::{
    Deadline, Deposit, DriverData, Error, ErrorCode, Handle, MemoryKind, Recall, RecallAnswer,
};
use level_zero_sys::*;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{Whence, lseek};
use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

const SUCCESS: ze_result_t = ze_result_t::ZE_RESULT_SUCCESS;

/// All Level Zero addresses of a process are of one address space, whatever device they are on.
const DEVICE: u32 = 0;

/// A context of the program, alive as long as an entry names it: zeContextDestroy ends those.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Context(ze_context_handle_t);

// SAFETY: an opaque name; the specification lets any thread use it.
unsafe impl Send for Context {}

/// One allocation, as the driver describes it.
#[derive(Clone, Copy)]
struct Allocation {
    context: Context,
    base: usize,
    size_bytes: usize,
    /// Never the same again in this process, unlike the address.
    id: u64,
}

/// What is exported of an allocation.
struct Entry {
    allocation: Allocation,
    /// Keys given out by Get and not Put.
    gets: u64,
    /// As many of them as the driver still counts: fewer when its export was given back early.
    driver_gets: u64,
    /// The driver's handle, as of the last Get.
    driver: Bytes,
    /// Where it stands in `by_age` while `driver_gets` is not 0.
    age: u64,
    /// Under which the broker has known it: another one after a reconnect.
    prefixes: Vec<Prefix>,
}

/// What this process exports, by address and by key. Entries do not overlap.
#[derive(Default)]
pub struct Produced {
    by_base: BTreeMap<usize, Entry>,
    by_prefix: HashMap<Prefix, usize>,
    /// Those of which the driver has an export, in the order in which they were exported.
    by_age: BTreeMap<u64, usize>,
    last_age: u64,
    has_ended: bool,
}

impl Produced {
    /// No recall is answered any more.
    pub fn end(&mut self) {
        self.has_ended = true;
    }

    /// One Get more. What is known of other memory in this range is of memory that was freed.
    fn count(&mut self, allocation: Allocation, driver: &Bytes) {
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

    /// The Get got no key: the program has the driver's own handle, and the driver counts it.
    fn uncount(&mut self, allocation: &Allocation) {
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

    fn know_as(&mut self, allocation: &Allocation, prefix: Prefix) {
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

    fn take(&mut self, base: usize) -> Option<Entry> {
        let entry = self.by_base.remove(&base)?;
        self.by_age.remove(&entry.age);
        for prefix in &entry.prefixes {
            self.by_prefix.remove(prefix);
        }
        Some(entry)
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
    fn containing(&self, address: usize) -> Option<usize> {
        let (base, entry) = self.by_base.range(..=address).next_back()?;
        (address - base < entry.allocation.size_bytes).then_some(*base)
    }

    /// Gives the oldest exports back to the driver, which closes their fds; how many. Not the one of `newest`, nor one
    /// that is on its way to the broker.
    fn relieve(&mut self, newest: Option<usize>) -> usize {
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
}

impl Entry {
    /// Puts at the driver until it counts no more than `gets`.
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

/// # Safety
/// As zeMemGetIpcHandle.
pub unsafe fn get(
    context: ze_context_handle_t,
    pointer: *const c_void,
    handle: *mut ze_ipc_mem_handle_t,
) -> ze_result_t {
    let Some(below) = below::GET.get() else { return MISSING };
    // SAFETY: the caller's promise.
    let mut code = unsafe { below(context, pointer, handle) };
    if code == ze_result_t::ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY
        && broker::known().is_some_and(|broker| broker.produced().relieve(None) > 0)
    {
        // The driver says so when no fd is free, and now some are.
        // SAFETY: the caller's promise.
        code = unsafe { below(context, pointer, handle) };
    }
    if code != SUCCESS || handle.is_null() {
        return code;
    }
    // SAFETY: the driver has just written it.
    let driver = unsafe { *handle }.to_bytes();
    if Key::from_bytes(&driver).is_some() {
        // Another copy of this layer is below.
        return code;
    }
    if let Some(broker) = broker::connected()
        && let Some(allocation) = describe(context, pointer)
        && let Some(key) = broker.export(allocation, &driver)
    {
        // SAFETY: the caller's promise.
        unsafe { *handle = ze_ipc_mem_handle_t::from_bytes(key.to_bytes()) };
    }
    code
}

impl Broker {
    /// The key of an allocation of which the driver has just given a handle; `None`: the driver's own must do.
    fn export(&self, allocation: Allocation, driver: &Bytes) -> Option<Key> {
        // Counted first, so that no Put on another thread makes it the last meanwhile.
        self.produced().count(allocation, driver);
        match self.deposit(&allocation, driver) {
            Ok(handle) => {
                let key = Key::new(&handle, driver);
                let mut produced = self.produced();
                produced.know_as(&allocation, key.prefix());
                if is_near_the_limit(fd_of(driver)) {
                    produced.relieve(Some(allocation.base));
                }
                Some(key)
            }
            Err(error) => {
                self.produced().uncount(&allocation);
                match broker::is_absent(&error) {
                    true => broker::say_absent(&error),
                    false => once(
                        News::NotRegistered,
                        format_args!(
                            "zeMemGetIpcHandle: {error}; the handle is the driver's own, not good by value"
                        ),
                    ),
                }
                None
            }
        }
    }

    /// Registers it, unless it is registered. The fd stays the driver's.
    fn deposit(&self, allocation: &Allocation, driver: &Bytes) -> Result<Handle, Error> {
        let fd = fd_of(driver);
        // SAFETY: F_GETFD looks at the number only.
        if fd < 0 || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            let context = "the driver's handle does not begin with an fd (ZE_FLAT_DEVICE_HIERARCHY or fabric handles?)";
            return Err(Error::new(ErrorCode::UnsupportedFd, context));
        }
        // SAFETY: open, and the driver keeps it so until the Put of the Get that is under way.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let size_bytes = allocation.size_bytes as u64;
        let deposit = Deposit {
            fd_offset: offset_in(fd, offset_of(driver), size_bytes),
            owner_allocation_id: allocation.id,
            base: allocation.base as u64,
            device: DEVICE,
            driver_data: DriverData::new(driver)?,
            recallable: true,
            ..Deposit::new(kind_of(fd), size_bytes)
        };
        self.exports.register_shared(&deposit, fd, Deadline::after(REGISTER_TIMEOUT))
    }

    /// The memory at `base` is not exported any more. Under the lock, so that no Get on another thread finds the
    /// registration that ends.
    fn retire(&self, produced: &mut Produced, base: usize) {
        produced.take(base);
        self.exports.retire(DEVICE, base as u64);
    }

    /// Waits until the broker has ended what was retired, without the lock, and before the memory is freed: whoever is
    /// told that it is must not find the key alive. A broker that is gone has ended it.
    fn wait_until_retired(&self) {
        // One that hangs is not waited for for ever: its fd keeps the memory, so nobody sees other bytes but in a pool.
        let _ = self.client.flush(Deadline::after(RETIRE_TIMEOUT));
    }
}

/// # Safety
/// As zeMemPutIpcHandle.
pub unsafe fn put(context: ze_context_handle_t, handle: ze_ipc_mem_handle_t) -> ze_result_t {
    let Some(key) = Key::from_bytes(&handle.to_bytes()) else {
        let Some(below) = below::PUT.get() else { return MISSING };
        // SAFETY: the caller's promise.
        return unsafe { below(context, handle) };
    };
    let Some(broker) = broker::known() else { return SUCCESS };
    let mut produced = broker.produced();
    // A key that is finished, or another process's, is no error, as with the driver.
    let Some(base) = produced.by_prefix.get(&key.prefix()).copied() else { return SUCCESS };
    let entry = produced.by_base.get_mut(&base).expect("of each key there is the entry");
    entry.gets -= 1;
    let gets = entry.gets;
    entry.give_back_down_to(gets);
    if gets == 0 {
        broker.retire(&mut produced, base);
        drop(produced);
        broker.wait_until_retired();
    }
    SUCCESS
}

/// The memory is about to be freed. Before it is: once it is, another thread may be given the address.
pub fn forget(pointer: *const c_void) {
    let Some(broker) = broker::known() else { return };
    let mut produced = broker.produced();
    if let Some(base) = produced.containing(pointer.addr()) {
        broker.retire(&mut produced, base);
        drop(produced);
        broker.wait_until_retired();
    }
}

/// The context is about to be destroyed: a recall must not use it.
pub fn forget_all_of(context: ze_context_handle_t) {
    let Some(broker) = broker::known() else { return };
    let mut produced = broker.produced();
    let is_of_it = |entry: &&Entry| entry.allocation.context == Context(context);
    let bases: Vec<usize> =
        produced.by_base.values().filter(is_of_it).map(|entry| entry.allocation.base).collect();
    for base in &bases {
        broker.retire(&mut produced, *base);
    }
    drop(produced);
    if !bases.is_empty() {
        broker.wait_until_retired();
    }
}

/// The driver's handle for one of ours.
pub fn as_the_driver_knows(handle: ze_ipc_mem_handle_t) -> ze_ipc_mem_handle_t {
    let driver = Key::from_bytes(&handle.to_bytes()).and_then(|key| key.driver_handle());
    driver.map_or(handle, ze_ipc_mem_handle_t::from_bytes)
}

/// Exports an allocation again: the broker has closed its fd and somebody wants it. On the library thread.
///
/// # Errors
/// STALE: the memory is gone. SHUTTING_DOWN: this process is about to end. LOCAL_FD_LIMIT, AGAIN: not now.
pub fn recall(recall: &Recall) -> Result<RecallAnswer, ErrorCode> {
    let broker = broker::known().ok_or(ErrorCode::Again)?;
    // Held throughout: the memory must not be freed, nor the driver taken apart, while it is exported.
    let mut produced = broker.produced();
    if produced.has_ended {
        return Err(ErrorCode::ShuttingDown);
    }
    let base = usize::try_from(recall.base).map_err(|_| ErrorCode::Stale)?;
    let found = produced.by_base.get(&base).map(|entry| entry.allocation);
    let found = found.filter(|one| one.id == recall.owner_allocation_id);
    let allocation = found.ok_or(ErrorCode::Stale)?;
    let fd = match export_again(&allocation) {
        Err(ErrorCode::LocalFdLimit) if produced.relieve(Some(base)) > 0 => {
            export_again(&allocation)?
        }
        other => other?,
    };
    let now = describe(allocation.context.0, address(base)).ok_or(ErrorCode::Stale)?;
    Ok(RecallAnswer { owner_allocation_id: now.id, ..RecallAnswer::unchanged(recall, fd) })
}

/// A duplicate of the driver's export, which is given back.
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

/// What the driver says of the memory at an address; `None`: not the driver's, or it does not say.
fn describe(context: ze_context_handle_t, pointer: *const c_void) -> Option<Allocation> {
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

/// A dma-buf has no seals, a memfd does: fcntl_getseals. What it really is, the broker looks at.
fn kind_of(fd: BorrowedFd<'_>) -> MemoryKind {
    match fcntl(fd, FcntlArg::F_GET_SEALS) {
        Ok(_) => MemoryKind::Memfd,
        Err(_) => MemoryKind::DmaBuf,
    }
}

/// Where the allocation lies in what the fd names: as the driver's handle says it, if that can be.
fn offset_in(fd: BorrowedFd<'_>, offset: u64, size_bytes: u64) -> u64 {
    let end = lseek(fd, 0, Whence::SeekEnd).ok().and_then(|end| u64::try_from(end).ok());
    let fits = offset.checked_add(size_bytes).zip(end).is_some_and(|(last, end)| last <= end);
    if fits { offset } else { 0 }
}

/// Whether an fd of this number says that the process's table is nearly full: the lowest free number is taken.
fn is_near_the_limit(fd: RawFd) -> bool {
    let Ok((soft, _)) = getrlimit(Resource::RLIMIT_NOFILE) else { return false };
    u64::try_from(fd).is_ok_and(|fd| fd >= soft - soft / FREE_FDS_PART)
}
