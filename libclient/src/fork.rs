//! Tells a forked child that the context it inherited is not its own: pthread_atfork(3) counts forks.
//! Must never take a lock or allocate in the child's handler.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Forks between the process that loaded this library and the one that reads it.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The process that made something. A child of fork(2) is another one. (A bare clone(2) is not seen.)
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(u32);

impl Process {
    /// The calling process, watched from now on.
    pub fn current() -> Self {
        static WATCH: Once = Once::new();
        WATCH.call_once(|| {
            // SAFETY: the handler is a plain function that lives as long as the library and does
            // one atomic add, which is async-signal-safe.
            let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            if failed != 0 {
                log::warn!("pthread_atfork failed ({failed}): a forked child must not use its parent's client");
            }
        });
        Process(FORKS.load(Ordering::Relaxed))
    }

    /// Whether the caller is still that process: one load.
    pub fn is_current(self) -> bool {
        FORKS.load(Ordering::Relaxed) == self.0
    }
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
