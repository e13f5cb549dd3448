//! Events and fences: a flag that a thread can wait for. A wait must never outlast the program's timeout.

use crate::answer::Failure;
use level_zero_sys::ze_result_t;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// A flag that the device or the host sets, and the host resets.
#[derive(Debug, Default)]
pub struct Signal {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    pub fn new(is_set: bool) -> Self {
        Self { is_set: Mutex::new(is_set), changed: Condvar::new() }
    }

    pub fn set(&self, to: bool) {
        *self.is_set.lock().unwrap_or_else(PoisonError::into_inner) = to;
        self.changed.notify_all();
    }

    /// Waits until the flag is set.
    ///
    /// # Errors
    /// `ZE_RESULT_NOT_READY` when the timeout passes first.
    pub fn wait(&self, timeout: Duration) -> Result<(), Failure> {
        let is_set = self.is_set.lock().unwrap_or_else(PoisonError::into_inner);
        let (is_set, _) = self
            .changed
            .wait_timeout_while(is_set, timeout, |is_set| !*is_set)
            .unwrap_or_else(PoisonError::into_inner);
        match *is_set {
            true => Ok(()),
            false => Err(ze_result_t::ZE_RESULT_NOT_READY.into()),
        }
    }
}
