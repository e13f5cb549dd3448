//! zeInit and the driver group, with one driver. Must never start with a mistyped switch.

use crate::answer::{Failure, answer};
use crate::export::layout;
use crate::opaque::{give, look_mut};
use crate::settings::{Layout, settings};
use crate::trace::{account_at_exit, line};
use level_zero_sys::*;
use std::ptr;

/// The driver's UUID; its bytes have no meaning.
const UUID: [u8; 16] = *b"fdbroker-ze-test";

/// The target of the driver's handle: an address without content.
#[repr(C)]
struct Nothing([usize; 8]);

impl Nothing {
    const fn new() -> Self {
        Self([0; 8])
    }
}

static DRIVER: Nothing = Nothing::new();

fn start() -> Result<(), Failure> {
    if let Err(error) = settings() {
        line(format_args!("{error}"));
        return Err(ze_result_t::ZE_RESULT_ERROR_INVALID_ARGUMENT.into());
    }
    crate::devices::shown()?;
    crate::memory::start()?;
    if layout() != Layout::Legacy {
        // As in compute-runtime: any process of this user may fetch exported fds, also under Yama.
        // SAFETY: takes numbers only.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
    }
    account_at_exit();
    Ok(())
}

pub(super) unsafe extern "C" fn init(_flags: ze_init_flags_t) -> ze_result_t {
    answer("zeInit", start())
}

/// Answers a list with one element. `*count` 0 asks for the number only.
///
/// # Safety
/// `count` is valid, `list` null or valid for `*count` writes.
pub(super) unsafe fn list_of_one<T>(count: *mut u32, list: *mut T, one: T) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    unsafe { list_of(count, list, vec![one]) }
}

/// Answers a list, or as much of it as the program has room for. `*count` 0 asks for the number
/// only.
///
/// # Safety
/// `count` is valid, `list` null or valid for `*count` writes.
pub(super) unsafe fn list_of<T>(
    count: *mut u32,
    list: *mut T,
    items: Vec<T>,
) -> Result<(), Failure> {
    let number = u32::try_from(items.len()).unwrap_or(u32::MAX);
    // SAFETY: the caller's promise.
    let count = unsafe { look_mut(count) }?;
    let room = if *count == 0 { number } else { number.min(*count) };
    let is_asked = *count == 0 || list.is_null();
    *count = room;
    for (at, item) in items.into_iter().enumerate().take(if is_asked { 0 } else { room as usize }) {
        // SAFETY: the caller's promise: `at` is below the count.
        unsafe { list.add(at).write(item) };
    }
    Ok(())
}

pub(super) unsafe extern "C" fn get(
    count: *mut u32,
    drivers: *mut ze_driver_handle_t,
) -> ze_result_t {
    let driver = ptr::from_ref(&DRIVER).cast_mut().cast();
    // SAFETY: the specification's promise about both pointers.
    answer("zeDriverGet", unsafe { list_of_one(count, drivers, driver) })
}

pub(super) unsafe extern "C" fn init_drivers(
    count: *mut u32,
    drivers: *mut ze_driver_handle_t,
    _desc: *mut ze_init_driver_type_desc_t,
) -> ze_result_t {
    match start() {
        // SAFETY: the specification's promise, which is the same.
        Ok(()) => unsafe { get(count, drivers) },
        failed => answer("zeInitDrivers", failed),
    }
}

pub(super) unsafe extern "C" fn api_version(
    _driver: ze_driver_handle_t,
    version: *mut ze_api_version_t,
) -> ze_result_t {
    let spec = ze_api_version_t::ZE_API_VERSION_1_12;
    // SAFETY: the specification's promise.
    answer("zeDriverGetApiVersion", unsafe { give(version, spec) })
}

/// Loader 1.20 calls it while it sorts drivers, and does not check whether the driver has it.
pub(super) unsafe extern "C" fn properties(
    _driver: ze_driver_handle_t,
    properties: *mut ze_driver_properties_t,
) -> ze_result_t {
    // SAFETY: the specification's promise.
    let filled = unsafe { look_mut(properties) }.map(|properties| {
        properties.uuid.id = UUID;
        properties.driverVersion = 1;
    });
    answer("zeDriverGetProperties", filled)
}

pub(super) unsafe extern "C" fn ipc_properties(
    _driver: ze_driver_handle_t,
    properties: *mut ze_driver_ipc_properties_t,
) -> ze_result_t {
    // SAFETY: the specification's promise.
    let filled = unsafe { look_mut(properties) }.map(|properties| {
        let memory = ze_ipc_property_flag_t::ZE_IPC_PROPERTY_FLAG_MEMORY;
        let pools = ze_ipc_property_flag_t::ZE_IPC_PROPERTY_FLAG_EVENT_POOL;
        properties.flags = memory.0 | pools.0;
    });
    answer("zeDriverGetIpcProperties", filled)
}

pub(super) unsafe extern "C" fn extension_properties(
    _driver: ze_driver_handle_t,
    count: *mut u32,
    _properties: *mut ze_driver_extension_properties_t,
) -> ze_result_t {
    // SAFETY: the specification's promise.
    answer("zeDriverGetExtensionProperties", unsafe { give(count, 0) })
}
