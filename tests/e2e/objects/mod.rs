//! Named objects with the real daemon, in the bare protocol: every call, its errors, and what the
//! deaths of clients, other makers and other brokers do to them. Deletes, other users' names and
//! lists of very many names are in tests/objects.

mod evicting;
mod getting;
mod inheriting;
mod kept;
mod listing;
mod making;
mod quotas;
mod sealing;
mod successors;
mod touching;
mod watching;
