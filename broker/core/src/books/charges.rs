//! What is charged where the amount is always the same. Must never be charged in other words
//! elsewhere.

use crate::books::ledger::Charge;
use crate::limits::FDS_PER_CONNECTION;
use fdbroker_protocol::Resource;

/// An fd of a type that cannot be shared, charged to its domain until its close has returned.
pub(crate) const REFUSED_FD: Charge = Charge(Resource::RefusedFds, 1);

/// A GPU that clients of a domain name, charged to it until no allocation is on that GPU.
pub(crate) const NAMED_GPU: Charge = Charge(Resource::Gpus, 1);

/// What each client is charged with until nothing of it is left.
pub(crate) const CONNECTION: Charge = Charge(Resource::Connections, 1);

/// And from when it is let in.
pub(crate) const PLACES: Charge = Charge(Resource::TablePlaces, FDS_PER_CONNECTION);

/// What a lease is charged with.
pub(crate) fn lease_charge(mapped: bool) -> Charge {
    Charge(if mapped { Resource::MappedLeases } else { Resource::OpenLeases }, 1)
}

/// The place of a recalled fd, charged to its owner until the fd has come.
pub(crate) const RECALLED_PLACE: Charge = Charge(Resource::ReservedPlaces, 1);

/// A lease for a request that waits for a recall.
pub(crate) const PROMISED_LEASE: Charge = Charge(Resource::PromisedLeases, 1);
