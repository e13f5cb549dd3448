//! An answer to a recall. Must never have a number that a test depends on and does not set.

use fdbroker_core::Supply;
use fdbroker_protocol::{AllocationId, ErrorCode, Facts, MemoryKind};

/// The fd of a page that its owner knows by this id, or why there is none.
pub fn supply(id: AllocationId, fd: Result<u16, ErrorCode>, owner_allocation_id: u64) -> Supply {
    let (refused_fd, file) = (None, None);
    let facts = Facts { owner_allocation_id, ..Facts::new(MemoryKind::Memfd, 4096) };
    Supply { id, fd, refused_fd, file, facts }
}
