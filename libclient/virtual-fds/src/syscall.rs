//! syscall(2): sends the calls that this crate knows to where their functions go. Must never change
//! another call's arguments.

use crate::calls::{child, close, duplicate, memory, pidfd, poll, refused, send};
use crate::limits::ARGUMENTS;
use crate::raw;
use libc::{c_int, c_long, c_uint, pid_t};
use std::os::fd::RawFd;
use std::ptr::with_exposed_provenance_mut as pointer;

/// # Safety
/// That of the system call.
pub unsafe fn dispatch(number: c_long, args: [usize; ARGUMENTS]) -> isize {
    let [first, second, third, fourth, fifth, _] = args;
    let fd = first as RawFd;
    // SAFETY: the caller's promise, for each of these; the kernel cuts numbers to these types, too.
    unsafe {
        match number {
            libc::SYS_close => close::close(fd),
            libc::SYS_close_range => close::close_range(first as u32, second as u32, third as u32),
            libc::SYS_dup => duplicate::dup(fd),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => duplicate::dup2(fd, second as RawFd),
            libc::SYS_dup3 => duplicate::dup3(fd, second as RawFd, third as c_int),
            libc::SYS_fcntl => duplicate::fcntl(fd, second as c_int, third),
            libc::SYS_pidfd_open => pidfd::open(first as pid_t, second as c_uint),
            libc::SYS_pidfd_getfd => pidfd::get_fd(fd, second as RawFd, third as c_uint),
            libc::SYS_pidfd_send_signal => {
                pidfd::send_signal(fd, second as c_int, pointer(third), fourth as c_uint)
            }
            libc::SYS_waitid => {
                pidfd::wait_id(first as c_uint, second as c_uint, [third, fourth, fifth])
            }
            libc::SYS_sendmsg => send::sendmsg(fd, pointer(second), third as c_int),
            libc::SYS_sendmmsg => {
                send::sendmmsg(fd, pointer(second), third as c_uint, fourth as c_int)
            }
            libc::SYS_fstat => memory::fstat(fd, pointer(second)),
            libc::SYS_lseek => memory::lseek(fd, second as i64, third as c_int),
            libc::SYS_mmap => {
                let [address, length, access, flags, memory, offset] = args;
                memory::mmap(memory as RawFd, [address, length, access, flags, offset])
            }
            libc::SYS_ioctl => memory::ioctl(fd, second as u64, third),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_fork => child::by_number(number, args),
            libc::SYS_clone | libc::SYS_clone3 => child::by_number(number, args),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => polled(number, args),
            libc::SYS_ppoll => polled(number, args),
            _ => refused::by_number(number, &args).unwrap_or_else(|| raw::call(number, args)),
        }
    }
}

/// A call whose first argument is a list to poll, and its second the count.
///
/// # Safety
/// That of the system call.
pub unsafe fn polled(number: c_long, args: [usize; ARGUMENTS]) -> isize {
    let [list, count, others @ ..] = args;
    let entries = pointer(list);
    // SAFETY: the caller's promise.
    let call = |entries: *mut libc::pollfd| unsafe {
        let [a, b, c, d] = others;
        raw::call(number, [entries.expose_provenance(), count, a, b, c, d])
    };
    // SAFETY: the caller's promise.
    match unsafe { poll::has_virtual(entries, count) } {
        // SAFETY: as above, and it has.
        true => unsafe { poll::with_real(entries, count, call) },
        false => call(entries),
    }
}
