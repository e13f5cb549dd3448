//! The lease of a granted fd, and of the imports that a program makes of the fd. Must never end a lease while either lives.

use fdbroker_client::Lease;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};

/// A lease that the fd and its imports hold together. It is given back when the last of them drops it.
pub type SharedLease = Arc<Mutex<Lease>>;

/// The fd's hold: while it lives, the program has the fd or a duplicate of it open.
pub struct OpenFd(SharedLease);

impl OpenFd {
    pub fn new(lease: Lease) -> Self {
        OpenFd(Arc::new(Mutex::new(lease)))
    }
}

impl Drop for OpenFd {
    /// The program has closed the fd. What it has imported stays, and counts as mapped.
    fn drop(&mut self) {
        if Arc::strong_count(&self.0) > 1 {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).mapped();
        }
    }
}

/// The lease of an fd that was granted for a virtual fd: for a driver's function that imports the fd, to be kept until the
/// import ends.
pub fn lease_of(fd: RawFd) -> Option<SharedLease> {
    shared(&fdbroker_virtual_fds::lease_of(fd)?)
}

/// The lease of a [`Granted`](fdbroker_virtual_fds::Granted) of [`Connection`](crate::Connection), to be kept in the same way.
pub fn shared(lease: &fdbroker_virtual_fds::Lease) -> Option<SharedLease> {
    lease.downcast_ref::<OpenFd>().map(|open| Arc::clone(&open.0))
}
