//! The loop: waits, gives each ready client its turn, hands what it says to the core, applies what the core says.
//! Must never block, but in the one wait.

pub mod accept;
pub mod acts;
pub mod admins;
pub mod apply;
pub mod asked;
pub mod caps;
pub mod ending;
pub mod flow;
pub mod go_on;
pub mod hand_over;
pub mod pack;
pub mod parts;
pub mod reload;
pub mod run;
pub mod serve;
pub mod suspended;
#[cfg(test)]
mod tests;
pub mod watch;
