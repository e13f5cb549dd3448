//! An answer to a recall. Must never have a number that a test depends on and does not set.

use fdbroker_core::Supply;
use fdbroker_protocol::{AllocationId, ErrorCode};

/// The fd of a page that its owner knows by this id, or why there is none.
pub fn supply(id: AllocationId, fd: Result<u16, ErrorCode>, owner_allocation_id: u64) -> Supply {
    let (refused_fd, file) = (None, None);
    Supply { id, fd, refused_fd, file, owner_allocation_id, fd_offset: 0, size_bytes: 4096 }
}
