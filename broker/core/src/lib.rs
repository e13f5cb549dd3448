//! fdbroker's logic: registry, LRU, ledger, leases, policy. A pure state machine: must never do IO,
//! read a clock, know an OS type, or contain unsafe code.
//!
//! [`Core::step`] takes one input and appends what the daemon is to do to the effects;
//! [`Core::poll`] does what time or leftover work asks for, when [`Core::poll_timeout`] says;
//! [`Core::take_events`] gives one message for a client's event socket.
#![forbid(unsafe_code)]
#![deny(clippy::wildcard_enum_match_arm)]

pub mod api;
mod books;
mod core;
pub mod limits;
mod looking;
mod moves;
mod requests;
mod step;
pub mod work;

pub use self::core::Core;
pub use api::*;
pub use books::allocation::{Allocation, State};
pub use books::check::RestoreError;
pub use books::clients::{Client, Domain, Job};
pub use books::leases::Lease;
pub use books::ledger::Account;
pub use books::objects::groups::{Group, Member};
pub use books::shares::Part;
pub use fdbroker_protocol::Caps;
pub use looking::objects::ObjectView;
pub use looking::saved::Saved;
pub use looking::view::{AllocationView, ClientView, LeaseView, Totals};
