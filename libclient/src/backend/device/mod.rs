//! Device memory to share, whichever driver it is of: buffers, imports, and the owners that answer
//! recalls. Must never depend on a driver's types.

mod buffer;
pub mod driver;
mod foreign;
mod gpu;
mod import;
mod objects;
mod owner;
mod pointer;
mod sharing;
mod whole;

pub use super::device_memory::{DeviceMemory, MakersWork};
pub use buffer::DeviceBuffer;
pub use foreign::{ByAddress, Place};
pub use gpu::ordinal_of;
pub use import::{DeviceImport, opener};
pub use owner::{Owner, Owners};
pub use pointer::{export_pointer, retire_pointer};
pub use sharing::{Identity, MemoryDevice};
pub use whole::Whole;
