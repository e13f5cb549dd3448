//! What goes into the core and what comes out of it: ids, deposits, requests, effects,
//! configuration. Plain data: must never hold an fd, a clock or an OS type.

mod config;
mod deposit;
mod effect;
mod former;
mod ids;
mod job_name;
mod objects;
mod request;
mod subordinate;

pub use config::*;
pub(crate) use deposit::Item;
pub use deposit::*;
pub use effect::*;
pub use former::*;
pub(crate) use ids::NONE;
pub use ids::*;
pub use job_name::*;
pub use objects::*;
pub use request::*;
pub use subordinate::*;
