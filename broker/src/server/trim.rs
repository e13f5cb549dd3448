//! When free memory goes back to the system: a moment after clients have ended. The allocator itself keeps it, because it lies
//! between pieces in use. Must never do it at the end of each client.

use crate::clock;
use crate::kernel;
use crate::limits::TRIM_PAUSE;
use fdbroker_core::Now;

/// See the module.
#[derive(Default)]
pub(crate) struct Trim(Option<Now>);

impl Trim {
    /// A client has ended.
    pub fn note(&mut self, now: Now) {
        self.0.get_or_insert(clock::after(now, TRIM_PAUSE));
    }

    /// When memory goes back.
    pub fn due(&self) -> Option<Now> {
        self.0
    }

    /// Gives memory back if it is time to.
    pub fn run(&mut self, now: Now) {
        if self.0.take_if(|at| *at <= now).is_some() {
            kernel::trim_memory();
        }
    }
}
