//! The layout of control messages (cmsg(3)): sizes, and a walk over what the kernel wrote.
//! It must never read past the bytes it was given, whatever lengths they claim. It owns no fd.

use std::mem::size_of;
use std::os::fd::RawFd;

/// The most fds one message can carry, all control messages summed.
/// Source: `SCM_MAX_FD` in the kernel's `include/net/scm.h`, unix(7).
pub const MAX_FDS: usize = 253;

/// Bytes of a control message header including its padding; the data follows.
// SAFETY: `CMSG_LEN` is arithmetic on its argument alone.
pub(crate) const HEADER_LEN: usize = unsafe { libc::CMSG_LEN(0) } as usize;

/// Bytes of one control message with `fds` fds, without trailing padding.
pub(crate) const fn len_for(fds: usize) -> usize {
    HEADER_LEN + fds * size_of::<RawFd>()
}

/// Bytes of buffer one control message with `data_len` bytes takes, trailing padding included.
pub(crate) const fn space_for(data_len: usize) -> usize {
    align(HEADER_LEN + data_len)
}

/// Control messages are aligned like `size_t` (the kernel's `CMSG_ALIGN`).
const fn align(len: usize) -> usize {
    len.next_multiple_of(size_of::<usize>())
}

/// One control message as received.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ControlMessage<'a> {
    pub level: i32,
    pub kind: i32,
    pub data: &'a [u8],
}

impl<'a> ControlMessage<'a> {
    /// The data read as fd numbers; an incomplete number at the end is left out.
    pub(crate) fn fd_numbers(&self) -> impl Iterator<Item = RawFd> + use<'a> {
        let (numbers, _incomplete) = self.data.as_chunks::<{ size_of::<RawFd>() }>();
        numbers.iter().map(|bytes| RawFd::from_ne_bytes(*bytes))
    }
}

/// Walks the control messages in a buffer.
pub(crate) struct ControlMessages<'a> {
    rest: &'a [u8],
}

impl<'a> ControlMessages<'a> {
    pub(crate) fn new(control: &'a [u8]) -> Self {
        Self { rest: control }
    }
}

impl<'a> Iterator for ControlMessages<'a> {
    type Item = ControlMessage<'a>;

    fn next(&mut self) -> Option<ControlMessage<'a>> {
        if self.rest.len() < HEADER_LEN {
            return None;
        }
        // SAFETY: at least a whole header is readable, the read needs no alignment, and every bit
        // pattern is a valid `cmsghdr`.
        let header: libc::cmsghdr =
            unsafe { self.rest.as_ptr().cast::<libc::cmsghdr>().read_unaligned() };
        #[allow(clippy::unnecessary_cast)] // u32 on musl
        let len = (header.cmsg_len as usize).min(self.rest.len());
        let data = self.rest.get(HEADER_LEN..len)?;
        self.rest = self.rest.get(align(len)..).unwrap_or_default();
        Some(ControlMessage { level: header.cmsg_level, kind: header.cmsg_type, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control_message(level: i32, kind: i32, claimed_len: usize, data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&claimed_len.to_ne_bytes());
        bytes.extend_from_slice(&level.to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        assert_eq!(bytes.len(), HEADER_LEN);
        bytes.extend_from_slice(data);
        bytes
    }

    fn rights(fds: &[RawFd]) -> Vec<u8> {
        let data: Vec<u8> = fds.iter().flat_map(|fd| fd.to_ne_bytes()).collect();
        let mut bytes =
            control_message(libc::SOL_SOCKET, libc::SCM_RIGHTS, len_for(fds.len()), &data);
        bytes.resize(space_for(data.len()), 0xff);
        bytes
    }

    fn fds_of(control: &[u8]) -> Vec<RawFd> {
        ControlMessages::new(control)
            .filter(|m| m.level == libc::SOL_SOCKET && m.kind == libc::SCM_RIGHTS)
            .flat_map(|m| m.fd_numbers())
            .collect()
    }

    #[test]
    fn sizes_when_computed_then_are_those_of_libc() {
        for fds in 0..=MAX_FDS {
            let data_len = fds * 4;
            let c_len = u32::try_from(data_len).unwrap();
            // SAFETY: arithmetic on the argument alone.
            let (len, space) =
                unsafe { (libc::CMSG_LEN(c_len) as usize, libc::CMSG_SPACE(c_len) as usize) };
            assert_eq!((len_for(fds), space_for(data_len)), (len, space));
        }
    }

    #[test]
    fn walk_when_several_messages_then_all_fds_in_order_and_no_padding() {
        let mut control = rights(&[7]);
        control.extend(control_message(libc::SOL_SOCKET, libc::SCM_CREDENTIALS, 28, &[1; 16]));
        control.extend(rights(&[8, 9, 10]));
        assert_eq!(fds_of(&control), [7, 8, 9, 10]);
    }

    #[test]
    fn walk_when_last_message_lacks_its_padding_then_its_fds_are_seen() {
        let mut control = rights(&[7, 8]);
        control.extend(&rights(&[9])[..len_for(1)]);
        assert_eq!(fds_of(&control), [7, 8, 9]);
    }

    #[test]
    fn walk_when_length_claims_more_than_there_is_then_reads_what_is_there() {
        let control =
            control_message(libc::SOL_SOCKET, libc::SCM_RIGHTS, usize::MAX, &[5, 0, 0, 0]);
        assert_eq!(fds_of(&control), [5]);
    }

    #[test]
    fn walk_when_length_is_below_a_header_then_ends() {
        for claimed in 0..HEADER_LEN {
            let control =
                control_message(libc::SOL_SOCKET, libc::SCM_RIGHTS, claimed, &[5, 0, 0, 0]);
            assert_eq!(ControlMessages::new(&control).count(), 0);
        }
    }

    #[test]
    fn walk_when_cut_anywhere_then_never_panics() {
        let control = [rights(&[1, 2, 3]), rights(&[4])].concat();
        for end in 0..control.len() {
            assert!(fds_of(&control[..end]).len() <= 4);
        }
    }
}
