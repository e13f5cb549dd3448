//! The broker's state as it is shown to administrators. Must never allow a change.

use crate::clients::connections::Connections;
use crate::clients::metrics::Metrics;
use crate::fds::table::FdTable;
use crate::journal::Journal;
use crate::node::side::Identity;
use crate::past::Past;
use fdbroker_core::{Core, Now};

/// The broker, to be looked at.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub core: &'a Core,
    pub connections: &'a Connections,
    pub fds: &'a FdTable,
    pub metrics: &'a Metrics,
    pub longest_wake_us: u64,
    pub journal: &'a Journal,
    pub past: &'a Past,
    pub identity: &'a Identity,
    pub incarnation: u64,
    pub now: Now,
    /// The start of the first broker whose clients were handed on to this one.
    pub started: Now,
}
