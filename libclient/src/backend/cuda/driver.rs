//! The CUDA driver's calls as owned things: driver, context, allocation, mapping. With the table,
//! all unsafe code here. Must never touch device memory outside a mapping of its own, nor call the
//! driver in a forked child.

use super::raw::{self, CuDevice, CuDevicePtr, CuMemHandle, CuOpaque, CuResult, Table, result};
use crate::backend::device::MakersWork;
use crate::backend::device::driver::{lacks_fds, loaded};
use crate::error::Error;
use crate::fork::Process;
use crate::limits::{CUDA_CALL_FDS, CUDA_DEVICE_FDS};
use crate::map::{Access, check_range};
use fdbroker_protocol::gpu::NO_PCI;
use fdbroker_protocol::{ErrorCode, Gpu};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, OnceLock};

/// What the loader looks for; `LD_LIBRARY_PATH` names another place for it.
const LIBRARY: &CStr = c"libcuda.so.1";

/// Bytes of a device's name, its closing zero included: those of `cudaDeviceProp::name`.
const NAME_BYTES: usize = 256;

/// The driver, loaded and initialised; one per process, for ever.
#[derive(Debug)]
pub struct Driver {
    pub(super) table: Table,
    process: Process,
    gpus: OnceLock<Vec<Gpu>>,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();

impl Driver {
    /// The driver of this process.
    pub fn get() -> Result<&'static Driver, Error> {
        let driver = loaded(&DRIVER, || Self::load(LIBRARY))?;
        if driver.process.is_current() {
            Ok(driver)
        } else {
            Err(absent("a child of fork(2) cannot use CUDA; exec(2) first"))
        }
    }

    fn load(name: &CStr) -> Result<Self, Error> {
        let library = raw::Library::open(name)
            .map_err(|why| unless_fds_lack(absent(format!("no driver library: {why}"))))?;
        let table = Table::load(library).map_err(|symbol| {
            let (name, symbol) = (name.to_string_lossy(), symbol.to_string_lossy());
            absent(format!("{name} has no symbol {symbol}; a driver of CUDA 11.0 or later has"))
        })?;
        let driver = Driver { table, process: Process::current(), gpus: OnceLock::new() };
        // SAFETY: cuInit takes the flags 0 and may be called any number of times.
        let answer = unsafe { (driver.table.init)(0) };
        driver.check_present(answer, "cuInit")?;
        Ok(driver)
    }

    /// Of the CUDA that the driver serves: 13000 is 13.0.
    pub fn version(&self) -> Result<u32, Error> {
        let mut version = 0;
        // SAFETY: writes one int through the pointer.
        let answer = unsafe { (self.table.driver_get_version)(&raw mut version) };
        self.check_present(answer, "cuDriverGetVersion")?;
        Ok(u32::try_from(version).unwrap_or(0))
    }

