//! The bounds of the layer. Must never hold a bound without its reason.

use std::time::Duration;

/// How long zeMemGetIpcHandle waits for the broker, which answers within microseconds unless a cap is full. After that
/// the program gets the driver's own handle, which serves it better than a longer wait.
pub const REGISTER_TIMEOUT: Duration = Duration::from_secs(2);

/// How long zeMemFree waits until the broker has ended the key. It takes microseconds; after seconds the broker hangs, and the
/// program must not hang, too.
pub const RETIRE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long zeMemFree waits until the broker has closed its fd: microseconds, milliseconds for the last fd of a device's memory.
pub const CLOSE_TIMEOUT: Duration = Duration::from_millis(50);

/// How often an allocation is tried again that finds no memory, and the pause between: a driver takes some milliseconds to close
/// each fd that the broker has of a process which has just died. True want of memory is told 50 ms later.
pub const MEMORY_TRIES: u32 = 10;
pub const MEMORY_PAUSE: Duration = Duration::from_millis(5);

/// How long zeMemFree and the process's end wait for an export that the broker has asked for. It takes the driver
/// milliseconds at most. An export that comes later still finds that the memory is gone: its number is read again.
pub const RECALL_PATIENCE: Duration = Duration::from_secs(2);

/// The most handles of one allocation, in zexMemGetIpcHandles and zexMemOpenIpcHandles: one per tile of a device, of which
/// none has more than 2; MPICH has room for 2.
pub const TILES: usize = 16;
