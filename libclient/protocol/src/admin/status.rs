//! The broker at a glance: what is in use on the node, and how often what has happened. Layouts
//! only: must never hold IO or state.

use crate::count::{ByCounter, ByGauge};
use crate::resource::{ByResource, NO_CAP, Resource};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

/// Use of one resource by one account, 24 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Use {
    /// In use now, in the resource's unit.
    pub now: U64,
    /// The most that was ever in use.
    pub peak: U64,
    /// The cap; [`NO_CAP`] when there is none.
    pub cap: U64,
}

impl Use {
    /// From numbers of this machine.
    pub fn new(now: u64, peak: u64, cap: u64) -> Self {
        Use { now: now.into(), peak: peak.into(), cap: cap.into() }
    }

    /// The cap, if there is one.
    pub fn known_cap(&self) -> Option<u64> {
        Some(self.cap.get()).filter(|cap| *cap != NO_CAP)
    }
}

impl ByResource<Use> {
    /// How much of a resource is reserved: its cap counts that beside what is in use.
    pub fn reserved(&self, resource: Resource) -> u64 {
        let each = resource.reserved_by().iter().map(|by| self[*by].now.get());
        each.fold(0, u64::saturating_add)
    }
}

/// The node at a glance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct NodeStatus {
    /// The broker's pid in its own PID namespace.
    pub pid: U32,
    /// 1 = the broker is being drained.
    pub draining: U32,
    /// The node's id, see [`crate::handle::node_id`].
    pub node: U64,
    /// A random number that the broker draws at its start.
    pub incarnation: U64,
    /// Time since the broker's start, in ms.
    pub uptime_ms: U64,
    /// A [`Scope`](crate::Scope): `Node`; or `Domain`, when the connection sees its own domain
    /// alone. Then the amounts and caps are the domain's, those that are counted for the node alone
    /// are 0, and so are all counters, and all gauges but the jobs.
    pub scope: U32,
    /// Why the first of `sockets_unkept` could not be put back, as an errno; 0: all can be.
    pub unkept_errno: U32,
    /// What is in use on the node.
    pub uses: ByResource<Use>,
    /// What there is now beside that.
    pub gauges: ByGauge<U64>,
    /// What has happened since the broker's start.
    pub counters: ByCounter<U64>,
}
