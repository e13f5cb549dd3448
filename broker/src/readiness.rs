//! The sources that the loop waits for, and the typed token of each. Must never be built from
//! numbers anywhere else.

use mio::unix::SourceFd;
use mio::{Interest, Poll, Token};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A source of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The listener with this number.
    Listener(usize),
    /// The administrators' listener, 0, and those of users that look.
    AdminListener(usize),
    /// An administrator's connection, or one of a user that looks, by its number.
    Admin(usize),
    /// A client's main socket.
    Main(usize),
    /// The broker's end of a client's event socket.
    Event(usize),
    /// The broker's end of the socket for fds ahead of a client that has ended.
    Ahead(usize),
    /// A connection in the lobby.
    Caller(usize),
    /// A client's pidfd: its process has ended.
    Process(usize),
    /// The closers' reports.
    Closers,
    /// The signals' fd.
    Signals,
    /// The fd whose end ends the daemon.
    UntilEof,
    /// The warden of the sockets' places.
    Warden,
}

/// Low bits of a token that say which kind it is; the others are its number.
const KIND_BITS: u32 = 4;

impl Source {
    /// As mio carries it.
    pub fn token(self) -> Token {
        let (kind, number) = match self {
            Source::Listener(number) => (0, number),
            Source::AdminListener(number) => (1, number),
            Source::Admin(number) => (2, number),
            Source::Main(number) => (3, number),
            Source::Event(number) => (4, number),
            Source::Process(number) => (5, number),
            Source::Closers => (6, 0),
            Source::Signals => (7, 0),
            Source::UntilEof => (8, 0),
            Source::Ahead(number) => (9, number),
            Source::Caller(number) => (10, number),
            Source::Warden => (11, 0),
        };
        Token(number << KIND_BITS | kind)
    }

    /// From mio. `None` is no token of ours.
    pub fn from_token(Token(value): Token) -> Option<Self> {
        let number = value >> KIND_BITS;
        Some(match value & ((1 << KIND_BITS) - 1) {
            0 => Source::Listener(number),
            1 => Source::AdminListener(number),
            2 => Source::Admin(number),
            3 => Source::Main(number),
            4 => Source::Event(number),
            5 => Source::Process(number),
            6 => Source::Closers,
            7 => Source::Signals,
            8 => Source::UntilEof,
            9 => Source::Ahead(number),
            10 => Source::Caller(number),
            11 => Source::Warden,
            _ => return None,
        })
    }
}

/// Registers a source for reading.
pub(crate) fn register(poll: &Poll, fd: BorrowedFd<'_>, source: Source) -> io::Result<()> {
    let fd = fd.as_raw_fd();
    poll.registry().register(&mut SourceFd(&fd), source.token(), Interest::READABLE)
}

/// Changes what a registered source is watched for.
pub(crate) fn watch(
    poll: &Poll,
    fd: BorrowedFd<'_>,
    source: Source,
    is_write_wanted: bool,
) -> io::Result<()> {
    let fd = fd.as_raw_fd();
    let interest =
        if is_write_wanted { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
    poll.registry().reregister(&mut SourceFd(&fd), source.token(), interest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_token_when_made_by_token_then_the_same() {
        for number in [0, 1, 4095, 1 << 40] {
            for source in [
                Source::Listener(number),
                Source::AdminListener(number),
                Source::Admin(number),
                Source::Main(number),
                Source::Event(number),
                Source::Ahead(number),
                Source::Caller(number),
                Source::Process(number),
            ] {
                assert_eq!(Source::from_token(source.token()), Some(source));
            }
        }
        for source in [Source::Closers, Source::Signals, Source::UntilEof, Source::Warden] {
            assert_eq!(Source::from_token(source.token()), Some(source));
        }
        assert_eq!(Source::from_token(Token(usize::MAX)), None);
    }
}
