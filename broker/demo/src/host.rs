//! What the demo needs of the program that runs it. Must never grow into that program: it uses the
//! demo, not the reverse.

use crate::error::Result;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The program that runs the demo.
pub trait Host {
    /// A command that starts this program anew as a rank: it is to call [`crate::rank_main`] with
    /// the same `assignment`. Its stdin and stdout are the demo's.
    fn rank(&self, assignment: &str) -> Command;

    /// The signal that asked this process to end, if one has come.
    fn interrupted(&self) -> Option<Signal>;

    /// Tells the user something, in one line.
    fn say(&self, line: &str);
}

/// The broker that the ranks share memory through.
pub trait Broker {
    /// Where its clients connect.
    fn socket(&self) -> &Path;

    /// Its process, if that is a child of this one: then it may be stopped to be counted.
    fn pid(&self) -> Option<Pid>;

    /// What it is charged for by now.
    ///
    /// # Errors
    /// It does not answer.
    fn ledger(&mut self) -> Result<Ledger>;

    /// Tells the user how to look at the broker: everything is open, and stays so for `time`.
    fn note_hold(&self, time: Duration);
}

/// Fds of shared memory by the broker's ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ledger {
    /// Most fds in the broker at a time, since its start.
    pub broker_peak: u64,
    /// Most in the broker and its clients together, with those that the clients declare as their
    /// own.
    pub node_peak: u64,
    /// Most places that were reserved: an fd that has come is in one until the broker has looked at
    /// it.
    pub reserved_peak: u64,
}
