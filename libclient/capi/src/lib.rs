//! The C ABI of fdbroker's library: libfdbroker.so.0 and fdbroker.h, made from these files.
//! Thin: checks arguments, calls the Rust library, converts. Must never let a panic cross, nor export another name.
//!
//! Each file with functions is one section of the header (tests/header.rs): its doc comments are written for the C
//! programmer, and its types have C names.
#![allow(non_camel_case_types, reason = "the types are named as C programs name them")]

mod acquire;
mod errors;
mod events;
mod failure;
mod forked;
mod guard;
mod handle;
mod host;
mod import;
mod last_error;
mod leases;
mod limits;
mod logger;
mod open;
mod register;
mod request;
mod sized;
mod slot;
mod stats;
