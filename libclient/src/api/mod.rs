//! The client and its settings: what a rank calls first.
//! Must never do more than find the connection, refuse what cannot work, and hand on.

pub(crate) mod builder;
pub(crate) mod client;
