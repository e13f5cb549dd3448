//! Memory that something else than this library opens, for the cache to keep.
//! Must never be opened without a grant.

use crate::books::grant::Grant;
use crate::error::Error;
use crate::map::Mapping;
use std::fmt::Debug;

/// Memory opened from a grant by other means than mmap(2), such as a GPU driver's import. Dropping it closes it;
/// the cache does that when nobody uses it, on any thread, and never in a child of fork(2).
#[expect(clippy::len_without_is_empty, reason = "what is opened is never empty")]
pub trait Opened: Send + Sync + Debug {
    /// First byte of the allocation, as the driver's users address it. Stays the same until the drop.
    fn as_ptr(&self) -> *mut u8;
    /// Bytes that may be used from there; above 0.
    fn len(&self) -> usize;
}

impl Opened for Mapping {
    fn as_ptr(&self) -> *mut u8 {
        self.as_ptr()
    }

    fn len(&self) -> usize {
        self.len()
    }
}

/// Opens memory by other means than mmap(2); the fd is closed after it returns.
pub type Opener<'a> = dyn FnMut(&Grant) -> Result<Box<dyn Opened>, Error> + 'a;
