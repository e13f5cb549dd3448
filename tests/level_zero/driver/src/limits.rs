//! Every bound of the test driver, with its reason. Must never hold a bound without its reason.

use std::time::Duration;

/// How long the driver waits for one answer of the helper. It takes microseconds; after seconds the
/// helper hangs, and the test should fail rather than hang, too.
pub const HELPER_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of one pool, as in compute-runtime's pool of small device allocations.
pub const POOL_BYTES: usize = 2 << 20;

/// The largest allocation that comes from a pool; a larger one would waste most of it.
pub const POOL_LARGEST_BYTES: usize = POOL_BYTES / 4;

/// The offset of a pool's first allocation. Not 0, so that a program that forgets the offset reads
/// other bytes.
pub const POOL_FIRST_OFFSET: usize = 4096;

/// The most bytes of one allocation, and the size of the device's memory: no test needs more, and
/// unwritten pages are free.
pub const DEVICE_BYTES: usize = 8 << 30;

/// How long a command waits for an event before it fails. No test leaves an event unsignalled on
/// purpose.
pub const EVENT_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest fill pattern, also in the device's properties.
pub const LARGEST_PATTERN_BYTES: usize = 16;

/// How often a wait for an event in shared memory looks: nobody can wake it. Short beside any
/// timeout of a test.
pub const SHARED_LOOK: Duration = Duration::from_micros(200);
