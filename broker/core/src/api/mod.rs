//! What goes into the core and what comes out of it: ids, deposits, requests, effects, configuration. Plain data: must
//! never hold an fd, a clock or an OS type.

pub mod config;
pub mod deposit;
pub mod effect;
pub mod former;
pub mod ids;
pub mod job_name;
pub mod objects;
pub mod request;
pub mod subordinate;
