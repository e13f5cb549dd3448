//! The C library's functions under their own names, for LD_PRELOAD. Thin: they turn the kernel's
//! answers into errno. Must never be the only way for a number below 2^30: such a call does one
//! compare and one look, and is made.

use crate::calls::{
    child, close as closing, duplicate, memory, pidfd, poll as polling, refused, send,
};
use crate::{raw, syscall as by_number};
use fdbroker_protocol::VirtualFd;
use libc::{
    c_int, c_long, c_uint, c_ulong, c_void, epoll_event, mmsghdr, msghdr, nfds_t, off_t, pid_t,
    pollfd, siginfo_t, sigset_t, size_t, ssize_t, timespec,
};
use nix::errno::Errno;

// The C library's second names of the calls that can wait: pthread_cancel(3) ends these, but no
// system call that this crate makes itself.
unsafe extern "C-unwind" {
    fn __poll(entries: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    fn __fcntl(fd: c_int, command: c_int, ...) -> c_int;
    fn __read(fd: c_int, into: *mut c_void, count: size_t) -> ssize_t;
    fn __write(fd: c_int, from: *const c_void, count: size_t) -> ssize_t;
    fn __pread64(fd: c_int, into: *mut c_void, count: size_t, offset: off_t) -> ssize_t;
    fn __pwrite64(fd: c_int, from: *const c_void, count: size_t, offset: off_t) -> ssize_t;
}

/// Exports functions whose answer is the kernel's.
macro_rules! exports {
    ($(fn $name:ident($($argument:ident: $kind:ty),* $(,)?) -> $answer:ty $body:block)*) => {$(
        /// # Safety
        /// That of the C library's function of this name.
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe, reason = "some take numbers alone")]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> $answer {
            // SAFETY: the caller's promise.
            raw::to_c(unsafe { $body }) as $answer
        }
    )*};
}

exports! {
    fn close(fd: c_int) -> c_int { closing::close(fd) }
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        closing::close_range(first, last, flags as c_uint)
    }
    fn dup(fd: c_int) -> c_int { duplicate::dup(fd) }
    fn dup2(fd: c_int, onto: c_int) -> c_int { duplicate::dup2(fd, onto) }
    fn dup3(fd: c_int, onto: c_int, flags: c_int) -> c_int { duplicate::dup3(fd, onto, flags) }
    fn pidfd_open(pid: pid_t, flags: c_uint) -> c_int { pidfd::open(pid, flags) }
    fn pidfd_getfd(process: c_int, fd: c_int, flags: c_uint) -> c_int {
        pidfd::get_fd(process, fd, flags)
    }
    fn pidfd_send_signal(process: c_int, signal: c_int, info: *const siginfo_t, flags: c_uint) -> c_int {
        pidfd::send_signal(process, signal, info.cast(), flags)
    }
    fn waitid(kind: c_uint, id: c_uint, info: *mut siginfo_t, options: c_int) -> c_int {
        pidfd::wait_id(kind, id, [info.expose_provenance(), options as usize, 0])
    }
    fn sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        send::sendmsg(socket, message, flags)
    }
    fn sendmmsg(socket: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        send::sendmmsg(socket, messages, count, flags)
    }
    fn fstat(fd: c_int, into: *mut libc::stat) -> c_int { memory::fstat(fd, into) }
    fn fstat64(fd: c_int, into: *mut libc::stat) -> c_int { memory::fstat(fd, into) }
    fn __fxstat(version: c_int, fd: c_int, into: *mut libc::stat) -> c_int {
        fxstat(version, fd, into)
    }
    fn __fxstat64(version: c_int, fd: c_int, into: *mut libc::stat) -> c_int {
        fxstat(version, fd, into)
    }
    fn lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t { memory::lseek(fd, offset, whence) }
    fn lseek64(fd: c_int, offset: off_t, whence: c_int) -> off_t { memory::lseek(fd, offset, whence) }
    fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
        memory::ioctl(fd, request, argument)
    }
    fn ppoll(list: *mut pollfd, count: nfds_t, time: *const timespec, mask: *const sigset_t) -> c_int {
        ppolled(list, count, time, mask)
    }
    fn ftruncate(fd: c_int, length: off_t) -> c_int { truncate(fd, length) }
    fn ftruncate64(fd: c_int, length: off_t) -> c_int { truncate(fd, length) }
    fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        let event = event.expose_provenance();
        let args = [raw::arg(epoll), operation as usize, raw::arg(fd), event, 0, 0];
        by_number::dispatch(libc::SYS_epoll_ctl, args)
    }
    // The real one takes as many arguments as the call has: those that were not passed are what the
    // registers had.
    fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
        by_number::dispatch(number, [a, b, c, d, e, f])
    }
}

/// Exports functions that the C library's second name carries out, unless the first argument is a
/// virtual fd.
macro_rules! refused {
    ($(fn $name:ident($($argument:ident: $kind:ty),* $(,)?) = $below:ident, $number:ident;)*) => {$(
        /// # Safety
        /// That of the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(fd: c_int, $($argument: $kind),*) -> ssize_t {
            if VirtualFd::new(fd).is_some() {
                return raw::to_c(refused::refuse(libc::$number));
            }
            // SAFETY: the caller's promise.
            unsafe { $below(fd, $($argument),*) }
        }
    )*};
}

