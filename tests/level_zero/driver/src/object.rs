//! One memory object, which stands for a GPU's buffer. Must never hold an fd of its memory except
//! the exported one.

use crate::answer::Failure;
use crate::devices::Place;
use crate::mapping::Mapping;
use crate::memory::{self, MemoryId};
use crate::settings::settings;
use level_zero_sys::ze_result_t;
use nix::unistd::{Whence, lseek};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A memory object. Its memory is freed, and its exported fd closed, with the last reference.
#[derive(Debug)]
pub struct Object {
    id: MemoryId,
    imported: bool,
    /// Of device memory, where that is known.
    pub place: Option<Place>,
    pub memory: Mapping,
    export: Mutex<Option<Export>>,
}

/// An object has at most one exported fd.
#[derive(Debug)]
pub struct Export {
    fd: OwnedFd,
    /// Gets without their Put, over all allocations in the object. `export_fd` does not count.
    pub gets: u64,
}

impl Object {
    pub fn allocate(bytes: usize, place: Option<Place>) -> Result<Arc<Self>, Failure> {
        static WAS_FULL: AtomicBool = AtomicBool::new(false);
        let is_full = settings().is_ok_and(|settings| settings.full_at_first)
            && !WAS_FULL.fetch_xor(true, Ordering::Relaxed);
        if is_full {
            return Err(ze_result_t::ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY.into());
        }
        let (id, fd) = memory::allocate(bytes, place)?;
        let memory = Mapping::shared(std::os::fd::AsFd::as_fd(&fd), bytes);
        Self::new(id, false, place, memory)
    }

    /// An object of an fd's memory, as large as the fd says.
    pub fn import(fd: BorrowedFd<'_>) -> Result<Arc<Self>, Failure> {
        // fstat has no size for a dma-buf; SEEK_END has one for memfds, too.
        let bytes = lseek(fd, 0, Whence::SeekEnd)
            .map_err(|errno| Failure::os("size of an fd to import", errno as i32))?;
        let bytes = usize::try_from(bytes).unwrap_or(0);
        if bytes == 0 {
            return Err(ze_result_t::ZE_RESULT_ERROR_INVALID_ARGUMENT.into());
        }
        // Mapped first: an fd that cannot be mapped is no memory, and the helper need not keep it.
        let memory = Mapping::shared(fd, bytes)?;
        Self::new(memory::keep(fd)?, true, memory::place(fd), Ok(memory))
    }

    fn new(
        id: MemoryId,
        imported: bool,
        place: Option<Place>,
        memory: Result<Mapping, Failure>,
    ) -> Result<Arc<Self>, Failure> {
        match memory {
            Ok(memory) => {
                Ok(Arc::new(Self { id, imported, place, memory, export: Mutex::new(None) }))
            }
            Err(failure) => {
                memory::free(id);
                Err(failure)
            }
        }
    }

    /// The number of the exported fd, which is made when there is none. The driver owns it; it
    /// stays the same until closed.
    pub fn exported(&self, counts: bool) -> Result<RawFd, Failure> {
        let mut export = self.export();
        if export.is_none() {
            *export = Some(Export { fd: memory::export(self.id, self.imported)?, gets: 0 });
        }
        let export = export.as_mut().expect("made just now");
        export.gets += u64::from(counts);
        Ok(export.fd.as_raw_fd())
    }

    /// Counts `gets` down. When none is left and `closes` is true, closes the fd.
    pub fn take_back(&self, gets: u64, closes: bool) {
        let mut export = self.export();
        let Some(exported) = export.as_mut() else { return };
        exported.gets -= gets;
        if exported.gets == 0 && closes {
            *export = None;
        }
    }

    /// The number of the exported fd; `None` when there is none now.
    pub fn exported_now(&self) -> Option<RawFd> {
        self.export().as_ref().map(|export| export.fd.as_raw_fd())
    }

    /// A number in the first bytes, to tell objects apart.
    pub fn write_number(&self, number: u64) {
        // SAFETY: the mapping has a page at least, and begins at one.
        unsafe { self.memory.at(0).cast::<u64>().write(number) };
    }

    pub fn number(&self) -> u64 {
        // SAFETY: as above; any bytes are a number.
        unsafe { self.memory.at(0).cast::<u64>().read() }
    }

    fn export(&self) -> MutexGuard<'_, Option<Export>> {
        self.export.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        memory::free(self.id);
    }
}
