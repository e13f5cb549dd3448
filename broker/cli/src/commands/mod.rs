//! The commands, a room each: `Args` with their help, and `run`, which does it. A command that only
//! lists is a set of columns in `records`. Must never use one another: what two of them need has a
//! place beside this one.

pub mod audit;
pub mod broker;
pub mod completions;
pub mod config;
pub mod demo;
pub mod doctor;
pub mod drain;
pub mod evict;
pub mod fd;
pub mod get;
pub mod gpus;
pub mod health;
pub mod holders;
pub mod limits;
pub mod man;
pub mod metrics;
pub mod objects;
pub mod pin;
pub mod put;
pub mod revoke;
pub mod rm;
pub mod run;
pub mod show;
pub mod start;
pub mod status;
pub mod stop;
pub mod top;
pub mod watch;
