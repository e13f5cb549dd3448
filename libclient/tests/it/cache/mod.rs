//! The import cache with a scripted broker that counts acquires, mappings and releases.

mod batches;
mod bounds;
mod broker;
mod ends;
mod failures;
mod hits;
mod process;
mod races;
