//! The daemon of fdbroker as a library: `fdbrokerd` is its program, and `fdbroker` runs it from its
//! own executable.
//!
//! One direction: socket -> `scm` -> `protocol` -> [`fdbroker_core::Core::step`] -> effects ->
//! socket. One thread does all of it; one more owns the liveness word, and threads that
//! close fds start when they are needed. Must
//! never decide what the core decides, nor block on what a client sent.

#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_sign_loss, missing_debug_implementations)
)]

pub mod cli;
pub mod handover;
pub mod kernel;
pub mod limits;
pub mod settings;

mod admin;
mod clients;
mod clock;
mod fds;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod journal;
mod kept;
mod log;
mod manager;
mod messages;
mod node;
mod past;
mod readiness;
mod server;
mod start;

pub use clients::schedulers;
pub use fds::classify;
pub use node::error::ListenError;
pub use node::{generation_page, leftovers, lock, names};
pub use settings::config::{self, ConfigError};
pub use settings::preflight;
pub use settings::{Environment, Host, Mode, Settings};
pub use start::{RunError, run};

/// The Rust code of docs/programming.md, compiled as a doc test: here, because the library's own
/// crate stands alone outside this tree.
#[cfg(doctest)]
#[doc = include_str!("../../docs/programming.md")]
mod programming {}
