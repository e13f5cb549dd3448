//! A CUDA device, opened: found by ordinal, checked for what sharing needs, its primary context
//! retained. Must never keep another context current, nor report a device that cannot share memory.

use super::driver::{Context, Driver, Linear, absent};
use super::memory::CudaMemory;
use super::raw;
use crate::api::client::Client;
use crate::backend::device::{Identity, MemoryDevice, Owner, Owners, ordinal_of};
use crate::backend::pool::next_allocation_id;
use crate::books::grant::Grant;
use crate::error::Error;
use crate::map::{Access, page_size};
use fdbroker_protocol::{ErrorCode, Gpu, MemoryKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A device of this process; clones share it. Its primary context lives as long as any of them, or
/// of the memory made from them; frameworks use the same one.
#[derive(Clone, Debug)]
pub struct Device {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    context: Arc<Context>,
    driver: &'static Driver,
    ordinal: u32,
    gpu: Gpu,
    name: String,
    exports_dma_bufs: bool,
    owners: Owners<CudaMemory, Context>,
}

/// Bytes of a device's memory, as all processes together leave them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryInfo {
    /// Bytes that no process has allocated, as the driver says.
    pub free_bytes: u64,
    /// Bytes of the device, in use or not.
    pub total_bytes: u64,
}

impl Device {
    /// The device of an ordinal, counted as CUDA does (`CUDA_VISIBLE_DEVICES`).
    ///
    /// # Errors
    /// NOT_SUPPORTED, with what is missing: the library libcuda.so.1 or a symbol in it, a device,
    /// or a device that exports memory as fds; and in a child of fork(2). LOCAL_FD_LIMIT: a context
    /// needs some 40 fds.
    pub fn open(ordinal: u32) -> Result<Self, Error> {
        let driver = Driver::get()?;
        let count = driver.count_devices()?;
        if ordinal >= count {
            return Err(absent(format!("no device {ordinal}: the driver shows {count}")));
        }
        let device = driver.device(ordinal)?;
        let name = driver.device_name(device)?;
        let has = |attribute| driver.has_attribute(device, attribute);
        if !has(raw::ATTRIBUTE_VIRTUAL_MEMORY) || !has(raw::ATTRIBUTE_POSIX_FD) {
            return Err(absent(format!("device {ordinal}, {name}, exports no memory as fds")));
        }
        let exports_dma_bufs = driver.exports_dma_bufs() && has(raw::ATTRIBUTE_DMA_BUF);
        let context = Arc::new(Context::retain(driver, device)?);
        let owners = Owners::default();
        let gpu = driver.gpu(device);
        let inner = Inner { context, driver, ordinal, gpu, name, exports_dma_bufs, owners };
        Ok(Device { inner: Arc::new(inner) })
    }

    /// The ordinal of a GPU in this process, whatever its number elsewhere.
    ///
    /// # Errors
    /// NOT_SUPPORTED: this process does not see it (the error says what it sees), or it was not
    /// said which one is meant; no driver.
    pub fn ordinal_of(gpu: &Gpu) -> Result<u32, Error> {
        let seen = Driver::get()?.gpus()?;
        ordinal_of(gpu, seen, &["CUDA_VISIBLE_DEVICES"]).map_err(absent)
    }

    /// How many devices there are.
    ///
    /// # Errors
    /// NOT_SUPPORTED: no driver.
    pub fn count() -> Result<u32, Error> {
        Driver::get()?.count_devices()
    }

    /// As CUDA numbers the devices of this process, from 0; CUDA_VISIBLE_DEVICES changes it.
    pub fn ordinal(&self) -> u32 {
        self.inner.ordinal
    }

    /// Which GPU it is, whatever its number here; [`Gpu::NONE`]: the driver does not say.
    pub fn gpu(&self) -> Gpu {
        self.inner.gpu
    }

    /// Such as `NVIDIA H200`.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The CUDA that the driver serves: 13000 is 13.0.
    ///
    /// # Errors
    /// NOT_SUPPORTED: the driver does not say.
    pub fn driver_version(&self) -> Result<u32, Error> {
        self.inner.driver.version()
    }

    /// What sizes of shared memory are multiples of, in bytes (2 MiB on most devices).
    pub fn granularity(&self) -> usize {
        self.inner.context.granularity()
    }

    /// Whether [`export_dma_buf`] can work on this device.
    pub fn exports_dma_bufs(&self) -> bool {
        self.inner.exports_dma_bufs
    }

    /// Free and all bytes, now.
    ///
    /// # Errors
    /// INTERNAL: the driver's words. NOT_SUPPORTED in a child of fork(2).
    pub fn memory_info(&self) -> Result<MemoryInfo, Error> {
        let (free_bytes, total_bytes) = self.inner.context.memory_info()?;
        Ok(MemoryInfo { free_bytes, total_bytes })
    }
}

impl MemoryDevice for Device {
    type Memory = CudaMemory;
    type Context = Context;

    fn ordinal(&self) -> u32 {
        self.ordinal()
    }

    fn gpu(&self) -> Gpu {
        self.gpu()
    }

    fn allocate(&self, bytes: usize) -> Result<CudaMemory, Error> {
        CudaMemory::new(self, bytes)
    }

    fn import(&self, grant: &Grant, access: Access) -> Result<CudaMemory, Error> {
        CudaMemory::import(self, grant, access)
    }

