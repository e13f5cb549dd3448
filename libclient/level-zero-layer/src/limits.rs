//! The bounds of the layer. Must never hold a bound without its reason.

use std::time::Duration;

/// How long zeMemGetIpcHandle waits for the broker, which answers within microseconds unless a cap is full. After that
/// the program gets the driver's own handle, which serves it better than a longer wait.
pub const REGISTER_TIMEOUT: Duration = Duration::from_secs(2);

/// How long zeMemOpenIpcHandle waits: the owner may have to export again, or a cap to come free. Longer than the
/// others, because the program cannot go on without the memory.
pub const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long zeMemFree and the last zeMemPutIpcHandle wait until the broker has ended the key. It takes microseconds;
/// after seconds the broker hangs, and the program must not hang, too.
pub const RETIRE_TIMEOUT: Duration = Duration::from_secs(2);
