//! The layer, as the crate of virtual fds knows it. Must never hold a lock over a call to the broker.

use crate::broker::{Broker, connected, known};
use fdbroker_client::{Deadline, Deposit, Error, ErrorCode, Grant, MemoryKind, own_fds};
use fdbroker_virtual_fds::{Granted, OWN_FDS_MOST, Source, VirtualFd};
use nix::errno::Errno;
use nix::sys::stat::fstat;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The longest wait for the broker: only a hang exceeds it.
const TIMEOUT_MS: u32 = 20_000;

pub struct Layer {
    pub has_used_driver: AtomicBool,
}

impl Layer {
    pub const fn new() -> Self {
        Layer { has_used_driver: AtomicBool::new(false) }
    }

    pub fn export(&self, fd: RawFd, size_bytes: u64) -> Option<RawFd> {
        let broker = connected()?;
        // SAFETY: the program keeps its fd open over the call.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let inode = fstat(fd).ok()?.st_ino;
        let mut deposit = Deposit::new(MemoryKind::Memfd, size_bytes);
        deposit.owner_allocation_id = inode;
        // One address for each memory, far enough from the next.
        deposit.base = inode << 32;
        deposit.virtual_fd = true;
        let registered = broker.client.register(&deposit, fd, Deadline::from_ms(TIMEOUT_MS));
        let registration = registered.inspect_err(|error| eprintln!("test layer: {error}")).ok()?;
        let number = registration.virtual_fd()?.number();
        broker.with(|all| all.entry(number).or_default().push(registration));
        Some(number)
    }
}

impl Broker {
    fn with<T>(&self, body: impl FnOnce(&mut Registrations) -> T) -> T {
        body(&mut self.registered.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

type Registrations = std::collections::HashMap<RawFd, Vec<fdbroker_client::Registration>>;

impl Source for Layer {
    fn grant(&self, number: VirtualFd) -> Result<Granted, Errno> {
        let broker = connected().ok_or(Errno::EBADF)?;
        let granted = broker.client.acquire_virtual(number, Deadline::from_ms(TIMEOUT_MS));
        let Grant { fd, lease, .. } = granted.map_err(|error| errno_of(&error))?;
        Ok(Granted { fd, lease: Arc::new(Mutex::new(lease)) })
    }

    fn end(&self, number: VirtualFd) -> Result<(), Errno> {
        let broker = known().ok_or(Errno::EBADF)?;
        let one = broker.with(|all| {
            let of_number = all.get_mut(&number.number())?;
            let one = of_number.pop();
            if of_number.is_empty() {
                all.remove(&number.number());
            }
            one
        });
        broker.client.unregister(&one.ok_or(Errno::EBADF)?).map_err(|error| errno_of(&error))?;
        Ok(())
    }

    fn is_own(&self, fd: RawFd) -> bool {
        own_fds::is_own(fd)
    }

    fn own_fds(&self, fds: &mut [RawFd; OWN_FDS_MOST]) -> usize {
        own_fds::list(fds)
    }

    fn has_used_driver(&self) -> bool {
        self.has_used_driver.load(Ordering::Relaxed)
    }
}

fn errno_of(error: &Error) -> Errno {
    match error.code {
        ErrorCode::LocalFdLimit | ErrorCode::NoQuota => Errno::EMFILE,
        ErrorCode::OwnerSilent | ErrorCode::TimedOut | ErrorCode::Again => Errno::EAGAIN,
        _ => Errno::EBADF,
    }
}
