//! The baseline: what the kernel alone costs, written as one would in C.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command};
use std::time::Duration;

use fdbroker_scm::seqpacket_pair;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::wire::Wire;

/// A server that answers 64 bytes with 64 bytes and `batch` fds.
pub struct RawPeer {
    child: Child,
    wire: Wire,
    batch: usize,
}

impl RawPeer {
    pub fn start(batch: usize) -> Self {
        let (sock, theirs) = seqpacket_pair().expect("socketpair");
        for end in [&sock, &theirs] {
            fcntl(end, FcntlArg::F_SETFL(OFlag::empty())).expect("blocking");
        }
        let mut command = Command::new(std::env::current_exe().expect("own path"));
        command.args(["--raw-server", &batch.to_string()]);
        crate::give_fd_3(&mut command, theirs.as_raw_fd());
        let child = command.spawn().expect("the raw server starts");
        RawPeer { child, wire: Wire::new(sock), batch }
    }

    pub fn round_trip(&mut self) -> Duration {
        let (reply, took) = self.wire.call(&[1; 64]);
        assert_eq!(reply.len(), 64);
        assert_eq!(self.wire.fds.len(), self.batch);
        took
    }
}

impl Drop for RawPeer {
    fn drop(&mut self) {
        crate::end(&mut self.child);
    }
}

/// The server's process: blocking, socket at fd 3; ends when its peer does.
pub fn serve(batch: usize) -> ! {
    let memfd = memfd_create(c"fdbroker-bench-raw", MFdFlags::MFD_CLOEXEC).expect("memfd");
    // SAFETY: the parent put the socket at this number for this process alone.
    let sock = unsafe { OwnedFd::from_raw_fd(3) };
    let numbers = vec![memfd.as_raw_fd(); batch];
    let control_bytes = size_of_val(&numbers[..]);
    // SAFETY: CMSG_SPACE and CMSG_LEN only compute.
    let (space, len) = unsafe {
        let bytes = u32::try_from(control_bytes).expect("at most 253 fds");
        (libc::CMSG_SPACE(bytes) as usize, libc::CMSG_LEN(bytes) as usize)
    };
    let mut control = vec![0_u64; space.div_ceil(8)];
    let mut bytes = [0_u8; 64];
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 64 };
    // SAFETY: msghdr is plain data for which all zeroes is the empty value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = space;
    // SAFETY: `control` has room for one cmsg of `batch` fds, aligned to 8.
    unsafe {
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        (*head).cmsg_level = libc::SOL_SOCKET;
        (*head).cmsg_type = libc::SCM_RIGHTS;
        (*head).cmsg_len = len;
        std::ptr::copy_nonoverlapping(
            numbers.as_ptr().cast(),
            libc::CMSG_DATA(head),
            control_bytes,
        );
    }
    loop {
        let mut request = [0_u8; 64];
        // SAFETY: the buffers outlive the calls and have the lengths stated.
        let ended = unsafe {
            libc::recv(sock.as_raw_fd(), request.as_mut_ptr().cast(), 64, 0) <= 0
                || libc::sendmsg(sock.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) < 0
        };
        if ended {
            std::process::exit(0);
        }
    }
}
