//! Device memory to share: allocated, exported and registered; recalls are answered by the library.
//! Must never keep an exported fd: each is closed when it has been sent.

use super::owner::Owner;
use super::sharing::{Identity, MemoryDevice};
use crate::api::client::Client;
use crate::backend::device_memory::DeviceMemory;
use crate::backend::registering::{Registers, register_all};
use crate::deadline::Deadline;
use crate::deposit::{Deposit, Export, Registration};
use crate::error::Error;
use fdbroker_protocol::{AllocationId, Facts, Gpu, Handle, Share};
use std::sync::Arc;

/// Device memory of this process, shared through the broker: `cuda::CudaBuffer`,
/// `level_zero::LevelZeroBuffer`.
///
/// It is recallable: the broker may close its fd and ask for it again, and the library thread
/// exports it without the application; what is in the memory stays. Dropping it unregisters it
/// (every holder is told) and frees it; consumers that have it open keep the memory until they let
/// go. It keeps its client connected.
#[derive(Debug)]
#[must_use = "dropping a buffer frees it"]
pub struct DeviceBuffer<D: MemoryDevice> {
    // Field order is drop order: the memory goes before the connection.
    memory: Arc<D::Memory>,
    owner: Arc<Owner<D::Memory, D::Context>>,
    client: Client,
    device: u32,
    gpu: Gpu,
    share: Share,
    identity: Identity,
}

impl<D: MemoryDevice> DeviceBuffer<D> {
    /// Allocates `bytes` and registers them.
    ///
    /// # Errors
    /// As [`DeviceBuffer::allocate`] and [`DeviceBuffer::register`].
    pub fn new(
        client: &Client,
        device: &D,
        bytes: usize,
        share: Share,
        deadline: Deadline,
    ) -> Result<Self, Error> {
        let buffer = Self::allocate(client, device, bytes, share)?;
        buffer.register(deadline)?;
        Ok(buffer)
    }

    /// Allocates, and registers nothing yet.
    ///
    /// # Errors
    /// As the memory's `new`; NOT_SUPPORTED when the client declared fewer `own_fds` than an export
    /// takes of this process until it is sent.
    pub fn allocate(
        client: &Client,
        device: &D,
        bytes: usize,
        share: Share,
    ) -> Result<Self, Error> {
        Self::of(client, device, device.allocate(bytes)?, share)
    }

    /// Takes memory that was allocated before, and registers nothing yet.
    ///
    /// # Errors
    /// NOT_SUPPORTED: imported memory, or as [`DeviceBuffer::allocate`].
    pub fn of(client: &Client, device: &D, memory: D::Memory, share: Share) -> Result<Self, Error> {
        let identity = device.identify(client, &memory)?;
        let memory = Arc::new(memory);
        let owner = device.owner(client);
        owner.add(&memory, identity.owner_allocation_id);
        let (client, device, gpu) = (client.clone(), device.ordinal(), device.gpu());
        Ok(DeviceBuffer { memory, owner, client, device, gpu, share, identity })
    }

    /// Registers it; the same handle as before when it is registered already.
    ///
    /// # Errors
    /// As [`Client::register`]; LOCAL_FD_LIMIT when it cannot be exported for want of fds.
    pub fn register(&self, deadline: Deadline) -> Result<Handle, Error> {
        let handles = Self::register_many([self], deadline)?;
        handles.into_iter().next().expect("one outcome per buffer")
    }

    /// Registers buffers of one device and client; one handle each, in their order.
    ///
    /// # Errors
    /// When nothing was tried: NOT_CONNECTED, or NOT_SUPPORTED in a callback.
    ///
    /// # Panics
    /// When they are of different devices or clients.
    pub fn register_many<'a>(
        buffers: impl IntoIterator<Item = &'a Self>,
        deadline: Deadline,
    ) -> Result<Vec<Result<Handle, Error>>, Error> {
        let buffers: Vec<&Self> = buffers.into_iter().collect();
        let Some(first) = buffers.first() else { return Ok(Vec::new()) };
        let of_one = buffers.iter().all(|buffer| Arc::ptr_eq(&buffer.owner, &first.owner));
        assert!(of_one, "buffers of one device and client");
        register_all(&first.client, &buffers, true, deadline)
    }

    /// Its handle, once it is registered.
    pub fn handle(&self) -> Option<Handle> {
        self.owner.registration(self.device_ptr()).map(|registration| registration.handle)
    }

    /// Its allocation, once it is registered.
    pub fn id(&self) -> Option<AllocationId> {
        self.handle().map(|handle| handle.id())
    }

    /// The memory, to be copied to and from.
    pub fn memory(&self) -> &D::Memory {
        &self.memory
    }

    /// First byte, a device address.
    pub fn device_ptr(&self) -> u64 {
        self.memory.device_ptr()
    }

    /// Bytes registered: those asked for, rounded up where the driver has granules. Never 0.
    #[expect(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    pub fn len(&self) -> usize {
        self.memory.size()
    }

    /// Its id as the owner counts: another one for each buffer, whatever its address.
    pub fn owner_allocation_id(&self) -> u64 {
        self.identity.owner_allocation_id
    }
}

impl<D: MemoryDevice> Registers for DeviceBuffer<D> {
    fn base(&self) -> u64 {
        self.device_ptr()
    }

    fn begin(&self) -> bool {
        self.handle().is_none()
    }

    fn deposit(&self) -> Deposit {
        let Identity { owner_allocation_id, kind } = self.identity;
        let (device, gpu, size_bytes) = (self.device, self.gpu, self.len() as u64);
        let facts = Facts::new(kind, size_bytes)
            .device(device)
            .gpu(gpu)
            .owner_allocation_id(owner_allocation_id);
        let (base, share) = (self.device_ptr(), self.share);
        Deposit { base, recallable: true, share, ..facts.into() }
    }

    fn export(&self) -> Result<Export<'_>, Error> {
        self.memory.export().and_then(Export::fresh)
    }

    fn note(&self, registration: &Registration, lasts: &dyn Fn() -> bool) -> bool {
        self.owner.note_registered(self.device_ptr(), registration, lasts)
    }

    fn handle(&self) -> Option<Handle> {
        self.handle()
    }
}

impl<D: MemoryDevice> Drop for DeviceBuffer<D> {
    fn drop(&mut self) {
        // A forked child's buffer is a copy: its parent's is not its to free.
        if !self.client.common().process.is_current() {
            return;
        }
        // Forgotten before it is freed: its address may be another buffer's right after.
        let Some(registration) = self.owner.remove(self.device_ptr()) else { return };
        self.client.common().retire([(&registration).into()]);
    }
}
