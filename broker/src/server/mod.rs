//! The loop: waits, gives each ready client its turn, hands what it says to the core, applies what the core says.
//! Must never block, but in the one wait.

pub mod accept;
pub mod apply;
pub mod ending;
pub mod flow;
pub mod parts;
pub mod serve;
#[cfg(test)]
mod tests;
