//! Real fds for the targets that pass some: sealed memfds. Must never be shared with what is to be closed: the kernel
//! makes the duplicates.

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::os::fd::OwnedFd;

/// Bytes of each.
pub const SIZE: u64 = 4096;

/// A memfd that the broker takes.
pub fn sealed() -> OwnedFd {
    let fd = unsealed();
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
    fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).expect("a memfd of ours takes seals");
    fd
}

/// A memfd that the broker refuses.
pub fn unsealed() -> OwnedFd {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let fd = memfd_create(c"fuzz", flags).expect("memfd_create");
    nix::unistd::ftruncate(&fd, SIZE as i64).expect("a memfd grows");
    fd
}
