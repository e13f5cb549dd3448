//! The message at hand: its bytes, and the fds that came with it until the fd table has them. Must never take in more fds
//! than its client may send.

use crate::fds::table::Reading;
use fdbroker_core::Now;
use fdbroker_protocol::limits::MAX_MESSAGE_BYTES;
use fdbroker_scm::{Message, ReceivedFds, RecvError};
use std::os::fd::{AsFd, BorrowedFd};

/// See the module. Its buffers are reused.
pub(crate) struct Inbox {
    bytes: Box<[u8]>,
    fds: ReceivedFds,
    /// Room for none: the kernel drops them.
    no_fds: ReceivedFds,
    /// How messages of the client whose turn it is may be read.
    reading: Reading,
    /// Fds that its next message may have.
    fd_room: usize,
}

impl Inbox {
    /// An empty one.
    pub fn new() -> Self {
        Inbox {
            bytes: vec![0; MAX_MESSAGE_BYTES].into_boxed_slice(),
            fds: ReceivedFds::new(),
            no_fds: ReceivedFds::with_capacity(0),
            reading: Reading::Free,
            fd_room: 0,
        }
    }

    /// A client's turn begins.
    pub fn begin_turn(&mut self, reading: Reading) {
        self.reading = reading;
    }

    /// From now on in this turn, messages with fds wait.
    pub fn wait(&mut self, until: Now) {
        self.reading = Reading::Wait(until);
    }

    /// Until when the next message of this socket waits: one without fds never does.
    pub fn waits(&self, socket: BorrowedFd<'_>) -> Option<Now> {
        match self.reading {
            Reading::Wait(until) if fdbroker_scm::is_control_next(socket) => Some(until),
            _ => None,
        }
    }

    /// Whether fds of the client whose turn it is are taken in.
    pub fn takes_fds(&self) -> bool {
        self.reading != Reading::WithoutFds
    }

    /// Fds that the message at hand might have.
    pub fn fd_room(&self) -> usize {
        self.fd_room
    }

    /// Reads the next message, which may have `fd_room` fds.
    pub fn recv(&mut self, socket: BorrowedFd<'_>, fd_room: usize) -> Result<Message, RecvError> {
        self.fd_room = fd_room;
        match self.takes_fds() {
            true => {
                self.fds.set_capacity(fd_room);
                fdbroker_scm::recv(socket, &mut self.bytes, &mut self.fds)
            }
            false => {
                self.no_fds.set_capacity(0);
                fdbroker_scm::recv(socket, &mut self.bytes, &mut self.no_fds)
            }
        }
    }

    /// Reads a message of a connection that has ended.
    pub fn recv_rest(&mut self, socket: impl AsFd, takes_fds: bool) -> Result<Message, RecvError> {
        let fds = if takes_fds { &mut self.fds } else { &mut self.no_fds };
        fdbroker_scm::recv(socket.as_fd(), &mut self.bytes, fds)
    }

    /// The bytes of the message at hand, `length` of them.
    pub fn bytes(&self, length: usize) -> &[u8] {
        &self.bytes[..length]
    }

    /// Where a message is read to.
    pub fn buffer(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Makes `bytes` the message at hand again.
    pub fn put(&mut self, bytes: &[u8]) {
        self.bytes[..bytes.len()].copy_from_slice(bytes);
    }

    /// The fds of the message at hand.
    pub fn fds(&mut self) -> &mut ReceivedFds {
        &mut self.fds
    }
}
