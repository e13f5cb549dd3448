//! The broker of a check: the real daemon in a directory of its own, asked through the command
//! `fdbroker`. Must never outlive its check.

use crate::rank::count_fds;
use crate::support::manager::Manager;
use serde_json::Value;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for anything in this file.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Between two looks at something that no event announces.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// Where a broker is found.
pub trait Paths {
    /// The socket for clients.
    fn socket(&self) -> PathBuf;
}

impl Paths for Node {
    fn socket(&self) -> PathBuf {
        Node::socket(self)
    }
}

impl Paths for Manager {
    fn socket(&self) -> PathBuf {
        Manager::socket(self)
    }
}

#[derive(Debug)]
pub struct Node {
    child: Child,
    /// The daemon ends when this pipe is closed.
    lifeline: Option<ChildStdin>,
    dir: PathBuf,
    program: PathBuf,
    /// Fds of /dev/nvidiactl that the daemon inherited from this program, should CUDA's own not be
    /// close-on-exec.
    vmm_base: u64,
}

impl Node {
    /// Starts the daemon and waits until it serves. `settings` are lines of the configuration file.
    pub fn start(settings: &[String]) -> Result<Self, String> {
        let program = program()?;
        let name = format!("fdbroker-gpu-{}-{}", std::process::id(), number());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let mut command = Command::new(&program);
        command.arg("broker").arg("--private").arg(&dir);
        command.args(["--until-eof", "0", "--ready-fd", "1", "--log", "warn"]);
        for setting in settings {
            command.args(["--set", setting]);
        }
        for name in ["FDBROKER_SOCKET", "FDBROKER_ADMIN_SOCKET", "FDBROKER_CONFIG"] {
            command.env_remove(name);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("{program:?}: {error}"))?;
        let (lifeline, ready) = (child.stdin.take(), child.stdout.take());
        let mut node = Node { child, lifeline, dir, program, vmm_base: 0 };
        let mut text = String::new();
        // The daemon closes the pipe when it is ready; the pipe also ends when the daemon does.
        let read = ready.expect("piped").read_to_string(&mut text);
        if read.is_err() || text != "READY\n" {
            return Err("the broker was not ready; its own message is above".into());
        }
        node.vmm_base = node.count_vmm()?;
        Ok(node)
    }

    fn count_vmm(&self) -> Result<u64, String> {
        count_fds(&self.child.id().to_string()).map(|(_, vmm)| vmm)
    }

    /// VMM fds that the daemon has open, as /proc says.
    pub fn vmm_fds(&self) -> Result<u64, String> {
        Ok(self.count_vmm()?.saturating_sub(self.vmm_base))
    }

    /// Waits until the daemon has `wanted` VMM fds open.
    pub fn until_vmm_fds(&self, wanted: u64) -> Result<(), String> {
        until(&format!("the broker has {wanted} VMM fds open"), || {
            let vmm = self.vmm_fds()?;
            Ok((vmm == wanted).then_some(()).ok_or(vmm))
        })
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.join("fdbroker/broker.sock")
    }

    /// `fdbroker status`.
    pub fn status(&self) -> Result<Value, String> {
        self.command(&["status"], &[0])
    }

    /// `fdbroker ls`.
    pub fn ls(&self) -> Result<Value, String> {
        self.command(&["ls"], &[0])
    }

    /// `fdbroker evict`.
    pub fn evict(&self, allocation: &str) -> Result<Value, String> {
        self.command(&["evict", allocation], &[0])
    }

    /// Findings of `fdbroker audit`: kind, pid and allocation of each.
    pub fn audit(&self) -> Result<Vec<(String, i64, String)>, String> {
        // Exit status 5: there are findings.
        let report = self.command(&["audit"], &[0, 5])?;
        let text = |finding: &Value, name: &str| finding[name].as_str().unwrap_or("").to_owned();
        let found = report["findings"].as_array().ok_or("fdbroker audit says no findings")?;
        let found = found
            .iter()
            .map(|it| (text(it, "kind"), it["pid"].as_i64().unwrap_or(-1), text(it, "allocation")));
        Ok(found.collect())
    }

    /// The command's answer as JSON, if its exit status is one of these.
    fn command(&self, arguments: &[&str], statuses: &[i32]) -> Result<Value, String> {
        let name = arguments.join(" ");
        let mut command = Command::new(&self.program);
        command.args(arguments).arg("--json");
        command.env("FDBROKER_ADMIN_SOCKET", self.dir.join("fdbroker-admin/admin.sock"));
        let output = command.output().map_err(|error| format!("fdbroker {name}: {error}"))?;
        if !output.status.code().is_some_and(|code| statuses.contains(&code)) {
            let why = String::from_utf8_lossy(&output.stderr);
            return Err(format!("fdbroker {name}: {}: {why}", output.status));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| format!("fdbroker {name}: {error}"))
    }

    /// A number of the status, such as `/held_bytes/now`.
    pub fn count(&self, pointer: &str) -> Result<u64, String> {
        let status = self.status()?;
        let number = status.pointer(pointer).and_then(Value::as_u64);
        number.ok_or_else(|| format!("fdbroker status has no {pointer}"))
    }

    /// Waits until a number of the status is `wanted`.
    pub fn until_count(&self, pointer: &str, wanted: u64) -> Result<(), String> {
        until(&format!("{pointer} is {wanted}"), || {
            let count = self.count(pointer)?;
            Ok((count == wanted).then_some(()).ok_or(count))
        })
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

/// Calls `look` again and again until it is content. Its last finding is in the error.
pub fn until<T, F: std::fmt::Display>(
    what: &str,
    look: impl FnMut() -> Result<Result<T, F>, String>,
) -> Result<T, String> {
    until_each(LOOK_INTERVAL, what, look)
}

/// The same, with so much time between two looks.
pub fn until_each<T, F: std::fmt::Display>(
    interval: Duration,
    what: &str,
    mut look: impl FnMut() -> Result<Result<T, F>, String>,
) -> Result<T, String> {
    let limit = Instant::now() + PATIENCE;
    loop {
        match look()? {
            Ok(found) => return Ok(found),
            Err(found) if Instant::now() > limit => {
                return Err(format!("waited in vain until {what}; found {found}"));
            }
            Err(_) => std::thread::sleep(interval),
        }
    }
}

/// The command under test. FDBROKER_BIN_DIR names its directory; otherwise it is the folder above
/// this program's. The command.
pub fn program() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| format!("own path: {error}"))?;
    let beside = || Some(own.parent()?.parent()?.to_path_buf());
    let named = std::env::var_os("FDBROKER_BIN_DIR").filter(|dir| !dir.is_empty());
    let dir = named.map(PathBuf::from).or_else(beside).unwrap_or_default();
    let program = dir.join("fdbroker");
    if program.is_file() {
        Ok(program)
    } else {
        Err(format!("no command {}; build it or set FDBROKER_BIN_DIR", program.display()))
    }
}

fn number() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
