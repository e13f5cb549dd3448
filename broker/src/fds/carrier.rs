//! A carrier: a pair of sockets in whose one queue fds lie, each under a number, while nobody
//! serves or until somebody reads them. What an earlier broker gave to its successor lies in
//! carriers, and so does what outlives a crash. Must never lose an fd unnoticed: each message says
//! which fds it has, with a checksum.

use crate::limits::MESSAGES_IN_A_SOCKET;
use fdbroker_scm::{Message, ReceivedFds, RecvError, SendError};
use siphasher::sip::SipHasher13;
use std::hash::Hasher;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes of a message: the number of its first fd, and the checksum of that.
const MESSAGE_BYTES: usize = 16;

#[derive(Debug)]
pub struct Carrier {
    /// The end that is written to.
    pub near: OwnedFd,
    /// The end in whose queue the fds are. What is not read from it goes when the last of it
    /// closes.
    pub far: OwnedFd,
}

impl Carrier {
    /// An empty one.
    ///
    /// # Errors
    /// Those of socketpair(2).
    pub fn new() -> io::Result<Self> {
        let (near, far) = fdbroker_scm::seqpacket_pair()?;
        Ok(Carrier { near, far })
    }

    /// Puts in duplicates of fds, with the numbers from `first` on.
    ///
    /// # Errors
    /// See [`SendError`]; nothing is put in then.
    pub fn send(&self, first: u64, fds: &[BorrowedFd<'_>]) -> Result<(), SendError> {
        fdbroker_scm::send(self.near.as_fd(), &message(first), fds)
    }
}

/// Takes all messages out of a carrier's far end. `each` has the number of the first fd of a
/// message, if it is one of a carrier, and must take its fds.
///
/// # Errors
/// See [`RecvError`]; messages before that were taken out.
pub fn take_out(
    far: BorrowedFd<'_>,
    mut each: impl FnMut(Option<u64>, Message, &mut ReceivedFds),
) -> Result<(), RecvError> {
    let (mut bytes, mut fds) = ([0; MESSAGE_BYTES], ReceivedFds::new());
    loop {
        match fdbroker_scm::recv(far, &mut bytes, &mut fds) {
            Ok(message) => each(number_of(&bytes[..message.len]), message, &mut fds),
            Err(RecvError::WouldBlock | RecvError::Eof) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// The same with duplicates: all stays where it lies.
///
/// # Errors
/// See [`RecvError`]; messages before that were looked at.
pub fn look_into(
    far: BorrowedFd<'_>,
    mut each: impl FnMut(Option<u64>, &mut ReceivedFds),
) -> Result<(), RecvError> {
    let (mut bytes, mut fds) = ([0; MESSAGE_BYTES], ReceivedFds::new());
    fdbroker_scm::peek_all(far, MESSAGES_IN_A_SOCKET, &mut bytes, &mut fds, |_, bytes, fds| {
        each(number_of(bytes), fds);
    })
}

fn message(number: u64) -> [u8; MESSAGE_BYTES] {
    let mut bytes = [0; MESSAGE_BYTES];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    let mut hasher = SipHasher13::new();
    hasher.write(&number.to_le_bytes());
    bytes[8..].copy_from_slice(&hasher.finish().to_le_bytes());
    bytes
}

/// `None`: this is no message of a carrier.
fn number_of(bytes: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    (bytes == message(number) && number < u64::MAX / 2).then_some(number)
}
