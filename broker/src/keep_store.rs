//! Where fds of kept allocations outlive a broker that is killed: the service manager's store. Must never block,
//! nor keep an fd that the core has given up.

use fdbroker_core::Kept;
use std::os::fd::BorrowedFd;

/// The fds stored outside this process, by slot. Without a service manager there are none: kept allocations then
/// outlive their owner, not the broker.
#[derive(Debug, Default)]
pub struct KeepStore {}

impl KeepStore {
    /// Stores a duplicate of the fd of a slot, with what to remember of it.
    pub fn keep(&mut self, slot: u32, kept: &Kept, fd: BorrowedFd<'_>) {
        let _ = (slot, kept, fd);
    }

    /// Forgets the fd of a slot, if it is stored: its allocation has ended.
    pub fn unkeep(&mut self, slot: u32) {
        let _ = slot;
    }
}
