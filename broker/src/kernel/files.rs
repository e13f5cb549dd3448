//! System calls on fds, and on the table of them, that nix has no safe wrapper for. Must never be
//! called with an fd that a call here could block on: all are safe on any fd.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Whether there is something to read or, of a listening socket, a connection to accept, now.
pub fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// Accepts a connection: close-on-exec and non-blocking.
pub fn accept(listener: BorrowedFd<'_>) -> nix::Result<OwnedFd> {
    use nix::sys::socket::{SockFlag, accept4};
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    accept4(listener, flags)
}

/// What the kernel says of an fd without asking its file system: never blocks, on any fd.
#[derive(Clone, Copy, Debug)]
pub struct Stat {
    /// `S_IFMT` bits of the mode; 0 for anonymous inodes.
    pub file_type: u32,
    /// Number of hard links.
    pub links: u32,
    /// Number within its file system.
    pub inode: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Memory, or disk, that is allocated for it, bytes.
    pub allocated_bytes: u64,
    /// Major number of a device file.
    pub rdev_major: u32,
    /// Minor number of a device file.
    pub rdev_minor: u32,
    /// Of its file system.
    pub device: Device,
}

/// Major and minor number.
pub type Device = (u32, u32);

/// statx(2) with `AT_EMPTY_PATH | AT_STATX_DONT_SYNC`.
pub fn stat(fd: BorrowedFd<'_>) -> io::Result<Stat> {
    let mut buffer = std::mem::MaybeUninit::<libc::statx>::zeroed();
    let wanted = libc::STATX_TYPE
        | libc::STATX_INO
        | libc::STATX_SIZE
        | libc::STATX_NLINK
        | libc::STATX_BLOCKS;
    // SAFETY: an empty C string and a buffer of the right size, both valid for the call.
    let result = unsafe {
        libc::statx(
            fd.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC,
            wanted,
            buffer.as_mut_ptr(),
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed before and filled by the call; every bit pattern is valid.
    let statx = unsafe { buffer.assume_init() };
    Ok(Stat {
        file_type: u32::from(statx.stx_mode) & libc::S_IFMT,
        links: statx.stx_nlink,
        inode: statx.stx_ino,
        size_bytes: statx.stx_size,
        // In units of 512 bytes, whatever the file system (statx(2)).
        allocated_bytes: statx.stx_blocks.saturating_mul(512),
        rdev_major: statx.stx_rdev_major,
        rdev_minor: statx.stx_rdev_minor,
        device: (statx.stx_dev_major, statx.stx_dev_minor),
    })
}

/// Takes over an fd that the starter of this process named by number.
///
/// # Errors
/// EBADF when it is not open.
pub fn adopt(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: asks for the fd's flags and touches no memory; any number is allowed.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: sets close-on-exec, touches no memory.
    unsafe { libc::fcntl(fd, libc::F_SETFD, flags | libc::FD_CLOEXEC) };
    // SAFETY: it is open (just asked), and by the contract of `--ready-fd` and `--until-eof` it was
    // handed to this process for this use alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Grows this process's fd table to `cap` places at once. Before the first thread starts: later
/// each doubling would stall every thread for milliseconds.
///
/// # Errors
/// EINVAL when `cap` is over RLIMIT_NOFILE; ENOMEM.
pub fn grow_fd_table(any: BorrowedFd<'_>, cap: u64) -> nix::Result<()> {
    use nix::fcntl::{FcntlArg, fcntl};
    let last = RawFd::try_from(cap.saturating_sub(1)).map_err(|_| nix::errno::Errno::EINVAL)?;
    // F_DUPFD and not dup2: it takes the lowest free place from `last` on and cannot hit an fd that
    // is in use.
    let fd = fcntl(any, FcntlArg::F_DUPFD_CLOEXEC(last))?;
    nix::unistd::close(fd)
}

/// Gives the calling thread a table of fds of its own, without any fd but stderr where that is
/// kept: while threads share one, the kernel counts references at each use of an fd. Best effort.
pub fn leave_fd_table(keeps_stderr: bool) {
    let first = if keeps_stderr { 3 } else { 0 };
    // SAFETY: takes numbers; no fd of the process is closed, because the new table is made without
    // them (close_range(2)).
    let has_left =
        unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_UNSHARE) };
    if keeps_stderr && has_left == 0 {
        // SAFETY: takes numbers, and closes fds of the thread's own table.
        unsafe { libc::syscall(libc::SYS_close_range, 0, 1, 0) };
    }
}
