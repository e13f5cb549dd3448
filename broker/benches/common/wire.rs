//! One blocking request and its answer, written as one would in C, for both sides of the comparison
//! alike. The library's own sending and receiving is not measured here.

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
    /// The fds of the last answer, if they have not been closed.
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

    /// Sends `request`, waits for the answer and closes its fds: the answer, how many fds it had,
    /// and the time of all this.
    pub fn call(&mut self, request: &[u8]) -> (&[u8], usize, Duration) {
        let begun = Instant::now();
        self.send(request);
        let (len, fds) = self.receive_and_close();
        let took = begun.elapsed();
        (&self.buf[..len], fds, took)
    }

    /// Sends a request.
    pub fn send(&self, request: &[u8]) {
        // SAFETY: `request` is a slice of the length stated.
        let sent = unsafe {
            let (at, len) = (request.as_ptr().cast(), request.len());
            libc::send(self.sock.as_raw_fd(), at, len, libc::MSG_NOSIGNAL)
        };
        assert_eq!(sent, request.len().cast_signed(), "{}", std::io::Error::last_os_error());
    }

    /// Waits for an answer and keeps its fds.
    pub fn answer(&mut self) -> &[u8] {
        self.fds.clear();
        let len = self.receive();
        &self.buf[..len]
    }

    /// Waits for an answer and closes its fds: the answer and how many fds it had.
    pub fn answer_closed(&mut self) -> (&[u8], usize) {
        let (len, fds) = self.receive_and_close();
        (&self.buf[..len], fds)
    }

    fn receive_and_close(&mut self) -> (usize, usize) {
        self.fds.clear();
        let len = self.receive();
        let fds = self.fds.len();
        self.fds.clear();
        (len, fds)
    }

    fn receive(&mut self) -> usize {
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
        assert!(message.msg_flags & libc::MSG_CTRUNC == 0, "this process has no free fd");
        // SAFETY: recvmsg has filled the control buffer; each fd in it is new and owned by nobody
        // yet.
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
        len.unsigned_abs()
    }
}
