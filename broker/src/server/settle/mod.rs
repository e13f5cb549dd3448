//! What the core says is applied, and what goes out to clients. Must never read from a client.

pub mod apply;
pub mod ending;
pub mod flow;
pub mod grants;
pub mod notes;
