//! The test driver's counters, and the function that reads them: one file for driver and tests.
//! Must never hold logic.

use std::ffi::CStr;

/// The objects in this process's test driver. All zero once the program has given back everything.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Allocations that are not freed.
    pub allocations: u64,
    /// Opened handles and imported fds that are not closed.
    pub imports: u64,
    /// Memory objects behind allocations and imports; allocations of one pool share one.
    pub objects: u64,
    /// Bytes of these memory objects.
    pub bytes: u64,
    /// Exported fds that the driver holds open: one per exported object.
    pub exported_fds: u64,
    /// Gets without their Put.
    pub gets: u64,
    /// Fds fetched from exporting processes and kept while their import is open.
    pub fetched_fds: u64,
}

/// The name to ask `zeDriverGetExtensionFunctionAddress` for.
pub const COUNTERS_FUNCTION: &CStr = c"zeTestDriverGetCounters";

/// The function of that name; it writes one [`Counters`].
pub type CountersFunction = unsafe extern "C" fn(*mut Counters);

/// The name of the function that says where the memory at an address is: 16 * (card + 1), and the
/// tile + 1 where it is one tile's; 0: not known.
pub const WHERE_FUNCTION: &CStr = c"zeTestDriverWhere";

/// The function of that name.
#[allow(dead_code)] // the driver needs the name only
pub type WhereFunction = unsafe extern "C" fn(*const std::ffi::c_void) -> u32;
