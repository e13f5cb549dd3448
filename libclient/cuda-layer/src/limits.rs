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

/// The most exports in a row that are registered early in one message, which costs sender and
/// receiver a wake-up each. Two such messages are under way at most, as many as the broker has
/// places ahead of a row for (ROW_CREDITS of the library). A row begins with one, and goes on with
/// twice as many each time; what is exported for nothing at its end is that much.
pub const EARLY_MOST: usize = 4;
