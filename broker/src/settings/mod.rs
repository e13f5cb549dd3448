//! The settings of a broker: flags, environment, configuration file, defaults, and which of them
//! wins. Must never change anything on the machine.

pub mod args;
pub mod config;
pub mod derive;
pub mod effective;
pub mod judge;
mod memory;
pub mod outside;
pub mod places;
pub mod preflight;
pub mod reload;
pub mod sockets;
pub mod sources;
mod subordinate;
pub mod untold;

pub use effective::{Settings, assignment};
pub use outside::{Environment, Host};
pub use sockets::{Isolate, ListenerSettings, Mode};
