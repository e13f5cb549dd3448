//! Naming a test that cannot run on this machine. Must never let a test that did not run count as
//! one that ran.

use nix::sys::resource::{Resource, getrlimit};
use std::fs::OpenOptions;
use std::io::Write;

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
        // The thread of a test has its name; a program that runs one case has it as its argument.
        let thread =
            std::thread::current().name().filter(|name| *name != "main").map(str::to_owned);
        let test_name = thread.or_else(|| std::env::args().nth(1)).unwrap_or_default();
        not_run(
            &test_name,
            &format!("needs a hard limit of {needed} fds; it is {hard} (ulimit -Hn)"),
        );
    }
    hard >= needed
}
