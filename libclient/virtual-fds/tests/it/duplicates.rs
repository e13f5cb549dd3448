//! dup(2) and its kind: of virtual fds, and of granted fds, whose lease they share.

use crate::support::*;
use nix::errno::Errno;

#[test]
fn dup_when_virtual_then_a_real_fd_with_a_lease() {
    let exported = export(b"hello");
    // SAFETY: numbers; the target of dup2 and dup3 is this test's.
    unsafe {
        let target = libc::fcntl(0, libc::F_DUPFD, 600);
        let made = [
            libc::dup(exported.0),
            libc::fcntl(exported.0, libc::F_DUPFD, 3),
            libc::fcntl(exported.0, libc::F_DUPFD_CLOEXEC, 3),
            libc::syscall(libc::SYS_dup, exported.0) as i32,
            libc::dup2(exported.0, target),
        ];
        assert_eq!(made[4], target);
        assert_eq!(made.map(|fd| content(fd, 5)), [b"hello"; 5]);
        assert_eq!(made.map(|fd| libc::fcntl(fd, libc::F_GETFD)), [0, 0, libc::FD_CLOEXEC, 0, 0]);
        assert_eq!(exported.open_leases(), 5);
        assert_eq!(libc::dup3(exported.0, target, libc::O_CLOEXEC), target);
        assert_eq!(libc::fcntl(target, libc::F_GETFD), libc::FD_CLOEXEC);
        assert_eq!(made.map(|fd| libc::close(fd)), [0; 5]);
    }
    exported.wait_for_leases(0);
}

#[test]
fn close_when_a_duplicate_is_left_then_the_lease_stays_until_the_last() {
    let exported = export(b"x");
    // SAFETY: this test's fds.
    unsafe {
        let first = libc::dup(exported.0);
        let second = libc::dup(first);
        let third = libc::fcntl(second, libc::F_DUPFD, 3);
        let fourth = libc::dup2(third, libc::fcntl(0, libc::F_DUPFD, 700));
        for fd in [first, second, third] {
            assert_eq!(libc::close(fd), 0);
            assert_eq!(exported.open_leases(), 1);
        }
        assert!(fdbroker_virtual_fds::lease_of(fourth).is_some());
        assert_eq!(libc::close(fourth), 0);
        assert!(fdbroker_virtual_fds::lease_of(fourth).is_none());
    }
    exported.wait_for_leases(0);
}

#[test]
fn dup2_when_it_replaces_a_granted_fd_then_that_ones_lease_ends() {
    let exported = export(b"x");
    // SAFETY: this test's fd.
    unsafe {
        let fd = libc::dup(exported.0);
        assert_eq!(errno_of(libc::dup2(-1, fd)), Errno::EBADF);
        assert!(fdbroker_virtual_fds::lease_of(fd).is_some());
        assert_eq!(libc::dup2(0, fd), fd);
        exported.wait_for_leases(0);
        libc::close(fd);
    }
}

#[test]
fn dup2_when_onto_itself_or_onto_a_virtual_number_then_as_the_kernel_answers() {
    let exported = export(b"x");
    // SAFETY: nothing is made.
    unsafe {
        assert_eq!(libc::dup2(0, 0), 0);
        assert_eq!(errno_of(libc::dup2(-1, -1)), Errno::EBADF);
        assert_eq!(errno_of(libc::dup3(0, 0, 0)), Errno::EINVAL);
        assert_eq!(errno_of(libc::dup2(0, exported.0)), Errno::EBADF);
    }
    assert_eq!(exported.open_leases(), 0);
}

#[test]
fn lease_when_the_layer_keeps_it_then_it_outlives_the_fd() {
    let exported = export(b"x");
    // A number that no other test gets.
    // SAFETY: this test's fd.
    let fd = unsafe { libc::fcntl(exported.0, libc::F_DUPFD, 800) };
    let kept = fdbroker_virtual_fds::lease_of(fd).unwrap();
    // SAFETY: as above.
    unsafe { libc::close(fd) };
    assert!(fdbroker_virtual_fds::lease_of(fd).is_none());
    assert_eq!(exported.open_leases(), 1);
    drop(kept);
    exported.wait_for_leases(0);
}
