//! The message at hand: its bytes, and its fds until the fd table has them. Must never read a
//! message with room for fewer fds than it may have: the kernel would close the others on the loop.

use fdbroker_protocol::limits::MAX_MESSAGE_BYTES;
use fdbroker_scm::{Message, ReceivedFds, RecvError};
use std::os::fd::BorrowedFd;

/// See the module. Its buffers are reused.
pub(crate) struct Inbox {
    bytes: Box<[u8]>,
    fds: ReceivedFds,
}

impl Inbox {
    pub fn new() -> Self {
        Inbox { bytes: vec![0; MAX_MESSAGE_BYTES].into_boxed_slice(), fds: ReceivedFds::new() }
    }

    /// Reads the next message.
    pub fn recv(&mut self, socket: BorrowedFd<'_>) -> Result<Message, RecvError> {
        fdbroker_scm::recv(socket, &mut self.bytes, &mut self.fds)
    }

    /// Reads the bytes of the next message and leaves it in the socket; how many there are.
    pub fn peek(&mut self, socket: BorrowedFd<'_>) -> Result<usize, RecvError> {
        fdbroker_scm::peek(socket, &mut self.bytes)
    }

    /// The bytes of the message at hand, `length` of them.
    pub fn bytes(&self, length: usize) -> &[u8] {
        &self.bytes[..length]
    }

    /// Where a message is read to.
    pub fn buffer(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The buffer of the message at hand, which is taken out for its turn. Nothing can be read
    /// until it is put back.
    pub fn take(&mut self) -> Box<[u8]> {
        std::mem::take(&mut self.bytes)
    }

    /// Puts the buffer back.
    pub fn put_back(&mut self, bytes: Box<[u8]>) {
        self.bytes = bytes;
    }

    /// The fds of the message at hand.
    pub fn fds(&mut self) -> &mut ReceivedFds {
        &mut self.fds
    }
}
