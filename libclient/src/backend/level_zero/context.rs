//! Calls on one context and device: memory made, opened, exported, copied, with the rules on whose
//! an fd is. All unsafe calls are here. Must never close an fd that is the driver's, nor leave one
//! open that is not.

use super::driver::{Driver, Found, absent, failed};
use super::fd::{self, HANDLE_BYTES};
use crate::backend::device::{MakersWork, Place};
use crate::error::Error;
use crate::sync::lock;
use fdbroker_protocol::{ErrorCode, MemoryKind};
use level_zero_sys::*;
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::{Mutex, OnceLock};

const DMA_BUF: u32 = ze_external_memory_type_flag_t::ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF.0;

/// Whether driver or library closes an fd that `ze_external_memory_import_fd_t` has imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FdCloser {
    /// The driver: Intel's from 26.14.37833.4 on.
    Driver,
    /// Nobody but the caller: before.
    Caller,
}

/// A context of one device. The application's own is not destroyed with it.
#[derive(Debug)]
pub struct Context {
    driver: &'static Driver,
    found: Found,
    raw: ze_context_handle_t,
    is_own: bool,
    /// Immediate, for copies; a list is one thread's at a time. Null in an application's context
    /// until first used.
    list: Mutex<ze_command_list_handle_t>,
    closer: OnceLock<FdCloser>,
    /// Of all that is allocated here.
    own_kind: OnceLock<MemoryKind>,
    /// One export at a time: so there is one fd of the driver's at most beside the duplicates.
    exporting: Mutex<()>,
    learning: Mutex<()>,
}

// SAFETY: handles belong to the process, not to a thread; the memory functions may be called by any
// thread at once, and the list is behind a lock.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// An export of memory that somebody else allocated.
#[derive(Debug)]
pub struct Exported {
    pub fd: OwnedFd,
    pub handle: [u8; HANDLE_BYTES],
}

fn pointer(address: u64) -> *mut c_void {
    ptr::without_provenance_mut(usize::try_from(address).expect("64-bit addresses"))
}

fn address(pointer: *mut c_void) -> u64 {
    pointer.addr() as u64
}

// SAFETY, for every call in this block: driver, device and context are live as long as `self`;
// structures are blank ones that name only locals, and out-pointers are to locals. Device addresses
// are looked up by the driver, never dereferenced by a memory function.
impl Context {
    /// A context of its own.
    pub fn create(driver: &'static Driver, found: Found) -> Result<Self, Error> {
        let (desc, mut raw) = (ze_context_desc_t::blank(), ptr::null_mut());
        // SAFETY: see above.
        unsafe { driver.ze.zeContextCreate(found.driver, &raw const desc, &raw mut raw) }
            .map_err(|why| super::driver::unless_fds_lack(absent(why)))?;
        Ok(Self::of(driver, found, raw, true))
    }

    /// The application's context.
    ///
    /// # Safety
    /// `raw` is a live context of `found`'s driver, and outlives this value.
    pub unsafe fn adopt(driver: &'static Driver, found: Found, raw: *mut c_void) -> Self {
        Self::of(driver, found, raw.cast(), false)
    }

    fn of(driver: &'static Driver, found: Found, raw: ze_context_handle_t, is_own: bool) -> Self {
        Context {
            driver,
            found,
            raw,
            is_own,
            list: Mutex::new(ptr::null_mut()),
            closer: OnceLock::new(),
            own_kind: OnceLock::new(),
            exporting: Mutex::new(()),
            learning: Mutex::new(()),
        }
    }

    /// Whether the loader can give handles back.
    pub fn puts(&self) -> bool {
        self.driver.has("zeMemPutIpcHandle")
    }

    /// The closer of imported fds, if that is known.
    pub fn closer(&self) -> Option<FdCloser> {
        self.closer.get().copied()
    }

    /// As the application knows it.
    pub fn set_closer(&self, closer: FdCloser) {
        let _ = self.closer.set(closer);
    }

    /// Device memory that can be exported: in no pool, so that its fd is of it alone.
    pub fn allocate(&self, bytes: usize) -> Result<u64, Error> {
        self.driver.check_process()?;
        let export = ze_external_memory_export_desc_t { flags: DMA_BUF, ..Structure::blank() };
        self.allocate_with(bytes, ptr::from_ref(&export).cast())
            .map_err(|why| failed(format_args!("allocate {bytes} bytes"), why))
    }

