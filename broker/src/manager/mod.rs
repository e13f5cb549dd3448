//! The service manager: what it is told, and what it hands to a new process. Must never let the
//! loop wait for it.

pub mod inherited;
pub mod notify;
