//! Calls that a virtual fd cannot answer: EBADF, as for any number that is not open, and a line on
//! stderr that names the call. Must never refuse what the kernel would not: an fd that a process
//! can have open.

use crate::limits::ARGUMENTS;
use crate::{raw, say, source};
use fdbroker_protocol::VirtualFd;
use libc::c_long;
use nix::errno::Errno;
use std::os::fd::RawFd;

/// The calls by number, their names, and which argument is the fd. Others answer EBADF by the
/// kernel, and nothing is said.
const REFUSED: [(c_long, &str, usize); 14] = [
    (libc::SYS_read, "read", 0),
    (libc::SYS_write, "write", 0),
    (libc::SYS_pread64, "pread", 0),
    (libc::SYS_pwrite64, "pwrite", 0),
    (libc::SYS_readv, "readv", 0),
    (libc::SYS_writev, "writev", 0),
    (libc::SYS_ftruncate, "ftruncate", 0),
    (libc::SYS_fallocate, "fallocate", 0),
    (libc::SYS_fsync, "fsync", 0),
    (libc::SYS_flock, "flock", 0),
    (libc::SYS_statx, "statx", 0),
    (libc::SYS_sendfile, "sendfile", 1),
    (libc::SYS_epoll_ctl, "epoll_ctl", 2),
    (libc::SYS_fcntl, "fcntl", 0),
];

/// Refuses one of these calls, of a virtual fd.
pub fn refuse(number: c_long) -> isize {
    let known = REFUSED.iter().position(|(of, ..)| *of == number);
    if let Some(index) = known.filter(|_| source::is_installed()) {
        say::refused(index, REFUSED[index].1);
    }
    raw::failed(Errno::EBADF)
}

/// The refusal of a system call with a virtual fd; `None`: it is not one of these, or its fd is not
/// virtual.
pub fn by_number(number: c_long, args: &[usize; ARGUMENTS]) -> Option<isize> {
    let (.., place) = REFUSED.iter().find(|(of, ..)| *of == number)?;
    VirtualFd::new(args[*place] as RawFd)?;
    Some(refuse(number))
}
