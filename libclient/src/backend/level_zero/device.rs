//! A Level Zero device, opened: found by ordinal, checked for what sharing needs, with a context to
//! share in. Must never report a device that cannot share memory, nor destroy a context that is the
//! application's.

use super::context::{Context, FdCloser};
use super::driver::{Driver, Found, absent, unless_fds_lack};
use super::fd::HANDLE_BYTES;
use super::memory::LevelZeroMemory;
use crate::api::client::Client;
use crate::backend::device::{Identity, MemoryDevice, Owner, Owners, ordinal_of};
use crate::books::grant::Grant;
use crate::error::Error;
use crate::map::Access;
use fdbroker_protocol::Gpu;
use level_zero_sys::{
    Structure, bytes_of_characters, ze_device_external_memory_properties_t, ze_device_properties_t,
    ze_external_memory_type_flag_t,
};
use std::ffi::{CStr, c_void};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

const DMA_BUF: u32 = ze_external_memory_type_flag_t::ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF.0;

/// A device of this process; clones share it. Its context lives as long as any of them, or of the
/// memory made from them. Pointers exported by [`crate::level_zero::export_pointer`] are answered
/// for as long as one of them lives.
#[derive(Clone, Debug)]
pub struct Device {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    context: Arc<Context>,
    ordinal: u32,
    gpu: Gpu,
    name: String,
    owners: Owners<LevelZeroMemory, Context>,
}

impl Device {
    /// The device of an ordinal, counted over all drivers in the loader's order (`ZE_AFFINITY_MASK`
    /// and its like count), with a context of its own.
    ///
    /// # Errors
    /// NOT_SUPPORTED, with what is missing: the loader libze_loader.so.1 or a symbol in it, a
    /// driver, a device, or a device that exports and imports dma-bufs; and in a child of fork(2).
    /// LOCAL_FD_LIMIT: drivers open some.
    pub fn open(ordinal: u32) -> Result<Self, Error> {
        let driver = Driver::get()?;
        let (found, name) = find(driver, ordinal)?;
        let gpu = driver.gpu(found);
        Ok(Self::of(Context::create(driver, found)?, (ordinal, gpu), name))
    }

    /// The same for pointers that the application allocated in a context of its own.
    ///
    /// # Errors
    /// As [`Device::open`].
    ///
    /// # Safety
    /// `context` is a live `ze_context_handle_t` of the driver that has this device, and is not
    /// destroyed as long as this value, its clones, or memory made from them live.
    pub unsafe fn of_context(ordinal: u32, context: *mut c_void) -> Result<Self, Error> {
        let driver = Driver::get()?;
        let (found, name) = find(driver, ordinal)?;
        let gpu = driver.gpu(found);
        // SAFETY: the caller's promise.
        Ok(Self::of(unsafe { Context::adopt(driver, found, context) }, (ordinal, gpu), name))
    }

    fn of(context: Context, (ordinal, gpu): (u32, Gpu), name: String) -> Self {
        let (context, owners) = (Arc::new(context), Owners::default());
        Device { inner: Arc::new(Inner { context, ordinal, gpu, name, owners }) }
    }

    /// The ordinal of a GPU, or of a tile of one, in this process, whatever its number elsewhere.
    ///
    /// # Errors
    /// NOT_SUPPORTED: this process does not see it (the error says what it sees), or it was not
    /// said which one is meant; no loader, no driver.
    pub fn ordinal_of(gpu: &Gpu) -> Result<u32, Error> {
        let driver = Driver::get()?;
        let seen: Vec<Gpu> = driver.devices()?.into_iter().map(|it| driver.gpu(it)).collect();
        ordinal_of(gpu, &seen, &["ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY"]).map_err(absent)
    }

    /// How many devices there are.
    ///
    /// # Errors
    /// NOT_SUPPORTED: no loader, no driver.
    pub fn count() -> Result<u32, Error> {
        let devices = Driver::get()?.devices()?;
        Ok(u32::try_from(devices.len()).unwrap_or(u32::MAX))
    }

    /// Its place among the devices that Level Zero shows this process, from 0; ZE_AFFINITY_MASK
    /// changes it.
    pub fn ordinal(&self) -> u32 {
        self.inner.ordinal
    }

    /// Which GPU, or tile of one, it is, whatever its number here; [`Gpu::NONE`]: the driver does
    /// not say.
    pub fn gpu(&self) -> Gpu {
        self.inner.gpu
    }

    /// As the driver calls it.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Whether an exported allocation costs this process an fd until it is freed: the loader lacks
    /// zeMemPutIpcHandle (before 1.9), and closing the driver's fd behind its back would let it
    /// close another later.
    pub fn keeps_exported_fds(&self) -> bool {
        !self.inner.context.puts()
    }

    /// The closer of the fd of an import by `ze_external_memory_import_fd_t`; `None` until the
    /// first has shown it.
    pub fn fd_closer(&self) -> Option<FdCloser> {
        self.inner.context.closer()
    }

    /// Names it, for an application that knows its driver; without effect once it is known.
    pub fn set_fd_closer(&self, closer: FdCloser) {
        self.inner.context.set_closer(closer);
    }
}

impl MemoryDevice for Device {
    type Memory = LevelZeroMemory;
    type Context = Context;

    fn ordinal(&self) -> u32 {
        self.ordinal()
    }

    fn gpu(&self) -> Gpu {
        self.gpu()
    }

