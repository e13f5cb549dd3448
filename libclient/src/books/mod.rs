//! What this client has at the broker: registrations, leases, and the page that says what lives.
//! Must never read from a socket, or wait for the broker.

pub(crate) mod common;
pub(crate) mod due;
pub(crate) mod grant;
pub(crate) mod holdings;
pub(crate) mod import;
pub(crate) mod lease;
pub(crate) mod one_way;
pub(crate) mod page;
pub(crate) mod roles;
pub(crate) mod spans;
pub(crate) mod wake;
pub(crate) mod window;
