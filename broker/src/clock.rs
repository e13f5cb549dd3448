//! The time of the loop: CLOCK_MONOTONIC, whose values keep their meaning for a successor. Must
//! never be read where the time of the wake will do.

use crate::kernel;
use fdbroker_core::Now;
use std::time::Duration;

/// The time now, by the vdso.
pub(crate) fn now() -> Now {
    Now(kernel::monotonic_us())
}

/// The time `pause` after `now`; for ever stays for ever.
pub(crate) fn after(now: Now, pause: Duration) -> Now {
    Now(now.0.saturating_add(u64::try_from(pause.as_micros()).unwrap_or(u64::MAX)))
}

/// Whether something that is due then, if at all, is due now.
pub(crate) fn is_due(due: Option<Now>, now: Now) -> bool {
    due.is_some_and(|due| due <= now)
}
