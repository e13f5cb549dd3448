//! Level Zero's core API (specification 1.12), opened at run time: nothing of it is needed to build, link or start.
//! It must never panic because a loader is absent or old: what it lacks is an error value, function by function.
//!
//! | module | what |
//! |---|---|
//! | `bindings` | types, function pointers, tables between loader and driver; written by `regen.sh`, checked in |
//! | [`LevelZero`] | the loader's functions, each a method that answers `Result<(), CallError>` |
//! | [`Structure`], [`find`] | structures that begin with `stype` and `pNext`, and chains of them |
//!
//! Names are the specification's own (<https://oneapi-src.github.io/level-zero-spec>), methods included, so that its
//! text, the headers and this crate can be searched for one word.

// Of bindgen's making: no house style there, and the layout assertions it writes are kept.
#[rustfmt::skip]
#[allow(missing_docs, non_camel_case_types, non_upper_case_globals, non_snake_case, dead_code)]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks)]
mod bindings;
mod chain;
mod error;
mod functions;
mod handle;
mod limits;
mod load;
mod result;
mod structure;

pub use bindings::*;
pub use chain::{find, find_mut};
pub use error::{CallError, LoadError};
pub use functions::LevelZero;
pub use limits::MAX_CHAIN;
pub use load::LOADER;
pub use structure::Structure;
