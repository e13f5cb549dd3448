//! The edge to the program. Must never let a panic reach it.

use fdbroker_virtual_fds::inside;
use level_zero_sys::ze_result_t;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `body`; a fault in this layer becomes an answer, its words are on stderr already.
pub fn guard(body: impl FnOnce() -> ze_result_t) -> ze_result_t {
    // What a panic interrupts is consistent: locks here are let go between consistent states.
    let caught = inside(|| catch_unwind(AssertUnwindSafe(body)));
    caught.unwrap_or_else(|payload| {
        // The payload's own drop may panic too.
        std::mem::forget(payload);
        ze_result_t::ZE_RESULT_ERROR_UNKNOWN
    })
}

/// For what is only added to a call: a fault in it is no reason for the call to fail.
pub fn beside(body: impl FnOnce()) {
    guard(|| {
        body();
        ze_result_t::ZE_RESULT_SUCCESS
    });
}
