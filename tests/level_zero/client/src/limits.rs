//! The bounds of the client. Must never hold a bound without its reason.

use std::time::Duration;

/// The longest run of one case, ended by SIGALRM: a case takes milliseconds, and a hung one should show its name.
pub const CASE_TIMEOUT_S: u32 = 60;

/// The longest wait for the peer's answer: shorter than a case, so that the case can report it.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(30);
