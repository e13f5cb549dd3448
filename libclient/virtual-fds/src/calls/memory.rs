//! fstat(2), lseek(2), mmap(2) and ioctl(2): of a virtual fd they are made on a real fd, which
//! lives for the time of the call. Must never leave that fd open.

use crate::raw;
use crate::source::{self, Fresh};
use fdbroker_protocol::VirtualFd;
use libc::{c_int, c_long, c_ulong, off_t};
use std::os::fd::RawFd;

/// DRM_IOCTL_PRIME_FD_TO_HANDLE (include/uapi/drm/drm.h): the fd of the memory stands in its
/// argument.
const PRIME_FD_TO_HANDLE: c_ulong = 0xC00C_642E;

/// struct drm_prime_handle.
#[repr(C)]
#[derive(Clone, Copy)]
struct PrimeHandle {
    handle: u32,
    flags: u32,
    fd: i32,
}

/// # Safety
/// That of fstat(2).
pub unsafe fn fstat(fd: RawFd, into: *mut libc::stat) -> isize {
    // SAFETY: the caller's promise.
    on_real(fd, |fd| unsafe { raw::call(libc::SYS_fstat, [raw::arg(fd), into.addr(), 0, 0, 0, 0]) })
}

pub fn lseek(fd: RawFd, offset: off_t, whence: c_int) -> isize {
    // SAFETY: numbers.
    on_real(fd, |fd| unsafe {
        raw::call(libc::SYS_lseek, [raw::arg(fd), offset as usize, whence as usize, 0, 0, 0])
    })
}

/// # Safety
/// That of mmap(2), whose arguments these are but for the fd.
pub unsafe fn mmap(fd: RawFd, [address, length, access, flags, offset]: [usize; 5]) -> isize {
    // SAFETY: the caller's promise.
    let map = |fd| unsafe {
        raw::call(libc::SYS_mmap, [address, length, access, flags, raw::arg(fd), offset])
    };
    // The fd of an anonymous mapping means nothing.
    if flags & libc::MAP_ANONYMOUS as usize != 0 { map(fd) } else { on_real(fd, map) }
}

/// # Safety
/// That of ioctl(2) with this request.
pub unsafe fn ioctl(fd: RawFd, request: c_ulong, argument: usize) -> isize {
    if request == PRIME_FD_TO_HANDLE {
        let argument = std::ptr::with_exposed_provenance_mut(argument);
        // SAFETY: the caller's promise.
        return unsafe { prime_fd_to_handle(fd, argument) };
    }
    // What a program sets before it hands the number on over exec.
    let is_flag = matches!(request, libc::FIOCLEX | libc::FIONCLEX);
    if is_flag && VirtualFd::new(fd).is_some() && source::is_borrowed() {
        return 0;
    }
    on_real(fd, |fd| {
        // SAFETY: the caller's promise.
        unsafe { raw_ioctl(fd, request, argument) }
    })
}

/// # Safety
/// The argument is one of this request, or null.
unsafe fn prime_fd_to_handle(device: RawFd, argument: *mut PrimeHandle) -> isize {
    // SAFETY: the caller's promise.
    let call = |argument: *mut PrimeHandle| unsafe {
        raw_ioctl(device, PRIME_FD_TO_HANDLE, argument.expose_provenance())
    };
    // SAFETY: the caller's promise; null is the kernel's to refuse.
    let Some(program) = (unsafe { argument.as_mut() }) else { return call(argument) };
    if VirtualFd::new(program.fd).is_none() {
        return call(argument);
    }
    let mut copy = *program;
    on_real(program.fd, |fd| {
        copy.fd = fd;
        let answer = call(&raw mut copy);
        program.handle = copy.handle;
        answer
    })
}

/// # Safety
/// That of ioctl(2).
unsafe fn raw_ioctl(fd: RawFd, request: c_ulong, argument: usize) -> isize {
    const NUMBER: c_long = libc::SYS_ioctl;
    // SAFETY: the caller's promise.
    unsafe { raw::call(NUMBER, [raw::arg(fd), request as usize, argument, 0, 0, 0]) }
}

/// Makes a call on the fd, or on a real fd in its place.
fn on_real(fd: RawFd, call: impl FnOnce(RawFd) -> isize) -> isize {
    match VirtualFd::new(fd) {
        None => call(fd),
        Some(number) => Fresh::of(number).map_or_else(raw::failed, |fresh| call(fresh.fd())),
    }
}