refused! {
    fn read(into: *mut c_void, count: size_t) = __read, SYS_read;
    fn write(from: *const c_void, count: size_t) = __write, SYS_write;
    fn pread(into: *mut c_void, count: size_t, offset: off_t) = __pread64, SYS_pread64;
    fn pread64(into: *mut c_void, count: size_t, offset: off_t) = __pread64, SYS_pread64;
    fn pwrite(from: *const c_void, count: size_t, offset: off_t) = __pwrite64, SYS_pwrite64;
    fn pwrite64(from: *const c_void, count: size_t, offset: off_t) = __pwrite64, SYS_pwrite64;
}

/// # Safety
/// That of _Fork(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> pid_t {
    child::fork().unwrap_or_else(|errno| raw::to_c(raw::failed(errno)) as pid_t)
}

/// # Safety
/// That of clone(2). The real one takes as many arguments as its flags ask for: those that were not
/// passed are what the registers had.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    body: child::Body,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_tid: *mut c_void,
    tls: *mut c_void,
    child_tid: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { child::clone(body, stack, flags, argument, [parent_tid, tls, child_tid]) }
}

/// # Safety
/// That of closefrom(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    closing::close_from(first);
}

macro_rules! mapping {
    ($($name:ident)*) => {$(
        /// # Safety
        /// That of mmap(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            address: *mut c_void,
            length: size_t,
            access: c_int,
            flags: c_int,
            fd: c_int,
            offset: off_t,
        ) -> *mut c_void {
            let args = [address.addr(), length, access as usize, flags as usize, offset as usize];
            // SAFETY: the caller's promise.
            std::ptr::with_exposed_provenance_mut(raw::to_c(unsafe { memory::mmap(fd, args) }) as usize)
        }
    )*};
}
mapping! { mmap mmap64 }

macro_rules! controlling {
    ($($name:ident)*) => {$(
        /// # Safety
        /// That of fcntl(2).
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(fd: c_int, command: c_int, argument: usize) -> c_int {
            let duplicates = matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC);
            if !duplicates && VirtualFd::new(fd).is_none() {
                // SAFETY: the caller's promise.
                return unsafe { __fcntl(fd, command, argument) };
            }
            // SAFETY: the caller's promise.
            raw::to_c(unsafe { duplicate::fcntl(fd, command, argument) }) as c_int
        }
    )*};
}
controlling! { fcntl fcntl64 }

/// # Safety
/// That of poll(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn poll(list: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    // SAFETY: the caller's promise.
    if unsafe { !polling::has_virtual(list, count as usize) } {
        // SAFETY: the caller's promise.
        return unsafe { __poll(list, count, timeout_ms) };
    }
    let left = timespec {
        tv_sec: (timeout_ms / 1000).into(),
        tv_nsec: (timeout_ms % 1000 * 1_000_000).into(),
    };
    let time = if timeout_ms < 0 { std::ptr::null() } else { &raw const left };
    // SAFETY: the caller's promise, and a time that outlives the call.
    raw::to_c(unsafe { ppolled(list, count, time, std::ptr::null()) }) as c_int
}

/// poll(2) of programs built with _FORTIFY_SOURCE.
///
/// # Safety
/// That of poll(2); the list has `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __poll_chk(
    list: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
    bytes: size_t,
) -> c_int {
    check_length(count, bytes);
    // SAFETY: the caller's promise.
    unsafe { poll(list, count, timeout_ms) }
}

/// ppoll(2) of programs built with _FORTIFY_SOURCE.
///
/// # Safety
/// That of ppoll(2); the list has `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __ppoll_chk(
    list: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    mask: *const sigset_t,
    bytes: size_t,
) -> c_int {
    check_length(count, bytes);
    // SAFETY: the caller's promise.
    unsafe { ppoll(list, count, time, mask) }
}

/// What the C library does where a list is shorter than its count: the program is ended.
fn check_length(count: nfds_t, bytes: size_t) {
    if bytes / size_of::<pollfd>() < count as usize {
        std::process::abort();
    }
}

/// # Safety
/// That of ppoll(2).
unsafe fn ppolled(
    list: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    mask: *const sigset_t,
) -> isize {
    // The kernel writes what is left of the time, which the C library's function does not.
    // SAFETY: the caller's promise.
    let mut left = unsafe { time.as_ref() }.copied();
    let left = left.as_mut().map_or(0, |left| std::ptr::from_mut(left).expose_provenance());
    /// Bytes of a set of signals in the kernel: 64 of them.
    const SET_BYTES: usize = 8;
    let args =
        [list.expose_provenance(), count as usize, left, mask.expose_provenance(), SET_BYTES, 0];
    // SAFETY: the caller's promise.
    unsafe { by_number::polled(libc::SYS_ppoll, args) }
}

/// fstat(2) of programs built before glibc 2.33. Version 1 is that of x86-64, 0 that of the kernel
/// and of aarch64: one layout.
///
/// # Safety
/// That of fstat(2).
unsafe fn fxstat(version: c_int, fd: c_int, into: *mut libc::stat) -> isize {
    match version {
        // SAFETY: the caller's promise.
        0 | 1 => unsafe { memory::fstat(fd, into) },
        _ => raw::failed(Errno::EINVAL),
    }
}

/// # Safety
/// None: numbers.
unsafe fn truncate(fd: c_int, length: off_t) -> isize {
    // SAFETY: numbers.
    unsafe { by_number::dispatch(libc::SYS_ftruncate, [raw::arg(fd), length as usize, 0, 0, 0, 0]) }
}
