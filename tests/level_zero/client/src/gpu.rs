//! One device, with the calls that the cases need. Must never touch a device address itself.

use crate::counters::{
    COUNTERS_FUNCTION, Counters, CountersFunction, WHERE_FUNCTION, WhereFunction,
};
use crate::fault::{Fault, Outcome, same};
use level_zero_sys::*;
use std::ffi::{CStr, c_void};
use std::os::fd::RawFd;
use std::ptr;

/// An address of device memory, or of host memory that the driver allocated.
pub type Address = *mut c_void;

const DMA_BUF: u32 = ze_external_memory_type_flag_t::ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF.0;

/// The variable with the number of the driver, 0 by default.
pub const DRIVER: &str = "ZE_TEST_CLIENT_DRIVER";

pub struct Gpu {
    pub level_zero: LevelZero,
    pub driver: ze_driver_handle_t,
    pub device: ze_device_handle_t,
    pub context: ze_context_handle_t,
    list: ze_command_list_handle_t,
}

/// The answer of zeMemGetAllocProperties.
pub struct Properties {
    pub memory_type: ze_memory_type_t,
    pub id: u64,
}

// SAFETY, for every call in this file: handles come from the driver and live as long as `self`;
// out-pointers are to locals; structures are blank ones that name only locals. Addresses are the
// cases' own: a wrong one is what they test, and the test driver answers it.
impl Gpu {
    /// Opens loader, driver, the first device, context and an immediate command list.
    pub fn open() -> Result<Self, Fault> {
        Self::open_device(0)
    }

    /// The same with the device of an ordinal.
    pub fn open_device(ordinal: usize) -> Result<Self, Fault> {
        let level_zero = LevelZero::load()?;
        let mut driver = ptr::null_mut();
        let mut devices = vec![ptr::null_mut(); ordinal + 1];
        let (mut context, mut list) = (ptr::null_mut(), ptr::null_mut());
        let of_driver = std::env::var(DRIVER).map_or(Ok(0), |number| number.parse::<usize>())?;
        let mut drivers = vec![driver; of_driver + 1];
        let (mut count, mut seen) = (u32::try_from(drivers.len())?, u32::try_from(devices.len())?);
        let desc = ze_context_desc_t::blank();
        let queue = ze_command_queue_desc_t {
            mode: ze_command_queue_mode_t::ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS,
            ..Structure::blank()
        };
        // SAFETY: see above.
        unsafe {
            level_zero.zeInit(0)?;
            level_zero.zeDriverGet(&raw mut count, drivers.as_mut_ptr())?;
            driver = drivers[of_driver];
            level_zero.zeDeviceGet(driver, &raw mut seen, devices.as_mut_ptr())?;
            level_zero.zeContextCreate(driver, &raw const desc, &raw mut context)?;
            let (list, device) = (&raw mut list, devices[ordinal]);
            level_zero.zeCommandListCreateImmediate(context, device, &raw const queue, list)?;
        }
        Ok(Self { level_zero, driver, device: devices[ordinal], context, list })
    }

    /// Allocates device memory. `exportable`: with an export_desc, so that it is in no pool.
    pub fn allocate(&self, bytes: usize, exportable: bool) -> Result<Address, CallError> {
        let export = ze_external_memory_export_desc_t { flags: DMA_BUF, ..Structure::blank() };
        let next = if exportable { ptr::from_ref(&export).cast() } else { ptr::null() };
        self.allocate_with(bytes, next)
    }

    /// Imports an fd as device memory.
    pub fn import_fd(&self, fd: RawFd, bytes: usize) -> Result<Address, CallError> {
        let import = ze_external_memory_import_fd_t { flags: DMA_BUF, fd, ..Structure::blank() };
        self.allocate_with(bytes, ptr::from_ref(&import).cast())
    }

    fn allocate_with(&self, bytes: usize, next: *const c_void) -> Result<Address, CallError> {
        let desc = ze_device_mem_alloc_desc_t { pNext: next, ..Structure::blank() };
        let mut address = ptr::null_mut();
        // SAFETY: see above.
        unsafe {
            let (desc, out) = (&raw const desc, &raw mut address);
            self.level_zero.zeMemAllocDevice(self.context, desc, bytes, 1, self.device, out)?;
        }
        Ok(address)
    }

    pub fn allocate_host(&self, bytes: usize) -> Result<Address, CallError> {
        let desc = ze_host_mem_alloc_desc_t::blank();
        let mut address = ptr::null_mut();
        let out = &raw mut address;
        // SAFETY: see above.
        unsafe { self.level_zero.zeMemAllocHost(self.context, &raw const desc, bytes, 1, out)? };
        Ok(address)
    }

