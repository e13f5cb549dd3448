//! The C ABI of fdbroker's library: libfdbroker.so.0 and fdbroker.h, made from these files.
//! Thin: checks arguments, calls the Rust library, converts. Must never let a panic cross, nor export another name.
//!
//! Each file with functions is one section of the header (tests/header.rs): its doc comments are written for the C
//! programmer, and its types have C names.
#![allow(non_camel_case_types, reason = "the types are named as C programs name them")]
#![allow(missing_docs, reason = "fields whose name says all have none in the header either")]
#![allow(
    clippy::missing_safety_doc,
    reason = "what a pointer must be, the header says for all functions"
)]

pub mod acquire;
pub mod errors;
pub mod events;
mod failure;
mod forked;
mod guard;
pub mod handle;
pub mod host;
pub mod import;
mod last_error;
mod leases;
mod limits;
mod logger;
pub mod open;
pub mod register;
pub mod request;
mod sized;
mod slot;
pub mod stats;
