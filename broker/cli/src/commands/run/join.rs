//! `fdbroker run --join -- CMD`: one broker for the processes of a job on a node. The first process
//! starts the broker; the broker ends when the last process has ended. Must never leave CMD with
//! the broker of another job or node.
//!
//! The joiner becomes CMD by exec(2): pid, signals, exit status, stdio and inherited fds are CMD's
//! own. Only one fd of the joiner stays open in CMD: it holds a shared lock on `members`, which the
//! kernel releases however CMD ends.

use super::exec::Variable;
use crate::error::{Context, Result};
use crate::joining::Joiner;
use crate::rooms::job::Job;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::resource::{Resource, getrlimit};
use std::ffi::OsString;
use std::fs::File;

/// Lowest number of the lock's fd in CMD; half of RLIMIT_NOFILE if that is less. Programs and
/// shells choose numbers up to 255 themselves, and select(2) needs numbers below FD_SETSIZE.
const MEMBER_FD_FROM: u64 = 500;

/// Joins the job's broker, which it starts if there is none, and becomes `command` with `more` in
/// its environment. Returns only if that fails.
pub fn run(
    command: &[OsString],
    max_fds: Option<u64>,
    job: Option<&str>,
    more: Vec<Variable>,
) -> Result<u8> {
    let job = Job::find(job)?;
    let (room, members) = Joiner { job: &job, max_fds, on_silent: |_| {} }.join()?;
    keep_across_exec(members)?;
    // Both are always set: an inherited path may belong to another node, or to a broker that ended
    // long ago.
    let mut environment = vec![
        ("FDBROKER_SOCKET", room.socket().into_os_string()),
        ("FDBROKER_ADMIN_SOCKET", room.admin_socket().into_os_string()),
    ];
    environment.extend(more);
    super::exec::become_command(command, environment)
}

/// Keeps the lock on `members` open in the program that this process becomes, and in that program's
/// children.
fn keep_across_exec(members: File) -> Result<()> {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).context(|| "read RLIMIT_NOFILE")?;
    let from = i32::try_from(MEMBER_FD_FROM.min(soft / 2)).unwrap_or(0);
    // The duplicate has no close-on-exec, and nothing in this process closes it.
    fcntl(&members, FcntlArg::F_DUPFD(from)).context(|| "keep the membership open")?;
    Ok(())
}
