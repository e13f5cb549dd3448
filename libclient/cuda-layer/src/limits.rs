//! The bounds of the layer. Must never hold a bound without its reason.

/// The least size of cuMemAlloc, in bytes, that is VMM memory: the driver's own allocations of less
/// share blocks of this size, and VMM memory is made in steps of it.
pub const BLOCK_LEAST: usize = 2 << 20;

/// The bytes of a twin: the least that the driver gives. It rounds them up to a few hundred.
pub const TWIN_BYTES: usize = 1;

/// The most blocks of a process, made and opened: in pieces of the least size more than any device
/// has. What comes beyond is the driver's own.
pub const BLOCKS_MOST: usize = 1 << 18;

/// The most devices of a process: a node has at most 16 GPUs. Memory of others is the driver's own.
pub const DEVICES_MOST: usize = 64;
