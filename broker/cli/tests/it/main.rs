//! The integration tests of the command `fdbroker`: the real program, out of reach of any other
//! broker. One program, so that it is compiled and linked once. Must never change what belongs to
//! the whole process: such a test starts a process of its own.

mod acts;
mod commands;
mod common;
mod completions;
mod config;
mod cuda;
mod demo;
mod doctor;
mod health;
mod join;
mod join_names;
mod limits;
mod lists;
mod metrics;
mod objects;
mod proc;
mod report;
mod servers;
#[path = "../../../../tests/common/mod.rs"]
mod shared;
mod start;
mod top;
mod transcripts;
mod watch;