    fn allocate_with(&self, bytes: usize, next: *const c_void) -> Result<u64, CallError> {
        let desc = ze_device_mem_alloc_desc_t { pNext: next, ..Structure::blank() };
        let (mut out, device) = (ptr::null_mut(), self.found.device);
        // SAFETY: see above; `next` is a structure that the caller holds. Alignment 0: the
        // driver's.
        unsafe {
            let (ze, desc) = (&self.driver.ze, &raw const desc);
            ze.zeMemAllocDevice(self.raw, desc, bytes, 0, device, &raw mut out)?;
        }
        Ok(address(out))
    }

    /// Waits for work of a queue, or for an event. Level Zero has no wait for all work of a
    /// context.
    pub fn settle(&self, work: MakersWork) -> Result<(), Error> {
        self.driver.check_process()?;
        let ze = &self.driver.ze;
        // SAFETY: the caller of the seal has promised that its handle is one of this driver and
        // lives.
        let waited = unsafe {
            match work {
                MakersWork::Stream(queue) => ze.zeCommandQueueSynchronize(queue.cast(), u64::MAX),
                MakersWork::Event(event) => ze.zeEventHostSynchronize(event.cast(), u64::MAX),
            }
        };
        waited.map_err(|why| failed("wait for work of the device", why))
    }

    /// Frees what [`Context::allocate`] or [`Context::import_fd`] gave. Nobody waits for it: it is
    /// for drops.
    pub fn free(&self, base: u64) {
        if !self.driver.is_current() {
            return;
        }
        // SAFETY: see above; whoever owned the memory does not use it any more.
        if let Err(why) = unsafe { self.driver.ze.zeMemFree(self.raw, pointer(base)) } {
            log::error!("free device memory at {base:#x}: {why}");
        }
    }

    /// The allocation that `at` lies in; STALE when there is none.
    pub fn range(&self, at: u64) -> Result<Place, Error> {
        self.driver.check_process()?;
        let mut found = ze_memory_allocation_properties_t::blank();
        let (mut base, mut bytes) = (ptr::null_mut(), 0);
        let asked = || format!("look up {at:#x}");
        // SAFETY: see above; the device may be null.
        unsafe {
            let (ze, device) = (&self.driver.ze, ptr::null_mut());
            ze.zeMemGetAllocProperties(self.raw, pointer(at), &raw mut found, device)
                .map_err(|why| failed(asked(), why))?;
            if found.type_ == ze_memory_type_t::ZE_MEMORY_TYPE_UNKNOWN {
                let context = format!("{at:#x} is no memory of this driver, or was freed");
                return Err(Error::new(ErrorCode::Stale, context));
            }
            ze.zeMemGetAddressRange(self.raw, pointer(at), &raw mut base, &raw mut bytes)
                .map_err(|why| failed(asked(), why))?;
        }
        let is_device = found.type_ == ze_memory_type_t::ZE_MEMORY_TYPE_DEVICE;
        Ok(Place { base: address(base), bytes: bytes as u64, id: found.id, is_device })
    }

    /// A duplicate of the fd of an own allocation, by `export_fd`: no layout of a handle is
    /// involved.
    pub fn export_own(&self, base: u64) -> Result<OwnedFd, Error> {
        self.driver.check_process()?;
        let _one = lock(&self.exporting);
        let mut export =
            ze_external_memory_export_fd_t { flags: DMA_BUF, fd: -1, ..Structure::blank() };
        let mut found = ze_memory_allocation_properties_t {
            pNext: (&raw mut export).cast(),
            ..Structure::blank()
        };
        // SAFETY: see above; the device may be null.
        unsafe {
            let (ze, device) = (&self.driver.ze, ptr::null_mut());
            ze.zeMemGetAllocProperties(self.raw, pointer(base), &raw mut found, device)
        }
        .map_err(|why| failed(format_args!("export {base:#x}"), why))?;
        let exported = duplicate_of(export.fd);
        self.close_exported(base);
        exported
    }

    /// What own allocations are exported as, found out by the first, at `base`.
    pub fn own_kind(&self, base: u64) -> Result<MemoryKind, Error> {
        if let Some(kind) = self.own_kind.get() {
            return Ok(*kind);
        }
        let kind = fd::kind_of(self.export_own(base)?.as_fd());
        Ok(*self.own_kind.get_or_init(|| kind))
    }

    /// Has the driver close its fd of an own allocation: `export_fd` counts nothing, the last Put
    /// closes.
    fn close_exported(&self, base: u64) {
        if !self.puts() {
            return;
        }
        match self.get(base) {
            Ok(handle) => self.put(handle),
            Err(why) => log::debug!("the driver keeps its fd of {base:#x}: {why}"),
        }
    }

