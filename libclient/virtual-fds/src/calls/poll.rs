//! poll(2) and ppoll(2): virtual fds are polled as real fds, which live for the time of the call.
//! Must never write more of the program's list than `revents`.

use crate::limits::POLL_ENTRIES;
use crate::source::Fresh;
use fdbroker_protocol::VirtualFd;
use libc::pollfd;

/// Whether a virtual fd is polled.
///
/// # Safety
/// That of poll(2).
pub unsafe fn has_virtual(entries: *const pollfd, count: usize) -> bool {
    // SAFETY: the caller's promise: as many entries.
    let is_virtual = |index| VirtualFd::new(unsafe { (*entries.add(index)).fd }).is_some();
    !entries.is_null() && count <= POLL_ENTRIES && (0..count).any(is_virtual)
}

/// Polls by `call`, which gets a copy of the list with real fds. What has ended is polled as it is,
/// and reads POLLNVAL.
///
/// # Safety
/// That of poll(2); `has_virtual` said yes.
pub unsafe fn with_real(
    entries: *mut pollfd,
    count: usize,
    call: impl FnOnce(*mut pollfd) -> isize,
) -> isize {
    // SAFETY: the caller's promise: a list that is not null.
    let programs = unsafe { std::slice::from_raw_parts_mut(entries, count) };
    let mut copy = programs.to_vec();
    let mut fresh = Vec::new();
    for entry in &mut copy {
        if let Some(real) = VirtualFd::new(entry.fd).and_then(|number| Fresh::of(number).ok()) {
            entry.fd = real.fd();
            fresh.push(real);
        }
    }
    let answer = call(copy.as_mut_ptr());
    for (program, polled) in programs.iter_mut().zip(&copy) {
        program.revents = polled.revents;
    }
    answer
}
