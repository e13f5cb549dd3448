//! Memory that something else than this library opens, for the cache to keep.
//! Must never be opened without a grant.

use crate::books::grant::Grant;
use crate::error::Error;
use crate::map::{Access, Mapping};
use crate::sync::lock;
use fdbroker_protocol::MemoryKind;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

/// Memory opened from a grant by other means than mmap(2), such as a GPU driver's import. Dropping
/// it closes it; the cache does that when nobody uses it, on any thread, and never in a child of
/// fork(2).
#[expect(clippy::len_without_is_empty, reason = "what is opened is never empty")]
pub trait Opened: Send + Sync + Debug {
    /// First byte of the allocation, as the driver's users address it. Stays the same until the
    /// drop.
    fn as_ptr(&self) -> *mut u8;
    /// Bytes that may be used from there; above 0.
    fn len(&self) -> usize;
    /// Whether it is a range of this process's addresses, in whole pages: the cache has the kernel
    /// leave it out of children (MADV_DONTFORK), where memory of the child's own may come to lie
    /// there.
    fn is_range(&self) -> bool {
        false
    }
}

impl Opened for Mapping {
    fn as_ptr(&self) -> *mut u8 {
        self.as_ptr()
    }

    fn len(&self) -> usize {
        self.len()
    }
}

/// Opens all memory of a kind that the cache does not find, in place of mmap(2): see
/// [`crate::ImportCache::set_opener`]. Never called in a child of fork(2).
pub trait ImportOpener: Send + Sync + Debug {
    /// Opens what was granted, on the thread that imports; many threads may be in it. The fd is
    /// closed after it returns.
    ///
    /// # Errors
    /// Any: it is the import's.
    fn open(&self, grant: &Grant, access: Access) -> Result<Box<dyn Opened>, Error>;
}

/// The openers of a cache.
#[derive(Debug, Default)]
pub(super) struct Openers(Mutex<Vec<(MemoryKind, Arc<dyn ImportOpener>)>>);

impl Openers {
    pub fn set(&self, kind: MemoryKind, opener: Option<Arc<dyn ImportOpener>>) {
        let mut all = lock(&self.0);
        all.retain(|(known, _)| *known != kind);
        all.extend(opener.map(|opener| (kind, opener)));
    }

    pub fn of(&self, kind: MemoryKind) -> Option<Arc<dyn ImportOpener>> {
        let all = lock(&self.0);
        all.iter().find(|(known, _)| *known == kind).map(|(_, opener)| Arc::clone(opener))
    }
}

/// Of [`crate::ImportCache::import_with`].
pub(super) trait Opener: FnMut(&Grant) -> Result<Box<dyn Opened>, Error> {}
impl<F: FnMut(&Grant) -> Result<Box<dyn Opened>, Error> + ?Sized> Opener for F {}

/// Where there is none.
pub(super) type NoOpener = fn(&Grant) -> Result<Box<dyn Opened>, Error>;