    fn allocate(&self, bytes: usize) -> Result<LevelZeroMemory, Error> {
        LevelZeroMemory::new(self, bytes)
    }

    fn import(&self, grant: &Grant, access: Access) -> Result<LevelZeroMemory, Error> {
        LevelZeroMemory::import(self, grant, access)
    }

    fn identify(&self, client: &Client, memory: &LevelZeroMemory) -> Result<Identity, Error> {
        check_window(client)?;
        if !memory.is_own() {
            return Err(absent("only the owner of the memory can register it"));
        }
        Ok(Identity { owner_allocation_id: memory.id()?, kind: memory.kind()? })
    }

    fn owner(&self, client: &Client) -> Arc<Owner<LevelZeroMemory, Context>> {
        self.inner.owners.of(client, self.context())
    }

    fn context(&self) -> &Arc<Context> {
        &self.inner.context
    }
}

impl LevelZeroMemory {
    /// Allocates `bytes`, so that they can be exported. What they contain is undefined.
    ///
    /// # Errors
    /// BAD_HANDLE: 0 bytes. INTERNAL: the device has no memory. NOT_SUPPORTED in a child of
    /// fork(2).
    pub fn new(device: &Device, bytes: usize) -> Result<Self, Error> {
        Self::allocate(device.context(), bytes)
    }

    /// The memory of a grant: opened by its driver data, which say where in a pool it lies, or
    /// imported by its fd when there are none. The grant's fd is not needed any more when this
    /// returns: close it, then tell [`crate::Lease::mapped`];
    /// [`crate::level_zero::LevelZeroImport`] does both. `access` is kept by
    /// [`LevelZeroMemory::write_at`] only: the driver knows no memory that kernels may only read.
    ///
    /// # Errors
    /// NOT_SUPPORTED: the grant is of another kind. UNSUPPORTED_FD: the driver does not take the fd
    /// or the handle. LOCAL_FD_LIMIT: nothing lost, retry. BAD_HANDLE: a size that the memory does
    /// not have.
    pub fn import(device: &Device, grant: &Grant, access: Access) -> Result<Self, Error> {
        let info = &grant.info;
        // A memfd, too: see `fd::kind_of`. The driver has the last word.
        if !info.facts.kind.is_for_level_zero() {
            return Err(absent(format!(
                "Level Zero cannot import a {}; its owner must share a dma-buf",
                info.facts.kind
            )));
        }
        let data = info.driver_data.as_bytes();
        if data.is_empty() {
            let (offset, bytes) = (info.facts.fd_offset, info.facts.size_bytes);
            return Self::import_fd(device, grant.fd.as_fd(), offset, bytes, access);
        }
        let mut handle = [0; HANDLE_BYTES];
        handle[..data.len()].copy_from_slice(data);
        Self::open(device.context(), &handle, grant.fd.as_fd(), info.facts.size_bytes, access)
    }

    /// The memory of an fd which came by another way: `size_bytes` from `fd_offset` on. The fd
    /// stays the caller's and is not needed any more when this returns.
    ///
    /// # Errors
    /// As [`LevelZeroMemory::import`].
    pub fn import_fd(
        device: &Device,
        fd: BorrowedFd<'_>,
        fd_offset: u64,
        size_bytes: u64,
        access: Access,
    ) -> Result<Self, Error> {
        Self::of_fd(device.context(), fd, fd_offset, size_bytes, access)
    }
}

/// One fd for the duplicate, and one for the driver's own while there is one.
pub(super) fn check_window(client: &Client) -> Result<(), Error> {
    match client.own_fds() {
        0 | 1 => Err(absent(
            "an export is two fds for a moment, the driver's and its duplicate, so `own_fds` must be 2 or more, and 3 beside a memfd arena",
        )),
        _ => Ok(()),
    }
}

/// Whether there is a device that can share memory. Makes no context.
pub(super) fn probe() -> Result<(), Error> {
    let driver = Driver::get()?;
    let devices = driver.devices()?;
    let mut last = absent("the drivers show no device");
    for found in devices {
        match check(driver, found) {
            Ok(_) => return Ok(()),
            Err(why) => last = why,
        }
    }
    Err(last)
}

fn find(driver: &Driver, ordinal: u32) -> Result<(Found, String), Error> {
    let devices = driver.devices()?;
    let Some(found) = devices.get(ordinal as usize) else {
        let count = devices.len();
        return Err(absent(format!("no device {ordinal}: the drivers show {count}")));
    };
    check(driver, *found).map(|name| (*found, name))
}

/// Its name, if it can share memory.
fn check(driver: &Driver, found: Found) -> Result<String, Error> {
    let mut properties = ze_device_properties_t::blank();
    let mut external = ze_device_external_memory_properties_t::blank();
    let (ze, device) = (&driver.ze, found.device);
    // SAFETY: a device of the driver's; each call fills in one structure of the type it takes.
    unsafe {
        ze.zeDeviceGetProperties(device, &raw mut properties)
            .and_then(|()| ze.zeDeviceGetExternalMemoryProperties(device, &raw mut external))
    }
    .map_err(|why| unless_fds_lack(absent(why)))?;
    let bytes = bytes_of_characters(properties.name);
    let name = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
    let name = name.to_string_lossy().into_owned();
    let shares = external.memoryAllocationExportTypes & external.memoryAllocationImportTypes;
    if shares & DMA_BUF != 0 {
        Ok(name)
    } else {
        Err(absent(format!("the device {name} exports no memory as dma-bufs")))
    }
}
