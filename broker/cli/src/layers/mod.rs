//! The layers for programs that know nothing of fdbroker: where they are, and the variables that
//! put them before a program. Must never load one into this process.

pub mod cuda;
pub mod level_zero;
