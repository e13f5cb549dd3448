//! The producer's side: zeMemGetIpcHandle and zeMemPutIpcHandle, and the ends of memory and contexts.
//! Must never leave a key alive whose memory is freed, nor close the driver's fd.

use crate::below::{self, MISSING};
use crate::broker::{self, Broker};
use crate::key::{Bytes, Key, fd_of, offset_of};
use crate::limits::{REGISTER_TIMEOUT, RETIRE_TIMEOUT};
use crate::mapped::{self, Mapping};
use crate::produced::{Allocation, Produced, describe};
use crate::say::{News, once};
use fdbroker_client::{Deadline, Deposit, DriverData, Error, ErrorCode, Handle, MemoryKind};
use level_zero_sys::*;
use nix::fcntl::{FcntlArg, fcntl};
use nix::unistd::{Whence, lseek};
use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::BorrowedFd;

const SUCCESS: ze_result_t = ze_result_t::ZE_RESULT_SUCCESS;

/// All Level Zero addresses of a process are of one address space, whatever device they are on.
const DEVICE: u32 = 0;

/// # Safety
/// As zeMemGetIpcHandle.
pub unsafe fn get(
    context: ze_context_handle_t,
    pointer: *const c_void,
    handle: *mut ze_ipc_mem_handle_t,
) -> ze_result_t {
    let Some(below) = below::GET.get() else { return MISSING };
    // SAFETY: the caller's promise.
    let code = unsafe { below(context, pointer, handle) };
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
    /// The key of an allocation whose driver handle was just made; `None`: the program has to use the driver's handle.
    fn export(&self, allocation: Allocation, driver: &Bytes) -> Option<Key> {
        // Counted first, so that no Put on another thread is taken for the last one meanwhile.
        self.produced().count(allocation, driver);
        match self.deposit(&allocation, driver) {
            Ok(handle) => {
                let key = Key::new(&handle, driver);
                self.produced().know_as(&allocation, key.prefix());
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

    /// Registers the allocation, unless it is registered already. The fd stays the driver's.
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

    /// Ends the export of the memory at `base`. Under the lock, so that no Get on another thread finds the registration
    /// that ends.
    fn retire(&self, produced: &mut Produced, base: usize) {
        produced.take(base);
        self.exports.retire(DEVICE, base as u64);
    }

    /// Waits until the broker has ended what was retired: without the lock, and before the memory is freed. A process that
    /// learns that the memory is freed must not find the key alive. A broker that is gone has ended it.
    fn wait_until_retired(&self) {
        // A broker that hangs is left after a while. Its fd keeps the memory alive, so a consumer sees other bytes only
        // where the driver's pool reuses them.
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
    if let Some(base) = produced.put(&key.prefix()) {
        broker.retire(&mut produced, base);
        drop(produced);
        broker.wait_until_retired();
    }
    SUCCESS
}

/// Ends the export of memory that is about to be freed. Not after it is freed: another thread may have the address then.
pub fn forget(pointer: *const c_void) {
    forget_those(|produced| produced.containing(pointer.addr()).into_iter().collect());
}

/// Has the driver unmap a range of addresses; its exports end before.
pub fn unmap(range: Range<usize>, below: impl FnOnce() -> ze_result_t) -> ze_result_t {
    // Also exports of mappings that were made before this layer was there to see them.
    forget_those(|produced| produced.overlapping(&range));
    end_mappings(mapped::take_in(&range), below)
}

/// Has the driver destroy physical memory; what is exported where it is mapped ends before.
pub fn destroy(
    memory: ze_physical_mem_handle_t,
    below: impl FnOnce() -> ze_result_t,
) -> ze_result_t {
    end_mappings(mapped::take_of(memory.addr()), below)
}

/// Ends the exports of mappings that were taken out, and has the driver end them. The mappings come back when it refuses.
fn end_mappings(mappings: Vec<Mapping>, below: impl FnOnce() -> ze_result_t) -> ze_result_t {
    for mapping in &mappings {
        forget_those(|produced| produced.overlapping(&mapping.range));
    }
    let code = below();
    if code != SUCCESS {
        mappings.into_iter().for_each(mapped::add);
    }
    code
}

/// Ends all exports of a context that is about to be destroyed: a recall must not use it.
pub fn forget_all_of(context: ze_context_handle_t) {
    forget_those(|produced| produced.bases_of(context));
}

fn forget_those(chosen: impl FnOnce(&Produced) -> Vec<usize>) {
    let Some(broker) = broker::known() else { return };
    let mut produced = broker.produced();
    let bases = chosen(&produced);
    for base in &bases {
        broker.retire(&mut produced, *base);
    }
    drop(produced);
    if !bases.is_empty() {
        broker.wait_until_retired();
    }
}

/// The driver's handle behind a key of ours; any other handle as it is.
pub fn as_the_driver_knows(handle: ze_ipc_mem_handle_t) -> ze_ipc_mem_handle_t {
    let driver = Key::from_bytes(&handle.to_bytes()).and_then(|key| key.driver_handle());
    driver.map_or(handle, ze_ipc_mem_handle_t::from_bytes)
}

/// A memfd has seals, a dma-buf has none: F_GET_SEALS of fcntl(2). The broker checks what the fd really is.
fn kind_of(fd: BorrowedFd<'_>) -> MemoryKind {
    match fcntl(fd, FcntlArg::F_GET_SEALS) {
        Ok(_) => MemoryKind::Memfd,
        Err(_) => MemoryKind::DmaBuf,
    }
}

/// Where the allocation begins in the fd's memory, in bytes: the driver's offset, or 0 when that lies outside.
fn offset_in(fd: BorrowedFd<'_>, offset: u64, size_bytes: u64) -> u64 {
    let end = lseek(fd, 0, Whence::SeekEnd).ok().and_then(|end| u64::try_from(end).ok());
    let fits = offset.checked_add(size_bytes).zip(end).is_some_and(|(last, end)| last <= end);
    if fits { offset } else { 0 }
}
