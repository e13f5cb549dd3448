//! The GPU memory of a context: devices opened at first use, buffers known by their address. Must
//! never call a driver under its lock, but to open a device, nor free memory in a forked child.

use crate::failure::Failure;
use fdbroker_client::cuda::{self, CudaBuffer, CudaMemory};
use fdbroker_client::layer::lock;
use fdbroker_client::level_zero::{self, LevelZeroBuffer, LevelZeroMemory};
use fdbroker_client::{
    Access, Client, Deadline, Error, Exports, Gpu, Grant, Handle, ImportOpener, Opened, Share,
};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

/// A driver that shares memory, by its number in C: FDBROKER_DRIVER_*.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Driver {
    Cuda = 1,
    LevelZero = 2,
}

#[derive(Clone, Debug)]
enum Device {
    Cuda(cuda::Device),
    LevelZero(level_zero::Device),
}

#[derive(Debug)]
pub(crate) enum Buffer {
    Cuda(CudaBuffer),
    LevelZero(LevelZeroBuffer),
}

/// All GPU memory of a context that is its own.
#[derive(Debug)]
pub(crate) struct Gpus {
    client: Client,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Open until the context is closed: exported pointers are answered for as long.
    devices: BTreeMap<(Driver, u32), Device>,
    /// By their first address.
    buffers: BTreeMap<u64, Kept>,
    /// What imports are open on which device, by their first address: their ends, and the device.
    imports: BTreeMap<u64, (u64, (Driver, u32))>,
}

#[derive(Clone, Debug)]
struct Kept {
    buffer: Arc<Buffer>,
    /// Stays when the context is closed: an allocator that knows no context frees it.
    is_pooled: bool,
}

/// The counters of GPU memory.
pub(crate) struct Usage {
    /// Buffers that are registered now.
    pub registered: u64,
}

impl Driver {
    /// How many devices it shows.
    pub fn count(self) -> Result<u32, Failure> {
        Ok(match self {
            Driver::Cuda => cuda::Device::count(),
            Driver::LevelZero => level_zero::Device::count(),
        }?)
    }

    /// The ordinal of a GPU in this process.
    pub fn ordinal_of(self, gpu: &Gpu) -> Result<u32, Error> {
        match self {
            Driver::Cuda => cuda::Device::ordinal_of(gpu),
            Driver::LevelZero => level_zero::Device::ordinal_of(gpu),
        }
    }
}

impl Gpus {
    pub fn new(client: &Client) -> Self {
        Gpus { client: client.clone(), state: Mutex::default() }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    fn device(&self, driver: Driver, ordinal: u32) -> Result<Device, Error> {
        let mut state = lock(&self.state);
        if let Some(device) = state.devices.get(&(driver, ordinal)) {
            return Ok(device.clone());
        }
        // Under the lock, so that each is opened once.
        let device = match driver {
            Driver::Cuda => Device::Cuda(cuda::Device::open(ordinal)?),
            Driver::LevelZero => Device::LevelZero(level_zero::Device::open(ordinal)?),
        };
        state.devices.insert((driver, ordinal), device.clone());
        Ok(device)
    }

    /// Opens a device of Level Zero in the program's context; whether it was not open.
    ///
    /// # Safety
    /// As `level_zero::Device::of_context`.
    pub unsafe fn adopt(&self, ordinal: u32, context: *mut c_void) -> Result<bool, Failure> {
        let mut state = lock(&self.state);
        let key = (Driver::LevelZero, ordinal);
        if state.devices.contains_key(&key) {
            return Ok(false);
        }
        // SAFETY: the caller's promise.
        let device = unsafe { level_zero::Device::of_context(ordinal, context) }?;
        state.devices.insert(key, Device::LevelZero(device));
        Ok(true)
    }

    /// Opens the device if it is not open.
    pub fn open(&self, driver: Driver, ordinal: u32) -> Result<(), Failure> {
        self.device(driver, ordinal)?;
        Ok(())
    }

    pub fn alloc(
        &self,
        driver: Driver,
        ordinal: u32,
        len: usize,
        share: Share,
    ) -> Result<Buffer, Failure> {
        let client = &self.client;
        Ok(match self.device(driver, ordinal)? {
            Device::Cuda(of) => Buffer::Cuda(CudaBuffer::allocate(client, &of, len, share)?),
            Device::LevelZero(of) => {
                Buffer::LevelZero(LevelZeroBuffer::allocate(client, &of, len, share)?)
            }
        })
    }

    /// Keeps a buffer until [`Gpus::free`].
    pub fn keep(&self, buffer: Buffer, is_pooled: bool) {
        let (base, buffer) = (buffer.base(), Arc::new(buffer));
        lock(&self.state).buffers.insert(base, Kept { buffer, is_pooled });
    }

    /// Frees the buffer that begins at `address`; whether there was one.
    pub fn free(&self, address: u64) -> bool {
        // Dropped here, after the lock.
        let buffer = lock(&self.state).buffers.remove(&address);
        buffer.is_some()
    }

    /// The handle of the buffer that `address` points into; `None`: it points into none.
    pub fn handle_at(&self, address: u64, deadline: Deadline) -> Result<Option<Handle>, Failure> {
        let found = {
            let state = lock(&self.state);
            let below = state.buffers.range(..=address).next_back();
            below.map(|(base, kept)| (address - base, Arc::clone(&kept.buffer)))
        };
        // The clone keeps the buffer alive when another thread frees it meanwhile.
        match found.filter(|(offset, buffer)| *offset < buffer.bytes()) {
            Some((offset, buffer)) => Ok(Some(buffer.register(deadline)?.at(offset))),
            None => Ok(None),
        }
    }

    /// The handle of memory that somebody else allocated.
    pub fn export(
        &self,
        exports: &Exports,
        (driver, ordinal): (Driver, u32),
        pointer: u64,
        share: Share,
        deadline: Deadline,
    ) -> Result<Handle, Failure> {
        Ok(match self.device(driver, ordinal)? {
            Device::Cuda(of) => cuda::export_pointer(&of, exports, pointer, share, deadline),
            Device::LevelZero(of) => {
                level_zero::export_pointer(&of, exports, pointer, share, deadline)
            }
        }?)
    }

    /// Ends the registration of such memory; whether there was one.
    pub fn retire(
        &self,
        exports: &Exports,
        (driver, ordinal): (Driver, u32),
        pointer: u64,
    ) -> Result<bool, Failure> {
        let retired = match self.device(driver, ordinal)? {
            Device::Cuda(of) => cuda::retire_pointer(&of, exports, pointer),
            Device::LevelZero(of) => level_zero::retire_pointer(&of, exports, pointer),
        };
        Ok(retired.is_some())
    }

    /// Where the import is open that `address` points into; `None`: no driver has opened one there.
    pub fn device_of_import(&self, address: u64) -> Option<(Driver, u32)> {
        let state = lock(&self.state);
        let (_, (end, device)) = state.imports.range(..=address).next_back()?;
        (address < *end).then_some(*device)
    }

    /// Frees all but what an allocator has, and closes the devices that nothing needs any more.
    pub fn close(&self) {
        let (buffers, devices) = {
            let mut state = lock(&self.state);
            let all = std::mem::take(&mut state.buffers);
            let (pooled, own) = all.into_iter().partition(|(_, kept)| kept.is_pooled);
            state.buffers = pooled;
            let own: BTreeMap<u64, Kept> = own;
            (own, std::mem::take(&mut state.devices))
        };
        // After the lock, the memory before its device.
        drop(buffers);
        drop(devices);
    }

    pub fn usage(&self) -> Usage {
        let buffers: Vec<Arc<Buffer>> =
            lock(&self.state).buffers.values().map(|kept| Arc::clone(&kept.buffer)).collect();
        let registered = buffers.iter().filter(|buffer| buffer.is_registered()).count();
        Usage { registered: registered as u64 }
    }
}

impl Buffer {
    /// The same as a pointer: addresses have 64 bits wherever the library runs.
    pub fn ptr(&self) -> *mut c_void {
        std::ptr::without_provenance_mut(usize::try_from(self.base()).unwrap_or_default())
    }