    /// A duplicate of the fd of anybody's allocation at `base`, and the driver's handle of it. The
    /// memory may be freed meanwhile by another thread: ask [`Context::range`] again before the fd
    /// is passed on.
    pub fn export_any(&self, base: u64) -> Result<Exported, Error> {
        self.driver.check_process()?;
        let _one = lock(&self.exporting);
        let handle = self.get(base).map_err(|why| failed(format_args!("export {base:#x}"), why))?;
        let exported = duplicate_of(self.fd_of(handle));
        if self.puts() {
            self.put(handle);
        }
        Ok(Exported { fd: exported?, handle: handle.to_bytes() })
    }

    fn get(&self, base: u64) -> Result<ze_ipc_mem_handle_t, CallError> {
        let mut handle = ze_ipc_mem_handle_t::default();
        // SAFETY: see above.
        unsafe { self.driver.ze.zeMemGetIpcHandle(self.raw, pointer(base), &raw mut handle)? };
        Ok(handle)
    }

    fn put(&self, handle: ze_ipc_mem_handle_t) {
        // SAFETY: see above; a handle that Get has given.
        if let Err(why) = unsafe { self.driver.ze.zeMemPutIpcHandle(self.raw, handle) } {
            log::debug!("the driver keeps an exported fd: {why}");
        }
    }

    /// The fd in a handle of this process: asked for where that can be asked, else where all
    /// drivers have it.
    fn fd_of(&self, handle: ze_ipc_mem_handle_t) -> RawFd {
        let mut number = 0;
        // SAFETY: see above.
        let asked = unsafe {
            let ze = &self.driver.ze;
            ze.zeMemGetFileDescriptorFromIpcHandleExp(self.raw, handle, &raw mut number)
        };
        let told = asked.ok().and_then(|()| RawFd::try_from(number).ok());
        told.unwrap_or_else(|| fd::number_in(&handle.to_bytes()))
    }

    /// Imports the memory of an fd, which stays the caller's.
    pub fn import_fd(&self, fd: BorrowedFd<'_>, bytes: usize) -> Result<u64, Error> {
        self.driver.check_process()?;
        if self.closer().is_some() {
            return self.import_number(fd::duplicate(fd, 0)?, bytes, || false);
        }
        let _one = lock(&self.learning);
        let apart = fd::duplicate_apart(fd)?;
        let number = apart.as_raw_fd();
        self.import_number(apart, bytes, || fd::is_still(number, fd))
    }

    /// Imports `own` and sees to its end. `is_still_open` is asked once it is imported, when the
    /// rule is not known yet. It is found out and not looked up: 26.14.37833.4 changed it, and what
    /// a driver says of its version ends before that last number.
    fn import_number(
        &self,
        own: OwnedFd,
        bytes: usize,
        is_still_open: impl FnOnce() -> bool,
    ) -> Result<u64, Error> {
        let import = ze_external_memory_import_fd_t {
            flags: DMA_BUF,
            fd: own.as_raw_fd(),
            ..Structure::blank()
        };
        // A refused fd stays the caller's by every rule: dropped here.
        let base = self
            .allocate_with(bytes, ptr::from_ref(&import).cast())
            .map_err(|why| import_failed(format_args!("import {bytes} bytes"), why))?;
        let closer = *self.closer.get_or_init(|| match is_still_open() {
            true => FdCloser::Caller,
            false => FdCloser::Driver,
        });
        match closer {
            FdCloser::Caller => drop(own),
            // The number may be somebody else's by now.
            FdCloser::Driver => drop(own.into_raw_fd()),
        }
        Ok(base)
    }

    /// Opens a driver's handle by an fd of this process, which stays the caller's: the address of
    /// the allocation.
    pub fn open(&self, handle: &[u8; HANDLE_BYTES], fd: BorrowedFd<'_>) -> Result<u64, Error> {
        self.driver.check_process()?;
        let moved = fd::moved_off(handle, fd)?;
        let number = moved.as_ref().map_or(fd, AsFd::as_fd).as_raw_fd();
        let patched = ze_ipc_mem_handle_t::from_bytes(fd::with_number(*handle, number));
        let (mut out, device) = (ptr::null_mut(), self.found.device);
        // SAFETY: see above.
        unsafe {
            let ze = &self.driver.ze;
            ze.zeMemOpenIpcHandle(self.raw, device, patched, 0, &raw mut out)
        }
        .map_err(|why| import_failed("open a handle", why))?;
        Ok(address(out))
    }

