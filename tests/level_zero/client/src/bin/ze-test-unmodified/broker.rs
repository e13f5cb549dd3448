//! The broker's counters, by its command. A case must never use them to decide what to do, only to
//! check what it left behind.

use crate::fault::{Fault, Outcome, holds};
use crate::peer::PEER_TIMEOUT;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// One-way messages take microseconds.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// The counters that cases check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    pub pid: u64,
    pub allocations: u64,
    pub open_leases: u64,
    pub mapped_leases: u64,
    /// Fds of shared memory in the broker.
    pub held_fds: u64,
    pub registrations: u64,
    pub grants: u64,
    pub recalls: u64,
    pub recalls_unanswered: u64,
}

/// Asks the broker that the environment names, by the command that ZE_TEST_FDBROKER names.
pub fn counts() -> Result<Counts, Fault> {
    let text = told("status")?;
    let now = |name: &str| number(&text, &format!("\"{name}\":{{\"now\":"));
    let total = |name: &str| number(&text, &format!("\"{name}\":"));
    Ok(Counts {
        pid: total("pid")?,
        allocations: now("allocations")?,
        open_leases: now("open_leases")?,
        mapped_leases: now("mapped_leases")?,
        held_fds: total("stored_fds")? + total("closing_fds")?,
        registrations: total("deposits")?,
        grants: total("grants")?,
        recalls: total("recalls")?,
        recalls_unanswered: total("recalls_unanswered")?,
    })
}

/// What a command of the broker says, in JSON.
pub fn told(command: &str) -> Result<String, Fault> {
    let program = std::env::var_os("ZE_TEST_FDBROKER").ok_or("ZE_TEST_FDBROKER is not set")?;
    let out = Command::new(program)
        .args([command, "--json"])
        // The libraries of layer and loader are for this program only.
        .env_remove("LD_LIBRARY_PATH")
        .env_remove("LD_PRELOAD")
        .stderr(Stdio::inherit())
        .output()?;
    Ok(String::from_utf8(out.stdout)?)
}

/// Has the broker close every fd that it can ask for again.
pub fn evict_all() -> Outcome {
    let command = std::env::var_os("ZE_TEST_FDBROKER").ok_or("ZE_TEST_FDBROKER is not set")?;
    let status = Command::new(command)
        .args(["evict", "--all"])
        .env_remove("LD_LIBRARY_PATH")
        .env_remove("LD_PRELOAD")
        .stdout(Stdio::null())
        .status()?;
    holds(status.success(), || format!("evict ended with {status}"))?;
    wait_for("no fd", |counts| counts.held_fds == 0)
}

/// Kills a broker that is not the one before. Its number.
pub fn kill_after(before: u64) -> Result<u64, Fault> {
    let until = Instant::now() + PEER_TIMEOUT;
    loop {
        // Started again, it serves a moment later.
        match counts() {
            Ok(Counts { pid, .. }) if pid != before => {
                kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGKILL)?;
                return Ok(pid);
            }
            _ => holds(Instant::now() < until, || "the broker never came back".to_string())?,
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// The number that follows `after` in a line of JSON.
fn number(text: &str, after: &str) -> Result<u64, Fault> {
    let at = text.find(after).ok_or_else(|| format!("no {after} in {text}"))?;
    let digits = text[at + after.len()..].split(|it: char| !it.is_ascii_digit()).next();
    Ok(digits.unwrap_or_default().parse()?)
}

/// Waits until the condition holds for the broker's counters.
pub fn wait_for(what: &str, is_so: impl Fn(&Counts) -> bool) -> Outcome {
    let until = Instant::now() + PEER_TIMEOUT;
    loop {
        let counts = counts()?;
        if is_so(&counts) {
            return Ok(());
        }
        holds(Instant::now() < until, || format!("the broker never had {what}: {counts:?}"))?;
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// Waits until the broker has no allocation, lease or fd left.
pub fn wait_until_empty() -> Outcome {
    wait_for("nothing left", |counts| {
        (counts.allocations, counts.open_leases, counts.mapped_leases, counts.held_fds)
            == (0, 0, 0, 0)
    })
}