    /// Its first byte, a device address.
    fn base(&self) -> u64 {
        match self {
            Buffer::Cuda(buffer) => buffer.device_ptr(),
            Buffer::LevelZero(buffer) => buffer.device_ptr(),
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Buffer::Cuda(buffer) => buffer.len() as u64,
            Buffer::LevelZero(buffer) => buffer.len() as u64,
        }
    }

    fn is_registered(&self) -> bool {
        match self {
            Buffer::Cuda(buffer) => buffer.handle().is_some(),
            Buffer::LevelZero(buffer) => buffer.handle().is_some(),
        }
    }

    /// Its handle; it is registered first when it is not, or no more.
    pub fn register(&self, deadline: Deadline) -> Result<Handle, Failure> {
        Ok(match self {
            Buffer::Cuda(buffer) => match buffer.handle() {
                Some(handle) => Ok(handle),
                None => buffer.register(deadline),
            },
            Buffer::LevelZero(buffer) => match buffer.handle() {
                Some(handle) => Ok(handle),
                None => buffer.register(deadline),
            },
        }?)
    }
}

/// Opens imports for the import cache.
#[derive(Debug)]
pub(crate) struct GpuOpener {
    pub gpus: Arc<Gpus>,
    pub driver: Driver,
    /// `None`: the device that is the owner's GPU.
    pub device: Option<u32>,
}

impl ImportOpener for GpuOpener {
    fn open(&self, grant: &Grant, access: Access) -> Result<Box<dyn Opened>, Error> {
        let ordinal = match self.device {
            Some(ordinal) => ordinal,
            None => self.driver.ordinal_of(&grant.info.facts.gpu)?,
        };
        let memory: Box<dyn Opened> = match self.gpus.device(self.driver, ordinal)? {
            Device::Cuda(of) => Box::new(CudaMemory::import(&of, grant, access)?),
            Device::LevelZero(of) => Box::new(LevelZeroMemory::import(&of, grant, access)?),
        };
        let gpus = Arc::clone(&self.gpus);
        let at = memory.as_ptr().addr() as u64;
        let end = at + memory.len() as u64;
        lock(&gpus.state).imports.insert(at, (end, (self.driver, ordinal)));
        Ok(Box::new(OnDevice { memory, gpus }))
    }
}

/// An import that a driver has opened, on a device that is known.
#[derive(Debug)]
struct OnDevice {
    memory: Box<dyn Opened>,
    gpus: Arc<Gpus>,
}

impl Opened for OnDevice {
    fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    fn len(&self) -> usize {
        self.memory.len()
    }
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        // Before the memory is closed: its address may be another import's right after.
        lock(&self.gpus.state).imports.remove(&(self.memory.as_ptr().addr() as u64));
    }
}
