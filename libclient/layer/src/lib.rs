//! What the layers for unmodified programs have in common: the process's connection, grants for
//! virtual fds, lines on stderr. Must never know a driver.
//!
//! A layer implements [`State`] for what a process has through its connection, and keeps one static
//! [`Connection`] of it, which is also the [`Source`](fdbroker_virtual_fds::Source) to install.
//!
//! **Layers** (tests/layers checks them): `away, drains, limits <- hidden, neighbours, say <-
//! lease <- kept <- connection <- patience <- grant, memory`.
#![deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, missing_debug_implementations)]
#![deny(unreachable_pub)]

mod away;
mod connection;
mod drains;
mod grant;
mod hidden;
mod kept;
mod lease;
mod limits;
mod memory;
mod neighbours;
mod patience;
mod say;

pub use connection::{Connected, Connection, State, is_absent};
pub use lease::{Fetched, ProgramsFd, SharedLease};
pub use limits::{CLOSE_TIMEOUT, REGISTER_TIMEOUT};
pub use memory::{allocate, settle};
pub use patience::{patiently, through_outage};
pub use say::Voice;
