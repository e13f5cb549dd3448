//! The exporter's pid in an IPC handle of compute-runtime's. Must never change a handle of another
//! layout.

use crate::bindings::ZE_MAX_IPC_HANDLE_SIZE;
use std::ops::Range;

const SIZE: usize = ZE_MAX_IPC_HANDLE_SIZE as usize;

/// Where opaque handles have the pid (`IpcOpaqueMemoryData`). Older ones have a type in the first
/// of these bytes.
const PID: Range<usize> = 16..20;

/// The types of memory are smaller than this (`InternalIpcMemoryType` has 3).
const TYPES: u32 = 8;

/// A handle that this process has just got from the driver, for others to put an fd of their own
/// into: without the pid. With one, drivers of 26.09 to 26.17 take the fd for the exporter's and
/// fetch what has that number there, which is something else. Later ones see that the fd is not the
/// exporter's.
pub fn without_exporter(mut handle: [u8; SIZE]) -> [u8; SIZE] {
    let pid = std::process::id();
    // A pid of the first few, a container's first process, may be a type.
    if pid >= TYPES && handle[PID] == pid.to_ne_bytes() {
        handle[PID].fill(0);
    }
    handle
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handle_when_it_has_this_process_s_pid_loses_it_and_nothing_else() {
        let mut opaque = [7; SIZE];
        opaque[PID].copy_from_slice(&std::process::id().to_ne_bytes());
        let others = [7; SIZE];

        let without = without_exporter(opaque);

        assert_eq!(without[PID], [0; 4]);
        assert_eq!((&without[..16], &without[20..]), (&opaque[..16], &opaque[20..]));
        assert_eq!(without_exporter(others), others);
    }
}
