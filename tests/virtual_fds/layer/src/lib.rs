//! The smallest layer: a function that exports a memfd, in the place of a driver's, and everything else by fdbroker's crate
//! of virtual fds. Must never know what the programs of the tests do with their fds.

mod broker;
mod layer;

use crate::layer::Layer;
use libc::c_int;
use std::sync::atomic::Ordering;

/// Run by the dynamic linker as a constructor.
#[used]
// SAFETY: the section holds pointers to such functions (System V ABI, "Initialization and Termination Functions").
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

static LAYER: Layer = Layer::new();

extern "C" fn start() {
    fdbroker_virtual_fds::install(&LAYER);
}

/// Exports `size` bytes of a sealed memfd, as a driver would export memory: a virtual fd, the same one for the same memory;
/// -1: no broker, or it refuses. The memfd stays the program's.
#[unsafe(no_mangle)]
pub extern "C" fn test_export(fd: c_int, size: usize) -> c_int {
    test_use_driver();
    LAYER.export(fd, size as u64).unwrap_or(-1)
}

/// What a program does that uses the driver and exports nothing.
#[unsafe(no_mangle)]
pub extern "C" fn test_use_driver() {
    LAYER.has_used_driver.store(true, Ordering::Relaxed);
}
