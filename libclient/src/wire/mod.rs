//! The connection to the broker: sockets, hello, messages out, replies in.
//! Must never know what a request is for.

pub(crate) mod again;
pub(crate) mod ahead;
pub(crate) mod call;
pub(crate) mod connection;
pub(crate) mod credits;
mod dial;
mod fetching;
mod gathering;
pub(crate) mod handshake;
pub(crate) mod inbox;
pub(crate) mod joining;
pub(crate) mod outbox;
pub(crate) mod poll;
pub(crate) mod reading;
pub(crate) mod wait;
