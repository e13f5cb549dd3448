//! The loop: waits, gives each ready client its turn, hands what it says to the core, applies what
//! the core says. Its floors: `turn` (who is next, and what ends) above `serve` (what is asked)
//! above `settle` (what the core says, and what goes out) above `parts`. Must never block, but in
//! the one wait, nor call from one floor up to another.

pub mod parts;
mod serve;
mod settle;
#[cfg(test)]
#[path = "../../tests/unit/server/mod.rs"]
mod tests;
mod turn;
