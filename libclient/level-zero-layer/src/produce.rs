//! The producer's side: zeMemGetIpcHandle and zeMemPutIpcHandle, and the fd of a handle. Must never
//! Put a handle that the program has and that names the driver's fd, nor close that fd.

use crate::allocation::{Allocation, Held, bytes_of, id_of, open_fd};
use crate::below::{self, MISSING};
use crate::broker::{self, Broker};
use crate::guard::{beside, guard};
use crate::key::{Bytes, Key, fd_of, offset_of, with_fd};
use crate::mapped;
use crate::produced::{Given, Place};
use crate::say::{News, once};
use fdbroker_client::layer::kind_of;
use fdbroker_client::{Deadline, Deposit, DriverData, Error, ErrorCode, Facts, Handle};
use fdbroker_layer::{ProgramsFd, REGISTER_TIMEOUT};
use fdbroker_virtual_fds::VirtualFd;
use level_zero_sys::*;
use std::ffi::c_void;
use std::os::fd::{BorrowedFd, RawFd};

const SUCCESS: ze_result_t = ze_result_t::ZE_RESULT_SUCCESS;

/// # Safety
/// As zeMemGetIpcHandle.
pub unsafe extern "C" fn get(
    context: ze_context_handle_t,
    pointer: *const c_void,
    handle: *mut ze_ipc_mem_handle_t,
) -> ze_result_t {
    let Some(below) = below::GET.get() else { return MISSING };
    guard(|| {
        if !handle.is_null()
            && let Some(key) = known_key(context, pointer)
        {
            // SAFETY: the caller's promise.
            unsafe { *handle = ze_ipc_mem_handle_t::from_bytes(key.to_bytes()) };
            return SUCCESS;
        }
        // SAFETY: the caller's promise.
        let code = unsafe { below(context, pointer, handle) };
        if code == SUCCESS && !handle.is_null() {
            // SAFETY: the caller's promise; the driver has just written it.
            unsafe { exchange(context, pointer, (0, None), &mut *handle) };
        }
        code
    })
}

/// The key of memory that is exported already. No message, no system call.
fn known_key(context: ze_context_handle_t, pointer: *const c_void) -> Option<Key> {
    let broker = broker::known()?;
    let id = id_of(context, pointer)?;
    let address = pointer.addr();
    broker.produced().again(address, id, |key| {
        let now = broker.exports.lookup(0, address as u64);
        now.is_some_and(|handle| handle.to_bytes()[..key.prefix().len()] == key.prefix())
    })
}

/// Puts a key in the place of a handle that the driver has just made. Where that is not possible
/// the handle stays. `get_all` gives the handles of all tiles again, for a recall.
pub fn exchange(
    context: ze_context_handle_t,
    pointer: *const c_void,
    (tile, get_all): (u32, zex_pfnMemGetIpcHandles_t),
    handle: &mut ze_ipc_mem_handle_t,
) {
    let driver = handle.to_bytes();
    // A key: another copy of this layer is below.
    if Key::from_bytes(&driver).is_none()
        && let Some(broker) = broker::awaited()
        && let Some(allocation) = Allocation::of(context, pointer, get_all)
        && let Some(key) = broker.export(allocation, tile, &driver)
    {
        *handle = ze_ipc_mem_handle_t::from_bytes(key.to_bytes());
    }
}

