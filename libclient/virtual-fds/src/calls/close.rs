//! close(2), close_range(2), closefrom(3). Must never close an fd of the layer for the program.

use crate::limits::OWN_FDS_MOST;
use crate::{process, raw, source, table};
use fdbroker_protocol::VirtualFd;
use nix::errno::Errno;
use std::os::fd::RawFd;

pub fn close(fd: RawFd) -> isize {
    if let Some(number) = VirtualFd::new(fd) {
        return source::end(number).map_or_else(raw::failed, |()| 0);
    }
    if source::is_own(fd) {
        return raw::failed(Errno::EBADF);
    }
    // A child of vfork(2) has an fd table of its own, but its parent's marks.
    let mark = if table::is_marked(fd) && process::owns_memory() { table::take(fd) } else { None };
    match mark {
        Some(mark) => source::close_granted(fd, mark),
        None => raw::close(fd),
    }
}

/// Leaves out the layer's own fds, and ends the virtual fds that this process has exported, as far
/// as they are in the range.
pub fn close_range(first: u32, last: u32, flags: u32) -> isize {
    let answer = close_real(first, last, flags);
    let ends = answer == 0 && flags & libc::CLOSE_RANGE_CLOEXEC == 0;
    if ends && last >= VirtualFd::FIRST as u32 {
        source::end_range(first..=last);
    }
    answer
}

fn close_real(first: u32, last: u32, flags: u32) -> isize {
    let mut room = [0; OWN_FDS_MOST];
    let own = source::own_fds(&mut room);
    let marks_only = flags & libc::CLOSE_RANGE_CLOEXEC != 0;
    let mut from = first;
    for fd in own.iter().filter_map(|fd| u32::try_from(*fd).ok()) {
        if fd < from || fd > last {
            continue;
        }
        if fd > from {
            let answer = close_all(from, fd - 1, flags, marks_only);
            if answer != 0 {
                return answer;
            }
        }
        from = fd + 1;
    }
    if from > last && first <= last { 0 } else { close_all(from, last, flags, marks_only) }
}

/// closefrom(3): a negative number is 0.
pub fn close_from(first: RawFd) {
    close_range(u32::try_from(first).unwrap_or(0), u32::MAX, 0);
}

fn close_all(first: u32, last: u32, flags: u32, stay_open: bool) -> isize {
    if !stay_open && first <= last && process::owns_memory() {
        table::take_all(first..=last);
    }
    // SAFETY: numbers; what the program loses is its own matter.
    unsafe {
        raw::call(libc::SYS_close_range, [first as usize, last as usize, flags as usize, 0, 0, 0])
    }
}
