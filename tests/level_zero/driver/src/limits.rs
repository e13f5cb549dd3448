//! Every bound of the test driver, with its reason. Must never hold a bound without its reason.

use std::time::Duration;

/// How long the helper may take for one answer. It answers within microseconds; seconds mean that it hangs, and a test
/// should fail rather than hang too.
pub const HELPER_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of one pool: what compute-runtime takes for its pool of small device allocations.
pub const POOL_BYTES: usize = 2 << 20;

/// Largest allocation that goes to a pool; a larger one would waste most of it.
pub const POOL_LARGEST_BYTES: usize = POOL_BYTES / 4;

/// Where the first allocation of a pool lies. Not 0, so that a program that forgets the offset reads other bytes.
pub const POOL_FIRST_OFFSET: usize = 4096;

/// Most bytes of one allocation, and what the device says it has: sparse until written, and no test needs more.
pub const DEVICE_BYTES: usize = 8 << 30;

/// How long a command waits for an event before it is given up: no test leaves one unsignalled on purpose.
pub const EVENT_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest fill pattern, as the device's properties say.
pub const LARGEST_PATTERN_BYTES: usize = 16;
