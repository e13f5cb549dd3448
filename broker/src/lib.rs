//! The daemon of fdbroker as a library: `fdbrokerd` is its program, and `fdbroker` runs it from its
//! own executable.
//!
//! One direction: socket -> `scm` -> `protocol` -> [`fdbroker_core::Core::step`] -> effects ->
//! socket. One thread does all of it; one more owns the liveness word, and threads that
//! close fds start when they are needed. Must
//! never decide what the core decides, nor block on what a client sent.

pub mod classify;
pub mod cli;
pub mod closers;
pub mod config;
pub mod generation_page;
pub mod handover;
pub mod kernel;
pub mod limits;
pub mod listeners;
pub mod settings;

mod accept;
mod acts;
mod admin;
mod apply;
mod connection;
mod derive;
mod ending;
mod fd_table;
mod files;
mod flow;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod in_flight;
mod inherited;
mod job;
mod keep_book;
mod keep_store;
mod log;
mod metrics;
mod notify;
mod places;
pub mod preflight;
mod records;
mod reload;
mod replies;
mod requests;
pub mod schedulers;
mod serve;
mod server;
mod shared_map;
mod signals;
mod sources;
mod start;
#[cfg(test)]
mod tests;
mod tokens;
mod turns;
mod watch;

pub use config::ConfigError;
pub use settings::{Environment, Host, Mode, Settings};
pub use start::{RunError, run};
