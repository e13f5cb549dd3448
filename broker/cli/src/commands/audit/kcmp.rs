//! kcmp(2): whether two fds are of one file, and whether two threads have one fd table. Must never
//! take two things for one unless the kernel says so.

use nix::errno::Errno;
use std::cmp::Ordering;

/// What is compared (include/uapi/linux/kcmp.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// The files of two fds.
    File = 0,
    /// The fd tables of two threads; the fds mean nothing.
    Table = 2,
}

/// The kernel's order of the two; `None`: one of them is gone. Each is a process or thread, and an
/// fd of it.
pub fn kcmp(question: Question, a: (u32, i32), b: (u32, i32)) -> Result<Option<Ordering>, String> {
    let question = question as libc::c_int;
    // SAFETY: compares two fds or two fd tables of two processes, touches no memory.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, a.0, b.0, question, a.1, b.1) };
    match order {
        0 => Ok(Some(Ordering::Equal)),
        1 => Ok(Some(Ordering::Less)),
        2 => Ok(Some(Ordering::Greater)),
        // 3: not equal, and no order is known.
        3 => Err("it knows no order".into()),
        _ => match Errno::last() {
            Errno::ESRCH | Errno::EBADF => Ok(None),
            errno => Err(errno.to_string()),
        },
    }
}
