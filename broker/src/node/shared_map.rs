//! Files of the broker's own, made aside, with all their space, and mapped for writing: every word
//! is read and written as a whole. Must never map what somebody else may shorten.

use nix::fcntl::posix_fallocate;
use nix::sys::mman::{MapFlags, ProtFlags, mlock, mmap, munmap};
use std::ffi::c_void;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

#[derive(Debug)]
pub struct SharedMap {
    start: NonNull<c_void>,
    bytes: NonZeroUsize,
}

impl SharedMap {
    /// Maps the first `bytes` of a file of the broker's own, which is that long.
    pub fn new(file: &File, bytes: usize) -> io::Result<Self> {
        let bytes = NonZeroUsize::new(bytes).ok_or(io::ErrorKind::InvalidInput)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new shared map of a file of this size, which nobody but the broker (the
        // directory's lock) changes or shrinks.
        let start = unsafe { mmap(None, bytes, access, MapFlags::MAP_SHARED, file, 0) }?;
        Ok(SharedMap { start, bytes })
    }

    /// Keeps it in memory, as far as RLIMIT_MEMLOCK allows: else a store may wait for the disk.
    pub fn lock(&self) {
        // SAFETY: exactly this map.
        if let Err(errno) = unsafe { mlock(self.start, self.bytes.get()) } {
            log::debug!("the generation page is not locked into memory: {errno}");
        }
    }

    /// The address of its first byte.
    pub fn start(&self) -> NonNull<c_void> {
        self.start
    }

    /// The word at `offset`, a multiple of 4 within the map.
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.bytes.get());
        // SAFETY: within the map (asserted), which starts page-aligned and lives as long as `self`;
        // every access to these words is atomic.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().cast::<u8>().add(offset).cast()) }
    }
}

// SAFETY: the map belongs to this value alone, and its words are atomic.
unsafe impl Send for SharedMap {}
// SAFETY: the same.
unsafe impl Sync for SharedMap {}

impl Drop for SharedMap {
    fn drop(&mut self) {
        // SAFETY: made by `mmap` with this length; all borrows of it have ended with `self`.
        let _ = unsafe { munmap(self.start, self.bytes.get()) };
    }
}

/// Whether nobody else can have written the file.
pub fn is_ours(found: &Metadata) -> bool {
    found.uid() == nix::unistd::geteuid().as_raw() && found.mode() & 0o077 == 0
}

/// Removes a file, if it is there.
pub fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A new file beside the one whose place it will take, for this user alone.
pub fn create_aside(path: &Path) -> io::Result<File> {
    remove(path)?;
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// A new file of this length, with all its space. On an error there is none.
pub fn create_whole(path: &Path, bytes: usize) -> io::Result<File> {
    let file = create_aside(path)?;
    match allocate(&file, bytes) {
        Ok(()) => Ok(file),
        Err(error) => {
            remove(path)?;
            Err(error)
        }
    }
}

/// Opens a file of the broker's own once more, by an fd of it that may be for other uses.
pub fn open_own(file: &File, is_writable: bool) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().read(true).write(is_writable).open(path)
}

/// Makes the file so long, and takes all the space for it now. A part of a mapped file without
/// space would be SIGBUS for each process that touches it while the file system is full.
pub fn allocate(file: &File, bytes: usize) -> io::Result<()> {
    let bytes = libc::off_t::try_from(bytes).map_err(io::Error::other)?;
    Ok(posix_fallocate(file, 0, bytes)?)
}
