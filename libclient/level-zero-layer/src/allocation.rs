//! One allocation as the driver describes it, and the driver's exports of it. Must never close an
//! fd that is the driver's, nor take another file for it.

use crate::below;
use crate::key::{Bytes, fd_of};
use crate::mapped;
use fdbroker_client::layer::level_zero_gpu_named;
use fdbroker_client::{ErrorCode, Gpu};
use fdbroker_scm::File;
use level_zero_sys::*;
use nix::unistd::{Whence, lseek};
use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

const SUCCESS: ze_result_t = ze_result_t::ZE_RESULT_SUCCESS;

/// A context of the program. It lives as long as an entry names it: zeContextDestroy ends its
/// entries first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Context(ze_context_handle_t);

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
    /// Its driver's function for the handles of all tiles, if the program has called that.
    pub get_all: zex_pfnMemGetIpcHandles_t,
}

impl Allocation {
    /// The allocation that holds an address; `None`: the driver knows none.
    pub fn of(
        context: ze_context_handle_t,
        pointer: *const c_void,
        get_all: zex_pfnMemGetIpcHandles_t,
    ) -> Option<Self> {
        let range = below::ADDRESS_RANGE.get()?;
        let (mut base, mut size_bytes) = (std::ptr::null_mut(), 0);
        // SAFETY: the program's context, and out-pointers to locals; of a pointer only its number
        // is asked.
        let code = unsafe { range(context, pointer, &raw mut base, &raw mut size_bytes) };
        if code != SUCCESS || base.is_null() || size_bytes == 0 {
            return None;
        }
        let id = id_of(context, pointer)?;
        let base = base.addr();
        Some(Allocation { context: Context(context), base, size_bytes, id, get_all })
    }

    pub fn range(&self) -> Range<usize> {
        self.base..self.base.saturating_add(self.size_bytes)
    }

    pub fn is_of(&self, context: ze_context_handle_t) -> bool {
        self.context == Context(context)
    }

    /// Whether the driver still knows this very allocation.
    pub fn is_there(&self) -> bool {
        id_of(self.context.0, address(self.base)) == Some(self.id)
    }

    /// Which GPU, or tile of one, it is on; [`Gpu::NONE`]: of none, or the driver does not say.
    pub fn gpu(&self) -> Gpu {
        self.named_gpu().unwrap_or(Gpu::NONE)
    }

    fn named_gpu(&self) -> Option<Gpu> {
        let mut memory = ze_memory_allocation_properties_t::blank();
        let mut of = ze_device_properties_t::blank();
        let mut place = ze_pci_ext_properties_t::blank();
        let mut device = std::ptr::null_mut();
        let (context, base) = (self.context.0, address(self.base));
        let (ask, ask_of) = (below::ALLOC_PROPERTIES.get()?, below::DEVICE_PROPERTIES.get()?);
        // SAFETY: the program's context, an address that is only looked up, and locals.
        let code = unsafe { ask(context, base, &raw mut memory, &raw mut device) };
        if code != SUCCESS || device.is_null() {
            return None;
        }
        // SAFETY: the driver has just named the device; fills in one structure of its type.
        if unsafe { ask_of(device, &raw mut of) } != SUCCESS {
            return None;
        }
        // SAFETY: as above.
        let told = below::DEVICE_PLACE.get().map(|ask| unsafe { ask(device, &raw mut place) });
        Some(level_zero_gpu_named(&of, (told == Some(SUCCESS)).then_some(place.address)))
    }

    /// A duplicate of the fd of a new export, whose handles go back to the driver.
    ///
    /// # Errors
    /// STALE: there is no such memory any more. LOCAL_FD_LIMIT: no fd is free now.
    pub fn export_anew(&self, tile: u32) -> Result<OwnedFd, ErrorCode> {
        let handles = match tile {
            0 => vec![self.get()?],
            _ => self.get_tiles(tile + 1)?,
        };
        let copy = duplicate(handles.last().map_or(-1, fd_of));
        handles.iter().for_each(|handle| self.let_go(handle));
        copy
    }

    /// A driver's handle of it, to be Put.
    ///
    /// # Errors
    /// Those of [`Allocation::export_anew`].
    pub fn get(&self) -> Result<Bytes, ErrorCode> {
        let get = below::GET.get().ok_or(ErrorCode::Stale)?;
        let mut handle = ze_ipc_mem_handle_t::default();
        // SAFETY: a context that lives while the allocation is registered, an address that is only
        // looked up, and a local.
        let code = unsafe { get(self.context.0, address(self.base), &raw mut handle) };
        recalled(code).map(|()| handle.to_bytes())
    }

    /// The handles of the first `count` tiles.
    fn get_tiles(&self, count: u32) -> Result<Vec<Bytes>, ErrorCode> {
        let get = self.get_all.ok_or(ErrorCode::Stale)?;
        let mut handles = vec![ze_ipc_mem_handle_t::default(); count as usize];
        let mut got = count;
        // SAFETY: as above, and room for as many handles.
        let code =
            unsafe { get(self.context.0, address(self.base), &raw mut got, handles.as_mut_ptr()) };
        recalled(code)?;
        if got == count {
            Ok(handles.iter().map(|handle| handle.to_bytes()).collect())
        } else {
            Err(ErrorCode::Stale)
        }
    }

