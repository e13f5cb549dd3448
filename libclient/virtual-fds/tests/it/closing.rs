//! close(2), close_range(2), closefrom(3): of virtual fds, in children, and of the layer's own fds.

use crate::support::*;
use nix::errno::Errno;

unsafe extern "C" {
    // glibc 2.34.
    fn closefrom(first: i32);
}

#[test]
fn close_when_exported_twice_then_the_second_ends_it() {
    let exported = export(b"x");
    exported.again();
    // SAFETY: virtual numbers.
    unsafe {
        assert_eq!(libc::close(exported.0), 0);
        let fd = libc::dup(exported.0);
        assert!(fd >= 0);
        libc::close(fd);
        assert_eq!(libc::syscall(libc::SYS_close, exported.0), 0);
        assert_eq!(errno_of(libc::close(exported.0)), Errno::EBADF);
        assert_eq!(errno_of(libc::dup(exported.0)), Errno::EBADF);
    }
}

#[test]
fn close_when_in_a_child_then_answers_0_and_ends_nothing() {
    let exported = export(b"x");
    // The second time the child's copy of the layer does not know it, as a broker does not know the
    // child.
    let twice = [exported.0; 2];
    // SAFETY: a virtual number.
    let status = in_child(|| unsafe { u8::from(twice.map(|fd| libc::close(fd)) != [0; 2]) });
    assert_eq!(status, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::close(exported.0) }, 0);
}

#[test]
fn close_when_the_fd_is_the_layers_own_then_ebadf_and_it_stays_open() {
    let fd = eventfd();
    set_own(raw(&fd), true);
    // SAFETY: it is refused.
    unsafe {
        assert_eq!(errno_of(libc::close(raw(&fd))), Errno::EBADF);
        assert_eq!(errno_of(libc::syscall(libc::SYS_close, raw(&fd))), Errno::EBADF);
        assert_eq!(errno_of(libc::dup2(0, raw(&fd))), Errno::EBADF);
        assert_eq!(errno_of(libc::dup3(0, raw(&fd), 0)), Errno::EBADF);
        assert_eq!(errno_of(libc::syscall(libc::SYS_dup3, 0, raw(&fd), 0)), Errno::EBADF);
    }
    set_own(raw(&fd), false);
    assert!(is_open(raw(&fd)));
}

#[test]
fn close_range_when_it_has_own_fds_then_these_stay_open_and_others_are_closed() {
    // A child, which has the fds of no other test to lose.
    let status = in_child(|| {
        // SAFETY: a child's own fds.
        unsafe {
            let first = libc::fcntl(0, libc::F_DUPFD, 500);
            let [second, third, fourth] = [1, 2, 3].map(|more| libc::dup2(0, first + more));
            set_own(second, true);
            let answer = libc::close_range(first as u32, fourth as u32, 0);
            let open = [first, second, third, fourth].map(is_open);
            u8::from(answer != 0 || open != [false, true, false, false])
        }
    });
    assert_eq!(status, 0);
}

#[test]
fn closefrom_when_it_meets_own_fds_then_these_stay_open() {
    let status = in_child(|| {
        // SAFETY: a child's own fds.
        unsafe {
            let first = libc::fcntl(0, libc::F_DUPFD, 500);
            let second = libc::dup2(0, first + 1);
            set_own(first, true);
            closefrom(first);
            u8::from([first, second].map(is_open) != [true, false])
        }
    });
    assert_eq!(status, 0);
}

#[test]
fn close_range_when_it_has_granted_fds_then_their_leases_end() {
    let exported = export(b"x");
    // Numbers that no other test gets.
    // SAFETY: the fds are of this test.
    unsafe {
        let fd = libc::fcntl(exported.0, libc::F_DUPFD_CLOEXEC, 900);
        assert_eq!(exported.open_leases(), 1);
        assert_eq!(libc::close_range(fd as u32, fd as u32, libc::CLOSE_RANGE_CLOEXEC as i32), 0);
        assert_eq!(exported.open_leases(), 1);
        assert_eq!(libc::close_range(fd as u32, fd as u32, 0), 0);
    }
    exported.wait_for_leases(0);
}
