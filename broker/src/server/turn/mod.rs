//! Wakes and turns: who is next, who comes, who goes, and what is left to a successor. Must never
//! answer a request itself.

pub mod accept;
pub mod debts;
pub mod ending;
pub mod go_on;
pub mod hand_over;
pub mod joining;
pub mod pack;
pub mod run;
pub mod waits;
