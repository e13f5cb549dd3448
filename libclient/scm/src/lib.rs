//! Bytes and file descriptors over `AF_UNIX` `SOCK_SEQPACKET`: the only `sendmsg`/`recvmsg` code of
//! fdbroker. It must never lose or leak an fd unseen, and never close a received fd by itself:
//! closing an fd of a hung FUSE server blocks for ever, so the caller chooses the thread that
//! closes. Beside these it says who serves a socket, and writes lines to stderr, without SIGPIPE,
//! for the libraries.
//!
//! How the kernel behaves, and what this crate makes of it (unix(7), recvmsg(2), measured on 6.18):
//!
//! | kernel | here |
//! |---|---|
//! | at most 253 fds per message | [`SendError::TooManyFds`], before the kernel is asked |
//! | one bad fd: nothing is sent | [`SendError::BadFd`] |
//! | receiver at its `RLIMIT_NOFILE`: bytes come, fds are gone, `MSG_CTRUNC` | [`Message::fds_truncated`]; those that came are handed over |
//! | room for 1 fd admits 2 (alignment) | counts the fds that came, not those that there was room for |
//! | a 0-byte message looks like the end | [`RecvError::EmptyMessage`], [`RecvError::Eof`]; [`send`] refuses to send one |
//! | `ECONNRESET` comes before a queued reply | read again |
//! | uid over `RLIMIT_NOFILE` fds in flight: `ETOOMANYREFS` | [`SendError::TooManyRefs`]; [`send_timeout`] waits it out |
//! | `SIGPIPE`: promised by send(2), raised on 6.18 for streams only | never raised: `MSG_NOSIGNAL` (but see `send_grant`) |
#![deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, missing_debug_implementations)]
#![deny(unreachable_pub)]

mod cmsg;
mod error;
mod fds;
#[cfg(feature = "sendfd")]
mod grant;
mod identity;
mod peek;
mod recv;
mod send;
mod server;
mod socket;
mod stderr;

pub use cmsg::MAX_FDS;
pub use error::{RecvError, SendError};
pub use fds::ReceivedFds;
#[cfg(feature = "sendfd")]
pub use grant::send_grant;
pub use identity::{File, off_stdio};
pub use peek::peek_all;
pub use recv::{Message, is_control_next, peek, recv, recv_timeout, recv_waiting};
pub use send::{send, send_timeout};
pub use server::{Stranger, check_server, hidden_id};
pub use socket::{queued_bytes, seqpacket_pair, unread_bytes};
pub use stderr::{know_stderr, write_stderr};
