//! Events and fences: a flag that a thread can wait for, in this process or in memory that
//! processes share. A wait must never outlast the program's timeout.

use crate::answer::Failure;
use crate::limits::SHARED_LOOK;
use crate::object::Object;
use level_zero_sys::ze_result_t;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A flag that the device or the host sets, and the host resets.
#[derive(Debug)]
pub enum Signal {
    Own {
        is_set: Mutex<bool>,
        changed: Condvar,
    },
    /// Set when all of these words are, which stand in memory of other processes, too.
    Shared(Vec<Word>),
}

/// A word at a place of an object.
#[derive(Clone, Debug)]
pub struct Word {
    pub object: Arc<Object>,
    pub offset: usize,
}

impl Word {
    /// The bytes of one word.
    pub const BYTES: usize = size_of::<AtomicU32>();

    fn value(&self) -> &AtomicU32 {
        let place = self.object.memory.at(self.offset).cast::<AtomicU32>();
        assert!(place.is_aligned(), "offsets are multiples of a word");
        // SAFETY: inside the object's mapping, which lives as long as `self`; every process uses it
        // as an atomic word.
        unsafe { &*place }
    }
}

impl Signal {
    pub fn new(is_set: bool) -> Self {
        Self::Own { is_set: Mutex::new(is_set), changed: Condvar::new() }
    }

    pub fn set(&self, to: bool) {
        match self {
            Self::Own { is_set, changed } => {
                *is_set.lock().unwrap_or_else(PoisonError::into_inner) = to;
                changed.notify_all();
            }
            Self::Shared(words) => {
                words.iter().for_each(|word| word.value().store(to.into(), Ordering::Release));
            }
        }
    }

    /// Waits until the flag is set.
    ///
    /// # Errors
    /// `ZE_RESULT_NOT_READY` when the timeout passes first.
    pub fn wait(&self, timeout: Duration) -> Result<(), Failure> {
        let is_set = match self {
            Self::Own { is_set, changed } => {
                let is_set = is_set.lock().unwrap_or_else(PoisonError::into_inner);
                let (is_set, _) = changed
                    .wait_timeout_while(is_set, timeout, |is_set| !*is_set)
                    .unwrap_or_else(PoisonError::into_inner);
                *is_set
            }
            Self::Shared(words) => {
                let begin = Instant::now();
                let is_set = || words.iter().all(|word| word.value().load(Ordering::Acquire) != 0);
                while !is_set() && begin.elapsed() < timeout {
                    std::thread::sleep(SHARED_LOOK);
                }
                is_set()
            }
        };
        if is_set { Ok(()) } else { Err(ze_result_t::ZE_RESULT_NOT_READY.into()) }
    }
}
