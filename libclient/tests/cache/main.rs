//! The import cache against a scripted broker that keeps count: what is asked, what is mapped, what is given back.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../support/mod.rs"]
mod support;

mod batches;
mod bounds;
mod broker;
mod ends;
mod failures;
mod hits;
mod process;
mod races;
