//! For tests that must not share a process with others: the test starts itself again in a process
//! of its own. That process must never outlive its test by more than its own patience.

use super::FakeBroker;
use crate::shared::full_name;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};

/// The variable that is set in the process that a test starts.
const CHILD: &str = "FDBROKER_TEST_CHILD";

/// Starts `test` again in a process of its own.
#[track_caller]
pub fn start(test: &str, broker: &FakeBroker) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &full_name(test)])
        .env("FDBROKER_SOCKET", &broker.path)
        .env(CHILD, test)
        // Its result line must not count as one more test.
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Whether this is the process that a test has started.
pub fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Lowers this process's limit so that there is room for `count` more fds.
pub fn leave_room_for(count: u64) {
    let lowest = nix::unistd::dup(std::io::stderr()).unwrap();
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, lowest.as_raw_fd() as u64 + count, hard).unwrap();
}
