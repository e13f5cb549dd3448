//! What happens in each test program before its `main`, so that a test is the same under any
//! parent: signals as after a login, and no fd but 0, 1 and 2. Must never allocate or panic: the
//! Rust runtime has not started yet.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};

/// Fds that a test program may have, where it may. With 1,024 all tests pass, too, unless far more
/// run side by side than a small machine has processors.
const TABLE_FDS: u64 = 4096;

/// Run by the C runtime as a constructor, in the only thread.
#[used]
// SAFETY: the section holds pointers to such functions (System V ABI, "Initialization and
// Termination Functions").
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    // nohup(1), a background job of a shell or a service may have them ignored or blocked, and
    // children inherit that.
    for one in Signal::iterator() {
        // Refused for SIGKILL and SIGSTOP, which nobody can change.
        // SAFETY: no handler is installed, and nothing else runs yet.
        let _ = unsafe { signal(one, SigHandler::SigDfl) };
    }
    let _ = SigSet::all().thread_unblock();
    // The soft limit is meant for programs that use select(2). Tests of many threads share one
    // table.
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, soft.max(TABLE_FDS).min(hard), hard);
    }
    // Of the parent: they would go on into each daemon that a test starts, and be counted there.
    // SAFETY: nothing in this process has opened an fd yet.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}
