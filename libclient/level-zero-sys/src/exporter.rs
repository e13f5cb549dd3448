//! The exporter's pid and fd in an IPC handle of compute-runtime's. Must never change a handle of
//! another layout.

use crate::bindings::ZE_MAX_IPC_HANDLE_SIZE;
use std::ops::Range;

const SIZE: usize = ZE_MAX_IPC_HANDLE_SIZE as usize;

/// Where opaque handles have the pid (`IpcOpaqueMemoryData`). Older ones have a type in the first
/// of these bytes.
const PID: Range<usize> = 16..20;

/// Where they have the exporter's fd, and where drivers of 26.18 or later have it again.
const FD: Range<usize> = 0..4;
const FD_COPY: Range<usize> = 22..26;

/// The types of memory are smaller than this (`InternalIpcMemoryType` has 3).
const TYPES: u32 = 8;

/// A handle that this process has just got from the driver, for others to put an fd of their own
/// into: without the pid. With one, drivers of 26.09 to 26.17 take the fd for the exporter's and
/// fetch what has that number there, which is something else. Later ones do so where the fd has
/// the exporter's number: its copy becomes one that no process has open.
pub fn without_exporter(mut handle: [u8; SIZE]) -> [u8; SIZE] {
    let pid = std::process::id();
    let has_copy = handle[FD_COPY] == handle[FD];
    // A pid of the first few, a container's first process, may be a type.
    let is_sure = pid >= TYPES || (has_copy && handle[FD] != [0; 4]);
    if is_sure && handle[PID] == pid.to_ne_bytes() {
        handle[PID].fill(0);
        if has_copy {
            handle[FD_COPY].fill(u8::MAX);
        }
    }
    handle
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handle_when_it_has_this_process_s_pid_loses_it_and_the_fd_s_copy_and_nothing_else() {
        let mut opaque = [7; SIZE];
        opaque[PID].copy_from_slice(&std::process::id().to_ne_bytes());
        let mut one_number = opaque;
        one_number[FD_COPY].fill(0);
        let others = [7; SIZE];

        let without = without_exporter(opaque);

        assert_eq!((&without[PID], &without[FD_COPY]), (&[0; 4][..], &[u8::MAX; 4][..]));
        assert_eq!((&without[..16], &without[20..22]), (&opaque[..16], &opaque[20..22]));
        assert_eq!(without[26..], opaque[26..]);
        assert_eq!(without_exporter(one_number)[20..], one_number[20..]);
        assert_eq!(without_exporter(others), others);
    }
}
