//! The C ABI of fdbroker's library: libfdbroker.so.0, which link.sh links, and fdbroker.h, which is
//! made from these files. Thin: checks arguments, calls the Rust library, converts. Must never let
//! a panic into C, nor export another symbol.
//!
//! Layers (tests/layers checks them): `leases, limits, object_table <- last_error, logger <- errors
//! <- failure <- guard, sized, slot <- arenas, callbacks, due, gpus, handle <- context <- acquire,
//! events, host, import, register, stats <- objects <- object_get, object_make,
//! object_names, object_watch <- gpu, open, opener, pool, request, suspend <- object_start`.
//!
//! Each public module belongs to a section of the header (tests/header.rs): its doc comments are
//! written for the C programmer, and its types have C names.
#![deny(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
#![allow(non_camel_case_types, reason = "the types are named as C programs name them")]
#![allow(
    missing_docs,
    reason = "a field whose name says everything has no comment in the header either"
)]
#![allow(
    clippy::missing_safety_doc,
    reason = "the header says once, for all functions, what a pointer must be"
)]

pub mod acquire;
mod arenas;
pub mod callbacks;
pub mod context;
pub mod due;
pub mod errors;
pub mod events;
mod failure;
pub mod gpu;
mod gpus;
mod guard;
pub mod handle;
pub mod host;
pub mod import;
mod last_error;
mod leases;
mod limits;
mod logger;
mod notices;
pub mod object_get;
pub mod object_make;
pub mod object_names;
pub mod object_start;
mod object_table;
pub mod object_watch;
pub mod objects;
pub mod open;
pub mod opener;
pub mod pool;
pub mod register;
pub mod request;
mod sized;
mod slot;
pub mod stats;
pub mod suspend;
mod virtual_fds;