    /// Puts a handle that the program has not got, unless it may be the last one of an fd that the
    /// program has asked for: that stays open until the memory is freed.
    pub fn let_go(&self, handle: &Bytes) {
        if !mapped::is_shown_fd(fd_of(handle)) {
            self.put(handle);
        }
    }

    /// Puts a handle that the layer has got from the driver and given to nobody. What the driver
    /// answers changes nothing.
    pub fn put(&self, handle: &Bytes) {
        if let Some(put) = below::PUT.get() {
            // SAFETY: a handle of a Get that was not Put, and the context it is from.
            unsafe { put(self.context.0, ze_ipc_mem_handle_t::from_bytes(*handle)) };
        }
    }
}

/// A driver's handle that is not Put: its fd is open.
#[derive(Clone, Copy)]
pub struct Held {
    pub driver: Bytes,
    pub fd: DriversFd,
    /// It is open only until the program has sent its fd.
    pub waits: bool,
}

impl Held {
    pub fn new(driver: &Bytes) -> Self {
        Held { driver: *driver, fd: DriversFd::new(fd_of(driver)), waits: false }
    }
}

/// An fd that the driver keeps open.
#[derive(Clone, Copy)]
pub struct DriversFd {
    number: RawFd,
    /// The file behind it; `None`: there was none.
    file: Option<File>,
}

impl DriversFd {
    pub fn new(number: RawFd) -> Self {
        DriversFd { number, file: borrowed(number).and_then(File::of) }
    }

    pub fn number(&self) -> RawFd {
        self.number
    }

    /// A duplicate.
    ///
    /// # Errors
    /// STALE: it was closed; its number may be another file's by now. LOCAL_FD_LIMIT: no fd is free
    /// now.
    pub fn duplicate(&self) -> Result<OwnedFd, ErrorCode> {
        let copy = duplicate(self.number)?;
        let is_it = self.file.is_some() && File::of(copy.as_fd()) == self.file;
        if is_it { Ok(copy) } else { Err(ErrorCode::Stale) }
    }
}

/// The driver's number of the allocation that holds an address; `None`: the driver knows none.
pub fn id_of(context: ze_context_handle_t, pointer: *const c_void) -> Option<u64> {
    let properties_of = below::ALLOC_PROPERTIES.get()?;
    let mut properties = ze_memory_allocation_properties_t::blank();
    // SAFETY: the program's context, an address that is only looked up, a local; the device may be
    // null.
    let code =
        unsafe { properties_of(context, pointer, &raw mut properties, std::ptr::null_mut()) };
    let is_known = code == SUCCESS && properties.type_ != ze_memory_type_t::ZE_MEMORY_TYPE_UNKNOWN;
    is_known.then_some(properties.id)
}

/// The code for the broker when the driver does not export.
fn recalled(code: ze_result_t) -> Result<(), ErrorCode> {
    match code {
        SUCCESS => Ok(()),
        ze_result_t::ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY => Err(ErrorCode::LocalFdLimit),
        _ => Err(ErrorCode::Stale),
    }
}

/// A duplicate of an fd of the driver's.
///
/// # Errors
/// STALE: it is not open. LOCAL_FD_LIMIT: no fd is free now.
fn duplicate(fd: RawFd) -> Result<OwnedFd, ErrorCode> {
    let fd = borrowed(fd).ok_or(ErrorCode::Stale)?;
    fd.try_clone_to_owned().map_err(|error| match error.raw_os_error() {
        Some(libc::EBADF) => ErrorCode::Stale,
        _ => ErrorCode::LocalFdLimit,
    })
}

/// The bytes of the memory behind an fd.
pub fn bytes_of(fd: BorrowedFd<'_>) -> Option<u64> {
    lseek(fd, 0, Whence::SeekEnd).ok().and_then(|end| u64::try_from(end).ok())
}

/// An open fd in bytes 0..4 of a handle that the driver has just made; `None`: there is none.
pub fn open_fd<'a>(handle: &Bytes) -> Option<BorrowedFd<'a>> {
    let fd = fd_of(handle);
    // SAFETY: F_GETFD looks at the number only.
    let is_open = fd >= 0 && unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0;
    if is_open { borrowed(fd) } else { None }
}

/// The fd of a driver's handle; `None`: no number of an fd.
fn borrowed<'a>(fd: RawFd) -> Option<BorrowedFd<'a>> {
    // SAFETY: the driver keeps it open until the last Put. If the program has closed it, the calls
    // here only look at what has the number, or answer EBADF.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// A device address, which is never followed here.
fn address(base: usize) -> *const c_void {
    std::ptr::without_provenance(base)
}
