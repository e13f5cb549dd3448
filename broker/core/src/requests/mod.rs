//! One file for each kind of request: whether it is let in, what it moves, what is answered. Must
//! never change two owners but by a move.

pub(crate) mod acquire;
pub(crate) mod acquire_ahead;
pub(crate) mod admin;
pub(crate) mod again;
pub(crate) mod chores;
pub(crate) mod closed;
pub(crate) mod comeback;
pub(crate) mod connect;
pub(crate) mod credits;
pub(crate) mod gone;
pub(crate) mod hello;
pub(crate) mod leases;
pub(crate) mod objects;
pub(crate) mod register;
pub(crate) mod supply;
pub(crate) mod turn;
pub(crate) mod unregister;
