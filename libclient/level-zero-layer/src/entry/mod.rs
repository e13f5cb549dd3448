//! The functions that stand in the loader's tables, and that the preloaded library exports. Thin:
//! they stop panics and leave the work to others. Must never let a panic reach the program.

mod events;
mod extension;
mod memory;
mod virtual_memory;

pub use events::*;
pub use extension::extension;
pub use memory::*;
pub use virtual_memory::*;

use fdbroker_virtual_fds::inside;
use level_zero_sys::ze_result_t;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `body`; a fault in this layer becomes an answer, its words are on stderr already.
fn guard(body: impl FnOnce() -> ze_result_t) -> ze_result_t {
    // What a panic interrupts is consistent: locks here are let go between consistent states.
    let caught = inside(|| catch_unwind(AssertUnwindSafe(body)));
    caught.unwrap_or_else(|payload| {
        // The payload's own drop may panic too.
        std::mem::forget(payload);
        ze_result_t::ZE_RESULT_ERROR_UNKNOWN
    })
}

/// For what is only added to a call: a fault in it is no reason for the call to fail.
fn beside(body: impl FnOnce()) {
    guard(|| {
        body();
        ze_result_t::ZE_RESULT_SUCCESS
    });
}

/// The loader has found the layer: the program uses Level Zero.
pub fn note_driver() {
    crate::broker::note_driver();
}
