//! pidfd_getfd(2) of virtual fds, and the placeholder for a process that this one cannot see.

use crate::support::*;
use nix::errno::Errno;

unsafe extern "C" {
    // glibc 2.36.
    fn pidfd_getfd(pidfd: i32, fd: i32, flags: u32) -> i32;
    fn pidfd_open(pid: i32, flags: u32) -> i32;
    fn pidfd_send_signal(pidfd: i32, signal: i32, info: *const libc::siginfo_t, flags: u32) -> i32;
}

/// A number that is no process: above the kernel's largest (PID_MAX_LIMIT).
const NOBODY: i32 = 1 << 23;

#[test]
fn getfd_when_virtual_then_a_granted_fd_whatever_the_pidfd() {
    let exported = export(b"hello");
    // SAFETY: numbers.
    unsafe {
        let by_syscall = |number: i32| libc::syscall(libc::SYS_pidfd_getfd, 0, number, 0) as i32;
        for by_name in [true, false] {
            let fd = if by_name { pidfd_getfd(-1, exported.0, 0) } else { by_syscall(exported.0) };
            assert_eq!(content(fd, 5), b"hello");
            assert_eq!(libc::fcntl(fd, libc::F_GETFD), libc::FD_CLOEXEC);
            assert_eq!(exported.open_leases(), 1);
            libc::close(fd);
            exported.wait_for_leases(0);
        }
        assert_eq!(errno_of(pidfd_getfd(-1, exported.0, 1)), Errno::EINVAL);
    }
}

#[test]
fn placeholder_when_there_is_no_such_process_then_readable_and_esrch_to_all_but_virtual_fds() {
    let exported = export(b"hello");
    // SAFETY: numbers, and structures that outlive the calls.
    unsafe {
        let by_syscall = libc::syscall(libc::SYS_pidfd_open, NOBODY, 0) as i32;
        let by_name = pidfd_open(NOBODY, 0);
        // A number that no other test gets.
        let duplicate = libc::fcntl(by_name, libc::F_DUPFD, 1000);
        for pidfd in [by_syscall, by_name, duplicate] {
            let mut entry = libc::pollfd { fd: pidfd, events: libc::POLLIN, revents: 0 };
            assert_eq!(libc::poll(&raw mut entry, 1, 0), 1);
            let mut info = std::mem::zeroed::<libc::siginfo_t>();
            let waited = libc::waitid(libc::P_PIDFD, pidfd as u32, &raw mut info, libc::WEXITED);
            assert_eq!(errno_of(waited), Errno::ESRCH);
            let signalled = pidfd_send_signal(pidfd, 0, std::ptr::null(), 0);
            assert_eq!(errno_of(signalled), Errno::ESRCH);
            let signalled = libc::syscall(libc::SYS_pidfd_send_signal, pidfd, 0, 0, 0);
            assert_eq!(errno_of(signalled), Errno::ESRCH);
            assert_eq!(errno_of(pidfd_getfd(pidfd, 0, 0)), Errno::ESRCH);
            let fd = pidfd_getfd(pidfd, exported.0, 0);
            assert_eq!(content(fd, 5), b"hello");
            assert_eq!(libc::close(fd) + libc::close(pidfd), 0);
        }
        // The number is another fd's now, and that is no placeholder.
        let again = libc::dup2(0, duplicate);
        assert_eq!(errno_of(pidfd_send_signal(again, 0, std::ptr::null(), 0)), Errno::EBADF);
        libc::close(again);
    }
}

#[test]
fn pidfd_when_the_process_lives_then_the_kernels_own() {
    // SAFETY: numbers.
    unsafe {
        let own = pidfd_open(libc::getpid(), 0);
        let fd = pidfd_getfd(own, 0, 0);
        assert!(fd >= 0);
        assert_eq!(pidfd_send_signal(own, 0, std::ptr::null(), 0), 0);
        assert_eq!(errno_of(pidfd_open(NOBODY, u32::MAX)), Errno::EINVAL);
        libc::close(fd);
        libc::close(own);
    }
}
