//! Named objects with the real daemon, in the bare protocol: every call, its errors, and what the deaths of clients, other makers
//! and other brokers do to them.

mod deleting;
mod getting;
mod listing;
mod making;
mod quotas;
mod sealing;
mod successors;
pub mod users;
pub mod wire;
