//! Clients as the daemon sees them: their connections, whose turn it is, what they leave unread,
//! which job they are of. Must never talk to the core.

pub mod calls;
pub mod connection;
pub mod connections;
pub mod debts;
pub mod door;
pub mod handshakes;
pub mod in_flight;
pub mod job;
pub mod lobby;
pub mod metrics;
pub mod pods;
pub mod schedulers;
pub mod settles;
pub mod shares;
pub mod turns;
pub mod waits;
