//! Old loaders, and processes without a driver. The bindings must never panic there.

use crate::fault::{Fault, Outcome, holds, same};
use crate::gpu::Gpu;
use level_zero_sys::{CallError, LevelZero, ze_ipc_mem_handle_t, ze_result_t};

/// Functions that loader 1.8.12 (spec 1.4) does not have.
const NEWER_THAN_1_4: [&str; 6] = [
    "zeCommandListHostSynchronize",
    "zeEventPoolPutIpcHandle",
    "zeInitDrivers",
    "zeMemGetFileDescriptorFromIpcHandleExp",
    "zeMemGetIpcHandleFromFileDescriptorExp",
    "zeMemPutIpcHandle",
];

/// Whether this is the old loader, by `ZE_TEST_LOADER`; a fault when another loader was loaded than
/// that.
pub fn is_old() -> Result<bool, Fault> {
    match std::env::var("ZE_TEST_LOADER").as_deref() {
        Ok("1.8.12") => Ok(true),
        Ok("1.20.6") => Ok(false),
        _ => Err("set ZE_TEST_LOADER to the loader's version, 1.8.12 or 1.20.6".into()),
    }
}

pub fn lacks_what_its_version_lacks(gpu: &Gpu) -> Outcome {
    let mut missing = gpu.level_zero.missing();
    missing.sort_unstable();
    let put = gpu.put(ze_ipc_mem_handle_t::default());
    if is_old()? {
        same("functions the loader lacks", missing, NEWER_THAN_1_4.to_vec())?;
        same("Put", put, Err(CallError::Missing { function: "zeMemPutIpcHandle" }))
    } else {
        same("functions the loader lacks", missing, Vec::new())?;
        same("Put of a handle that nobody knows", put, Ok(()))
    }
}

pub fn no_driver() -> Outcome {
    init_fails()
}

pub fn init_fails() -> Outcome {
    let level_zero = LevelZero::load()?;
    // SAFETY: no pointers.
    match unsafe { level_zero.zeInit(0) } {
        Err(CallError::Failed { function, code }) => {
            same("function", function, "zeInit")?;
            holds(code != ze_result_t::ZE_RESULT_SUCCESS, || "an error that is none".to_string())
        }
        other => Err(format!("zeInit: {other:?}").into()),
    }
}
