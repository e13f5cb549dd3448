//! Work of a device that others are to see the end of. Must never be waited for without its driver.

use std::ffi::c_void;

/// Work of a device that writes objects, which a seal waits for; handles of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MakersWork {
    /// A `CUstream`, or a `ze_command_queue_handle_t`: all that was put into it before.
    Stream(*mut c_void),
    /// A `CUevent`, or a `ze_event_handle_t`.
    Event(*mut c_void),
}