    /// Devices that this process may see.
    pub fn count_devices(&self) -> Result<u32, Error> {
        let mut count = 0;
        // SAFETY: writes one int through the pointer.
        let answer = unsafe { (self.table.device_get_count)(&raw mut count) };
        self.check_present(answer, "cuDeviceGetCount")?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// The driver's own number of the device of an ordinal, from 0 (cuDeviceGet).
    pub fn device(&self, ordinal: u32) -> Result<CuDevice, Error> {
        let (mut device, number) = (0, c_int::try_from(ordinal).unwrap_or(c_int::MAX));
        // SAFETY: writes one CUdevice through the pointer.
        let answer = unsafe { (self.table.device_get)(&raw mut device, number) };
        self.check_present(answer, &format!("cuDeviceGet {ordinal}"))?;
        Ok(device)
    }

    /// The GPUs that this process sees, by ordinal: the same from its first call of CUDA on.
    pub fn gpus(&self) -> Result<&[Gpu], Error> {
        if let Some(known) = self.gpus.get() {
            return Ok(known);
        }
        let gpu = |ordinal| self.device(ordinal).map(|device| self.gpu(device));
        let seen = (0..self.count_devices()?).map(gpu).collect::<Result<_, _>>()?;
        Ok(self.gpus.get_or_init(|| seen))
    }

    /// As `nvidia-smi` calls it.
    pub fn device_name(&self, device: CuDevice) -> Result<String, Error> {
        let mut bytes = [0_u8; NAME_BYTES];
        let pointer = bytes.as_mut_ptr().cast::<c_char>();
        let room = c_int::try_from(NAME_BYTES).expect("256");
        // SAFETY: writes at most `room` bytes, the closing zero included, into an array of that
        // size.
        let answer = unsafe { (self.table.device_get_name)(pointer, room, device) };
        self.check_present(answer, "cuDeviceGetName")?;
        let name = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
        Ok(name.to_string_lossy().into_owned())
    }

    /// A `CU_DEVICE_ATTRIBUTE_...` that is yes or no; one that the driver does not know is no.
    pub fn has_attribute(&self, device: CuDevice, attribute: c_int) -> bool {
        self.attribute(device, attribute).is_some_and(|value| value != 0)
    }

    fn attribute(&self, device: CuDevice, attribute: c_int) -> Option<u32> {
        let mut value = 0;
        // SAFETY: writes one int through the pointer.
        let answer =
            unsafe { (self.table.device_get_attribute)(&raw mut value, attribute, device) };
        u32::try_from(value).ok().filter(|_| answer == result::SUCCESS)
    }

    /// Which GPU a device is, or which part of one (MIG). [`Gpu::NONE`]: the driver does not say.
    pub fn gpu(&self, device: CuDevice) -> Gpu {
        let ask = |function: Option<unsafe extern "C" fn(*mut [u8; 16], CuDevice) -> CuResult>| {
            let (mut uuid, function) = ([0; 16], function?);
            // SAFETY: writes a CUuuid, 16 bytes, through the pointer.
            let answer = unsafe { function(&raw mut uuid, device) };
            (answer == result::SUCCESS).then_some(uuid)
        };
        let uuids = [self.table.device_get_uuid, self.table.device_get_uuid_v2].map(ask);
        let place = [raw::ATTRIBUTE_PCI_DOMAIN, raw::ATTRIBUTE_PCI_BUS, raw::ATTRIBUTE_PCI_DEVICE];
        gpu_named(uuids, place.map(|attribute| self.attribute(device, attribute)))
    }

    /// Whether the driver can export address ranges as dma-bufs at all.
    pub fn exports_dma_bufs(&self) -> bool {
        self.table.mem_get_handle_for_address_range.is_some()
    }

    /// Such as `CUDA_ERROR_OUT_OF_MEMORY (2)`.
    fn name_of(&self, answer: CuResult) -> String {
        let mut text = std::ptr::null();
        // SAFETY: writes one pointer: null, or to a constant of the driver's.
        let named = unsafe { (self.table.get_error_name)(answer, &raw mut text) };
        if named != result::SUCCESS || text.is_null() {
            return format!("CUresult {answer}");
        }
        // SAFETY: not null, so a constant C string by cuGetErrorName.
        let name = unsafe { CStr::from_ptr(text) };
        format!("{} ({answer})", name.to_string_lossy())
    }

    /// While the driver is being found: whatever it refuses, it is absent; but a full fd table is
    /// that.
    fn check_present(&self, answer: CuResult, what: &str) -> Result<(), Error> {
        match answer {
            result::SUCCESS => Ok(()),
            _ => Err(unless_fds_lack(absent(format!("{what}: {}", self.name_of(answer))))),
        }
    }

    pub(super) fn check(
        &self,
        answer: CuResult,
        what: impl FnOnce() -> String,
    ) -> Result<(), Error> {
        match answer {
            result::SUCCESS => Ok(()),
            _ => {
                let code = code_of(answer, || lacks_fds(CUDA_CALL_FDS));
                Err(Error::new(code, format!("{}: {}", what(), self.name_of(answer))))
            }
        }
    }

    /// For what nobody waits for: drops. A driver that has ended already (exit) has freed all.
    fn check_drop(&self, answer: CuResult, what: &str) {
        if !matches!(answer, result::SUCCESS | result::DEINITIALIZED) {
            log::error!("{what}: {}", self.name_of(answer));
        }
    }
}

/// What a device is by the answers of `cuDeviceGetUuid` and `cuDeviceGetUuid_v2`, and by its PCI
/// domain, bus and device; [`Gpu::NONE`]: the driver gave no UUID.
pub fn gpu_named(uuids: [Option<[u8; 16]>; 2], place: [Option<u32>; 3]) -> Gpu {
    let [whole, own] = uuids.map(|uuid| uuid.filter(|uuid| *uuid != [0; 16]));
    let Some(uuid) = own.or(whole) else { return Gpu::NONE };
    let pci = match place {
        [Some(domain), Some(bus), Some(device)] => Gpu::pack_pci(domain, bus, device, 0),
        _ => NO_PCI,
    };
    Gpu::cuda(uuid, pci, whole.is_some_and(|whole| whole != uuid))
}

/// NOT_SUPPORTED, with what is missing.
pub fn absent(reason: impl std::fmt::Display) -> Error {
    Error::new(ErrorCode::NotSupported, format!("backend cuda: {reason}"))
}

fn unless_fds_lack(error: Error) -> Error {
    if lacks_fds(CUDA_DEVICE_FDS) {
        Error { code: ErrorCode::LocalFdLimit, ..error }
    } else {
        error
    }
}

/// The driver's answer as a stable code. At RLIMIT_NOFILE it answers CUDA_ERROR_OPERATING_SYSTEM,
/// and for other failures of the system, too: so the table is looked at.
fn code_of(answer: CuResult, lacks_fds: impl FnOnce() -> bool) -> ErrorCode {
    match answer {
        result::OPERATING_SYSTEM if lacks_fds() => ErrorCode::LocalFdLimit,
        result::NOT_SUPPORTED | result::NOT_INITIALIZED => ErrorCode::NotSupported,
        _ => ErrorCode::Internal,
    }
}

/// The primary context of a device, retained: the one that the runtime API and frameworks use, too.
#[derive(Debug)]
pub struct Context {
    pub(super) driver: &'static Driver,
    pub(super) device: CuDevice,
    raw: CuOpaque,
    granularity: usize,
}

// SAFETY: a context belongs to the process; the driver's functions may be called by any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// The context as current one of this thread; ends with the value. Not for another thread.
#[derive(Debug)]
pub(super) struct Entered<'a>(&'a Context, PhantomData<*const ()>);

