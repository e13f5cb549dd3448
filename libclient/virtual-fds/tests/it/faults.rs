//! What the program gets when the layer has no fd to give, or is at fault.

use crate::support::*;
use nix::errno::Errno;

fn get_fd(number: i32) -> i32 {
    // SAFETY: numbers.
    unsafe { libc::syscall(libc::SYS_pidfd_getfd, -1, number, 0) as i32 }
}

#[test]
fn grant_when_it_fails_then_its_errno() {
    for errno in [Errno::EBADF, Errno::EMFILE, Errno::EAGAIN] {
        let exported = export_in_mood(b"x", Mood::Failing(errno));
        assert_eq!(errno_of(get_fd(exported.0)), errno);
        // SAFETY: a number.
        assert_eq!(errno_of(unsafe { libc::dup(exported.0) }), errno);
    }
}

#[test]
fn grant_when_it_panics_then_ebadf() {
    let exported = export_in_mood(b"x", Mood::Panicking);
    assert_eq!(errno_of(get_fd(exported.0)), Errno::EBADF);
}

#[test]
fn calls_when_the_number_is_unknown_then_ebadf() {
    let unknown = i32::MAX;
    let mut into = std::mem::MaybeUninit::<libc::stat>::uninit();
    let mut byte = 0u8;
    let byte = (&raw mut byte).cast();
    // SAFETY: a number that nothing is behind, and room for what would be answered.
    let answers = unsafe {
        [
            i64::from(get_fd(unknown)),
            libc::close(unknown).into(),
            libc::dup(unknown).into(),
            libc::fcntl(unknown, libc::F_GETFD).into(),
            libc::fcntl(unknown, libc::F_GETLK, 0).into(),
            libc::fstat(unknown, into.as_mut_ptr()).into(),
            libc::lseek(unknown, 0, libc::SEEK_END),
            libc::read(unknown, byte, 1) as i64,
            libc::ftruncate(unknown, 1).into(),
            libc::ioctl(unknown, libc::FIOCLEX).into(),
        ]
    };
    assert_eq!(Errno::last(), Errno::EBADF);
    assert_eq!(answers, [-1; 10]);
}

#[test]
fn calls_when_in_a_child_that_shares_memory_then_no_fd_no_end_and_flags_are_answered() {
    let exported = export(b"x");
    extern "C" fn body(number: *mut libc::c_void) -> libc::c_int {
        let number = number.addr() as i32;
        // SAFETY: numbers, in a child that leaves at once.
        unsafe {
            let is_closed = libc::close(number) == 0;
            let is_refused = libc::dup(number) == -1 && Errno::last() == Errno::EBADF;
            let is_set = libc::fcntl(number, libc::F_SETFD, 0) == 0
                && libc::ioctl(number, libc::FIONCLEX) == 0;
            let flags = [libc::F_GETFD, libc::F_GETFL].map(|one| libc::fcntl(number, one));
            let is_answered = is_set && flags == [libc::FD_CLOEXEC, libc::O_RDWR];
            libc::c_int::from(!(is_closed && is_refused && is_answered))
        }
    }
    let mut stack = vec![0u8; 64 << 10];
    let argument = std::ptr::without_provenance_mut(exported.0 as usize);
    // SAFETY: a stack that outlives the child, for which the kernel stops this thread: the frame is
    // vfork(2)'s.
    let child = unsafe {
        let top = stack.as_mut_ptr().add(stack.len()).cast();
        libc::clone(body, top, libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD, argument)
    };
    let status = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(child), None).unwrap();
    assert_eq!(status, nix::sys::wait::WaitStatus::Exited(nix::unistd::Pid::from_raw(child), 0));
    assert_eq!(exported.open_leases(), 0);
    // SAFETY: a virtual number.
    assert_eq!(unsafe { libc::close(exported.0) }, 0);
}
