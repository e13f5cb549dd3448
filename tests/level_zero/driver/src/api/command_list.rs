//! Command lists: an immediate list runs at append, a regular list when a queue executes it. Must
//! never leave a command running after the call.

use crate::answer::{Failure, answer};
use crate::copy::{Command, Work};
use crate::limits::LARGEST_PATTERN_BYTES;
use crate::opaque::{content, destroy, give, make};
use crate::signal::Signal;
use level_zero_sys::*;
use std::ffi::c_void;
use std::slice;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The commands of a regular list; `None` is an immediate list, which keeps none.
pub(super) struct List(Option<Mutex<Vec<Command>>>);

impl List {
    fn commands(&self) -> Option<MutexGuard<'_, Vec<Command>>> {
        Some(self.0.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// # Safety
    /// As [`Command::run`], for each appended command.
    pub(super) unsafe fn run(&self) -> Result<(), Failure> {
        let Some(commands) = self.commands() else {
            return Err(ze_result_t::ZE_RESULT_ERROR_INVALID_COMMAND_LIST_TYPE.into());
        };
        for command in commands.iter() {
            // SAFETY: the caller's promise.
            unsafe { command.run() }?;
        }
        Ok(())
    }
}

pub(super) unsafe extern "C" fn create(
    _context: ze_context_handle_t,
    _device: ze_device_handle_t,
    _desc: *const ze_command_list_desc_t,
    list: *mut ze_command_list_handle_t,
) -> ze_result_t {
    let regular = List(Some(Mutex::default()));
    // SAFETY: the specification's promise.
    answer("zeCommandListCreate", unsafe { give(list, make(regular)) })
}

pub(super) unsafe extern "C" fn create_immediate(
    _context: ze_context_handle_t,
    _device: ze_device_handle_t,
    _desc: *const ze_command_queue_desc_t,
    list: *mut ze_command_list_handle_t,
) -> ze_result_t {
    // SAFETY: the specification's promise.
    answer("zeCommandListCreateImmediate", unsafe { give(list, make(List(None))) })
}

pub(super) unsafe extern "C" fn destroy_list(list: ze_command_list_handle_t) -> ze_result_t {
    // SAFETY: the specification's promise: a list of ours, not used again.
    answer("zeCommandListDestroy", unsafe { destroy::<List, _>(list) })
}

pub(super) unsafe extern "C" fn close(list: ze_command_list_handle_t) -> ze_result_t {
    // SAFETY: the specification's promise: a live list.
    answer("zeCommandListClose", unsafe { content::<List, _>(list) }.map(drop))
}

pub(super) unsafe extern "C" fn reset(list: ze_command_list_handle_t) -> ze_result_t {
    // SAFETY: the specification's promise: a live list.
    let emptied = unsafe { content::<List, _>(list) }.map(|list| {
        if let Some(mut commands) = list.commands() {
            commands.clear();
        }
    });
    answer("zeCommandListReset", emptied)
}

/// # Safety
/// A live list and live events; addresses as in [`Command::run`], until the list has run.
unsafe fn append(
    list: ze_command_list_handle_t,
    work: Work,
    signal: ze_event_handle_t,
    wait_count: u32,
    wait: *mut ze_event_handle_t,
) -> Result<(), Failure> {
    let waits = match wait_count {
        0 => &[],
        // SAFETY: the caller's promise: as many events as it says.
        _ if !wait.is_null() => unsafe { slice::from_raw_parts(wait, wait_count as usize) },
        _ => return Err(ze_result_t::ZE_RESULT_ERROR_INVALID_SIZE.into()),
    };
    // SAFETY: the caller's promise: live events, for as long as the list may run.
    let waits = waits.iter().map(|event| unsafe { content::<Signal, _>(*event) });
    let command = Command {
        work,
        waits: waits.collect::<Result<_, _>>()?,
        signals: if signal.is_null() {
            None
        } else {
            // SAFETY: as above.
            Some(unsafe { content::<Signal, _>(signal) }?)
        },
    };
    // SAFETY: the caller's promise.
    let list = unsafe { content::<List, _>(list) }?;
    match list.commands() {
        Some(mut commands) => commands.push(command),
        // SAFETY: the caller's promise.
        None => unsafe { command.run() }?,
    }
    Ok(())
}

pub(super) unsafe extern "C" fn append_copy(
    list: ze_command_list_handle_t,
    to: *mut c_void,
    from: *const c_void,
    size: usize,
    signal: ze_event_handle_t,
    wait_count: u32,
    wait: *mut ze_event_handle_t,
) -> ze_result_t {
    let copy =
        Work::Copy { to: to.expose_provenance(), from: from.expose_provenance(), bytes: size };
    // SAFETY: the specification's promise: live handles, memory valid until the copy is done.
    let done = unsafe { append(list, copy, signal, wait_count, wait) };
    answer("zeCommandListAppendMemoryCopy", done)
}

pub(super) unsafe extern "C" fn append_fill(
    list: ze_command_list_handle_t,
    to: *mut c_void,
    pattern: *const c_void,
    pattern_size: usize,
    size: usize,
    signal: ze_event_handle_t,
    wait_count: u32,
    wait: *mut ze_event_handle_t,
) -> ze_result_t {
    const FUNCTION: &str = "zeCommandListAppendMemoryFill";
    if pattern.is_null() || !(1..=LARGEST_PATTERN_BYTES).contains(&pattern_size) {
        return answer(FUNCTION, Err(ze_result_t::ZE_RESULT_ERROR_INVALID_SIZE.into()));
    }
    // SAFETY: the specification's promise: so many bytes of host memory.
    let pattern = unsafe { slice::from_raw_parts(pattern.cast::<u8>(), pattern_size) }.to_vec();
    let fill = Work::Fill { to: to.expose_provenance(), pattern, bytes: size };
    // SAFETY: the specification's promise: live handles, memory valid until the fill is done.
    answer(FUNCTION, unsafe { append(list, fill, signal, wait_count, wait) })
}

/// A barrier only waits and signals: commands run one after the other anyway.
pub(super) unsafe extern "C" fn append_barrier(
    list: ze_command_list_handle_t,
    signal: ze_event_handle_t,
    wait_count: u32,
    wait: *mut ze_event_handle_t,
) -> ze_result_t {
    // SAFETY: the specification's promise: live handles.
    let done = unsafe { append(list, Work::Barrier, signal, wait_count, wait) };
    answer("zeCommandListAppendBarrier", done)
}

/// Never waits: appended commands have run.
pub(super) unsafe extern "C" fn host_synchronize(
    list: ze_command_list_handle_t,
    _timeout_ns: u64,
) -> ze_result_t {
    // SAFETY: the specification's promise: a live list.
    answer("zeCommandListHostSynchronize", unsafe { content::<List, _>(list) }.map(drop))
}
