//! The ends of memory, mappings and contexts. Must never leave a key alive whose memory is freed.

use crate::broker;
use crate::mapped::{self, Mapping};
use crate::produced::Produced;
use level_zero_sys::*;
use std::ffi::c_void;
use std::ops::Range;

const SUCCESS: ze_result_t = ze_result_t::ZE_RESULT_SUCCESS;

/// Ends the export of memory that is about to be freed. Not after it is freed: another thread may
/// have the address then.
pub fn forget(pointer: *const c_void) {
    mapped::forget_shown(&(pointer.addr()..pointer.addr().saturating_add(1)));
    forget_those(|produced| produced.containing(pointer.addr()).into_iter().collect());
}

/// Has the driver unmap a range of addresses; its exports end before.
pub fn unmap(range: Range<usize>, below: impl FnOnce() -> ze_result_t) -> ze_result_t {
    // Also exports of mappings that were made before this layer was there to see them.
    forget_those(|produced| produced.overlapping(&range));
    mapped::forget_shown(&range);
    end_mappings(mapped::take_in(&range), below)
}

/// Has the driver destroy physical memory; what is exported where it is mapped ends before.
pub fn destroy(
    memory: ze_physical_mem_handle_t,
    below: impl FnOnce() -> ze_result_t,
) -> ze_result_t {
    end_mappings(mapped::take_of(memory.addr()), below)
}

/// Ends the exports of mappings that were taken out, and has the driver end them. The mappings come
/// back when it refuses.
fn end_mappings(mappings: Vec<Mapping>, below: impl FnOnce() -> ze_result_t) -> ze_result_t {
    for mapping in &mappings {
        forget_those(|produced| produced.overlapping(&mapping.range));
    }
    let code = below();
    if code != SUCCESS {
        mappings.into_iter().for_each(mapped::add);
    }
    code
}

/// Ends all exports of a context that is about to be destroyed: a recall must not use it.
pub fn forget_all_of(context: ze_context_handle_t) {
    forget_those(|produced| produced.bases_of(context));
}

fn forget_those(chosen: impl Fn(&Produced) -> Vec<usize>) {
    if let Some(broker) = broker::known() {
        broker.retire(chosen);
    }
}
