//! Device memory to share, whichever driver it is of: buffers, imports, and the owners that answer
//! recalls. Must never depend on a driver's types.

mod buffer;
pub mod driver;
mod foreign;
mod import;
mod memory;
mod owner;
mod sharing;
mod whole;
mod work;

pub use buffer::DeviceBuffer;
pub use foreign::{ByAddress, Foreign, ForeignTable, Place};
pub use import::{DeviceImport, opener};
pub use memory::DeviceMemory;
pub use owner::{Others, Owner, Owners};
pub use sharing::{Identity, MemoryDevice};
pub use whole::Whole;
pub use work::MakersWork;