impl Broker {
    /// The key of an allocation whose driver handle was just made; `None`: the program has to use
    /// the driver's handle.
    fn export(&self, allocation: Allocation, tile: u32, driver: &Bytes) -> Option<Key> {
        // Counted first, so that no Put on another thread is taken for the last one meanwhile.
        self.produced().count(allocation, tile);
        match self.deposit(&allocation, tile, driver) {
            Ok(handle) => {
                let key = Key::new(&handle, driver);
                // With a virtual fd nothing that the program has names the driver's fd, unless the
                // program has asked for that.
                let stays = key.virtual_fd().is_none()
                    || below::PUT.get().is_none()
                    || mapped::is_shown(allocation.base, allocation.id)
                    || mapped::is_shown_fd(fd_of(driver));
                let waits = !stays && self.produced().sends();
                let held = (stays || waits).then(|| Held { waits, ..Held::new(driver) });
                if !self.produced().know_as(&allocation, tile, key, held) {
                    allocation.put(driver);
                } else if waits {
                    let before = self.produced().wait(Place { base: allocation.base, tile });
                    before.iter().for_each(|before| self.state.put(before));
                }
                Some(key)
            }
            Err(error) => {
                self.produced().uncount(&allocation, tile);
                say_why(&error);
                None
            }
        }
    }

    /// Registers the allocation, unless it is registered already. The fd stays the driver's.
    fn deposit(&self, allocation: &Allocation, tile: u32, driver: &Bytes) -> Result<Handle, Error> {
        let fd = open_fd(driver).ok_or_else(|| {
            let context = "the driver's handle does not begin with an fd (ZE_FLAT_DEVICE_HIERARCHY or fabric handles?)";
            Error::new(ErrorCode::UnsupportedFd, context)
        })?;
        let (fd_offset, size_bytes) = place_in(fd, offset_of(driver), allocation);
        // All Level Zero addresses of a process are of one address space, whatever device they are
        // on.
        let facts = Facts::new(kind_of(fd), size_bytes)
            .fd_offset(fd_offset)
            .owner_allocation_id(allocation.id)
            .device(tile)
            .gpu(allocation.gpu());
        let deposit = Deposit::from(facts)
            .base(allocation.base as u64)
            .driver_data(DriverData::new(&without_exporter(*driver))?)
            .recallable(true)
            .virtual_fd(below::is_interposed());
        broker::through_outage(|| {
            self.exports.register_shared(&deposit, fd, Deadline::after(REGISTER_TIMEOUT))
        })
    }
}

/// What a program is told of memory, with the driver's fd of it, if it asks for that: an fd for
/// other drivers, which stays open as without the layer. So the layer must not Put the last handle,
/// and the memory's fd is this one from then on, however the program asks.
///
/// # Safety
/// That of zeMemGetAllocProperties: both pointers are null or writable, and the chain at `pNext` is
/// the loader's.
pub unsafe extern "C" fn properties(
    context: ze_context_handle_t,
    pointer: *const c_void,
    properties: *mut ze_memory_allocation_properties_t,
    device: *mut ze_device_handle_t,
) -> ze_result_t {
    let Some(below) = below::ALLOC_PROPERTIES.get() else { return MISSING };
    // SAFETY: the caller's promise.
    let code = unsafe { below(context, pointer, properties, device) };
    if code == SUCCESS && !properties.is_null() {
        // SAFETY: the caller's promise: the driver has just read the chain.
        let export = unsafe { find::<ze_external_memory_export_fd_t>((*properties).pNext) };
        export.into_iter().for_each(|export| beside(|| show(context, pointer, export.fd)));
    }
    code
}

/// The program has the driver's fd of this memory.
fn show(context: ze_context_handle_t, pointer: *const c_void, fd: RawFd) {
    let Some(allocation) = Allocation::of(context, pointer, None) else { return };
    mapped::show(allocation.base, allocation.id, fd);
    // An export on another thread sees that, or is seen here.
    if let Some(broker) = broker::known()
        && broker.produced().has_no_fd(&allocation)
        && let Ok(driver) = allocation.get()
        && !broker.produced().hold(&allocation, Held::new(&driver))
    {
        allocation.put(&driver);
    }
}

/// Tells the user once why a handle is the driver's own.
pub fn say_why(error: &Error) {
    if broker::is_absent(error) {
        broker::say_absent(error)
    } else {
        once(
            News::NotRegistered,
            format_args!("an IPC handle: {error}; it is the driver's own, not good by value"),
        )
    }
}

