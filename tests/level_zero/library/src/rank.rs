//! One process of a case, like a program that uses the library: a client, a device, its own memory
//! and imports. Must never decide anything; the cases decide.

use crate::counters::Counters;
use crate::fault::{Fault, Outcome, holds, same};
use crate::gpu::{Address, Gpu, pattern};
use crate::limits::DEADLINE_MS;
use fdbroker_client::level_zero::{
    Device, LevelZeroBuffer, LevelZeroImport, LevelZeroMemory, export_pointer,
};
use fdbroker_client::{Access, Client, Deadline, Exports, Grant, Handle, Share};
use std::path::Path;

pub struct Rank {
    // The order of the fields is the order of their drops.
    pub imports: Vec<LevelZeroImport>,
    pub buffers: Vec<LevelZeroBuffer>,
    /// The application's allocations, in its own context.
    pub pointers: Vec<Address>,
    pub exports: Exports,
    pub client: Client,
    pub device: Device,
    pub gpu: Gpu,
}

pub fn soon() -> Deadline {
    Deadline::from_ms(DEADLINE_MS)
}

impl Rank {
    pub fn start(socket: &Path, own_fds: u32) -> Result<Self, Fault> {
        let gpu = Gpu::open()?;
        // SAFETY: the context of `gpu`, which is dropped after everything else here.
        let device = unsafe { Device::of_context(0, gpu.context.cast()) }?;
        // Driver and command list open their own fds here, before any count.
        let memory = LevelZeroMemory::new(&device, 1)?;
        memory.write_at(0, &[1])?;
        drop(memory);
        let client =
            Client::builder().socket(socket).own_fds(own_fds).reconnect(false).connect()?;
        let exports = Exports::new(&client);
        let (imports, buffers, pointers) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Rank { imports, buffers, pointers, exports, client, device, gpu })
    }

    /// Allocates `count` buffers by the library, fills them and registers them in one call.
    pub fn own(&mut self, bytes: usize, count: usize, salt: u16) -> Result<Vec<Handle>, Fault> {
        let first = self.buffers.len();
        for index in 0..count {
            let buffer = LevelZeroBuffer::allocate(&self.client, &self.device, bytes, Share::Uid)?;
            buffer.memory().write_at(0, &pattern(bytes, salted(salt, index)))?;
            self.buffers.push(buffer);
        }
        let handles = LevelZeroBuffer::register_many(&self.buffers[first..], soon())?;
        Ok(handles.into_iter().collect::<Result<_, _>>()?)
    }

    /// Allocates `count` pieces of memory as an application, fills them and exports them by
    /// pointer.
    pub fn foreign(&mut self, bytes: usize, count: usize, salt: u16) -> Result<Vec<Handle>, Fault> {
        let mut handles = Vec::new();
        for index in 0..count {
            let pointer = self.gpu.allocate(bytes, false)?;
            self.gpu.write(pointer, &pattern(bytes, salted(salt, index)))?;
            self.pointers.push(pointer);
            handles.push(self.export(pointer)?);
        }
        Ok(handles)
    }

    pub fn export(&self, pointer: Address) -> Result<Handle, fdbroker_client::Error> {
        let at = pointer.addr() as u64;
        export_pointer(&self.device, &self.exports, at, Share::Uid, soon())
    }

    /// Frees the application's allocations without telling the library.
    pub fn free_pointers(&mut self) -> Outcome {
        for pointer in std::mem::take(&mut self.pointers) {
            self.gpu.free(pointer)?;
        }
        Ok(())
    }

    /// Acquires and imports the handles, and keeps the imports.
    pub fn import(&mut self, handles: &[Handle]) -> Outcome {
        let mut failed = None;
        let (client, device) = (self.client.clone(), self.device.clone());
        client.acquire_each(handles, soon(), |_, outcome| {
            let opened = outcome
                .and_then(|grant: Grant| LevelZeroImport::new(&device, grant, Access::ReadWrite));
            match opened {
                Ok(import) => self.imports.push(import),
                Err(why) => failed = failed.take().or(Some(why)),
            }
        })?;
        failed.map_or(Ok(()), |why| Err(why.into()))
    }

    /// Imports by an fd that has the exporter's number, which stands in the driver's handle.
    pub fn import_at_exporters_number(&mut self, handle: &Handle) -> Outcome {
        use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
        let mut grant = self.client.acquire(handle, soon())?;
        let data = grant.info.driver_data;
        let bytes = data.as_bytes().first_chunk::<4>().ok_or("no driver data")?;
        let wanted = i32::from_ne_bytes(*bytes);
        if grant.fd.as_raw_fd() != wanted {
            // SAFETY: takes numbers; F_DUPFD closes nothing.
            let placed =
                unsafe { libc::fcntl(grant.fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, wanted) };
            same("the exporter's number is free here", placed, wanted)?;
            // SAFETY: made just now, and nobody else's.
            grant.fd = unsafe { OwnedFd::from_raw_fd(placed) };
        }
        self.imports.push(LevelZeroImport::new(&self.device, grant, Access::ReadWrite)?);
        Ok(())
    }

    /// Checks every byte of every import, in their order.
    pub fn check_imports(&self, salt: u16) -> Outcome {
        for (index, import) in self.imports.iter().enumerate() {
            check(import.memory(), salted(salt, index))?;
        }
        Ok(())
    }

    pub fn write_imports(&self, salt: u16) -> Outcome {
        for (index, import) in self.imports.iter().enumerate() {
            import.memory().write_at(0, &pattern(import.len(), salted(salt, index)))?;
        }
        Ok(())
    }

    /// Checks every byte of this rank's own memory: the library's and the application's.
    pub fn check_own(&self, bytes: usize, salt: u16) -> Outcome {
        for (index, buffer) in self.buffers.iter().enumerate() {
            check(buffer.memory(), salted(salt, index))?;
        }
        for (index, pointer) in self.pointers.iter().enumerate() {
            let found = self.gpu.read(*pointer, bytes)?;
            holds(found == pattern(bytes, salted(salt, index)), || {
                format!("allocation {index} has other bytes")
            })?;
        }
        Ok(())
    }

    /// Gives everything back; a fault when the driver has anything left.
    pub fn clear(&mut self) -> Outcome {
        self.imports.clear();
        self.buffers.clear();
        self.free_pointers()
    }

    pub fn counters(&self) -> Result<Counters, Fault> {
        self.gpu.counters()
    }
}

fn salted(salt: u16, index: usize) -> u16 {
    salt.wrapping_add((index % 200) as u16)
}

fn check(memory: &LevelZeroMemory, salt: u16) -> Outcome {
    let mut found = vec![0; memory.len()];
    memory.read_at(0, &mut found)?;
    holds(found == pattern(memory.len(), salt), || {
        format!("{} bytes at {:#x} are others", memory.len(), memory.device_ptr())
    })
}

/// The number of this process's open fds of memory: the broker exists to keep it low.
pub fn count_memory_fds() -> Result<usize, Fault> {
    let mut count = 0;
    for entry in std::fs::read_dir("/proc/self/fd")? {
        // The fd that reads the directory is closed by the time this link is read.
        let Ok(link) = std::fs::read_link(entry?.path()) else { continue };
        let link = link.to_string_lossy().into_owned();
        count += usize::from(link.starts_with("/memfd:") || link.starts_with("/dmabuf:"));
    }
    Ok(count)
}

/// The number of this process's open fds, without the one that reads the list.
pub fn count_fds() -> Result<usize, Fault> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count() - 1)
}
