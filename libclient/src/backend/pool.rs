//! Memory that is given out in ranges: what a backend is, and what is alike in all of them.
//! Must never know a backend.

use crate::api::client::Client;
use crate::books::roles::SupplyFd;
use crate::error::Error;
use fdbroker_protocol::{ErrorCode, MemoryKind};
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};

/// Ids of allocations of all the library's memory in the process: an address used again has another
/// id.
static NEXT_ALLOCATION_ID: AtomicU64 = AtomicU64::new(1);

/// An id that no other allocation of the library's own memory has, in this process.
pub(crate) fn next_allocation_id() -> u64 {
    NEXT_ALLOCATION_ID.fetch_add(1, Ordering::Relaxed)
}

/// A source of memory that can be exported as fds. The library has all there are; a type of a
/// program's own wraps one of these ([`crate::HostMemory`], [`crate::backend::by_name`]).
pub trait MemoryBackend: Send + Sync + Debug {
    /// Its name, such as `memfd`.
    fn name(&self) -> &'static str;

    /// What its exports are.
    fn kind(&self) -> MemoryKind;

    /// Whether it works here.
    ///
    /// # Errors
    /// NOT_SUPPORTED, with what is missing.
    fn available(&self) -> Result<(), Error>;

    /// Allocates `bytes` (rounded up to pages) to be exported in ranges.
    ///
    /// # Errors
    /// NOT_SUPPORTED; INTERNAL when the system has no memory; LOCAL_FD_LIMIT.
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Pool>, Error>;
}

/// Memory of a backend: mapped here, exported by ranges. A type of a program's own wraps one that
/// [`MemoryBackend::allocate`] of the library has made, and hands on its [`PoolExport`]s, which the
/// library alone makes.
pub trait Pool: Send + Sync + Debug {
    /// First byte; mapped as long as the pool lives.
    fn base(&self) -> *mut u8;

    /// Bytes, a multiple of the page size.
    fn len(&self) -> usize;

    /// Whether it has no bytes; never so.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether an export is a new fd in this process, to be counted until it is sent.
    fn exports_are_fresh(&self) -> bool;

    /// Exports `len` bytes at `offset`, both multiples of the page size.
    ///
    /// # Errors
    /// LOCAL_FD_LIMIT; NOT_SUPPORTED when the driver refuses.
    fn export(&self, offset: usize, len: usize) -> Result<PoolExport, Error>;

    /// Gives the memory of a range that nobody uses back to the system: its bytes are 0 when next
    /// read. Both multiples of the page size. Without effect where the backend cannot.
    fn discard(&self, _offset: usize, _len: usize) {}

    /// Copies out `into.len()` bytes from `offset`, each word read once.
    ///
    /// # Errors
    /// BAD_HANDLE: out of bounds.
    fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<(), Error>;

    /// Copies `bytes` in at `offset`, each word written once.
    ///
    /// # Errors
    /// BAD_HANDLE: out of bounds.
    fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Error>;
}

/// A range as an fd. The library alone makes one.
#[derive(Debug)]
pub struct PoolExport {
    pub(crate) fd: SupplyFd,
    /// Where in the fd the range begins, in bytes.
    pub(crate) fd_offset: u64,
}

/// Exports that are new fds need a window: one fd beside what the process holds anyway.
pub(super) fn check_window(client: &Client, name: &str) -> Result<(), Error> {
    match client.own_fds() {
        0 | 1 => {
            let context = format!("memory {name}: every export is a new fd");
            let why = "so `own_fds` must be 2 or more when the client connects: in Rust `ClientBuilder::own_fds`, in C that of fdbroker_options_t";
            Err(Error::new(ErrorCode::NotSupported, context).because(why))
        }
        _ => Ok(()),
    }
}