    /// Closes what [`Context::open`] gave: that very address. For drops.
    pub fn close(&self, base: u64) {
        if !self.driver.is_current() {
            return;
        }
        // SAFETY: see above; whoever owned the memory does not use it any more.
        if let Err(why) = unsafe { self.driver.ze.zeMemCloseIpcHandle(self.raw, pointer(base)) } {
            log::error!("close device memory at {base:#x}: {why}");
        }
    }

    /// Copies out of device memory; in bounds by the caller's word, and the driver's.
    pub fn read(&self, from: u64, into: &mut [u8]) -> Result<(), Error> {
        self.copy(into.as_mut_ptr().cast(), pointer(from), into.len())
    }

    /// Copies into device memory; there for every process when this returns.
    pub fn write(&self, to: u64, bytes: &[u8]) -> Result<(), Error> {
        self.copy(pointer(to), bytes.as_ptr().cast(), bytes.len())
    }

    fn copy(&self, to: *mut c_void, from: *const c_void, bytes: usize) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        self.with_list(|ze, list| {
            let (event, events) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: see above. One side is a slice that the caller borrows until this returns,
            // and the list is synchronous: the copy is done then. The other is device memory in
            // bounds.
            unsafe { ze.zeCommandListAppendMemoryCopy(list, to, from, bytes, event, 0, events) }
        })
        .map_err(|why| failed(format_args!("copy {bytes} bytes"), why))
    }

    /// Sets `bytes` of device memory to `byte`.
    pub fn fill(&self, to: u64, bytes: usize, byte: u8) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        let pattern = (&raw const byte).cast();
        self.with_list(|ze, list| {
            let (event, events) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: as in `copy`; the pattern is a local that outlives the call.
            unsafe {
                let to = pointer(to);
                ze.zeCommandListAppendMemoryFill(list, to, pattern, 1, bytes, event, 0, events)
            }
        })
        .map_err(|why| failed(format_args!("fill {bytes} bytes"), why))
    }

    fn with_list(
        &self,
        run: impl FnOnce(&LevelZero, ze_command_list_handle_t) -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        if !self.driver.is_current() {
            let code = ze_result_t::ZE_RESULT_ERROR_UNINITIALIZED;
            return Err(CallError::Failed { function: "a copy in a child of fork(2)", code });
        }
        let mut list = lock(&self.list);
        let ze = &self.driver.ze;
        if list.is_null() {
            let queue = ze_command_queue_desc_t {
                mode: ze_command_queue_mode_t::ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS,
                ..Structure::blank()
            };
            let (desc, out) = (&raw const queue, &raw mut *list);
            // SAFETY: see above.
            unsafe { ze.zeCommandListCreateImmediate(self.raw, self.found.device, desc, out)? };
        }
        run(ze, *list)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.driver.is_current() {
            return;
        }
        let list = *lock(&self.list);
        let ze = &self.driver.ze;
        // SAFETY: the last user is gone: memory holds its context.
        let closed = unsafe {
            let listed = if list.is_null() { Ok(()) } else { ze.zeCommandListDestroy(list) };
            listed.and_then(|()| if self.is_own { ze.zeContextDestroy(self.raw) } else { Ok(()) })
        };
        if let Err(why) = closed {
            log::error!("close a Level Zero context: {why}");
        }
    }
}

/// A duplicate of the driver's fd, which stays the driver's.
fn duplicate_of(number: RawFd) -> Result<OwnedFd, Error> {
    if number < 0 {
        return Err(absent("the driver gave no fd for this memory"));
    }
    // SAFETY: the driver's, open until the memory is freed or its last handle put back. Should
    // another thread free somebody else's memory just now, it is closed (an error here) or another
    // file (found out by its allocation's id).
    fd::duplicate(unsafe { BorrowedFd::borrow_raw(number) }, 0)
}

/// An fd or handle that the driver does not take.
fn import_failed(what: impl std::fmt::Display, why: CallError) -> Error {
    let refused = [
        ze_result_t::ZE_RESULT_ERROR_INVALID_ARGUMENT,
        ze_result_t::ZE_RESULT_ERROR_INVALID_SIZE,
        ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_SIZE,
    ];
    let error = failed(what, why);
    match why.code() {
        Some(code) if error.code == ErrorCode::Internal && refused.contains(&code) => {
            Error { code: ErrorCode::UnsupportedFd, ..error }
        }
        _ => error,
    }
}
