//! What an fd is, as far as anybody can say without asking its file system. Must never wait,
//! allocate or take a lock.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A file by device, inode, type and, of a device, which: statx(2) of what the kernel has at hand,
/// since a file system that hangs would not answer. All of one kind of anonymous file (epoll,
/// timer) look alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File {
    device: (u32, u32),
    inode: u64,
    kind: (u16, u32, u32),
}

impl File {
    /// `None`: the fd is not open, or the system does not say.
    #[must_use]
    pub fn of(fd: BorrowedFd<'_>) -> Option<File> {
        let mut room = MaybeUninit::<libc::statx>::uninit();
        let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
        let wanted = libc::STATX_TYPE | libc::STATX_INO;
        let (fd, path) = (fd.as_raw_fd(), c"".as_ptr());
        // SAFETY: an empty path that ends, and room for the answer, both of which live over the
        // call.
        let failed = unsafe { libc::statx(fd, path, flags, wanted, room.as_mut_ptr()) };
        // SAFETY: the kernel has filled it in; it is plain numbers.
        let it = (failed == 0).then(|| unsafe { room.assume_init() })?;
        let kind = u32::from(it.stx_mode) & libc::S_IFMT;
        let kind = (kind as u16, it.stx_rdev_major, it.stx_rdev_minor);
        Some(File { device: (it.stx_dev_major, it.stx_dev_minor), inode: it.stx_ino, kind })
    }
}

impl File {
    /// The same as a number, neither 0 nor `u64::MAX`, which tells files apart as far as chance
    /// goes.
    pub(crate) fn mark(self) -> u64 {
        let File { device: (major, minor), inode, kind: (kind, of_major, of_minor) } = self;
        let parts = [major, minor, u32::from(kind), of_major, of_minor].map(u64::from);
        let mix = |mark: u64, part: u64| (mark ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        parts
            .into_iter()
            .fold(inode, |mark, part| mix(mark.rotate_left(23), part))
            .clamp(1, u64::MAX - 1)
    }
}

/// The fd under a number above those of stdin, stdout and stderr: a program that has closed these
/// writes there all the same.
///
/// # Errors
/// The fd as it was: there is no other number.
pub fn off_stdio(fd: OwnedFd) -> Result<OwnedFd, OwnedFd> {
    if fd.as_raw_fd() > libc::STDERR_FILENO {
        return Ok(fd);
    }
    let least = libc::STDERR_FILENO + 1;
    // SAFETY: takes numbers alone.
    let number = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least) };
    match number {
        0.. => {
            // SAFETY: the kernel has just made this fd for us, and nobody else knows it.
            Ok(unsafe { OwnedFd::from_raw_fd(number) })
        }
        _ => Err(fd),
    }
}
