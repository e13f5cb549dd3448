//! The owners. Each keeps its own invariant, in a file of its own; what is read of several of them is here, too. Must never
//! change two owners: that is a move.

pub(crate) mod accounts;
pub(crate) mod addresses;
pub(crate) mod allocation;
pub(crate) mod charges;
pub(crate) mod check;
pub(crate) mod clients;
pub(crate) mod closings;
pub(crate) mod continuity;
pub(crate) mod files;
pub(crate) mod items;
pub(crate) mod leases;
pub(crate) mod ledger;
pub(crate) mod lists;
pub(crate) mod notes;
pub(crate) mod objects;
pub(crate) mod order;
pub(crate) mod parked;
pub(crate) mod queues;
pub(crate) mod recalls;
pub(crate) mod registry;
pub(crate) mod rooms;
pub(crate) mod rounds;
pub(crate) mod shares;
pub(crate) mod slots;
pub(crate) mod timers;
