//! Runs the command under test, out of reach of any other broker, and never for ever.

#[path = "../../../../../tests/common/hello.rs"]
pub mod hello;
pub mod job;

use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde_json::Value;
use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// Longest time for anything a test waits for.
pub const LIMIT: Duration = Duration::from_secs(60);

pub fn fdbroker(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fdbroker"));
    command.args(arguments).stdin(Stdio::null());
    for name in ["FDBROKER_SOCKET", "FDBROKER_ADMIN_SOCKET", "FDBROKER_MAX_FDS", "XDG_RUNTIME_DIR"]
    {
        command.env_remove(name);
    }
    command.env("FDBROKER_ADMIN_SOCKET", "/nowhere/admin.sock");
    command
}

/// A terminal with so many columns: the end of whoever looks at it, and the end of programs.
pub fn terminal(columns: u16) -> (File, OwnedFd) {
    let size = libc::winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let (mut ours, mut theirs) = (-1, -1);
    let (name, modes) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: openpty(3) writes two fds, and reads the size; name and modes may be null.
    let made = unsafe {
        libc::openpty(&raw mut ours, &raw mut theirs, name, modes, (&raw const size).cast_mut())
    };
    assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: both are open, and nobody else's.
    let [ours, theirs] = [ours, theirs].map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    (ours.into(), theirs)
}

/// Runs it to its end.
pub fn run(arguments: &[&str]) -> Output {
    fdbroker(arguments).output().expect("the command starts")
}

/// Runs a shell script under `fdbroker run`; `$F` is the command.
pub fn run_script(script: &str) -> Output {
    let mut command = fdbroker(&["run", "--", "sh", "-c", script]);
    command.env("F", env!("CARGO_BIN_EXE_fdbroker")).output().expect("the command starts")
}

/// Exit status and standard error.
pub fn end(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Standard output as one JSON object on one line.
pub fn one_json_line(output: &Output) -> Value {
    let text = String::from_utf8(output.stdout.clone()).expect("UTF-8");
    assert_eq!(text.matches('\n').count(), 1, "not one line: {text:?}; {}", end(output).1);
    serde_json::from_str(&text).expect("JSON")
}

/// Waits until `found` finds something.
pub fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(value) = found() {
            return value;
        }
        assert!(Instant::now() < until, "no {what} within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A child that is killed when a test fails.
pub struct Running(pub Child);

impl Running {
    pub fn start(mut command: Command) -> Self {
        Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts"))
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Waits for the end, and takes what was printed.
    pub fn end(mut self) -> Output {
        wait_for("end of the command", || self.0.try_wait().expect("own child"));
        let mut output =
            Output { status: self.0.wait().expect("ended"), stdout: vec![], stderr: vec![] };
        use std::io::Read;
        if let Some(mut pipe) = self.0.stdout.take() {
            pipe.read_to_end(&mut output.stdout).expect("readable");
        }
        if let Some(mut pipe) = self.0.stderr.take() {
            pipe.read_to_end(&mut output.stderr).expect("readable");
        }
        output
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a signal to a process that the test started.
pub fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(status.expect("kill runs").success());
}

/// Children of `parent` whose command line has `word`.
pub fn children(parent: u32, word: &str) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").expect("/proc");
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let read =
            |name| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let status = read("status");
        let is_child = status.lines().any(|line| line == format!("PPid:\t{parent}"));
        is_child && read("cmdline").split('\0').any(|argument| argument == word)
    })
    .collect()
}

pub fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

/// A directory of a test's own, removed with this.
pub struct TestDir(PathBuf);

impl TestDir {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("fdb-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        TestDir(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        std::fs::read_dir(&self.0).expect("there").next().is_none()
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Memory of so many pages that may be shared.
pub fn memfd(pages: u64) -> OwnedFd {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let fd = memfd_create("test", flags).expect("a memfd");
    let bytes = (pages * PAGE).try_into().expect("small");
    fallocate(&fd, FallocateFlags::empty(), 0, bytes).expect("its memory");
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
    fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).expect("its seals");
    fd
}
