//! Shared by all test programs: a start that does not depend on the parent, naming a test that
//! cannot run on this machine, and the name by which a test starts itself again. Must never let a
//! test that did not run count as one that ran.
#![allow(dead_code, reason = "each test program uses its part")]

mod start;

use nix::sys::resource::{Resource, getrlimit};
use std::fs::OpenOptions;
use std::io::Write;
use std::panic::Location;

/// Names the file of tests that did not run; `tests/run.sh` reads it.
const LOG_VARIABLE: &str = "FDBROKER_NOT_RUN_LOG";

/// Reports that `test_name` cannot run here, because of `reason`. The test then returns at once.
///
/// # Panics
/// When CI is set: there every test must run.
pub fn not_run(test_name: &str, reason: &str) {
    assert!(std::env::var_os("CI").is_none(), "{test_name} cannot run here: {reason}");
    println!("not run: {test_name}: {reason}");
    let Some(path) = std::env::var_os(LOG_VARIABLE).filter(|path| !path.is_empty()) else { return };
    // One write of one line: tests of several threads and processes append to the same file.
    let line = format!("{test_name}: {reason}\n");
    let mut log =
        OpenOptions::new().create(true).append(true).open(path).expect("open FDBROKER_NOT_RUN_LOG");
    log.write_all(line.as_bytes()).expect("write FDBROKER_NOT_RUN_LOG");
}

/// Whether a process can have so many fds here, by its hard limit. Where it cannot, the calling
/// test is named as not run.
///
/// # Panics
/// When CI is set, as [`not_run`].
#[must_use]
pub fn has_fds(needed: u64) -> bool {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("it is a known limit");
    if hard < needed {
        // The thread of a test has its name.
        let thread = std::thread::current();
        let test_name = thread.name().unwrap_or_default();
        not_run(
            test_name,
            &format!("needs a hard limit of {needed} fds; it is {hard} (ulimit -Hn)"),
        );
    }
    hard >= needed
}

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