    pub fn free(&self, address: Address) -> Result<(), CallError> {
        // SAFETY: see above.
        unsafe { self.level_zero.zeMemFree(self.context, address) }
    }

    pub fn free_ext(&self, address: Address) -> Result<(), CallError> {
        let desc = ze_memory_free_ext_desc_t::blank();
        // SAFETY: see above.
        unsafe { self.level_zero.zeMemFreeExt(self.context, &raw const desc, address) }
    }

    pub fn properties(&self, address: Address) -> Result<Properties, CallError> {
        let mut found = ze_memory_allocation_properties_t::blank();
        let out = &raw mut found;
        // SAFETY: see above; the device may be null.
        unsafe {
            let device = ptr::null_mut();
            self.level_zero.zeMemGetAllocProperties(self.context, address, out, device)?;
        }
        Ok(Properties { memory_type: found.type_, id: found.id })
    }

    /// The device that allocated or imported the memory.
    #[allow(dead_code)] // ze-test-unmodified does not
    pub fn device_of(&self, address: Address) -> Result<ze_device_handle_t, CallError> {
        let mut found = ze_memory_allocation_properties_t::blank();
        let mut device = ptr::null_mut();
        let (out, of) = (&raw mut found, &raw mut device);
        // SAFETY: see above.
        unsafe { self.level_zero.zeMemGetAllocProperties(self.context, address, out, of)? };
        Ok(device)
    }

    /// The exported fd, which stays the driver's.
    pub fn export_fd(&self, address: Address) -> Result<RawFd, CallError> {
        let mut export =
            ze_external_memory_export_fd_t { flags: DMA_BUF, fd: -1, ..Structure::blank() };
        let mut found = ze_memory_allocation_properties_t {
            pNext: (&raw mut export).cast(),
            ..Structure::blank()
        };
        let out = &raw mut found;
        // SAFETY: see above; the device may be null.
        unsafe {
            let device = ptr::null_mut();
            self.level_zero.zeMemGetAllocProperties(self.context, address, out, device)?;
        }
        Ok(export.fd)
    }

    /// The first address and the size of the allocation that contains `address`.
    pub fn range(&self, address: Address) -> Result<(Address, usize), CallError> {
        let (mut base, mut size) = (ptr::null_mut(), 0);
        let (base_out, size_out) = (&raw mut base, &raw mut size);
        // SAFETY: see above.
        unsafe { self.level_zero.zeMemGetAddressRange(self.context, address, base_out, size_out)? };
        Ok((base, size))
    }

    pub fn get(&self, address: Address) -> Result<ze_ipc_mem_handle_t, CallError> {
        let mut handle = ze_ipc_mem_handle_t::default();
        // SAFETY: see above.
        unsafe { self.level_zero.zeMemGetIpcHandle(self.context, address, &raw mut handle)? };
        Ok(handle)
    }

    /// A handle of memory that is freed by now.
    pub fn get_and_free(&self, bytes: usize) -> Result<ze_ipc_mem_handle_t, CallError> {
        let memory = self.allocate(bytes, true)?;
        let handle = self.get(memory)?;
        self.free(memory)?;
        Ok(handle)
    }

    pub fn put(&self, handle: ze_ipc_mem_handle_t) -> Result<(), CallError> {
        // SAFETY: see above.
        unsafe { self.level_zero.zeMemPutIpcHandle(self.context, handle) }
    }

    pub fn open_handle(&self, handle: ze_ipc_mem_handle_t) -> Result<Address, CallError> {
        let mut address = ptr::null_mut();
        let out = &raw mut address;
        // SAFETY: see above.
        unsafe { self.level_zero.zeMemOpenIpcHandle(self.context, self.device, handle, 0, out)? };
        Ok(address)
    }

    pub fn close_handle(&self, address: Address) -> Result<(), CallError> {
        // SAFETY: see above.
        unsafe { self.level_zero.zeMemCloseIpcHandle(self.context, address) }
    }

    pub fn handle_of_fd(&self, fd: RawFd) -> Result<ze_ipc_mem_handle_t, CallError> {
        let mut handle = ze_ipc_mem_handle_t::default();
        let (fd, out) = (u64::from(fd.unsigned_abs()), &raw mut handle);
        // SAFETY: see above.
        unsafe { self.level_zero.zeMemGetIpcHandleFromFileDescriptorExp(self.context, fd, out)? };
        Ok(handle)
    }

