//! The errors of the socket as types, each with its cause and its remedy. It must never report a
//! passing state (full, too many in flight) as a dead peer, nor a dead peer as a passing state.

use std::io;

/// Why a message was not sent. In every case nothing of it was sent, and the caller keeps its fds.
/// Source of the errno values: send(2), unix(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// `EAGAIN`: the socket's send buffer is full.
    #[error("the peer has not read what was sent before; wait until the socket is writable")]
    WouldBlock,
    /// `ETOOMANYREFS`: this uid has more unread fds in flight, over all its sockets, than the
    /// sender's `RLIMIT_NOFILE`. It passes. (Older kernels also say so of Unix sockets nested
    /// more than four deep in one another, and that does not pass.)
    #[error(
        "too many fds of this uid are in flight, sent and not yet received; wait until peers have read, or raise RLIMIT_NOFILE"
    )]
    TooManyRefs,
    /// `EPIPE`, `ECONNRESET`, `ECONNREFUSED`, `ENOTCONN`: nobody will read this. Replies that the
    /// peer sent before may still be queued: receive until [`RecvError::Eof`].
    #[error("the peer has closed the connection; read what it left, then connect again")]
    PeerGone,
    /// `EMSGSIZE`: more bytes than the socket's `SO_SNDBUF` can ever hold.
    #[error("the message is larger than the socket's send buffer; split it or raise SO_SNDBUF")]
    TooLarge,
    /// More than [`MAX_FDS`](crate::MAX_FDS) fds; the kernel was not asked.
    #[error("more than 253 fds in one message; split it")]
    TooManyFds,
    /// No bytes; the kernel was not asked. A receiver could not tell the message from the end.
    #[error("a message without bytes looks like the end of the connection; send at least one byte")]
    Empty,
    /// `EBADF`: one of the fds is not open.
    #[error("one of the fds is not open, nothing was sent; find who closed it too early")]
    BadFd,
    /// The time given was over. The last state was [`SendError::WouldBlock`] or
    /// [`SendError::TooManyRefs`].
    #[error(
        "the peer did not make room in time; allow more time or find what keeps it from reading"
    )]
    TimedOut,
    /// Any other errno. `EPERM`: the receiver has `SO_PASSRIGHTS` off and takes no fds, or a
    /// security module refused; `EINVAL`: an fd of a kind that cannot be sent (`io_uring`).
    #[error("sendmsg failed: {}; see sendmsg(2) and unix(7)", io::Error::from_raw_os_error(*.0))]
    Os(i32),
}

impl SendError {
    pub(crate) fn from_errno(errno: i32) -> Self {
        match errno {
            libc::EAGAIN => Self::WouldBlock,
            libc::ETOOMANYREFS => Self::TooManyRefs,
            libc::EPIPE | libc::ECONNRESET | libc::ECONNREFUSED | libc::ENOTCONN => Self::PeerGone,
            libc::EMSGSIZE => Self::TooLarge,
            libc::EBADF => Self::BadFd,
            other => Self::Os(other),
        }
    }
}

/// Why no message was received. Source of the errno values: recv(2), unix(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecvError {
    /// `EAGAIN`: nothing is queued.
    #[error("no message is waiting; wait until the socket is readable")]
    WouldBlock,
    /// The peer will send nothing more, and all that it sent has been read.
    #[error("the peer has closed the connection; connect again")]
    Eof,
    /// A message without bytes. If it carried fds, they are in the caller's
    /// [`ReceivedFds`](crate::ReceivedFds). One without fds that is the very last before the peer
    /// closed cannot be told from the end and is reported as [`RecvError::Eof`].
    #[error(
        "the peer sent a message without bytes, which is against the protocol; close the connection"
    )]
    EmptyMessage,
    /// The time given was over and nothing had come.
    #[error("no message came in time; allow more time or find what keeps the peer from answering")]
    TimedOut,
    /// Any other errno of recvmsg(2).
    #[error("recvmsg failed: {}; see recvmsg(2) and unix(7)", io::Error::from_raw_os_error(*.0))]
    Os(i32),
}

impl RecvError {
    pub(crate) fn from_errno(errno: i32) -> Self {
        match errno {
            libc::EAGAIN => Self::WouldBlock,
            // Older kernels leave a socket so when its peer closes while it sends.
            libc::ENOTCONN => Self::Eof,
            other => Self::Os(other),
        }
    }
}

/// The calling thread's errno. Valid only directly after a failed call.
pub(crate) fn last_errno() -> i32 {
    nix::errno::Errno::last_raw()
}