impl Context {
    pub fn retain(driver: &'static Driver, device: CuDevice) -> Result<Self, Error> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one context through the pointer; released once, in drop.
        let answer = unsafe { (driver.table.primary_ctx_retain)(&raw mut raw, device) };
        driver.check_present(answer, "cuDevicePrimaryCtxRetain")?;
        let mut context = Context { driver, device, raw, granularity: 1 };
        context.granularity = context.ask_granularity()?;
        Ok(context)
    }

    fn is_current_process(&self) -> bool {
        self.driver.process.is_current()
    }

    pub(super) fn enter(&self) -> Result<Entered<'_>, Error> {
        if !self.is_current_process() {
            return Err(absent("a child of fork(2) cannot use CUDA; exec(2) first"));
        }
        // SAFETY: a context retained by `self`.
        let answer = unsafe { (self.driver.table.ctx_push_current)(self.raw) };
        self.driver.check(answer, || "cuCtxPushCurrent".into())?;
        Ok(Entered(self, PhantomData))
    }

    /// Ends what a drop of its owner ends; not in a forked child.
    pub(super) fn end(&self, what: &str, end: impl FnOnce(&Table) -> CuResult) {
        if let Ok(_entered) = self.enter() {
            self.driver.check_drop(end(&self.driver.table), what);
        }
    }

    /// Free and all bytes of the device.
    pub fn memory_info(&self) -> Result<(u64, u64), Error> {
        let _entered = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two sizes through the pointers.
        let answer = unsafe { (self.driver.table.mem_get_info)(&raw mut free, &raw mut total) };
        self.driver.check(answer, || "cuMemGetInfo".into())?;
        Ok((free as u64, total as u64))
    }

    /// What VMM sizes are multiples of, in bytes.
    pub fn granularity(&self) -> usize {
        self.granularity
    }

    /// `bytes` in whole granules; `None` for 0 and for more than there are addresses.
    pub fn round_up(&self, bytes: usize) -> Option<usize> {
        bytes.checked_next_multiple_of(self.granularity).filter(|bytes| *bytes > 0)
    }

    fn ask_granularity(&self) -> Result<usize, Error> {
        let _entered = self.enter()?;
        let (prop, mut bytes) = (self.prop(), 0);
        let option = raw::GRANULARITY_MINIMUM;
        // SAFETY: reads the properties and writes one size through the pointers.
        let answer = unsafe {
            (self.driver.table.mem_get_allocation_granularity)(
                &raw mut bytes,
                &raw const prop,
                option,
            )
        };
        self.driver.check(answer, || "cuMemGetAllocationGranularity".into())?;
        Ok(bytes.max(1))
    }

    /// Memory of this device that can be exported as an fd.
    pub(super) fn prop(&self) -> raw::CuMemAllocationProp {
        let rdma = self.driver.has_attribute(self.device, raw::ATTRIBUTE_VMM_RDMA);
        raw::CuMemAllocationProp {
            kind: raw::ALLOCATION_TYPE_PINNED,
            handle_types: raw::HANDLE_TYPE_POSIX_FD,
            location: self.location(),
            win32_metadata: std::ptr::null_mut(),
            compression: 0,
            // So that a dma-buf of it serves network cards.
            gpu_direct_rdma: u8::from(rdma),
            usage: 0,
            reserved: [0; 4],
        }
    }

    fn location(&self) -> raw::CuMemLocation {
        raw::CuMemLocation { kind: raw::LOCATION_TYPE_DEVICE, id: self.device }
    }

    /// A dma-buf of device memory of this process, whoever allocated it.
    pub fn export_dma_buf(&self, pointer: u64, bytes: usize) -> Result<OwnedFd, Error> {
        let _entered = self.enter()?;
        let function = self.driver.table.mem_get_handle_for_address_range.ok_or_else(|| {
            absent("the driver has no symbol cuMemGetHandleForAddressRange; one of CUDA 11.7 or later has")
        })?;
        let mut fd: c_int = -1;
        let kind = raw::RANGE_HANDLE_TYPE_DMA_BUF;
        // SAFETY: writes one int through the pointer; the driver checks that the range is device
        // memory.
        let answer = unsafe { function((&raw mut fd).cast::<c_void>(), pointer, bytes, kind, 0) };
        let what = || format!("cuMemGetHandleForAddressRange of {bytes} bytes at {pointer:#x}");
        self.driver.check(answer, what)?;
        // SAFETY: the driver has just made this fd for us, and nobody else knows it.
        close_on_exec(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl Context {
    /// A new fd of an allocation.
    pub(super) fn export(&self, handle: CuMemHandle) -> Result<OwnedFd, Error> {
        let _entered = self.enter()?;
        let mut fd: c_int = -1;
        let (out, kind) = ((&raw mut fd).cast::<c_void>(), raw::HANDLE_TYPE_POSIX_FD);
        // SAFETY: writes one int through the pointer, by the type of handle asked for.
        let answer = unsafe { (self.driver.table.mem_export)(out, handle, kind, 0) };
        self.driver.check(answer, || "cuMemExportToShareableHandle".into())?;
        // SAFETY: the driver has just made this fd for us, and nobody else knows it.
        close_on_exec(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// Some of the driver's fds are not so from the start.
fn close_on_exec(fd: OwnedFd) -> Result<OwnedFd, Error> {
    fcntl(&fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))
        .map_err(|errno| Error::os(ErrorCode::Internal, "F_SETFD", errno))?;
    Ok(fd)
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut popped = std::ptr::null_mut();
        // SAFETY: writes one context through the pointer: the one that this thread pushed.
        let answer = unsafe { (self.0.driver.table.ctx_pop_current)(&raw mut popped) };
        self.0.driver.check_drop(answer, "cuCtxPopCurrent");
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.is_current_process() {
            // SAFETY: retained once by `self`.
            let answer = unsafe { (self.driver.table.primary_ctx_release)(self.device) };
            self.driver.check_drop(answer, "cuDevicePrimaryCtxRelease");
        }
    }
}

/// A VMM allocation: physical memory without an address.
#[derive(Debug)]
pub struct Physical {
    context: Arc<Context>,
    handle: CuMemHandle,
    bytes: usize,
}

impl Physical {
    /// Allocates; `bytes` is a multiple of the granularity.
    pub fn create(context: &Arc<Context>, bytes: usize) -> Result<Self, Error> {
        let _entered = context.enter()?;
        let (prop, mut handle) = (context.prop(), 0);
        // SAFETY: reads the properties and writes one handle through the pointers; released once,
        // in drop.
        let answer = unsafe {
            (context.driver.table.mem_create)(&raw mut handle, bytes, &raw const prop, 0)
        };
        context.driver.check(answer, || format!("cuMemCreate of {bytes} bytes"))?;
        Ok(Physical { context: Arc::clone(context), handle, bytes })
    }

    /// The allocation behind an fd which some process exported; `bytes` is what is known of its
    /// size. The fd is not needed after.
    pub fn import(context: &Arc<Context>, fd: BorrowedFd<'_>, bytes: usize) -> Result<Self, Error> {
        let _entered = context.enter()?;
        let mut handle = 0;
        let number = usize::try_from(fd.as_raw_fd()).expect("an open fd is not negative");
        let number: *mut c_void = std::ptr::without_provenance_mut(number);
        // SAFETY: writes one handle through the pointer; released once, in drop. By cuda.h the
        // second argument is the number of an fd, which is open.
        let answer = unsafe {
            (context.driver.table.mem_import)(&raw mut handle, number, raw::HANDLE_TYPE_POSIX_FD)
        };
        let refused = matches!(
            answer,
            result::INVALID_VALUE | result::INVALID_HANDLE | result::INVALID_DEVICE
        );
        context.driver.check(answer, || "cuMemImportFromShareableHandle".into()).map_err(
            |error| match refused {
                true if lacks_fds(CUDA_CALL_FDS) => {
                    Error { code: ErrorCode::LocalFdLimit, ..error }
                }
                true => Error { code: ErrorCode::UnsupportedFd, ..error },
                false => error,
            },
        )?;
        Ok(Physical { context: Arc::clone(context), handle, bytes })
    }

    /// A new fd of it.
    pub fn export(&self) -> Result<OwnedFd, Error> {
        self.context.export(self.handle)
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        // SAFETY: created or imported once by `self`. What is mapped of it stays until it is
        // unmapped.
        self.context.end("cuMemRelease", |table| unsafe { (table.mem_release)(self.handle) });
    }
}

/// Device addresses reserved; given back on drop.
#[derive(Debug)]
struct Reserved {
    context: Arc<Context>,
    base: CuDevicePtr,
    bytes: usize,
}

impl Reserved {
    fn new(context: &Arc<Context>, bytes: usize, wanted: u64) -> Result<Self, Error> {
        let _entered = context.enter()?;
        let mut base = 0;
        // SAFETY: writes one pointer; alignment 0 is the driver's choice, and `wanted` only a wish.
        let answer = unsafe {
            (context.driver.table.mem_address_reserve)(&raw mut base, bytes, 0, wanted, 0)
        };
        context.driver.check(answer, || format!("cuMemAddressReserve of {bytes} bytes"))?;
        Ok(Reserved { context: Arc::clone(context), base, bytes })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // SAFETY: reserved once by `self`, and nothing is mapped there any more.
        let free = |table: &Table| unsafe { (table.mem_address_free)(self.base, self.bytes) };
        self.context.end("cuMemAddressFree", free);
    }
}

/// A VMM allocation mapped at a device address of this process. Unmapped on drop.
#[derive(Debug)]
pub struct Mapped {
    range: Reserved,
    access: Access,
}

impl Mapped {
    /// Maps all of it for the context's device, at `wanted` if that is free (0: wherever).
    pub fn new(physical: &Physical, access: Access, wanted: u64) -> Result<Self, Error> {
        let (context, bytes) = (&physical.context, physical.bytes);
        let range = Reserved::new(context, bytes, wanted)?;
        let _entered = context.enter()?;
        let driver = context.driver;
        // SAFETY: a range reserved by us, in which nothing is mapped, and a live handle.
        let answer = unsafe { (driver.table.mem_map)(range.base, bytes, 0, physical.handle, 0) };
        driver.check(answer, || format!("cuMemMap of {bytes} bytes"))?;
        let mapped = Mapped { range, access };
        // A driver may know no reading alone: then only `write_at` protects.
        let read_only = access == Access::Read && mapped.allow(raw::ACCESS_READ)?;
        if read_only || mapped.allow(raw::ACCESS_READ_WRITE)? {
            Ok(mapped)
        } else {
            Err(absent("cuMemSetAccess: the device cannot reach that memory"))
        }
    }

    /// `false`: the driver knows no such access, or the device has no way to that memory
    /// (INVALID_DEVICE).
    fn allow(&self, flags: c_int) -> Result<bool, Error> {
        let Reserved { context, base, bytes } = &self.range;
        let desc = raw::CuMemAccessDesc { location: context.location(), flags };
        // SAFETY: reads one descriptor; the range is mapped as a whole.
        let answer =
            unsafe { (context.driver.table.mem_set_access)(*base, *bytes, &raw const desc, 1) };
        let none = [result::NOT_SUPPORTED, result::INVALID_VALUE, result::INVALID_DEVICE];
        if none.contains(&answer) {
            return Ok(false);
        }
        context.driver.check(answer, || "cuMemSetAccess".into()).map(|()| true)
    }

    /// First byte, a device address.
    pub fn base(&self) -> u64 {
        self.range.base
    }

    /// Copies out `into.len()` bytes from `offset`.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        let from = self.check(offset, into.len())?;
        let (_entered, driver) = (self.range.context.enter()?, self.range.context.driver);
        // SAFETY: in bounds (checked) and mapped as long as `self` lives; `into` is exclusively
        // ours.
        let answer =
            unsafe { (driver.table.memcpy_dtoh)(into.as_mut_ptr().cast(), from, into.len()) };
        driver.check(answer, || format!("cuMemcpyDtoH of {} bytes", into.len()))
    }

    /// Copies `bytes` in at `offset`; they are there for every process when this returns.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let to = self.check_writable(offset, bytes.len())?;
        let (entered, driver) = (self.range.context.enter()?, self.range.context.driver);
        // SAFETY: in bounds (checked) and mapped writable as long as `self` lives.
        let answer = unsafe { (driver.table.memcpy_htod)(to, bytes.as_ptr().cast(), bytes.len()) };
        driver.check(answer, || format!("cuMemcpyHtoD of {} bytes", bytes.len()))?;
        entered.settle()
    }

    /// Sets `len` bytes from `offset` to `byte`.
    pub fn fill(&self, offset: usize, len: usize, byte: u8) -> Result<(), Error> {
        let to = self.check_writable(offset, len)?;
        let (entered, driver) = (self.range.context.enter()?, self.range.context.driver);
        // SAFETY: in bounds (checked) and mapped writable as long as `self` lives.
        let answer = unsafe { (driver.table.memset_d8)(to, byte, len) };
        driver.check(answer, || format!("cuMemsetD8 of {len} bytes"))?;
        entered.settle()
    }

    /// Waits for work that writes it: this, or all of its context.
    pub fn settle(&self, work: Option<MakersWork>) -> Result<(), Error> {
        let (entered, table) = (self.range.context.enter()?, &self.range.context.driver.table);
        let missing = |symbol| absent(format!("the driver has no symbol {symbol}"));
        // SAFETY: the context is current; the caller of the seal has promised that its handle is
        // one of this driver and lives.
        let (answer, name) = unsafe {
            match work {
                None => {
                    let wait = table.ctx_synchronize.ok_or_else(|| missing("cuCtxSynchronize"))?;
                    (wait(), "cuCtxSynchronize")
                }
                Some(MakersWork::Stream(stream)) => {
                    ((table.stream_synchronize)(stream.cast()), "cuStreamSynchronize")
                }
                Some(MakersWork::Event(event)) => {
                    let wait =
                        table.event_synchronize.ok_or_else(|| missing("cuEventSynchronize"))?;
                    (wait(event.cast()), "cuEventSynchronize")
                }
            }
        };
        entered.0.driver.check(answer, || name.into())
    }

    fn check_writable(&self, offset: usize, len: usize) -> Result<CuDevicePtr, Error> {
        if self.access == Access::Read {
            let context = "write to memory imported for reading";
            return Err(Error::new(ErrorCode::NotSupported, context));
        }
        self.check(offset, len)
    }

    fn check(&self, offset: usize, len: usize) -> Result<CuDevicePtr, Error> {
        check_range(offset, len, self.range.bytes)?;
        Ok(self.range.base + offset as u64)
    }
}

impl Entered<'_> {
    /// Waits for the default stream: a copy from pageable memory may return before it has arrived
    /// (cuda.h, "API synchronization behavior"), and other processes know nothing of our streams.
    fn settle(self) -> Result<(), Error> {
        let driver = self.0.driver;
        // SAFETY: null is the default stream of the current context.
        let answer = unsafe { (driver.table.stream_synchronize)(std::ptr::null_mut()) };
        driver.check(answer, || "cuStreamSynchronize".into())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let Reserved { context, base, bytes } = &self.range;
        // SAFETY: mapped once by `self`; whoever took the address promised not to outlive it.
        context.end("cuMemUnmap", |table| unsafe { (table.mem_unmap)(*base, *bytes) });
    }
}

