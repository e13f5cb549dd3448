//! The lease of a granted fd, and of the imports that a program makes of the fd. Must never end a
//! lease while either lives.

use fdbroker_client::{AllocationInfo, Grant, Handle, Lease, lock};
use fdbroker_scm::File;
use fdbroker_virtual_fds::Granted;
use std::os::fd::{AsFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};

/// A lease that the fd and its imports hold together. It is given back when the last of them drops
/// it.
pub type SharedLease = Arc<Mutex<Lease>>;

/// The fd's hold: the program has the fd or a duplicate open, or the layer keeps it.
#[derive(Debug)]
pub(crate) struct OpenFd {
    lease: SharedLease,
    /// What it was granted for.
    pub(crate) handle: Handle,
    pub(crate) info: AllocationInfo,
    /// How many fds may be kept, this one among them; 0: it is not to be.
    pub(crate) room: usize,
    /// What the fd is, if it may be kept.
    pub(crate) file: Option<File>,
}

impl OpenFd {
    pub(crate) fn is_current(&self) -> bool {
        lock(&self.lease).is_current()
    }
}

impl Drop for OpenFd {
    /// The program has closed the fd. What it has imported stays, and counts as mapped.
    fn drop(&mut self) {
        if Arc::strong_count(&self.lease) > 1 {
            lock(&self.lease).mapped();
        }
    }
}

/// A granted fd that the program has not got yet.
#[derive(Debug)]
pub struct Fetched {
    /// Closed before the lease is given back.
    pub fd: OwnedFd,
    pub(crate) open: Arc<OpenFd>,
}

impl Fetched {
    /// `may_be_kept`: when it is closed.
    pub(crate) fn new(handle: Handle, grant: Grant, may_be_kept: bool) -> Self {
        let Grant { fd, lease, info } = grant;
        let room =
            if may_be_kept { usize::try_from(lease.room()).unwrap_or(usize::MAX) } else { 0 };
        let file = if room > 0 { File::of(fd.as_fd()) } else { None };
        let lease = Arc::new(Mutex::new(lease));
        Fetched { fd, open: Arc::new(OpenFd { lease, handle, info, room, file }) }
    }

    /// What the broker says of the allocation.
    pub fn info(&self) -> &AllocationInfo {
        &self.open.info
    }

    /// Its lease, for what is imported.
    pub fn lease(&self) -> SharedLease {
        Arc::clone(&self.open.lease)
    }

    /// Closes the fd, as if the program had it and closed it.
    pub fn close(self) {
        fdbroker_virtual_fds::let_go(self.granted());
    }

    /// Somebody else has closed the fd.
    pub fn closed(self) {
        let Fetched { fd, open } = self;
        let _ = fd.into_raw_fd();
        drop(open);
    }

    pub(crate) fn granted(self) -> Granted {
        Granted { fd: self.fd, lease: self.open }
    }
}

/// The lease of an fd that was granted for a virtual fd: for a driver's function that imports the
/// fd, to be kept until the import ends.
pub fn lease_of(fd: RawFd) -> Option<SharedLease> {
    shared(&fdbroker_virtual_fds::lease_of(fd)?)
}

fn shared(lease: &fdbroker_virtual_fds::Lease) -> Option<SharedLease> {
    lease.downcast_ref::<OpenFd>().map(|open| Arc::clone(&open.lease))
}

/// What the broker says of the allocation behind an fd that was granted for a virtual fd.
pub fn info_of(fd: RawFd) -> Option<AllocationInfo> {
    let lease = fdbroker_virtual_fds::lease_of(fd)?;
    lease.downcast_ref::<OpenFd>().map(|open| open.info)
}
