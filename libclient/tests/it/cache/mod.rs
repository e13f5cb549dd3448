//! The import cache against a scripted broker that keeps count: what is asked, what is mapped, what is given back.

mod batches;
mod bounds;
mod broker;
mod ends;
mod failures;
mod hits;
mod process;
mod races;
