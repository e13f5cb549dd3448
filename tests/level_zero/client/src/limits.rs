//! Every bound of the client, with its reason. Must never hold a bound without its reason.

use std::time::Duration;

/// Longest run of one case (SIGALRM ends it): each takes milliseconds, and a hung one should name itself.
pub const CASE_TIMEOUT_S: u32 = 60;

/// Longest wait for the second process's answer, shorter than a case so that the case can say so.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(30);