/// Memory of cuMemAlloc, as applications have it: no VMM allocation, so only exported as dma-buf.
#[derive(Debug)]
pub struct Linear {
    context: Arc<Context>,
    pub base: CuDevicePtr,
}

impl Linear {
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, Error> {
        let _entered = context.enter()?;
        let mut base = 0;
        // SAFETY: writes one pointer; freed once, in drop.
        let answer = unsafe { (context.driver.table.mem_alloc)(&raw mut base, bytes) };
        context.driver.check(answer, || format!("cuMemAlloc of {bytes} bytes"))?;
        Ok(Linear { context: Arc::clone(context), base })
    }
}

impl Drop for Linear {
    fn drop(&mut self) {
        // SAFETY: allocated once by `self`.
        self.context.end("cuMemFree", |table| unsafe { (table.mem_free)(self.base) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_when_operating_system_then_the_fd_table_decides() {
        assert_eq!(code_of(result::OPERATING_SYSTEM, || true), ErrorCode::LocalFdLimit);
        assert_eq!(code_of(result::OPERATING_SYSTEM, || false), ErrorCode::Internal);
        assert_eq!(code_of(result::INVALID_VALUE, || true), ErrorCode::Internal);
        assert_eq!(code_of(result::NOT_SUPPORTED, || true), ErrorCode::NotSupported);
    }

    #[test]
    fn load_when_no_library_then_not_supported_and_names_it() {
        let error = Driver::load(c"libcuda-is-not-there.so.1").unwrap_err();
        assert_eq!(error.code, ErrorCode::NotSupported);
        assert!(error.to_string().contains("libcuda-is-not-there.so.1"), "{error}");
    }

    #[test]
    fn load_when_symbols_are_missing_then_not_supported_and_names_the_first() {
        let error = Driver::load(c"libc.so.6").unwrap_err();
        assert_eq!(error.code, ErrorCode::NotSupported);
        assert!(error.to_string().contains("cuInit"), "{error}");
    }

    #[test]
    fn lacks_fds_when_there_are_enough_then_not() {
        assert!(!lacks_fds(CUDA_CALL_FDS));
    }
}
