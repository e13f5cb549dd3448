//! The backend of a driver that exports allocations as a whole, so that it has no arenas: each
//! range would pin, and show, all of the allocation. Must never allocate.

use crate::backend::pool::{MemoryBackend, Pool};
use crate::error::Error;
use fdbroker_protocol::{ErrorCode, MemoryKind};

/// See the file's head.
#[derive(Debug)]
pub struct Whole {
    pub name: &'static str,
    pub kind: MemoryKind,
    /// Whether the driver works here.
    pub probe: fn() -> Result<(), Error>,
    /// Why there are no arenas, and what there is instead.
    pub instead: &'static str,
}

impl MemoryBackend for Whole {
    fn name(&self) -> &'static str {
        self.name
    }

    fn kind(&self) -> MemoryKind {
        self.kind
    }

    fn available(&self) -> Result<(), Error> {
        (self.probe)()
    }

    fn allocate(&self, bytes: usize) -> Result<Box<dyn Pool>, Error> {
        self.available()?;
        let context = format!("backend {}: an arena of {bytes} bytes: {}", self.name, self.instead);
        Err(Error::new(ErrorCode::NotSupported, context))
    }
}
