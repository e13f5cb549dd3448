//! What `fdbroker demo` runs: real processes share memory all-to-all, through the broker and
//! directly, and every byte is checked. Must never call anything right that was not looked at, nor
//! leave a process behind.
//!
//! The program that runs the demo hands in what is its own: how a rank process is started
//! ([`Host`]) and which broker serves ([`Broker`]). So the demo knows neither the program's
//! arguments nor how it prints a result.

#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_sign_loss, missing_debug_implementations)
)]

mod check;
mod control;
mod device;
mod direct;
mod error;
mod host;
mod kind;
mod memory;
mod parent;
mod pattern;
mod plan;
mod rank;
mod ranks;
mod report;
mod sampler;

pub use error::{Error, Result};
pub use host::{Broker, Host, Ledger};
pub use kind::Memory;
pub use parent::{directly, through_broker};
pub use plan::{Plan, Wishes, default_max_fds};
pub use rank::main as rank_main;
pub use report::{DemoReport, Direct, Fds};
