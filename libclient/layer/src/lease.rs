//! The lease of a granted fd, and of the imports that a program makes of the fd. Must never end a
//! lease while either lives.

use crate::hidden::Hidden;
use fdbroker_client::layer::lock;
use fdbroker_client::{AllocationInfo, Grant, Handle, Lease};
use fdbroker_scm::File;
use fdbroker_virtual_fds::{Granted, let_go};
use nix::errno::Errno;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
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
    /// What the fd is.
    pub(crate) file: Option<File>,
}

impl OpenFd {
    pub(crate) fn is_current(&self) -> bool {
        lock(&self.lease).is_current()
    }
}

impl Drop for OpenFd {
    /// The program has closed the fd. What it has imported stays, and counts as mapped. So does the
    /// lease of what was closed before, which goes with others: nobody waits for it alone.
    fn drop(&mut self) {
        lock(&self.lease).mapped();
    }
}

/// A granted fd that the program has not got.
#[derive(Debug)]
pub struct Fetched {
    /// Closed before the lease is given back.
    pub(crate) fd: Fd,
    pub(crate) open: Arc<OpenFd>,
}

/// Where it comes from.
#[derive(Debug)]
pub(crate) enum Fd {
    New(OwnedFd),
    /// The layer keeps it.
    Kept(Arc<Hidden>),
}

impl Fetched {
    /// `may_be_kept`: when it is closed.
    pub(crate) fn new(handle: Handle, grant: Grant, may_be_kept: bool) -> Self {
        let Grant { fd, lease, info, .. } = grant;
        let room =
            if may_be_kept { usize::try_from(lease.room()).unwrap_or(usize::MAX) } else { 0 };
        let file = File::of(fd.as_fd());
        let lease = Arc::new(Mutex::new(lease));
        let open = Arc::new(OpenFd { lease, handle, info, room, file });
        Fetched { fd: Fd::New(fd), open }
    }

    /// What the broker says of the allocation.
    pub fn info(&self) -> &AllocationInfo {
        &self.open.info
    }

    /// Its lease, for what is imported.
    pub fn lease(&self) -> SharedLease {
        Arc::clone(&self.open.lease)
    }

    /// Makes it ready for a driver's call, which may close the fd or not: Intel's opens host memory
    /// and event pools with it and closes it, and device memory and does not. It stays open.
    #[must_use]
    pub fn guarded(mut self) -> Self {
        self.fd = match self.fd {
            Fd::New(fd) => match Hidden::of(fd, self.open.file) {
                Ok(hidden) => Fd::Kept(Arc::new(hidden)),
                Err(fd) => Fd::New(fd),
            },
            kept => kept,
        };
        self
    }

    /// Closes the fd, as if the program had it and closed it.
    pub fn close(self) {
        let Fetched { fd, open } = self;
        let is_kept = Arc::strong_count(&open) > 1;
        let copy = match &fd {
            Fd::Kept(hidden) if open.room > 0 && !is_kept => hidden.duplicate(),
            _ => None,
        };
        match (fd, copy) {
            (Fd::New(fd), _) if File::of(fd.as_fd()) != open.file => _ = fd.into_raw_fd(),
            (Fd::New(fd), _) if open.room > 0 => let_go(Granted { fd, lease: open }),
            (fd, None) => drop(fd),
            (fd, Some(copy)) => {
                drop(fd);
                let_go(Granted { fd: copy, lease: open });
            }
        }
    }

    /// For the program.
    ///
    /// # Errors
    /// EMFILE: it has no free fd.
    pub(crate) fn granted(self) -> Result<Granted, Errno> {
        let fd = match self.fd {
            Fd::New(fd) => fd,
            Fd::Kept(hidden) => hidden.duplicate().ok_or(Errno::EMFILE)?,
        };
        Ok(Granted { fd, lease: self.open })
    }
}

impl AsFd for Fetched {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.fd {
            Fd::New(fd) => fd.as_fd(),
            Fd::Kept(hidden) => hidden.as_fd(),
        }
    }
}

/// An fd that was granted to the program, by a virtual fd.
#[derive(Debug)]
pub struct ProgramsFd(Arc<OpenFd>);

impl ProgramsFd {
    /// `None`: it is any other fd.
    pub fn of(fd: RawFd) -> Option<Self> {
        fdbroker_virtual_fds::lease_of(fd)?.downcast().ok().map(ProgramsFd)
    }

    /// What the broker says of the allocation.
    pub fn info(&self) -> &AllocationInfo {
        &self.0.info
    }

    /// Its lease, for a driver's function that imports the fd: to be kept until the import ends.
    pub fn lease(&self) -> SharedLease {
        Arc::clone(&self.0.lease)
    }

    /// Whether `fd` still is what it was granted for, and that is this allocation, which lives.
    pub fn serves(&self, fd: BorrowedFd<'_>, handle: &Handle) -> bool {
        let is_it = self.0.handle.prefix == handle.prefix && self.0.is_current();
        is_it && self.0.file.is_some() && File::of(fd) == self.0.file
    }
}
