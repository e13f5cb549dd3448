//! The functions that stand in the loader's tables, and that the preloaded library exports, where
//! they are more than one step of a handle's way. Must never let a panic reach the program.

mod extension;
mod memory;
mod virtual_memory;

pub use extension::extension;
pub use memory::*;
pub use virtual_memory::*;
