//! Which threads are inside a callback of the application: they must not wait, and not serve
//! either. Must never hold anything else.

use std::cell::Cell;

thread_local! {
    static IS_SERVING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the caller is inside a callback.
pub(crate) fn is_in_callback() -> bool {
    IS_SERVING.get()
}

/// Marks the thread as one whose callbacks are being called, until dropped.
pub(crate) struct Serving(());

impl Serving {
    pub fn begin() -> Self {
        IS_SERVING.set(true);
        Serving(())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        IS_SERVING.set(false);
    }
}
