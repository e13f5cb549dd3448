//! Device memory to share: allocated, exported and registered; recalls are answered by the library.
//! Must never keep an exported fd: each is closed when it has been sent.

use super::device::Device;
use super::driver::absent;
use super::memory::CudaMemory;
use super::owner::Owner;
use crate::client::Client;
use crate::deadline::Deadline;
use crate::deposit::{Deposit, Export};
use crate::error::Error;
use crate::register::Batch;
use fdbroker_protocol::{AllocationId, Handle, MemoryKind, Share};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Ids of buffers, of all devices of the process: fds cannot be told apart, and an address used again has another id.
static NEXT_ALLOCATION_ID: AtomicU64 = AtomicU64::new(1);

/// Device memory of this process, shared through the broker.
///
/// It is recallable: the broker may close its fd and ask for it again, and the library thread exports it without the
/// application; what is in the memory stays. Dropping it unregisters it (every holder is told), unmaps it and releases
/// it; consumers that have it mapped keep the memory until they let go. It keeps its client connected.
#[derive(Debug)]
pub struct CudaBuffer {
    // Field order is drop order: the memory goes before the connection.
    memory: Arc<CudaMemory>,
    owner: Arc<Owner>,
    client: Client,
    device: u32,
    share: Share,
    owner_allocation_id: u64,
}

impl CudaBuffer {
    /// Allocates `bytes`, rounded up to [`Device::granularity`], and registers them.
    ///
    /// # Errors
    /// As [`CudaBuffer::allocate`] and [`CudaBuffer::register`].
    pub fn new(
        client: &Client,
        device: &Device,
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
    /// As [`CudaMemory::new`]; NOT_SUPPORTED when the client declared no `own_fds`: each export is an fd of this
    /// process until it is sent.
    pub fn allocate(
        client: &Client,
        device: &Device,
        bytes: usize,
        share: Share,
    ) -> Result<Self, Error> {
        Self::of(client, device, CudaMemory::new(device, bytes)?, share)
    }

    /// Takes memory that was allocated before, and registers nothing yet.
    ///
    /// # Errors
    /// NOT_SUPPORTED: imported memory, or as [`CudaBuffer::allocate`].
    pub fn of(
        client: &Client,
        device: &Device,
        memory: CudaMemory,
        share: Share,
    ) -> Result<Self, Error> {
        if client.own_fds() == 0 {
            let reason = "every export is a new fd, so `own_fds` must be 1 or more, and 2 beside a memfd arena";
            return Err(absent(reason));
        }
        if !memory.is_own() {
            return Err(absent("only the owner of the memory can register it"));
        }
        let memory = Arc::new(memory);
        let owner_allocation_id = NEXT_ALLOCATION_ID.fetch_add(1, Ordering::Relaxed);
        let owner = device.owner(client);
        owner.add(&memory, owner_allocation_id);
        let (client, device) = (client.clone(), device.ordinal());
        Ok(CudaBuffer { memory, owner, client, device, share, owner_allocation_id })
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
        buffers: impl IntoIterator<Item = &'a CudaBuffer>,
        deadline: Deadline,
    ) -> Result<Vec<Result<Handle, Error>>, Error> {
        let buffers: Vec<&CudaBuffer> = buffers.into_iter().collect();
        let Some(first) = buffers.first() else { return Ok(Vec::new()) };
        let of_one = buffers.iter().all(|buffer| Arc::ptr_eq(&buffer.owner, &first.owner));
        assert!(of_one, "buffers of one device and client");
        first.client.connection("register")?;
        let mut outcomes: Vec<Option<Error>> = vec![None; buffers.len()];

        let mut sending = HashSet::new();
        // Once, should the caller name it twice.
        let new: Vec<usize> = (0..buffers.len())
            .filter(|index| buffers[*index].handle().is_none())
            .filter(|index| sending.insert(buffers[*index].device_ptr()))
            .collect();
        let deposits: Vec<Deposit> = new.iter().map(|index| buffers[*index].deposit()).collect();
        let mut export = |index: usize| buffers[new[index]].memory.export().map(Export::Fresh);
        let mut batch = Batch { deposits: &deposits, export: &mut export, fresh: true };
        let registered = first.client.register_batch(&mut batch, deadline)?;

        let common = first.client.common();
        let mut twice = Vec::new();
        for (index, outcome) in new.iter().zip(registered) {
            match outcome {
                Ok(registration) => {
                    let base = buffers[*index].device_ptr();
                    if !first.owner.note_registered(base, registration.clone()) {
                        twice.push(registration);
                    } else if !common.holdings.has(&registration) {
                        // Lost before it was noted: nobody else takes it out.
                        first.owner.note_lost(base, registration.id());
                    }
                }
                Err(error) => outcomes[*index] = Some(error),
            }
        }
        common.retire(twice.iter().map(Into::into));
        let lost = || Error::not_connected("register: the connection was lost meanwhile");
        let handles = buffers
            .iter()
            .zip(outcomes)
            .map(|(buffer, failed)| buffer.handle().ok_or_else(|| failed.unwrap_or_else(lost)));
        Ok(handles.collect())
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
    pub fn memory(&self) -> &CudaMemory {
        &self.memory
    }

    /// First byte, a device address.
    pub fn device_ptr(&self) -> u64 {
        self.memory.device_ptr()
    }

    /// Bytes registered: those asked for in whole granules. Never 0.
    #[expect(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Its id as the owner counts: another one for each buffer, whatever its address.
    pub fn owner_allocation_id(&self) -> u64 {
        self.owner_allocation_id
    }

    fn deposit(&self) -> Deposit {
        Deposit {
            owner_allocation_id: self.owner_allocation_id,
            base: self.device_ptr(),
            device: self.device,
            recallable: true,
            share: self.share,
            ..Deposit::new(MemoryKind::CudaVmm, self.len() as u64)
        }
    }
}

impl Drop for CudaBuffer {
    fn drop(&mut self) {
        // A forked child's buffer is a copy: its parent's is not its to free.
        if !self.client.common().process.is_current() {
            return;
        }
        // Forgotten before it is unmapped: its address may be another buffer's right after.
        let Some(registration) = self.owner.remove(self.device_ptr()) else { return };
        self.client.common().retire([(&registration).into()]);
    }
}
