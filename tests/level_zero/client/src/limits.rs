//! The bounds of the client. Must never hold a bound without its reason.

use std::time::Duration;

/// The longest run of one case, ended by SIGALRM: a hung case should show its name. A case takes
/// milliseconds, but minutes on a loaded machine whose virtual machine is emulated.
pub const CASE_TIMEOUT_S: u32 = 300;

/// The longest wait for the peer's answer: shorter than a case, so that the case can report it.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(120);
