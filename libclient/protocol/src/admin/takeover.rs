//! How a second broker takes everything over from the running one. Layouts only: must never hold IO
//! or state.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, little_endian::U32};

/// Body of a takeover offer, 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct TakeoverOffer {
    /// Sockets that follow the state's memfd. The other fds lie in their queues.
    pub carriers: U32,
    /// Reserved, 0.
    pub reserved: U32,
}

/// Body of a takeover step, 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct TakeoverStep {
    /// A number of [`step`].
    pub step: U32,
}

/// Steps of a takeover after the offer, in their order.
pub mod step {
    /// Administrator: everything has arrived, and the successor can serve.
    pub const READY: u32 = 1;
    /// Broker: the successor takes over; the predecessor touches nothing any more.
    pub const GO: u32 = 2;
    /// Administrator: the successor serves the clients.
    pub const SERVING: u32 = 3;
}
