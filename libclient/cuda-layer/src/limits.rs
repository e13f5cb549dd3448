//! The bounds of the layer. Must never hold a bound without its reason.

use std::time::Duration;

/// How long an export waits for the broker, which answers within microseconds unless a cap is full. After that the program
/// gets the driver's own fd, which serves it better than a longer wait.
pub const REGISTER_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the close of a number waits until the broker has ended its registration. It takes microseconds; a broker that
/// hangs must not hang the program, too.
pub const END_TIMEOUT: Duration = Duration::from_millis(50);

/// How long after it has given memory back a process waits for the device to have it: the broker may have the fd still. The
/// driver takes some 2 ms to close one.
pub const MEMORY_BACK_TIME: Duration = Duration::from_millis(50);

/// The pause before an allocation is tried again meanwhile.
pub const MEMORY_BACK_PAUSE: Duration = Duration::from_millis(1);
