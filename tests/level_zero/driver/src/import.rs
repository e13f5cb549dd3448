//! Imports: opening handles and importing fds. Must never close an fd that the rules leave to the
//! caller.

use crate::allocation::{Origin, Registry};
use crate::answer::Failure;
use crate::devices::Device;
use crate::export::{TILE_NUMBER, layout};
use crate::handle::{HANDLE_BYTES, Handle, Kind};
use crate::object::Object;
use crate::settings::{ImportFd, Layout, settings};
use crate::trace::trace;
use level_zero_sys::ze_result_t;
use nix::errno::Errno;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

const INVALID: ze_result_t = ze_result_t::ZE_RESULT_ERROR_INVALID_ARGUMENT;

/// Opens a handle for a device and answers a new pointer. An fd in the handle stays the caller's
/// when the memory is a device's.
pub fn open(
    registry: &mut Registry,
    device: &'static Device,
    bytes: &[u8; HANDLE_BYTES],
) -> Result<usize, Failure> {
    let handle = Handle::from_bytes(bytes, layout());
    // The same number twice: the program put no fd of its own there, so it is the exporter's.
    let Some(origin) = handle.origin.filter(|origin| origin.fd == handle.fd) else {
        return open_own(registry, device, handle);
    };
    let from = (origin.pid, origin.fd);
    let object = match registry.fetched.fetch(from).map(Object::import) {
        // With one number the driver cannot tell, and asks the exporter first.
        Err(_) if layout() == Layout::OneNumber => return open_own(registry, device, handle),
        fetched => fetched?,
    };
    let opened = Origin::Opened { fetched: Some(from) };
    let done = object.and_then(|object| add(registry, device, handle, object, opened));
    if done.is_err() {
        registry.fetched.release(from);
    }
    done
}

/// Opens a handle with the caller's own fd.
fn open_own(
    registry: &mut Registry,
    device: &'static Device,
    handle: Handle,
) -> Result<usize, Failure> {
    let object = with_fd(handle.fd, Object::import)?;
    let opened = add(registry, device, handle, object, Origin::Opened { fetched: None })?;
    if handle.kind == Kind::Host {
        take_over(handle.fd);
    }
    Ok(opened)
}

/// A success has made the caller's fd the driver's own, where the switch says so: it closes it.
pub fn take_over(fd: RawFd) {
    if settings().is_ok_and(|settings| settings.import_fd == ImportFd::DriverCloses) {
        trace!("the driver closes the caller's fd {fd}");
        // SAFETY: by this driver's rule the fd is the driver's own now.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }
}

/// Opens the handles of an allocation's tiles as one: the memory is the first one's. The second
/// one's must begin with the number that its handle says.
pub fn open_tiles(
    registry: &mut Registry,
    device: &'static Device,
    handles: &[[u8; HANDLE_BYTES]],
) -> Result<usize, Failure> {
    let [first, seconds @ ..] = handles else { return Err(INVALID.into()) };
    for bytes in seconds {
        let object = with_fd(Handle::from_bytes(bytes, layout()).fd, Object::import)?;
        let number = u64::from_ne_bytes(std::array::from_fn(|i| bytes[TILE_NUMBER + i]));
        if number == 0 || object.number() != number {
            return Err(INVALID.into());
        }
    }
    open(registry, device, first)
}

fn add(
    registry: &mut Registry,
    device: &'static Device,
    handle: Handle,
    object: std::sync::Arc<Object>,
    origin: Origin,
) -> Result<usize, Failure> {
    let offset = usize::try_from(handle.pool_offset).unwrap_or(usize::MAX);
    if offset >= object.memory.bytes() {
        return Err(INVALID.into());
    }
    let device = (handle.kind == Kind::Device).then_some(device);
    registry.import(device, origin, object, offset)
}

/// Imports the memory of an fd, which must have at least `bytes`. A switch says whether a success
/// closes the fd; a failure never does.
pub fn import_fd(
    registry: &mut Registry,
    device: &'static Device,
    fd: RawFd,
    bytes: usize,
) -> Result<usize, Failure> {
    let object = with_fd(fd, Object::import)?;
    if bytes > object.memory.bytes() {
        return Err(ze_result_t::ZE_RESULT_ERROR_INVALID_SIZE.into());
    }
    let pointer = registry.import(Some(device), Origin::ImportedFd, object, 0)?;
    take_over(fd);
    Ok(pointer)
}

/// Runs `with` on the caller's fd; an fd that is not open is an error.
pub fn with_fd<T>(
    fd: RawFd,
    with: impl FnOnce(BorrowedFd<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    // SAFETY: F_GETFD looks at the number only.
    if fd < 0 || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(INVALID.into());
    }
    // SAFETY: open, and the caller must keep it so during the call.
    with(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Fds fetched from exporters. Each is kept while an import of it is open, and reused for the same
/// pid and number.
#[derive(Default)]
pub struct FetchedFds {
    by_origin: HashMap<(u32, RawFd), (OwnedFd, usize)>,
}

impl FetchedFds {
    fn fetch(&mut self, from: (u32, RawFd)) -> Result<BorrowedFd<'_>, Failure> {
        let fetched = match self.by_origin.entry(from) {
            Entry::Occupied(fetched) => fetched.into_mut(),
            Entry::Vacant(none) => none.insert((get_fd(from)?, 0)),
        };
        fetched.1 += 1;
        Ok(fetched.0.as_fd())
    }

    /// Counts one import less; the last one closes the fd.
    pub fn release(&mut self, from: (u32, RawFd)) {
        let Some((_, users)) = self.by_origin.get_mut(&from) else { return };
        *users -= 1;
        if *users == 0 {
            self.by_origin.remove(&from);
        }
    }

    pub fn count(&self) -> usize {
        self.by_origin.len()
    }
}

/// A duplicate of another process's fd: pidfd_open(2), pidfd_getfd(2). `EPERM` without the right to
/// trace the process.
fn get_fd((pid, fd): (u32, RawFd)) -> Result<OwnedFd, Failure> {
    // SAFETY: takes numbers only.
    let process = new_fd("pidfd_open", unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: takes numbers only; `process` is open.
    let got = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0) };
    let fetched = new_fd("pidfd_getfd", got)?;
    trace!("fd {fd} of process {pid} fetched as {}", fetched.as_raw_fd());
    Ok(fetched)
}

/// Takes the new fd that a system call answered, or its errno.
fn new_fd(what: &'static str, answer: libc::c_long) -> Result<OwnedFd, Failure> {
    match RawFd::try_from(answer) {
        // SAFETY: the call just made it, for nobody else.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(Failure::os(what, Errno::last_raw())),
    }
}
