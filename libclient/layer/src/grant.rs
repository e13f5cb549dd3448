//! The fd behind a virtual fd: what the crate of virtual fds asks a layer for. Must never wait for
//! ever, nor with a lock held.

use crate::connection::{Connected, Connection, State, is_absent};
use crate::hidden::{self, Hidden};
use crate::lease::{Fetched, OpenFd};
use crate::patience::patiently;
use fdbroker_client::{Deadline, Error, ErrorCode, Grant, Handle, own_fds};
use fdbroker_virtual_fds::{Granted, Lease, OWN_FDS_MOST, Source, VirtualFd};
use nix::errno::Errno;
use std::ops::RangeInclusive;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl<S: State> Source for Connection<S> {
    fn grant(&self, number: VirtualFd) -> Result<Granted, Errno> {
        S::connection().fetch(number)?.granted()
    }

    fn own(&self, number: VirtualFd) -> Option<OwnedFd> {
        S::own(self.known()?, number)
    }

    fn hide(&self, fd: RawFd, lease: &Lease) -> Option<RawFd> {
        let open = lease.downcast_ref::<OpenFd>().filter(|open| open.room > 0)?;
        // It is kept already where another holds the lease, too.
        (Arc::strong_count(lease) == 1 && open.file.is_some()).then(|| hidden::hide(fd))?
    }

    fn ended(&self, lease: Lease, hidden: Option<RawFd>) {
        let Ok(open) = lease.downcast::<OpenFd>() else { return };
        // The fd goes before its lease.
        let Some(hidden) = hidden.map(|fd| Hidden::new(fd, open.file)) else { return };
        if let Some(connected) = self.known().filter(|_| !self.has_ended()) {
            connected.kept.put(hidden, open);
        }
    }

    fn tend(&self) -> Option<Duration> {
        self.known()?.kept.tend()
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
        own_fds::is_own(fd) || hidden::is_hidden(fd)
    }

    fn own_fds(&self, fds: &mut [RawFd; OWN_FDS_MOST]) -> usize {
        let count = own_fds::list(fds);
        count + hidden::list(&mut fds[count..])
    }

    fn before_fork(&self) {
        hidden::before_fork();
    }

    fn after_fork(&self) {
        hidden::after_fork();
    }

    fn begin_child(&self) {
        hidden::close_in_child();
    }

    fn has_used_driver(&self) -> bool {
        // Without a broker a process that cannot be seen stays unseen, as it is for the kernel.
        Connection::has_used_driver(self)
            && (self.is_expected() || S::connection().connected().is_some())
    }
}

impl<S: State> Connection<S> {
    /// The fd behind a number. Waits for a recall.
    ///
    /// # Errors
    /// Those of [`Source::grant`].
    pub fn fetch(&'static self, number: VirtualFd) -> Result<Fetched, Errno> {
        if self.has_ended() {
            return Err(Errno::EBADF);
        }
        // A broker that is away may know the number: EBADF would say that the memory has ended.
        let unknown = || if self.is_expected() { Errno::EAGAIN } else { Errno::EBADF };
        let connected = self.awaited().ok_or_else(unknown)?;
        patiently::<S, _>(|deadline| connected.acquire_number(number, deadline)).map_err(|error| {
            if is_absent(&error) {
                self.say_absent(&error);
            }
            errno_of(&error)
        })
    }
}

impl<S> Connected<S> {
    /// One try for the fd behind a number.
    ///
    /// # Errors
    /// Those of [`Client::acquire_virtual`](fdbroker_client::Client::acquire_virtual).
    pub fn acquire_number(&self, number: VirtualFd, deadline: Deadline) -> Result<Fetched, Error> {
        let is_it = |handle: &Handle| handle.virtual_fd() == Some(number);
        let is_here = |handle: &Handle| self.kept.has(handle);
        let acquire = || self.neighbours.acquire(&self.client, number, deadline, is_here);
        if self.has_ends.swap(false, Ordering::Relaxed) {
            // What the program has closed has ended, for itself at once. Without an answer the
            // broker decides.
            let _ = self.client.flush(deadline);
        }
        self.acquire_by(is_it, acquire)
    }

    /// One try for the fd of a handle. `number`: the virtual fd that it was registered with.
    ///
    /// # Errors
    /// Those of [`Client::acquire`](fdbroker_client::Client::acquire).
    pub fn acquire(
        &self,
        handle: &Handle,
        number: Option<VirtualFd>,
        deadline: Deadline,
    ) -> Result<Fetched, Error> {
        let is_it = |other: &Handle| other.prefix == handle.prefix;
        let is_here = |handle: &Handle| self.kept.has(handle);
        let it = (handle, number);
        let acquire = || self.neighbours.acquire_handle(&self.client, it, deadline, is_here);
        self.acquire_by(is_it, acquire)
    }

    fn acquire_by(
        &self,
        is_it: impl Fn(&Handle) -> bool,
        acquire: impl FnOnce() -> Result<(Handle, Grant), Error>,
    ) -> Result<Fetched, Error> {
        // What the program has closed just now may be what it wants. What is not kept can wait for
        // the thread of leases: ending it here takes 3 us of each fetch.
        fdbroker_virtual_fds::end_kept_leases();
        if let Some(kept) = self.kept.lend(is_it) {
            return Ok(kept);
        }
        let granted = acquire().inspect_err(|error| {
            if error.code == ErrorCode::NoQuota {
                // Asked again with these ended.
                fdbroker_virtual_fds::end_leases();
                self.kept.press();
            }
        });
        granted.map(|(handle, grant)| {
            let is_again = self.kept.is_again(handle.id());
            Fetched::new(handle, grant, is_again)
        })
    }
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
