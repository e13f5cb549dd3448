//! Wakes the thread that serves, from any other thread. Must never wait.

use crate::error::Error;
use crate::own_fds::OwnFd;
use fdbroker_protocol::ErrorCode;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// An eventfd; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Wake(Arc<OwnFd<EventFd>>);

impl Wake {
    pub fn new() -> Result<Self, Error> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let made = EventFd::from_value_and_flags(0, flags);
        let made = made.map_err(|errno| Error::no_fd(ErrorCode::Internal, "eventfd", errno))?;
        Ok(Wake(Arc::new(OwnFd::new(made))))
    }

    /// Makes the thread that serves look around.
    pub fn kick(&self) {
        // EAGAIN means that 2^64 - 2 kicks are pending: it will wake all the same.
        let _ = self.0.write(1);
    }

    /// Takes all kicks.
    pub fn take_kicks(&self) {
        // EAGAIN: there was none.
        let _ = self.0.read();
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
