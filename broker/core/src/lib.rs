//! fdbroker's logic: registry, LRU, ledger, leases, policy. A pure state machine: must never do IO,
//! read a clock, know an OS type, or contain unsafe code.
#![forbid(unsafe_code)]

pub mod api;
pub mod limits;
pub use api::*;
