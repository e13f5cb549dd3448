//! One blocking request and its answer, written as one would in C, for both sides of the comparison alike.
//! The library's own sending and receiving is not measured here.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt::ReceiveTimeout};
use nix::sys::time::{TimeVal, TimeValLike};

/// Longest wait for any answer: a hang ends the benchmark, it does not stall it.
const PATIENCE_S: i64 = 20;
/// Bytes of control buffer, as 8-byte words: 253 fds and their header.
const CONTROL_WORDS: usize = 160;

/// A blocking SEQPACKET socket with its buffers.
pub struct Wire {
    sock: OwnedFd,
    buf: Vec<u8>,
    control: Vec<u64>,
    /// The fds of the last answer.
    pub fds: Vec<OwnedFd>,
}

impl Wire {
    pub fn new(sock: OwnedFd) -> Self {
        setsockopt(&sock, ReceiveTimeout, &TimeVal::seconds(PATIENCE_S)).expect("SO_RCVTIMEO");
        let buf = vec![0; fdbroker_protocol::limits::MAX_MESSAGE_BYTES];
        Wire { sock, buf, control: vec![0; CONTROL_WORDS], fds: Vec::new() }
    }

    pub fn sock(&self) -> &OwnedFd {
        &self.sock
    }

    /// Sends `request`, waits for the answer, and says how long that took. The fds that came are in
    /// `fds`; those of the answer before are closed first, outside the time.
    pub fn call(&mut self, request: &[u8]) -> (&[u8], Duration) {
        self.fds.clear();
        let begun = Instant::now();
        // SAFETY: `request` is a slice of the length stated.
        let sent = unsafe {
            let (at, len) = (request.as_ptr().cast(), request.len());
            libc::send(self.sock.as_raw_fd(), at, len, libc::MSG_NOSIGNAL)
        };
        assert_eq!(sent, request.len().cast_signed(), "{}", std::io::Error::last_os_error());
        let (len, message) = self.receive();
        let took = begun.elapsed();
        assert!(message.msg_flags & libc::MSG_CTRUNC == 0, "this process has no free fd");
        (&self.buf[..len], took)
    }

    /// Waits for an answer to what was sent otherwise.
    pub fn answer(&mut self) -> &[u8] {
        self.fds.clear();
        let (len, _) = self.receive();
        &self.buf[..len]
    }

    fn receive(&mut self) -> (usize, libc::msghdr) {
        let mut iov =
            libc::iovec { iov_base: self.buf.as_mut_ptr().cast(), iov_len: self.buf.len() };
        // SAFETY: msghdr is plain data for which all zeroes is the empty value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        message.msg_control = self.control.as_mut_ptr().cast();
        message.msg_controllen = CONTROL_WORDS * 8;
        // SAFETY: `message` points to buffers of this value, with the lengths stated.
        let len = unsafe {
            libc::recvmsg(self.sock.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC)
        };
        assert!(len > 0, "no answer: {}", std::io::Error::last_os_error());
        // SAFETY: recvmsg has filled the control buffer; each fd in it is new and owned by nobody yet.
        unsafe {
            let head = libc::CMSG_FIRSTHDR(&raw const message);
            if !head.is_null() {
                let bytes = (*head).cmsg_len - libc::CMSG_LEN(0) as usize;
                let first = libc::CMSG_DATA(head).cast::<i32>();
                self.fds.extend(
                    (0..bytes / 4).map(|at| OwnedFd::from_raw_fd(first.add(at).read_unaligned())),
                );
            }
        }
        (len.unsigned_abs(), message)
    }
}
