//! Virtual fds by a file beside the broker's socket: one handle after the other, and a number is a place in the file. It
//! stands in for the broker, which does not mint them yet. Must never give one number to two allocations.

use fdbroker_client::{AllocationId, Handle, Registration, default_socket_path};
use nix::errno::Errno;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Seek, Write};
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

const FIRST: RawFd = 1 << 30;
const HANDLE_BYTES: usize = size_of::<Handle>();

/// The numbers of this process's allocations that live.
pub struct Mint(Mutex<Option<HashMap<AllocationId, RawFd>>>);

impl Mint {
    pub const fn new() -> Self {
        Mint(Mutex::new(None))
    }

    /// The number of an allocation: the same for each of its registrations.
    pub fn number(&self, registration: &Registration) -> Option<RawFd> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get_or_insert_default();
        if let Some(number) = known.get(&registration.id()) {
            return Some(*number);
        }
        let mut file = OpenOptions::new().append(true).create(true).open(path()).ok()?;
        file.write_all(&registration.handle.to_bytes()).ok()?;
        let place = file.stream_position().ok()? / HANDLE_BYTES as u64 - 1;
        let number = FIRST + RawFd::try_from(place).ok()?;
        known.insert(registration.id(), number);
        Some(number)
    }

    /// The last registration has ended.
    pub fn forget(&self, registration: &Registration) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get_or_insert_default().remove(&registration.id());
    }
}

/// The handle of a number, in any process.
pub fn handle(number: RawFd) -> Result<Handle, Errno> {
    let place = u64::try_from(number - FIRST).map_err(|_| Errno::EBADF)?;
    let mut bytes = [0; HANDLE_BYTES];
    let file = File::open(path()).map_err(|_| Errno::EBADF)?;
    file.read_exact_at(&mut bytes, place * HANDLE_BYTES as u64).map_err(|_| Errno::EBADF)?;
    Ok(Handle::from_bytes(bytes))
}

fn path() -> PathBuf {
    default_socket_path().with_extension("handles")
}
