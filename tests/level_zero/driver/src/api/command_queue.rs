//! Command queues and fences. Must never leave a command running after the call that executes it.

use super::command_list::List;
use super::event::{set, wait};
use crate::answer::{Failure, answer};
use crate::opaque::{content, destroy, give, make};
use crate::signal::Signal;
use level_zero_sys::*;
use std::slice;

/// A queue has no content: execution ends within the call.
struct Queue;

pub(super) unsafe extern "C" fn create(
    _context: ze_context_handle_t,
    _device: ze_device_handle_t,
    _desc: *const ze_command_queue_desc_t,
    queue: *mut ze_command_queue_handle_t,
) -> ze_result_t {
    // SAFETY: the specification's promise.
    answer("zeCommandQueueCreate", unsafe { give(queue, make(Queue)) })
}

pub(super) unsafe extern "C" fn destroy_queue(queue: ze_command_queue_handle_t) -> ze_result_t {
    // SAFETY: the specification's promise: a queue of ours, not used again.
    answer("zeCommandQueueDestroy", unsafe { destroy::<Queue, _>(queue) })
}

pub(super) unsafe extern "C" fn execute(
    _queue: ze_command_queue_handle_t,
    count: u32,
    lists: *mut ze_command_list_handle_t,
    fence: ze_fence_handle_t,
) -> ze_result_t {
    // SAFETY: the specification's promise: so many live lists whose memory is valid, a live fence
    // or none.
    answer("zeCommandQueueExecuteCommandLists", unsafe { run(count, lists, fence) })
}

/// # Safety
/// The specification's promise of zeCommandQueueExecuteCommandLists.
unsafe fn run(
    count: u32,
    lists: *mut ze_command_list_handle_t,
    fence: ze_fence_handle_t,
) -> Result<(), Failure> {
    if lists.is_null() || count == 0 {
        return Err(ze_result_t::ZE_RESULT_ERROR_INVALID_SIZE.into());
    }
    // SAFETY: the caller's promise.
    for list in unsafe { slice::from_raw_parts(lists, count as usize) } {
        // SAFETY: the caller's promise.
        unsafe { content::<List, _>(*list)?.run() }?;
    }
    if fence.is_null() {
        Ok(())
    } else {
        // SAFETY: the caller's promise.
        unsafe { set(fence, true) }
    }
}

/// Never waits: executed commands have ended.
pub(super) unsafe extern "C" fn synchronize(
    queue: ze_command_queue_handle_t,
    _timeout_ns: u64,
) -> ze_result_t {
    // SAFETY: the specification's promise: a live queue.
    answer("zeCommandQueueSynchronize", unsafe { content::<Queue, _>(queue) }.map(drop))
}

pub(super) unsafe extern "C" fn create_fence(
    _queue: ze_command_queue_handle_t,
    desc: *const ze_fence_desc_t,
    fence: *mut ze_fence_handle_t,
) -> ze_result_t {
    // SAFETY: the specification's promise.
    let flags = unsafe { desc.as_ref() }.map_or(0, |desc| desc.flags);
    let signalled = flags & ze_fence_flag_t::ZE_FENCE_FLAG_SIGNALED.0 != 0;
    // SAFETY: the specification's promise.
    answer("zeFenceCreate", unsafe { give(fence, make(Signal::new(signalled))) })
}

pub(super) unsafe extern "C" fn destroy_fence(fence: ze_fence_handle_t) -> ze_result_t {
    // SAFETY: the specification's promise: a fence of ours, not used again.
    answer("zeFenceDestroy", unsafe { destroy::<Signal, _>(fence) })
}

pub(super) unsafe extern "C" fn fence_synchronize(
    fence: ze_fence_handle_t,
    timeout_ns: u64,
) -> ze_result_t {
    // SAFETY: the specification's promise: a live fence.
    answer("zeFenceHostSynchronize", unsafe { wait(fence, timeout_ns) })
}

pub(super) unsafe extern "C" fn fence_status(fence: ze_fence_handle_t) -> ze_result_t {
    // SAFETY: the specification's promise: a live fence.
    answer("zeFenceQueryStatus", unsafe { wait(fence, 0) })
}

pub(super) unsafe extern "C" fn reset_fence(fence: ze_fence_handle_t) -> ze_result_t {
    // SAFETY: the specification's promise: a live fence.
    answer("zeFenceReset", unsafe { set(fence, false) })
}
