//! A private daemon for the time of the benchmark. Must never outlive it.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Fds that the daemon may hold: what is over that is evicted, as on a real node.
const MAX_FDS: usize = 8192;

pub struct Daemon {
    child: Child,
    dir: tempfile::TempDir,
}

impl Daemon {
    /// Starts it, with room for `allocations` and as many leases.
    pub fn start(allocations: usize) -> Self {
        let program = given("FDBROKERD").unwrap_or_else(|| built("fdbrokerd", "fdbrokerd"));
        let dir = tempfile::tempdir().expect("a temporary directory");
        let room = allocations * 2;
        let caps = format!("allocations = {room}\nmapped_leases = {room}\n");
        let config = format!(
            "[caps.node]\n{caps}[caps.domain]\n{caps}[caps.client]\n{caps}[limits]\nmax_slots = {room}\n"
        );
        let path = dir.path().join("bench.toml");
        std::fs::write(&path, config).expect("write the configuration");
        let mut command = Command::new(&program);
        command.arg("--private").arg(dir.path()).arg("--config").arg(&path);
        command.args(["--max-fds", &MAX_FDS.to_string(), "--ready-fd", "1", "--until-eof", "0"]);
        command.env("FDBROKER_LOG", "warn").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{}: {e}", program.display()));
        let mut line = String::new();
        let ready = child.stdout.take().expect("a pipe").read_to_string(&mut line);
        assert!(ready.is_ok() && line == "READY\n", "the daemon ended before it was ready");
        Daemon { child, dir }
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("fdbroker/broker.sock")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Its stdin is its lifeline.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// The file that an environment variable names.
pub fn given(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from)
}

/// A file of a package, built now and optimized.
pub fn built(package: &str, file: &str) -> PathBuf {
    let built = Command::new(env!("CARGO"))
        .args(["build", "--release", "-p", package])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    assert!(built.is_ok_and(|status| status.success()), "cargo cannot build {package}");
    // Benchmarks lie in TARGET/release/deps.
    let myself = std::env::current_exe().expect("a path");
    let path = myself.parent().and_then(Path::parent).map(|release| release.join(file));
    path.filter(|path| path.exists()).unwrap_or_else(|| panic!("{file} is not beside this"))
}
