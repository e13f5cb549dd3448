//! What the broker asks of this client and tells it, on the library thread or in dispatch mode.
//! Must never wait for an answer of the broker.

pub(crate) mod dispatch;
pub(crate) mod resume;
pub(crate) mod seat;
pub(crate) mod server;
pub(crate) mod session;
pub(crate) mod supply;
pub(crate) mod thread;
