//! The lease of a granted fd, and of the imports that a program makes of the fd. Must never end a
//! lease while either lives.

use fdbroker_client::{AllocationInfo, Lease};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};

/// A lease that the fd and its imports hold together. It is given back when the last of them drops
/// it.
pub type SharedLease = Arc<Mutex<Lease>>;

/// The fd's hold: while it lives, the program has the fd or a duplicate of it open.
pub(crate) struct OpenFd {
    lease: SharedLease,
    info: AllocationInfo,
}

impl OpenFd {
    pub(crate) fn new(lease: Lease, info: AllocationInfo) -> Self {
        OpenFd { lease: Arc::new(Mutex::new(lease)), info }
    }
}

impl Drop for OpenFd {
    /// The program has closed the fd. What it has imported stays, and counts as mapped.
    fn drop(&mut self) {
        if Arc::strong_count(&self.lease) > 1 {
            self.lease.lock().unwrap_or_else(PoisonError::into_inner).mapped();
        }
    }
}

/// The lease of an fd that was granted for a virtual fd: for a driver's function that imports the
/// fd, to be kept until the import ends.
pub fn lease_of(fd: RawFd) -> Option<SharedLease> {
    shared(&fdbroker_virtual_fds::lease_of(fd)?)
}

/// The lease of a [`Granted`](fdbroker_virtual_fds::Granted) of [`Connection`](crate::Connection),
/// to be kept in the same way.
pub fn shared(lease: &fdbroker_virtual_fds::Lease) -> Option<SharedLease> {
    lease.downcast_ref::<OpenFd>().map(|open| Arc::clone(&open.lease))
}

/// What the broker says of the allocation behind an fd that was granted for a virtual fd.
pub fn info_of(fd: RawFd) -> Option<AllocationInfo> {
    let lease = fdbroker_virtual_fds::lease_of(fd)?;
    lease.downcast_ref::<OpenFd>().map(|open| open.info)
}
