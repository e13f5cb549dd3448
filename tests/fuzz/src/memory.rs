//! Real fds for the targets that pass fds: memfds, sealed or not. A target must never close one of
//! these: it passes them on, and the kernel makes duplicates.

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::os::fd::OwnedFd;

/// Size of each memfd, bytes.
pub const SIZE: u64 = 4096;

/// A memfd that the broker accepts.
pub fn sealed() -> OwnedFd {
    let fd = unsealed();
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
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
