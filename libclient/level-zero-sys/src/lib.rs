//! Level Zero's core API (specification 1.12), opened at run time: a program builds, links and
//! starts without it. Must never panic because a loader is absent or old: each function that it
//! lacks is an error value.
//!
//! Layers (tests/layers checks them): `bindings <- error, exporter, handle, structure <-
//! chain, load, newer, result <- functions`.
//!
//! | name | contents |
//! |---|---|
//! | `bindings` | types, function pointers, tables between loader and driver; written by `regen.sh` and checked in |
//! | [`LevelZero`] | the loader's functions, each a method that answers `Result<(), CallError>` |
//! | [`without_exporter`] | handles for other processes' fds |
//! | [`Structure`], [`find`] | structures that begin with `stype` and `pNext`, and chains of them |
//!
//! All names, methods included, are the specification's own
//! (<https://oneapi-src.github.io/level-zero-spec>), so that one word finds the same thing in its
//! text, in the headers and here.
#![deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, missing_debug_implementations)]
#![deny(unreachable_pub)]

// Written by bindgen: not in this project's style, and with bindgen's layout assertions.
#[rustfmt::skip]
#[allow(missing_docs, non_camel_case_types, non_upper_case_globals, non_snake_case, dead_code)]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks)]
mod bindings;
mod chain;
mod error;
mod exporter;
mod functions;
mod handle;
mod load;
mod newer;
mod result;
mod structure;

pub use bindings::*;
pub use chain::{MAX_CHAIN, find, find_mut};
pub use error::{CallError, LoadError};
pub use exporter::without_exporter;
pub use functions::LevelZero;
pub use handle::bytes_of_characters;
pub use load::LOADER;
pub use newer::*;
pub use structure::Structure;
