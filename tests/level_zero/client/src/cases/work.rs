//! Command lists, queues, fences and events. A list must not run before it is executed.

use crate::fault::{Outcome, holds, refused, same};
use crate::gpu::{Gpu, pattern};
use level_zero_sys::*;
use std::ptr;

const BYTES: usize = 4096;
const NOT_READY: ze_result_t = ze_result_t::ZE_RESULT_NOT_READY;

pub fn lists_fences_events(gpu: &Gpu) -> Outcome {
    let ze = &gpu.level_zero;
    let memory = gpu.allocate(BYTES, false)?;
    gpu.write(memory, &pattern(BYTES, 1))?;
    let (mut list, mut queue, mut fence) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    let list_desc = ze_command_list_desc_t::blank();
    let queue_desc = ze_command_queue_desc_t::blank();
    let fence_desc = ze_fence_desc_t::blank();
    let (context, device, null) = (gpu.context, gpu.device, ptr::null_mut());
    // SAFETY: handles of this device; locals; the pattern is copied at append, the memory lives
    // until the end.
    unsafe {
        ze.zeCommandListCreate(context, device, &raw const list_desc, &raw mut list)?;
        ze.zeCommandQueueCreate(context, device, &raw const queue_desc, &raw mut queue)?;
        ze.zeFenceCreate(queue, &raw const fence_desc, &raw mut fence)?;
        let fill = [7u8, 8];
        let fill_from = fill.as_ptr().cast();
        ze.zeCommandListAppendMemoryFill(
            list,
            memory,
            fill_from,
            2,
            BYTES,
            null,
            0,
            ptr::null_mut(),
        )?;
        ze.zeCommandListClose(list)?;
    }

    let unchanged = gpu.read(memory, BYTES)? == pattern(BYTES, 1);
    holds(unchanged, || "the list ran before it was executed".to_string())?;
    // SAFETY: as above.
    unsafe {
        refused("the fence before", ze.zeFenceQueryStatus(fence), NOT_READY)?;
        ze.zeCommandQueueExecuteCommandLists(queue, 1, &raw mut list, fence)?;
        ze.zeFenceHostSynchronize(fence, u64::MAX)?;
        ze.zeCommandQueueSynchronize(queue, u64::MAX)?;
    }
    let filled = gpu.read(memory, BYTES)? == [7u8, 8].repeat(BYTES / 2);
    holds(filled, || "the fill did not happen".to_string())?;
    // SAFETY: as above; none is used again.
    unsafe {
        ze.zeFenceReset(fence)?;
        refused("the fence after a reset", ze.zeFenceQueryStatus(fence), NOT_READY)?;
        ze.zeFenceDestroy(fence)?;
        ze.zeCommandListDestroy(list)?;
        ze.zeCommandQueueDestroy(queue)?;
    }
    Ok(gpu.free(memory)?)
}

pub fn events(gpu: &Gpu) -> Outcome {
    let ze = &gpu.level_zero;
    let (mut pool, mut event) = (ptr::null_mut(), ptr::null_mut());
    let pool_desc = ze_event_pool_desc_t { count: 1, ..Structure::blank() };
    let event_desc = ze_event_desc_t::blank();
    // SAFETY: handles of this device; locals.
    unsafe {
        let (context, no_devices) = (gpu.context, ptr::null_mut());
        ze.zeEventPoolCreate(context, &raw const pool_desc, 0, no_devices, &raw mut pool)?;
        ze.zeEventCreate(pool, &raw const event_desc, &raw mut event)?;

        refused("a new event", ze.zeEventQueryStatus(event), NOT_READY)?;
        ze.zeEventHostSignal(event)?;
        same("a signalled event", ze.zeEventHostSynchronize(event, 0), Ok(()))?;
        ze.zeEventHostReset(event)?;
        refused("a reset event", ze.zeEventHostSynchronize(event, 0), NOT_READY)?;

        ze.zeEventDestroy(event)?;
        ze.zeEventPoolDestroy(pool)?;
    }
    Ok(())
}
