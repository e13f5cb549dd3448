//! Looking at all messages of a socket with their fds, and leaving them where they are.
//! It must never take a message out, nor leave the socket in another state than before.

use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::error::{RecvError, last_errno};
use crate::fds::ReceivedFds;
use crate::recv::{Message, recv_with};

/// Calls `each` for every queued message, in their order, at most `most` of them: the message, its
/// bytes (at most as many as `buf` has), and duplicates of its fds, which must be taken out. The
/// messages stay in the queue, with their fds. Bytes of a message that do not fit `buf` would come
/// again as a message of their own: `buf` must fit the longest.
///
/// Source: `SO_PEEK_OFF`, socket(7); for `SOCK_SEQPACKET` `unix_dgram_recvmsg` and
/// `__skb_try_recv_from_queue` of the kernel.
///
/// # Errors
/// See [`RecvError`]; messages before that were looked at.
pub fn peek_all(
    sock: BorrowedFd<'_>,
    most: usize,
    buf: &mut [u8],
    fds: &mut ReceivedFds,
    mut each: impl FnMut(Message, &[u8], &mut ReceivedFds),
) -> Result<(), RecvError> {
    set_offset(sock, 0)?;
    let mut look = || {
        for _ in 0..most {
            match recv_with(sock, buf, fds, libc::MSG_DONTWAIT | libc::MSG_PEEK) {
                Ok(message) => each(message, &buf[..message.len.min(buf.len())], fds),
                // Behind the last one the end of the connection looks like a message without bytes.
                Err(RecvError::WouldBlock | RecvError::Eof | RecvError::EmptyMessage) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    };
    let result = look();
    set_offset(sock, -1)?;
    result
}

/// Where the next look begins, in bytes of all messages; -1: looks move nothing.
fn set_offset(sock: BorrowedFd<'_>, offset: libc::c_int) -> Result<(), RecvError> {
    let length = libc::socklen_t::try_from(mem::size_of_val(&offset)).expect("an int's size");
    // SAFETY: setsockopt(2) reads one int of the stated length, which is valid for the call.
    let result = unsafe {
        libc::setsockopt(
            sock.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEEK_OFF,
            (&raw const offset).cast(),
            length,
        )
    };
    if result == 0 { Ok(()) } else { Err(RecvError::Os(last_errno())) }
}
