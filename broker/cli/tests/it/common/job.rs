//! Processes of jobs that join a broker, on a node of the test's own. Must never outlive their
//! test.

use crate::common::{LIMIT, Running, TestDir, end, fdbroker, is_alive, signal, wait_for};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc::channel;

/// What launchers set: whoever runs the tests may be under one.
const LAUNCHERS_VARIABLES: [&str; 8] = [
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "PMI_JOBID",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "FLUX_JOB_ID",
    "PALS_APID",
    "ALPS_APP_ID",
];

/// Says which broker it has, and stays until its stdin ends.
pub const MEMBER: &str = "$F status --json; read line || :";

/// The node of a test: a TMPDIR that no other test's processes use.
pub struct Node(pub TestDir);

impl Node {
    pub fn new(name: &str) -> Self {
        Node(TestDir::new(&format!("join-{name}")))
    }

    /// A process of job `job` that runs a script; `$F` is the command under test.
    pub fn rank(&self, job: &str, script: &str) -> Command {
        self.on_node(fdbroker(&["run", "--join", "--job", job, "--", "sh", "-c", script]))
    }

    /// The same for a job that is to be found.
    pub fn unnamed(&self, script: &str) -> Command {
        self.on_node(fdbroker(&["run", "--join", "--", "sh", "-c", script]))
    }

    pub fn on_node(&self, mut command: Command) -> Command {
        for name in LAUNCHERS_VARIABLES {
            command.env_remove(name);
        }
        command.env("TMPDIR", self.0.path()).env("F", env!("CARGO_BIN_EXE_fdbroker"));
        command.stdin(Stdio::piped());
        command
    }

    pub fn home(&self) -> PathBuf {
        self.0.path().join(format!("fdbroker-{}", nix::unistd::Uid::effective()))
    }

    /// What is left of jobs.
    pub fn rooms(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.home()).into_iter().flatten();
        entries.map(|entry| entry.expect("readable").path()).collect()
    }

    /// The processes of this node that are `fdbroker WORD`.
    pub fn processes(&self, word: &str) -> Vec<u32> {
        let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let dir = self.0.path().to_str().expect("UTF-8");
        pids.filter(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            let mut arguments = line.split('\0').skip(1);
            // Its helpers share its command line.
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            let is_helper =
                name.starts_with("fdbroker-lane") || name.starts_with("fdbroker-warden");
            let is_it = arguments.next() == Some(word) && line.contains(dir);
            is_it && !is_helper && is_alive(*pid)
        })
        .collect()
    }

    pub fn only(&self, word: &str) -> u32 {
        let found = self.processes(word);
        assert_eq!(found.len(), 1, "{word}: {found:?}");
        found[0]
    }

    /// Waits until nothing is left: no process, no directory.
    pub fn wait_until_empty(&self) {
        self.wait_until_no_process();
        wait_for("end of the rooms", || self.rooms().is_empty().then_some(()));
    }

    /// The same where a keeper was killed, whose room the next one removes.
    pub fn wait_until_no_process(&self) {
        wait_for("end of the broker", || {
            let is_empty =
                self.processes("keeper").is_empty() && self.processes("broker").is_empty();
            is_empty.then_some(())
        });
    }
}

impl Drop for Node {
    /// A failed test must leave no process behind.
    fn drop(&mut self) {
        for pid in self.processes("keeper").into_iter().chain(self.processes("broker")) {
            let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        }
    }
}

/// A process of a job that has joined.
pub struct Member {
    pub running: Running,
    stdout: BufReader<ChildStdout>,
    pub broker: Value,
}

impl Member {
    /// Starts it, and waits until it has joined.
    pub fn join(command: Command) -> Self {
        Self::joined(Running::start(command))
    }

    pub fn joined(mut running: Running) -> Self {
        let mut stdout = BufReader::new(running.0.stdout.take().expect("piped"));
        let first_line = in_time(move || {
            let mut line = String::new();
            stdout.read_line(&mut line).expect("readable");
            (line, stdout)
        });
        let Some((line, stdout)) = first_line else {
            let _ = running.0.kill();
            panic!("nothing was printed; {}", end(&running.end()).1)
        };
        let Ok(broker) = serde_json::from_str(&line) else {
            let _ = running.0.kill();
            panic!("it has not joined: {line:?}; {}", end(&running.end()).1)
        };
        Member { running, stdout, broker }
    }

    /// The next line that it prints.
    pub fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("readable");
        line
    }

    pub fn incarnation(&self) -> &str {
        self.broker["incarnation"].as_str().expect("an incarnation")
    }

    pub fn broker_pid(&self) -> u32 {
        u32::try_from(self.broker["pid"].as_u64().expect("a pid")).expect("a pid")
    }

    /// Ends its stdin, and waits for its end.
    pub fn leave(self) -> (Option<i32>, String) {
        let Member { mut running, mut stdout, .. } = self;
        drop(running.0.stdin.take());
        let rest = in_time(move || {
            let mut rest = String::new();
            stdout.read_to_string(&mut rest).expect("readable");
            rest
        });
        (running.end().status.code(), rest.expect("the end of its stdout"))
    }
}

/// Reads in a thread of its own. `None`: it takes for ever.
fn in_time<T: Send + 'static>(read: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, is_done) = channel();
    std::thread::spawn(move || done.send(read()));
    is_done.recv_timeout(LIMIT).ok()
}

/// Whether the main thread of a process sleeps for a time (proc_pid_syscall(5)).
pub fn is_sleeping(pid: u32) -> bool {
    let now = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    now.starts_with(&format!("{} ", libc::SYS_clock_nanosleep))
}

/// Kills processes, and waits until they have ended: only then the kernel has given back their
/// locks.
pub fn kill_all(pids: &[u32]) {
    for pid in pids {
        signal(*pid, "KILL");
    }
    for pid in pids {
        // With its first thread dead the others may still be ending, and hold the locks.
        let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
        wait_for("end of the killed", || (!is_alive(*pid) && threads() <= 1).then_some(()));
    }
}
