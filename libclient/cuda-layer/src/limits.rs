//! The bounds of the layer. Must never hold a bound without its reason.

use std::time::Duration;

/// How long an export waits for the broker, which answers within microseconds unless a cap is full. After that the program
/// gets the driver's own fd, which serves it better than a longer wait.
pub const REGISTER_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the close of a number waits until the broker has ended its registration, and what ends the memory until the broker has
/// closed its fd. It takes microseconds, on a GPU up to 2 ms; a broker that hangs must not hang the program, too.
pub const END_TIMEOUT: Duration = Duration::from_millis(50);

/// How often an allocation is tried again that finds no memory, and the pause between: a driver takes some 2 ms to close each fd that the
/// broker has of a process which has just died. True want of memory is told 50 ms later.
pub const MEMORY_TRIES: u32 = 10;
pub const MEMORY_PAUSE: Duration = Duration::from_millis(5);
