//! What all end-to-end tests share: saying that a test could not run on this machine.
//! Must never let a test that did not run pass for one that did.

use std::fs::OpenOptions;
use std::io::Write;

/// The file that collects the tests which did not run; `tests/run.sh` reads it.
const LOG_VARIABLE: &str = "FDBROKER_NOT_RUN_LOG";

/// Says that `test_name` cannot run here, because of `reason`. The caller returns at once.
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
