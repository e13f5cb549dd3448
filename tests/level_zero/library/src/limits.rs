//! The bounds of the program. Must never hold a bound without its reason.

use std::time::Duration;

/// The longest run of one case, ended by SIGALRM: a hung case should show its name. A case takes
/// about a second, but the longest ones take minutes on a loaded machine whose virtual machine is
/// emulated.
pub const CASE_TIMEOUT_S: u32 = 600;

/// The longest wait for another process: shorter than a case, so that the case can report it.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The pause between two looks at the broker's counters, which no event announces.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// The deadline of calls to the broker, in ms: a recall on a loaded machine takes a while.
pub const DEADLINE_MS: u32 = 100_000;
