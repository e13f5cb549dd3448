//! Daemons that a test starts by a command of its own. All else is the end-to-end tests' support.

use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

pub fn socket_in(dir: &Path) -> PathBuf {
    dir.join("fdbroker/broker.sock")
}

pub fn program() -> Command {
    let mut command = Command::new(crate::support::broker::program());
    for name in ["SOCKET", "ADMIN_SOCKET", "CONFIG", "MAX_FDS", "TABLE_FDS", "LOG"] {
        command.env_remove(format!("FDBROKER_{name}"));
    }
    command
}

/// Starts a broker whose `--ready-fd` is 1.
pub fn wait_ready(mut command: Command) -> Child {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut ready = String::new();
    child.stdout.take().unwrap().read_to_string(&mut ready).unwrap();
    if ready != "READY\n" {
        let mut error = String::new();
        child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        panic!("the broker did not start: {error}");
    }
    child
}

/// The inode of an open fd.
pub fn inode(fd: impl AsFd) -> u64 {
    fdbrokerd::kernel::stat(fd.as_fd()).unwrap().inode
}