    fn identify(&self, client: &Client, memory: &CudaMemory) -> Result<Identity, Error> {
        if client.own_fds() == 0 {
            let reason = "every export is a new fd, so `own_fds` must be 1 or more, and 2 beside a memfd arena";
            return Err(absent(reason));
        }
        if !memory.is_own() {
            return Err(absent("only the owner of the memory can register it"));
        }
        // Fds cannot be told apart, and an address used again has another id.
        Ok(Identity { owner_allocation_id: next_allocation_id(), kind: MemoryKind::CudaVmm })
    }

    fn owner(&self, client: &Client) -> Arc<Owner<CudaMemory, Context>> {
        self.inner.owners.of(client, self.context())
    }

    fn context(&self) -> &Arc<Context> {
        &self.inner.context
    }
}

impl CudaMemory {
    /// Allocates `bytes`, rounded up to [`Device::granularity`]. What it contains is undefined.
    ///
    /// # Errors
    /// BAD_HANDLE: 0 bytes. INTERNAL: the device has no memory. NOT_SUPPORTED in a child of
    /// fork(2).
    pub fn new(device: &Device, bytes: usize) -> Result<Self, Error> {
        Self::new_at(device, bytes, 0)
    }

    /// The same at a device address, if that is free; else wherever. 0: wherever.
    ///
    /// # Errors
    /// As [`CudaMemory::new`].
    pub fn new_at(device: &Device, bytes: usize, address: u64) -> Result<Self, Error> {
        Self::allocate(device.context(), bytes, address)
    }

    /// The memory of a grant, mapped for `device`. The grant's fd is not needed any more when this
    /// returns: close it, then tell [`crate::Lease::mapped`]; [`crate::cuda::CudaImport`] does
    /// both.
    ///
    /// # Errors
    /// NOT_SUPPORTED: the grant is of another kind, or the device cannot reach that memory.
    /// UNSUPPORTED_FD: the driver does not know the fd. LOCAL_FD_LIMIT: nothing lost, retry.
    /// BAD_HANDLE: a size that cannot be.
    pub fn import(device: &Device, grant: &Grant, access: Access) -> Result<Self, Error> {
        let info = &grant.info;
        if !info.facts.kind.is_for_cuda() {
            return Err(absent(format!(
                "CUDA cannot import a {}; its owner must share a VMM allocation",
                info.facts.kind
            )));
        }
        Self::map(
            device.context(),
            grant.fd.as_fd(),
            info.facts.fd_offset,
            info.facts.size_bytes,
            access,
        )
    }

    /// The memory of a VMM fd which came by another way, whole; `size_bytes` as its owner says. The
    /// fd is not needed any more when this returns.
    ///
    /// # Errors
    /// As [`CudaMemory::import`].
    pub fn import_fd(
        device: &Device,
        fd: BorrowedFd<'_>,
        size_bytes: u64,
        access: Access,
    ) -> Result<Self, Error> {
        Self::map(device.context(), fd, 0, size_bytes, access)
    }
}

/// Whether there is a driver with a device that can share memory. Opens no context.
pub(super) fn probe() -> Result<(), Error> {
    let driver = Driver::get()?;
    let count = driver.count_devices()?;
    let shares = |ordinal: u32| {
        let device = driver.device(ordinal)?;
        let has = |attribute| driver.has_attribute(device, attribute);
        Ok::<_, Error>(has(raw::ATTRIBUTE_VIRTUAL_MEMORY) && has(raw::ATTRIBUTE_POSIX_FD))
    };
    for ordinal in 0..count {
        if shares(ordinal)? {
            return Ok(());
        }
    }
    Err(absent(match count {
        0 => "the driver shows no device".to_owned(),
        _ => format!("none of {count} devices exports memory as fds"),
    }))
}

/// A dma-buf of `bytes` of device memory at the device address `pointer`, whoever in this process
/// allocated it: cuMemAlloc, VMM, memory pools. For other devices' drivers (network, video, other
/// GPUs): CUDA itself cannot import it. Register it with [`fdbroker_protocol::MemoryKind::DmaBuf`].
/// It keeps the memory allocated while it is open.
///
/// # Errors
/// BAD_HANDLE: address or size is not a multiple of the page size. NOT_SUPPORTED: the driver or the
/// device has no such export. LOCAL_FD_LIMIT. INTERNAL: the driver's words, such as that this is no
/// device memory.
pub fn export_dma_buf(device: &Device, pointer: u64, bytes: usize) -> Result<OwnedFd, Error> {
    let page = page_size();
    if bytes == 0 || !bytes.is_multiple_of(page) || !pointer.is_multiple_of(page as u64) {
        let context = format!(
            "dma-buf of {bytes} bytes at {pointer:#x}: both must be multiples of the page size, {page}"
        );
        return Err(Error::new(ErrorCode::BadHandle, context));
    }
    if !device.exports_dma_bufs() {
        return Err(absent(format!("{} exports no dma-bufs", device.name())));
    }
    device.context().export_dma_buf(pointer, bytes)
}

/// Device memory of cuMemAlloc, as most applications have it: it can be shared as dma-buf only.
#[derive(Debug)]
pub struct LinearMemory {
    memory: Linear,
    bytes: usize,
}

impl LinearMemory {
    /// Allocates `bytes`, more than 0.
    ///
    /// # Errors
    /// INTERNAL: no memory. NOT_SUPPORTED in a child of fork(2).
    pub fn new(device: &Device, bytes: usize) -> Result<Self, Error> {
        Ok(LinearMemory { memory: Linear::new(device.context(), bytes)?, bytes })
    }

    /// First byte, a device address.
    pub fn device_ptr(&self) -> u64 {
        self.memory.base
    }

    /// Length in bytes, more than 0.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.bytes
    }
}
