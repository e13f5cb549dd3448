//! The import cache: memory of other processes kept open between uses, one per process.
//! Must never show ended memory as current, nor close memory in use.

mod batch;
mod cached;
mod cold;
mod entry;
mod flight;
mod import_cache;
mod miss;
mod opened;
mod pin;
mod room;
mod segments;
mod settings;
mod started;
mod stats;
mod table;

pub use cached::{CachedImport, Imports};
pub use import_cache::ImportCache;
pub use opened::{ImportOpener, Opened};
pub use pin::Pin;
pub use settings::{CacheSettings, ImportMode};
pub use started::{ImportProgress, ImportRequest};
pub use stats::CacheStats;
