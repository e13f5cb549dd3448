//! The fd behind a virtual fd: what the crate of virtual fds asks a layer for. Must never wait for
//! ever, nor with a lock held.

use crate::connection::{Connected, Connection, State, is_absent};
use crate::lease::OpenFd;
use crate::patience::patiently;
use fdbroker_client::{Error, ErrorCode, Grant, own_fds};
use fdbroker_virtual_fds::{Granted, OWN_FDS_MOST, Source, VirtualFd};
use nix::errno::Errno;
use std::ops::RangeInclusive;
use std::os::fd::RawFd;
use std::sync::Arc;

impl<S: State> Source for Connection<S> {
    fn grant(&self, number: VirtualFd) -> Result<Granted, Errno> {
        if self.has_ended() {
            return Err(Errno::EBADF);
        }
        // A broker that is away may know the number: EBADF would say that the memory has ended.
        let unknown = || if self.is_expected() { Errno::EAGAIN } else { Errno::EBADF };
        let connected = S::connection().awaited().ok_or_else(unknown)?;
        match acquire(connected, number) {
            Ok(Grant { fd, lease, info }) => {
                Ok(Granted { fd, lease: Arc::new(OpenFd::new(lease, info)) })
            }
            Err(error) => {
                if is_absent(&error) {
                    self.say_absent(&error);
                }
                Err(errno_of(&error))
            }
        }
    }

    fn end(&self, number: VirtualFd) -> Result<(), Errno> {
        S::close(self.known().ok_or(Errno::EBADF)?, number)
    }

    fn end_range(&self, numbers: &RangeInclusive<u32>) {
        let Some(connected) = self.known() else { return };
        for number in S::numbers(connected) {
            if numbers.contains(&number.number().cast_unsigned()) {
                // As often as it is open; another thread may close it, too.
                while S::close(connected, number).is_ok() {}
            }
        }
    }

    fn is_own(&self, fd: RawFd) -> bool {
        own_fds::is_own(fd)
    }

    fn own_fds(&self, fds: &mut [RawFd; OWN_FDS_MOST]) -> usize {
        own_fds::list(fds)
    }

    fn has_used_driver(&self) -> bool {
        // Without a broker a process that cannot be seen stays unseen, as it is for the kernel.
        Connection::has_used_driver(self)
            && (self.is_expected() || S::connection().connected().is_some())
    }
}

fn acquire<S: State>(connected: &Connected<S>, number: VirtualFd) -> Result<Grant, Error> {
    patiently::<S, _>(|deadline| connected.neighbours.acquire(&connected.client, number, deadline))
}

fn errno_of(error: &Error) -> Errno {
    match error.code {
        ErrorCode::LocalFdLimit | ErrorCode::NoQuota => Errno::EMFILE,
        ErrorCode::OwnerSilent
        | ErrorCode::TimedOut
        | ErrorCode::Again
        | ErrorCode::NotConnected
        | ErrorCode::ShuttingDown => Errno::EAGAIN,
        _ => Errno::EBADF,
    }
}
