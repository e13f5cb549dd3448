//! Every bound of the program, with its reason. Must never hold a bound without its reason.

use std::time::Duration;

/// Longest run of one case (SIGALRM ends it): each takes a second or so, and a hung one should name itself.
pub const CASE_TIMEOUT_S: u32 = 120;

/// Longest wait for anything of another process, shorter than a case so that the case can say so.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Between two looks at what no event announces.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// Longest wait of a call to the broker, in ms: a recall on a loaded machine takes some.
pub const DEADLINE_MS: u32 = 20_000;
