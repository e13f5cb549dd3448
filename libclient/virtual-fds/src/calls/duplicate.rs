//! dup(2), dup2(2), dup3(2) and fcntl(2). A duplicate of a virtual fd is a real fd, a duplicate of
//! a granted fd shares its lease. Must never answer a virtual fd: the program may want a number of
//! its own choice.

use super::refused;
use crate::source::{self, Fresh};
use crate::{process, raw, table};
use fdbroker_protocol::VirtualFd;
use nix::errno::Errno;
use std::os::fd::RawFd;

pub fn dup(fd: RawFd) -> isize {
    duplicated(fd, raw::dup)
}

pub fn dup2(fd: RawFd, onto: RawFd) -> isize {
    if fd != onto {
        return dup3(fd, onto, 0);
    }
    // SAFETY: F_GETFD has no argument.
    match unsafe { fcntl(fd, libc::F_GETFD, 0) } {
        answer if raw::is_error(answer) => answer,
        _ => onto as isize,
    }
}

pub fn dup3(fd: RawFd, onto: RawFd, flags: i32) -> isize {
    if fd == onto {
        return raw::failed(Errno::EINVAL);
    }
    if source::is_own(onto) {
        return raw::failed(Errno::EBADF);
    }
    let marked = table::is_marked(onto) && process::owns_memory();
    let before = if marked { table::take(onto) } else { None };
    let answer = duplicated(fd, |fd| match fd == onto {
        true => keep_there(fd, flags),
        false => raw::dup3(fd, onto, flags),
    });
    if let Some(before) = before {
        if raw::is_error(answer) { table::put(onto, before) } else { drop(before) }
    }
    answer
}

/// What was granted for a virtual fd lies at the very number that the program wants: the lowest
/// that was free.
fn keep_there(fd: RawFd, flags: i32) -> isize {
    let flags = if flags & libc::O_CLOEXEC != 0 { libc::FD_CLOEXEC } else { 0 };
    // SAFETY: F_SETFD takes a number.
    match unsafe { raw::fcntl(fd, libc::F_SETFD, flags as usize) } {
        answer if raw::is_error(answer) => answer,
        _ => fd as isize,
    }
}

/// # Safety
/// That of fcntl(2) with this command.
pub unsafe fn fcntl(fd: RawFd, command: i32, argument: usize) -> isize {
    // SAFETY: the caller's promise.
    let call = |fd| unsafe { raw::fcntl(fd, command, argument) };
    match (command, VirtualFd::new(fd)) {
        (libc::F_DUPFD | libc::F_DUPFD_CLOEXEC, _) => duplicated(fd, call),
        (_, None) => call(fd),
        // What a program asks before it hands the number on over exec.
        (libc::F_GETFD, Some(_)) if source::is_borrowed() => libc::FD_CLOEXEC as isize,
        (libc::F_SETFD, Some(_)) if source::is_borrowed() => 0,
        (libc::F_GETFL, Some(_)) if source::is_borrowed() => libc::O_RDWR as isize,
        // Asked of an fd for the time of the call, so that a number without an allocation answers
        // EBADF.
        (libc::F_GETFD | libc::F_SETFD | libc::F_GETFL, Some(number)) => {
            Fresh::of(number).map_or_else(raw::failed, |fresh| call(fresh.fd()))
        }
        (_, Some(_)) => refused::refuse(libc::SYS_fcntl),
    }
}

/// Duplicates an fd by `duplicate`, which answers the new one.
fn duplicated(fd: RawFd, duplicate: impl FnOnce(RawFd) -> isize) -> isize {
    if let Some(number) = VirtualFd::new(fd) {
        return match Fresh::of(number) {
            Ok(fresh) => {
                let answer = duplicate(fresh.fd());
                fresh.keep_duplicate(answer)
            }
            Err(errno) => raw::failed(errno),
        };
    }
    if !table::is_marked(fd) || !process::owns_memory() {
        return duplicate(fd);
    }
    let mark = table::share(fd);
    let answer = duplicate(fd);
    if let Some(mark) = mark.filter(|_| !raw::is_error(answer)) {
        table::put(answer as RawFd, mark);
    }
    answer
}
