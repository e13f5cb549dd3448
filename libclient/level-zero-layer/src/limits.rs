//! The bounds of the layer. Must never hold a bound without its reason.

use std::time::Duration;

/// How long zeMemFree waits until the broker has ended the key. It takes microseconds; after
/// seconds the broker hangs, and the program must not hang, too.
pub const RETIRE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long zeMemFree and the process's end wait for an export that the broker has asked for. It
/// takes the driver milliseconds at most. An export that comes later still finds that the memory is
/// gone: its number is read again.
pub const RECALL_PATIENCE: Duration = Duration::from_secs(2);

/// The most drivers in a process whose functions by name are told apart: one GPU driver, one for
/// each further vendor or kind. A driver beyond them is called as without the layer.
pub const DRIVERS: usize = 4;

/// The most handles of one allocation, in zexMemGetIpcHandles and zexMemOpenIpcHandles: one per
/// tile of a device, of which none has more than 2; MPICH has room for 2.
pub const TILES: usize = 16;