    pub fn fd_of_handle(&self, handle: ze_ipc_mem_handle_t) -> Result<u64, CallError> {
        let mut fd = 0;
        let out = &raw mut fd;
        // SAFETY: see above.
        unsafe {
            self.level_zero.zeMemGetFileDescriptorFromIpcHandleExp(self.context, handle, out)?
        };
        Ok(fd)
    }

    /// Copies between device addresses and this process's memory.
    pub fn copy(&self, to: Address, from: *const c_void, bytes: usize) -> Result<(), CallError> {
        let (no_event, no_events) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: see above; host memory is the slices of `write` and `read`, as long as they are.
        unsafe {
            self.level_zero
                .zeCommandListAppendMemoryCopy(self.list, to, from, bytes, no_event, 0, no_events)
        }
    }

    pub fn write(&self, to: Address, bytes: &[u8]) -> Result<(), CallError> {
        self.copy(to, bytes.as_ptr().cast(), bytes.len())
    }

    pub fn read(&self, from: Address, bytes: usize) -> Result<Vec<u8>, CallError> {
        let mut read = vec![0; bytes];
        self.copy(read.as_mut_ptr().cast(), from, bytes)?;
        Ok(read)
    }

    /// A function of the driver's, by its name.
    fn function(&self, name: &CStr) -> Result<*mut c_void, Fault> {
        let mut function = ptr::null_mut();
        let (out, name) = (&raw mut function, name.as_ptr());
        // SAFETY: see above; the name is a C string.
        unsafe { self.level_zero.zeDriverGetExtensionFunctionAddress(self.driver, name, out)? };
        Ok(function)
    }

    /// Where the memory is: 16 * (card + 1), and the tile + 1 where it is one tile's.
    #[allow(dead_code)] // ze-test-unmodified does not
    pub fn place(&self, address: Address) -> Result<u32, Fault> {
        let function = self.function(WHERE_FUNCTION)?;
        // SAFETY: the driver answers a function of this type under this name.
        let place = unsafe { std::mem::transmute::<*mut c_void, WhereFunction>(function) };
        // SAFETY: it takes any address.
        Ok(unsafe { place(address) })
    }

    /// The driver's counters for this process.
    pub fn counters(&self) -> Result<Counters, Fault> {
        let function = self.function(COUNTERS_FUNCTION)?;
        // SAFETY: the driver answers a function of this type under this name.
        let count = unsafe { std::mem::transmute::<*mut c_void, CountersFunction>(function) };
        let mut counters = Counters::default();
        // SAFETY: it writes one `Counters`.
        unsafe { count(&raw mut counters) };
        Ok(counters)
    }

    /// A fault when anything was not given back.
    pub fn nothing_left(&self) -> Outcome {
        same("what the driver still has", self.counters()?, Counters::default())
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: see above; both are ours, and not used again.
        let closed = unsafe {
            self.level_zero
                .zeCommandListDestroy(self.list)
                .and_then(|()| self.level_zero.zeContextDestroy(self.context))
        };
        if let Err(error) = closed {
            eprintln!("closing the device: {error}");
        }
    }
}

/// The fd at the place in a handle where programs look for it.
pub fn handle_fd(handle: ze_ipc_mem_handle_t) -> RawFd {
    let bytes = handle.to_bytes();
    RawFd::from_ne_bytes(std::array::from_fn(|i| bytes[i]))
}

/// The handle with another fd at that place.
pub fn with_fd(handle: ze_ipc_mem_handle_t, fd: RawFd) -> ze_ipc_mem_handle_t {
    let mut bytes = handle.to_bytes();
    bytes[..4].copy_from_slice(&fd.to_ne_bytes());
    ze_ipc_mem_handle_t::from_bytes(bytes)
}

/// The offset in the pool that a handle names.
pub fn handle_offset(handle: ze_ipc_mem_handle_t) -> u64 {
    let bytes = handle.to_bytes();
    u64::from_ne_bytes(std::array::from_fn(|i| bytes[8 + i]))
}

/// Whether an fd number is one that no process has open: fdbroker's layer makes these.
#[allow(dead_code)] // ze-test-unmodified uses it
pub fn is_virtual(fd: RawFd) -> bool {
    fd >= 1 << 30
}

/// Whether this process has an open fd of this number.
pub fn is_open(fd: RawFd) -> bool {
    // SAFETY: F_GETFD looks at the number only.
    fd >= 0 && unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0
}

/// Bytes that differ by salt, to tell allocations and writers apart.
pub fn pattern(bytes: usize, salt: u16) -> Vec<u8> {
    let salt = salt.to_ne_bytes();
    let byte = |i: usize| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ salt[i % 2];
    (0..bytes).map(byte).collect()
}
