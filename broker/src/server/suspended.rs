//! A message that waits. Must never hold fds: the fd table has them.

use fdbroker_core::ClientId;

/// Which of a client's two sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    /// Requests and replies.
    Main,
    /// Events and supplies.
    Event,
}

/// A message that waits until one of its fds has been looked at. Its client is not read from meanwhile.
pub(crate) struct Suspended {
    pub client: ClientId,
    /// Tells the client from a later one of the same number.
    pub serial: u64,
    pub channel: Channel,
    pub bytes: Vec<u8>,
}
