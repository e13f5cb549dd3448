//! The broker of a case: the real daemon in a directory of its own. The command `fdbroker` reads
//! its counters. Must never outlive its case.

use crate::fault::{Fault, Outcome};
use crate::limits::{LOOK_INTERVAL, PATIENCE};
use serde_json::Value;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Instant;

#[derive(Debug)]
pub struct Node {
    child: Child,
    /// The daemon ends when this pipe does.
    lifeline: Option<ChildStdin>,
    dir: PathBuf,
    program: PathBuf,
}

impl Node {
    /// Starts the daemon. `settings` are `NAME=VALUE`, as in the configuration file. Its time
    /// limits are long: on a busy machine a process may get no processor for seconds, and must not
    /// count as silent.
    pub fn start(settings: &[&str]) -> Result<Self, Fault> {
        let program = std::env::var_os("FDBROKER").ok_or("FDBROKER does not name the command")?;
        let program = PathBuf::from(program);
        let dir = std::env::temp_dir().join(format!("fdbroker-ze-{}", std::process::id()));
        std::fs::create_dir(&dir)?;
        let mut command = Command::new(&program);
        command.arg("broker").arg("--private").arg(&dir);
        command.args(["--until-eof", "0", "--ready-fd", "1", "--log", "warn"]);
        let unhurried = ["limits.recall_timeout_ms=600000", "limits.grace_ms=600000"];
        for setting in unhurried.iter().chain(settings) {
            command.args(["--set", setting]);
        }
        for name in ["FDBROKER_SOCKET", "FDBROKER_ADMIN_SOCKET", "FDBROKER_CONFIG"] {
            command.env_remove(name);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|why| format!("{}: {why}", program.display()))?;
        let (lifeline, ready) = (child.stdin.take(), child.stdout.take());
        let node = Node { child, lifeline, dir, program };
        let mut text = String::new();
        // The daemon closes the pipe when it is ready, or when it ends.
        let _ = ready.ok_or("no pipe")?.read_to_string(&mut text);
        match text.as_str() {
            "READY\n" => Ok(node),
            _ => Err("the broker was not ready; its own message is above".into()),
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.join("fdbroker/broker.sock")
    }

    /// The answer of `fdbroker ls --json`.
    pub fn ls(&self) -> Result<Value, Fault> {
        self.command("ls")
    }

    fn command(&self, name: &str) -> Result<Value, Fault> {
        let mut command = Command::new(&self.program);
        command.args([name, "--json"]);
        command.env("FDBROKER_ADMIN_SOCKET", self.dir.join("fdbroker-admin/admin.sock"));
        let output = command.output()?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(format!("fdbroker {name}: {}: {why}", output.status).into());
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// A number of `fdbroker status --json`, by its JSON pointer, such as `/held_fds/now`.
    pub fn count(&self, pointer: &str) -> Result<u64, Fault> {
        let status = self.command("status")?;
        let number = status.pointer(pointer).and_then(Value::as_u64);
        number.ok_or_else(|| format!("fdbroker status has no {pointer}: {status}").into())
    }

    /// Waits until that number is `wanted`.
    pub fn until_count(&self, pointer: &str, wanted: u64) -> Outcome {
        let limit = Instant::now() + PATIENCE;
        loop {
            let count = self.count(pointer)?;
            if count == wanted {
                return Ok(());
            }
            if Instant::now() > limit {
                return Err(format!("{pointer} is {count}, waited in vain for {wanted}").into());
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.lifeline = None;
        let limit = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < limit {
            std::thread::sleep(LOOK_INTERVAL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
