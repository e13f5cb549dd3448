//! What the test driver counts, and how a test asks: one file for both. It must never hold logic.

use std::ffi::CStr;

/// What lives in this process's test driver now. All zero once a program has given back everything.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Allocations made and not freed.
    pub allocations: u64,
    /// Imports (opened handles, imported fds) not closed.
    pub imports: u64,
    /// Memory objects behind both; allocations of one pool share one.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Exported fds that the driver holds open: one per exported object.
    pub exported_fds: u64,
    /// Handles given out by Get and not Put.
    pub gets: u64,
    /// Fds fetched from exporting processes and kept while their import is open.
    pub fetched_fds: u64,
}

/// Name of the function, for `zeDriverGetExtensionFunctionAddress`.
pub const COUNTERS_FUNCTION: &CStr = c"zeTestDriverGetCounters";

/// Its type; it writes one [`Counters`].
pub type CountersFunction = unsafe extern "C" fn(*mut Counters);
