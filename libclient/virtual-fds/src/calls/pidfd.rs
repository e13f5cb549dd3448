//! pidfd_open(2), pidfd_getfd(2), and what a placeholder for a process of another PID namespace
//! answers. Must never let a placeholder be taken for a process that lives.

use crate::held::Mark;
use crate::source::{self, Fresh};
use crate::{process, raw, table};
use fdbroker_protocol::VirtualFd;
use libc::{c_int, c_uint, c_ulong, c_void, pid_t};
use nix::errno::Errno;
use std::os::fd::RawFd;

/// A process of another PID namespace has no number here: ESRCH. A program that uses the driver
/// gets a placeholder instead, since it will ask only for virtual fds, which are found without the
/// process.
pub fn open(pid: pid_t, flags: c_uint) -> isize {
    // SAFETY: numbers.
    let answer =
        unsafe { raw::call(libc::SYS_pidfd_open, [pid as usize, flags as usize, 0, 0, 0, 0]) };
    let is_nobody = answer == raw::failed(Errno::ESRCH);
    if !is_nobody || !process::owns_memory() || !source::has_used_driver() {
        return answer;
    }
    let made = raw::readable_eventfd();
    if !raw::is_error(made) {
        table::put(made as RawFd, Mark::placeholder());
    }
    made
}

/// The fd behind a virtual fd, whatever process is named.
pub fn get_fd(pidfd: RawFd, fd: RawFd, flags: c_uint) -> isize {
    if let Some(number) = VirtualFd::new(fd) {
        return match flags {
            0 => Fresh::of(number).map_or_else(raw::failed, |fresh| fresh.keep() as isize),
            _ => raw::failed(Errno::EINVAL),
        };
    }
    if is_placeholder(pidfd) {
        return raw::failed(Errno::ESRCH);
    }
    let args = [raw::arg(pidfd), raw::arg(fd), flags as usize, 0, 0, 0];
    // SAFETY: numbers.
    unsafe { raw::call(libc::SYS_pidfd_getfd, args) }
}

/// # Safety
/// That of pidfd_send_signal(2).
pub unsafe fn send_signal(
    pidfd: RawFd,
    signal: c_int,
    info: *const c_void,
    flags: c_uint,
) -> isize {
    if is_placeholder(pidfd) {
        return raw::failed(Errno::ESRCH);
    }
    let args = [raw::arg(pidfd), signal as usize, info.addr(), flags as usize, 0, 0];
    // SAFETY: the caller's promise.
    unsafe { raw::call(libc::SYS_pidfd_send_signal, args) }
}

/// # Safety
/// That of waitid(2).
pub unsafe fn wait_id(kind: c_uint, id: c_uint, others: [usize; 3]) -> isize {
    if kind == libc::P_PIDFD && is_placeholder(id as RawFd) {
        return raw::failed(Errno::ESRCH);
    }
    let [info, options, usage] = others;
    let args = [kind as c_ulong as usize, id as usize, info, options, usage, 0];
    // SAFETY: the caller's promise.
    unsafe { raw::call(libc::SYS_waitid, args) }
}

fn is_placeholder(fd: RawFd) -> bool {
    table::is_marked(fd) && table::share(fd).is_some_and(|mark| mark.is_placeholder())
}