/// # Safety
/// As zeMemPutIpcHandle.
pub unsafe extern "C" fn put(
    context: ze_context_handle_t,
    handle: ze_ipc_mem_handle_t,
) -> ze_result_t {
    guard(|| {
        let bytes = handle.to_bytes();
        let broker = broker::known();
        let given = match (Key::from_bytes(&bytes), VirtualFd::new(fd_of(&bytes))) {
            (Some(key), _) => broker.and_then(|broker| broker.produced().put(&key)),
            (None, Some(fd)) => broker.and_then(|broker| broker.produced().put_number(fd)),
            (None, None) => {
                let Some(below) = below::PUT.get() else { return MISSING };
                // SAFETY: the caller's promise.
                return unsafe { below(context, handle) };
            }
        };
        // The registration stays until the memory is freed: what the program has sent is good, and
        // its next Get costs nothing.
        given.as_ref().inspect(|given| Given::put_held(given));
        SUCCESS
    })
}

/// The fd of a handle.
///
/// # Safety
/// As zeMemGetFileDescriptorFromIpcHandleExp.
pub unsafe extern "C" fn fd_of_handle(
    context: ze_context_handle_t,
    handle: ze_ipc_mem_handle_t,
    fd: *mut u64,
) -> ze_result_t {
    guard(|| {
        let Some(below) = below::FD_OF_HANDLE.get() else { return MISSING };
        let bytes = handle.to_bytes();
        let key = Key::from_bytes(&bytes);
        let number = match &key {
            Some(key) => broker::known().and_then(|broker| broker.produced().fd_of(key)),
            None => VirtualFd::new(fd_of(&bytes)).map(|fd| fd.number()),
        };
        if let Some(number) = number.filter(|_| !fd.is_null()) {
            // SAFETY: the caller's promise.
            unsafe { *fd = u64::from(number.cast_unsigned()) };
            return SUCCESS;
        }
        let driver = key.and_then(|key| key.driver_handle());
        let handle = driver.map_or(handle, ze_ipc_mem_handle_t::from_bytes);
        // SAFETY: the caller's promise.
        unsafe { below(context, handle, fd) }
    })
}

/// A handle for an fd: for one of an export of this process's its key, for another virtual one and
/// for what was fetched by one a handle of the fd alone, and for any other fd the driver's answer.
///
/// # Safety
/// As zeMemGetIpcHandleFromFileDescriptorExp.
pub unsafe extern "C" fn handle_of_fd(
    context: ze_context_handle_t,
    fd: u64,
    handle: *mut ze_ipc_mem_handle_t,
) -> ze_result_t {
    guard(|| {
        let Some(below) = below::HANDLE_OF_FD.get() else { return MISSING };
        let number = i32::try_from(fd).unwrap_or(-1);
        let alone = with_fd([0; 64], number);
        let bytes = match broker::known().and_then(|broker| broker.produced().of_fd(number)) {
            Some(key) => key.to_bytes(),
            None if VirtualFd::new(number).is_some() || ProgramsFd::of(number).is_some() => alone,
            // SAFETY: the caller's promise.
            None => return unsafe { below(context, fd, handle) },
        };
        if handle.is_null() {
            return ze_result_t::ZE_RESULT_ERROR_INVALID_NULL_POINTER;
        }
        // SAFETY: the caller's promise.
        unsafe { *handle = ze_ipc_mem_handle_t::from_bytes(bytes) };
        SUCCESS
    })
}

/// Where the allocation begins in the fd's memory, and its size, in bytes: the driver's offset, or
/// 0 when that lies outside. The fd of a tile has a part of the allocation.
fn place_in(fd: BorrowedFd<'_>, offset: u64, allocation: &Allocation) -> (u64, u64) {
    let size_bytes = allocation.size_bytes as u64;
    let Some(end) = bytes_of(fd).filter(|end| *end > 0) else { return (0, size_bytes) };
    let fits = offset.checked_add(size_bytes).is_some_and(|last| last <= end);
    if fits { (offset, size_bytes) } else { (0, size_bytes.min(end)) }
}
