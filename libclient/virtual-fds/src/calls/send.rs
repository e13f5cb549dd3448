//! sendmsg(2) and sendmmsg(2): virtual fds in SCM_RIGHTS travel as real fds, which live for the
//! time of the call. Must never write to the program's own message.

use crate::limits::{CONTROL_BYTES, FDS_PER_MESSAGE, MESSAGES_PER_CALL};
use crate::raw;
use crate::source::Fresh;
use fdbroker_protocol::VirtualFd;
use libc::{c_int, c_uint, cmsghdr, mmsghdr, msghdr};
use nix::errno::Errno;
use std::os::fd::RawFd;

/// Where the data of a control message begins, and to what its length is rounded: CMSG_LEN(0) and
/// CMSG_ALIGN of the kernel.
const HEADER: usize = size_of::<cmsghdr>();
const ALIGN: usize = size_of::<usize>();

/// # Safety
/// That of sendmsg(2).
pub unsafe fn sendmsg(socket: RawFd, message: *const msghdr, flags: c_int) -> isize {
    // SAFETY: the caller's promise.
    let send = |message: *const msghdr| unsafe {
        raw::call(libc::SYS_sendmsg, [raw::arg(socket), message.addr(), flags as usize, 0, 0, 0])
    };
    // SAFETY: the caller's promise.
    if !unsafe { has_virtual(message) } {
        return send(message);
    }
    // SAFETY: the caller's promise.
    match unsafe { Copy::of(&*message) } {
        Ok(copy) => {
            // SAFETY: the caller's promise.
            let mut message = unsafe { *message };
            message.msg_control = copy.control.as_ptr().cast_mut().cast();
            send(&raw const message)
        }
        Err(errno) => raw::failed(errno),
    }
}

/// # Safety
/// That of sendmmsg(2).
pub unsafe fn sendmmsg(
    socket: RawFd,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> isize {
    let looked_at = (count as usize).min(MESSAGES_PER_CALL);
    // SAFETY: the caller's promise.
    let at = |index: usize| unsafe { messages.add(index) };
    // SAFETY: the caller's promise.
    if !(0..looked_at).any(|index| unsafe { has_virtual(&raw const (*at(index)).msg_hdr) }) {
        let args = [raw::arg(socket), messages.addr(), count as usize, flags as usize, 0, 0];
        // SAFETY: the caller's promise.
        return unsafe { raw::call(libc::SYS_sendmmsg, args) };
    }
    for index in 0..looked_at {
        // SAFETY: the caller's promise.
        let answer = unsafe { sendmsg(socket, &raw const (*at(index)).msg_hdr, flags) };
        if raw::is_error(answer) {
            // As the kernel does: an error after the first message is told by the next call.
            return if index == 0 { answer } else { index as isize };
        }
        // SAFETY: the caller's promise.
        unsafe { (*at(index)).msg_len = answer as c_uint };
    }
    looked_at as isize
}

/// A copy of the control data, with real fds in the place of virtual ones.
struct Copy {
    control: Vec<usize>,
    /// The fds live until the message is sent. (Declared after what names them.)
    _fresh: Vec<Fresh>,
}

impl Copy {
    /// # Safety
    /// The message's control data can be read.
    unsafe fn of(message: &msghdr) -> Result<Copy, Errno> {
        let length = message.msg_controllen;
        let mut control = vec![0usize; length.div_ceil(size_of::<usize>())];
        // SAFETY: the caller's promise, and room for as many bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(
                message.msg_control.cast::<u8>(),
                control.as_mut_ptr().cast(),
                length,
            )
        };
        let mut fresh = Vec::new();
        for at in fd_places(control.as_ptr().cast(), length) {
            let place = control.as_mut_ptr().cast::<RawFd>().wrapping_byte_add(at);
            // SAFETY: a place within the copy, aligned as an fd is.
            let Some(number) = VirtualFd::new(unsafe { *place }) else { continue };
            if fresh.len() == FDS_PER_MESSAGE {
                return Err(Errno::EINVAL);
            }
            let real = Fresh::to_send(number)?;
            // SAFETY: as above.
            unsafe { *place = real.fd() };
            fresh.push(real);
        }
        Ok(Copy { control, _fresh: fresh })
    }
}

/// Whether a virtual fd is to be sent.
///
/// # Safety
/// That of sendmsg(2).
unsafe fn has_virtual(message: *const msghdr) -> bool {
    // SAFETY: the caller's promise; null is the kernel's to refuse.
    let Some(message) = (unsafe { message.as_ref() }) else { return false };
    let length = message.msg_controllen;
    if message.msg_control.is_null() || !(HEADER..=CONTROL_BYTES).contains(&length) {
        return false;
    }
    let control = message.msg_control.cast_const().cast::<u8>();
    if !raw::is_readable(control.addr(), length) {
        // The kernel answers EFAULT.
        return false;
    }
    fd_places(control, length).any(|at| {
        // SAFETY: a place within the control data, as the caller promises; it need not be aligned.
        VirtualFd::new(unsafe { control.add(at).cast::<RawFd>().read_unaligned() }).is_some()
    })
}

/// Where in the control data fds stand, in bytes from its begin: all data of messages of
/// SCM_RIGHTS, as the kernel reads them (cmsg(3)). It ends at the first message that does not fit.
fn fd_places(control: *const u8, length: usize) -> impl Iterator<Item = usize> {
    let mut next = 0;
    std::iter::from_fn(move || {
        if length.checked_sub(next)? < HEADER {
            return None;
        }
        // SAFETY: a header fits before the end, by the line above.
        let header = unsafe { control.add(next).cast::<cmsghdr>().read_unaligned() };
        let size = header.cmsg_len;
        if size < HEADER || size > length - next {
            return None;
        }
        let data = next + HEADER..next + size;
        next += size.next_multiple_of(ALIGN);
        let is_rights =
            header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS;
        let count = if is_rights { data.len() / size_of::<RawFd>() } else { 0 };
        Some((0..count).map(move |index| data.start + index * size_of::<RawFd>()))
    })
    .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Control data of one message with these fds.
    fn rights(fds: &[RawFd]) -> Vec<u8> {
        let length = HEADER + size_of_val(fds);
        let mut bytes = Vec::new();
        bytes.extend(length.to_ne_bytes());
        bytes.extend(libc::SOL_SOCKET.to_ne_bytes());
        bytes.extend(libc::SCM_RIGHTS.to_ne_bytes());
        fds.iter().for_each(|fd| bytes.extend(fd.to_ne_bytes()));
        bytes.resize(length.next_multiple_of(ALIGN), 0);
        bytes
    }

    #[test]
    fn fd_places_when_two_messages_then_all_fds_of_both() {
        let bytes = [rights(&[3]), rights(&[4, 5])].concat();
        let places: Vec<usize> = fd_places(bytes.as_ptr(), bytes.len()).collect();
        assert_eq!(places, [HEADER, 2 * HEADER + ALIGN, 2 * HEADER + ALIGN + 4]);
    }

    #[test]
    fn fd_places_when_a_length_is_wrong_then_it_ends_there() {
        for wrong in [0usize, HEADER - 1, HEADER + 9, usize::MAX] {
            let mut bytes = rights(&[3]);
            bytes[..size_of::<usize>()].copy_from_slice(&wrong.to_ne_bytes());
            assert_eq!(fd_places(bytes.as_ptr(), bytes.len()).count(), 0, "{wrong}");
        }
        let bytes = rights(&[3]);
        assert_eq!(fd_places(bytes.as_ptr(), HEADER - 1).count(), 0);
    }
}
