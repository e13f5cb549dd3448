//! What the broker says of itself, asked through its command. It must never be asked by a case for what a program is
//! to do: only for what it has left behind.

use crate::fault::{Fault, Outcome, holds};
use crate::limits::PEER_TIMEOUT;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// One-way messages are on their way for microseconds.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// What is there now, and what has been.
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
}

/// The broker named in the environment, by the command named there.
pub fn counts() -> Result<Counts, Fault> {
    let command = std::env::var_os("ZE_TEST_FDBROKER").ok_or("ZE_TEST_FDBROKER is not set")?;
    let out = Command::new(command)
        .args(["status", "--json"])
        // Not the layer's and loader's libraries: it is another program.
        .env_remove("LD_LIBRARY_PATH")
        .env_remove("LD_PRELOAD")
        .stderr(Stdio::inherit())
        .output()?;
    let text = String::from_utf8(out.stdout)?;
    let now = |name: &str| number(&text, &format!("\"{name}\":{{\"now\":"));
    let total = |name: &str| number(&text, &format!("\"{name}\":"));
    Ok(Counts {
        pid: total("pid")?,
        allocations: now("allocations")?,
        open_leases: now("open_leases")?,
        mapped_leases: now("mapped_leases")?,
        held_fds: total("held_now")? + total("closing_now")?,
        registrations: total("registrations")?,
        grants: total("grants")?,
        recalls: total("recalls")?,
    })
}

/// The number that follows in a line of JSON.
fn number(text: &str, after: &str) -> Result<u64, Fault> {
    let at = text.find(after).ok_or_else(|| format!("no {after} in {text}"))?;
    let digits = text[at + after.len()..].split(|it: char| !it.is_ascii_digit()).next();
    Ok(digits.unwrap_or_default().parse()?)
}

/// Waits until the broker counts so.
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

/// Waits until nothing is left in it.
pub fn wait_until_empty() -> Outcome {
    wait_for("nothing left", |counts| {
        (counts.allocations, counts.open_leases, counts.mapped_leases, counts.held_fds)
            == (0, 0, 0, 0)
    })
}
