//! Shared by all test programs: a start that does not depend on the parent, naming a test that
//! cannot run on this machine, and the name by which a test starts itself again. Must never have
//! what belongs to one program.
#![allow(dead_code, reason = "each test program uses its part")]

mod here;
mod start;

#[allow(unused_imports, reason = "each test program uses its part")]
pub use here::{has_fds, not_run};
use std::panic::Location;

/// The full name of the calling test `test`, for `--exact`: its module is its file below
/// `tests/it/`.
///
/// # Panics
/// When the caller is no file of a program `tests/it`.
#[track_caller]
pub fn full_name(test: &str) -> String {
    let (_, file) = Location::caller().file().rsplit_once("tests/it/").expect("a file of tests/it");
    let module = file.trim_end_matches(".rs").replace('/', "::");
    format!("{module}::{test}")
}

/// Runs `body` on a thread with the effective uid `uid`, which root alone can take on. The others
/// keep theirs.
pub fn as_user<T: Send>(uid: u32, body: impl FnOnce() -> T + Send) -> T {
    let run = || {
        // Through the system call itself: the C library would change all threads.
        // SAFETY: takes numbers alone.
        let done = unsafe { libc::syscall(libc::SYS_setresuid, -1, uid, -1) };
        assert_eq!(done, 0, "setresuid: {}", std::io::Error::last_os_error());
        body()
    };
    std::thread::scope(|scope| scope.spawn(run).join().expect("it has not panicked"))
}
