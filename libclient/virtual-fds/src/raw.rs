//! System calls without the C library: its functions may be this crate's own. Must never allocate,
//! take a lock or set errno.

use crate::limits::ARGUMENTS;
use libc::c_long;
use nix::errno::Errno;
use std::arch::asm;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// The smallest answer that is an errno, negated: MAX_ERRNO of the kernel (include/linux/err.h).
const LAST_ERRNO: isize = -4095;

/// Makes a system call. The answer is the kernel's: a value, or an errno negated.
///
/// # Safety
/// That of the system call.
#[cfg(target_arch = "x86_64")]
pub unsafe fn call(number: c_long, args: [usize; ARGUMENTS]) -> isize {
    let answer;
    // SAFETY: the kernel's convention (syscall(2), "Architecture calling conventions"): it changes
    // rax, rcx and r11 alone, and memory as the call says, which is the caller's promise.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => answer, in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    answer
}

/// Makes a system call. The answer is the kernel's: a value, or an errno negated.
///
/// # Safety
/// That of the system call.
#[cfg(target_arch = "aarch64")]
pub unsafe fn call(number: c_long, args: [usize; ARGUMENTS]) -> isize {
    let answer;
    // SAFETY: the kernel's convention (syscall(2), "Architecture calling conventions"): it changes
    // x0 alone, and memory as the call says, which is the caller's promise.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") args[0] => answer, in("x1") args[1], in("x2") args[2],
            in("x3") args[3], in("x4") args[4], in("x5") args[5], options(nostack));
    }
    answer
}

/// The kernel's answer for this errno.
pub fn failed(errno: Errno) -> isize {
    -(errno as isize)
}

pub fn is_error(answer: isize) -> bool {
    (LAST_ERRNO..0).contains(&answer)
}

/// The kernel's answer as the C library gives it: errno is set, and -1 answered.
pub fn to_c(answer: isize) -> isize {
    if !is_error(answer) {
        return answer;
    }
    Errno::set_raw(-answer as i32);
    -1
}

/// An fd as an argument.
pub fn arg(fd: RawFd) -> usize {
    fd as usize
}

/// The process that calls, whatever a library has kept of its number: a child of vfork(2) has
/// another one.
pub fn getpid() -> i32 {
    // SAFETY: it has no argument and cannot fail.
    unsafe { call(libc::SYS_getpid, [0; ARGUMENTS]) as i32 }
}

pub fn close(fd: RawFd) -> isize {
    // SAFETY: a number; what the program loses with it is the caller's matter.
    unsafe { call(libc::SYS_close, [arg(fd), 0, 0, 0, 0, 0]) }
}

pub fn dup(fd: RawFd) -> isize {
    // SAFETY: a number.
    unsafe { call(libc::SYS_dup, [arg(fd), 0, 0, 0, 0, 0]) }
}

pub fn dup3(fd: RawFd, onto: RawFd, flags: i32) -> isize {
    // SAFETY: numbers; what the program loses with `onto` is the caller's matter.
    unsafe { call(libc::SYS_dup3, [arg(fd), arg(onto), flags as usize, 0, 0, 0]) }
}

/// # Safety
/// That of fcntl(2) with this command.
pub unsafe fn fcntl(fd: RawFd, command: i32, argument: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { call(libc::SYS_fcntl, [arg(fd), command as usize, argument, 0, 0, 0]) }
}

/// An eventfd that polls readable.
pub fn readable_eventfd() -> isize {
    let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
    // SAFETY: numbers.
    unsafe { call(libc::SYS_eventfd2, [1, flags as usize, 0, 0, 0, 0]) }
}

/// Sleeps while the word is `seen`, no longer than `most`; may wake early.
pub fn wait(word: &AtomicU32, seen: u32, most: Option<Duration>) {
    let operation = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
    let most = most.map(|most| libc::timespec {
        tv_sec: most.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(most.subsec_nanos() as i32),
    });
    let most = most.as_ref().map_or(0, |time| std::ptr::from_ref(time).expose_provenance());
    let args = [word.as_ptr().addr(), operation, seen as usize, most, 0, 0];
    // SAFETY: the word and the time, if one is given, outlive the call.
    unsafe { call(libc::SYS_futex, args) };
}

/// Wakes one that sleeps on the word.
pub fn wake(word: &AtomicU32) {
    let operation = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: the word outlives the call; only its address counts.
    unsafe { call(libc::SYS_futex, [word.as_ptr().addr(), operation, 1, 0, 0, 0]) };
}

/// Whether the program's memory can be read, as the kernel would say of an argument (EFAULT).
pub fn is_readable(address: usize, bytes: usize) -> bool {
    const PAGE: usize = 4096;
    /// rt_sigprocmask(2) reads its set of signals, 8 bytes, and then refuses to do this with it.
    const NOTHING: usize = usize::MAX;
    const SET: usize = 8;
    let Some(end) = address.checked_add(bytes) else { return false };
    let mut at = address;
    while at < end {
        // Within the page; 0 would be no set.
        let set = (at & !(SET - 1)).max(SET);
        // SAFETY: it reads the set, if it can, and changes nothing.
        let answer = unsafe { call(libc::SYS_rt_sigprocmask, [NOTHING, set, 0, SET, 0, 0]) };
        if answer == failed(Errno::EFAULT) {
            return false;
        }
        at = (at | (PAGE - 1)).saturating_add(1);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_when_the_fd_is_not_open_then_answers_ebadf() {
        assert_eq!(close(-1), failed(Errno::EBADF));
        assert_eq!(to_c(close(-1)), -1);
        assert_eq!(Errno::last(), Errno::EBADF);
    }

    #[test]
    fn is_readable_when_a_page_of_it_is_not_then_no() {
        let bytes = vec![0u8; 3 * 4096];
        assert!(is_readable(bytes.as_ptr().addr(), bytes.len()) && is_readable(8, 0));
        assert!(!is_readable(8, 64) && !is_readable(usize::MAX, 2));
    }

    #[test]
    fn to_c_when_the_answer_is_an_address_then_it_is_no_error() {
        assert_eq!(to_c(LAST_ERRNO - 1), LAST_ERRNO - 1);
        assert_eq!(to_c(LAST_ERRNO), -1);
    }
}
