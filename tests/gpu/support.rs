//! What tests/e2e has and the check of objects needs: the stand-in for the service manager. Must
//! never have anything else.
#![expect(dead_code, reason = "end-to-end tests use more of these modules")]

#[path = "../e2e/support/manager.rs"]
pub mod manager;
#[path = "../e2e/support/wait.rs"]
mod wait;

/// The daemon, as the stand-in starts it and looks at it.
mod broker {
    use nix::unistd::Pid;
    use std::path::{Path, PathBuf};

    /// The program `fdbrokerd` beside `fdbroker`.
    pub fn program() -> PathBuf {
        let command = crate::node::program().expect("the command was found before");
        command.with_file_name("fdbrokerd")
    }

    pub fn admin_socket(dir: &Path) -> PathBuf {
        dir.join("fdbroker-admin/admin.sock")
    }

    pub fn open_fds(pid: Pid) -> usize {
        std::fs::read_dir(format!("/proc/{pid}/fd")).expect("/proc").count()
    }

    pub fn settled_fds(pid: Pid, _admin_socket: &Path) -> usize {
        open_fds(pid)
    }
}
