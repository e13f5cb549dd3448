//! The loop: waits, gives each ready client its turn, hands what it says to the core, applies what the core says.
//! Must never block, but in the one wait.

pub mod accept;
pub mod acts;
pub mod admins;
pub mod ahead;
pub mod apply;
pub mod caps;
pub mod chores;
pub mod debts;
pub mod ending;
pub mod feedback;
pub mod flow;
pub mod go_on;
pub mod hand_over;
pub mod inbox;
mod joining;
pub mod kept;
pub mod objects;
pub mod pack;
pub mod parts;
pub mod reload;
pub mod run;
pub mod seals;
pub mod serve;
#[cfg(test)]
#[path = "../../tests/unit/server/mod.rs"]
mod tests;
pub mod trim;
pub mod waiting;
pub mod watch;
