//! The real daemon as a process, in a directory of its own, one per test. Each test ends with the
//! check that its daemon neither panicked nor ended by itself. The daemon must never outlive its
//! test.

use super::admin::Admin;
use super::peer::signal_and_await;
use super::wait::{PATIENCE, eventually, eventually_ok, eventually_some, read_to_end};
use fdbroker_client::{Client, ClientBuilder};
use fdbroker_protocol::Resource;
use fdbroker_protocol::admin::NodeStatus;
use nix::sys::resource::{Resource as Rlimit, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Variable that names the program under test, where it is not the one that cargo built.
const PROGRAM_VARIABLE: &str = "FDBROKERD";
const PROGRAM: &str = env!("CARGO_BIN_EXE_fdbrokerd");

/// Uids for services: how many each test process uses, and how many test processes run side by
/// side. All uids are below 65,536: a container may have no others.
const FIRST_UID: u32 = 20_000;
const SERVICES: u32 = 16;
const PROCESSES: u32 = 2_500;
const _: () = assert!(FIRST_UID + PROCESSES * SERVICES <= 61_000, "the tests' other users");

/// Time limits of a daemon whose test names no others. On a busy machine a process may get no
/// processor for seconds; it must not count as silent.
const UNHURRIED: [(&str, &str); 2] = [
    ("recall_timeout_ms", "limits.recall_timeout_ms=600000"),
    ("grace_ms", "limits.grace_ms=600000"),
];

/// Variables that a stand-in for a driver needs in the daemon, too, which takes its fds for the
/// driver's.
const OF_STAND_INS: [&str; 2] = ["LD_PRELOAD", "FDBROKER_CUDA_STUB_DIR"];

/// How to start a daemon.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    config: String,
    arguments: Vec<String>,
    nofile: Option<u64>,
    tasks: Option<u64>,
    uid: Option<u32>,
    listeners: Vec<&'static str>,
}

impl Setup {
    pub fn new() -> Setup {
        Setup::default()
    }

    /// Lines of the configuration file.
    pub fn config(mut self, lines: &str) -> Setup {
        self.config.push_str(lines);
        self.config.push('\n');
        self
    }

    /// More arguments.
    pub fn arguments(mut self, more: &[&str]) -> Setup {
        self.arguments.extend(more.iter().map(|it| (*it).to_owned()));
        self
    }

    /// Whether the test itself says what this setting is.
    fn says(&self, name: &str) -> bool {
        self.config.contains(name) || self.arguments.iter().any(|it| it.contains(name))
    }

    /// Sets the cap on the node's fds.
    pub fn max_fds(mut self, cap: u64) -> Setup {
        self.arguments.extend(["--max-fds".into(), cap.to_string()]);
        self
    }

    /// Sets the size of the daemon's fd table (RLIMIT_NOFILE).
    pub fn nofile(mut self, limit: u64) -> Setup {
        self.nofile = Some(limit);
        self
    }

    /// Sets how many processes and threads the daemon's user may have (RLIMIT_NPROC).
    pub fn tasks(mut self, limit: u64) -> Setup {
        self.tasks = Some(limit);
        self
    }

    /// Has the daemon do without these kernel features, as on an older kernel.
    pub fn without_kernel_features(mut self, list: &str) -> Setup {
        self.arguments.extend(["--without-kernel-features".into(), list.to_owned()]);
        self
    }

    /// Runs the daemon like a service: as a user of its own, open to all users. Needs root. Each
    /// daemon needs another user, since the kernel limits the fds in flight of each user.
    pub fn service(mut self) -> Setup {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        assert!(count < SERVICES, "more services than SERVICES");
        self.uid = Some(FIRST_UID + std::process::id() % PROCESSES * SERVICES + count);
        self
    }

    /// One socket in each of these directories, instead of the usual one.
    pub fn listeners(mut self, names: &[&'static str]) -> Setup {
        self.listeners = names.to_vec();
        self
    }

    pub fn start(self) -> Broker {
        self.try_start().expect("it starts")
    }

    /// Starts it; the error has its log.
    pub fn try_start(self) -> Result<Broker, String> {
        let dir = tempfile::Builder::new().prefix("fdb-").tempdir().expect("a directory");
        if let Some(uid) = self.uid {
            chown(dir.path(), Some(uid), Some(uid)).expect("chown");
            std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("chmod");
        }
        let listeners = self.listeners.iter().map(|name| {
            format!("[[listener]]\npath = {:?}\n", dir.path().join(name).join("broker.sock"))
        });
        let config = listeners.chain([self.config.clone()]).collect::<String>();
        std::fs::write(dir.path().join("config.toml"), config).expect("write the config");
        let process = Process::start(&self, dir.path(), &[])?;
        let mut broker = Broker { setup: self, dir, process: Some(process), fds_at_start: None };
        // A service is not dumpable: its /proc/PID/fd is root's.
        if nix::unistd::geteuid().is_root() || broker.setup.is_private() {
            broker.fds_at_start = Some(broker.settled_fds());
        }
        Ok(broker)
    }

    fn is_private(&self) -> bool {
        self.uid.is_none() && self.listeners.is_empty()
    }

    fn program(&self, dir: &Path) -> PathBuf {
        if self.uid.is_none() {
            return program();
        }
        // The daemon's user may not be able to reach the folder in which the program was built.
        let copy = dir.join("fdbrokerd");
        if !copy.exists() {
            // cp makes the copy. If this process wrote the file, a child that another thread starts
            // meanwhile would have it open for writing too, and execve would fail with ETXTBSY.
            let copied = Command::new("cp").arg(program()).arg(&copy).status();
            assert!(copied.expect("run cp").success());
            std::fs::set_permissions(&copy, Permissions::from_mode(0o755)).expect("chmod");
        }
        copy
    }
}

/// A running daemon. A private one ends when its stdin does.
#[derive(Debug)]
pub struct Process {
    child: Child,
    lifeline: Option<ChildStdin>,
}

impl Process {
    fn start(setup: &Setup, dir: &Path, more: &[&str]) -> Result<Process, String> {
        let log = File::options().create(true).append(true).open(dir.join("log")).expect("a log");
        let mut command = Command::new(setup.program(dir));
        match setup.uid {
            // The sockets are where `--private` would have them.
            Some(uid) => {
                command.uid(uid).gid(uid);
                command.arg("--socket").arg(dir.join("fdbroker/broker.sock"));
            }
            None if setup.listeners.is_empty() => {
                command.arg("--private").arg(dir);
            }
            // The configuration names the sockets.
            None => {
                command.arg("--set").arg(format!("admin_socket={:?}", admin_socket(dir)));
            }
        }
        for (name, setting) in UNHURRIED {
            if !setup.says(name) {
                command.args(["--set", setting]);
            }
        }
        command.arg("--config").arg(dir.join("config.toml")).args(&setup.arguments).args(more);
        command.args(["--until-eof", "0", "--ready-fd", "1"]);
        command.env_clear().env("RUST_BACKTRACE", "1").env("FDBROKER_LOG", "debug");
        command.envs(OF_STAND_INS.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let limits = [(Rlimit::RLIMIT_NOFILE, setup.nofile), (Rlimit::RLIMIT_NPROC, setup.tasks)];
        for (which, limit) in limits {
            let Some(limit) = limit else { continue };
            // SAFETY: setrlimit(2) is async-signal-safe and touches no memory of the parent.
            unsafe {
                command.pre_exec(move || setrlimit(which, limit, limit).map_err(Into::into));
            }
        }
        let mut child = command.spawn().expect("start fdbrokerd");
        let lifeline = child.stdin.take();
        let mut ready = child.stdout.take().expect("the readiness pipe");
        let mut process = Process { child, lifeline };
        // The daemon closes the pipe when it is ready.
        if read_to_end(&mut ready).as_deref() != Some("READY\n") {
            // The daemon writes why it cannot start, and ends.
            let end = process.wait();
            let log = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
            return Err(format!("fdbrokerd was not ready ({end:?}); its log:\n{log}"));
        }
        Ok(process)
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"))
    }

    /// Waits until the daemon has ended.
    pub fn wait(&mut self) -> ExitStatus {
        eventually_some("the daemon has ended", || self.child.try_wait().expect("wait"))
    }

    fn kill(&mut self) -> ExitStatus {
        self.child.kill().expect("kill");
        self.child.wait().expect("wait")
    }
}

impl Drop for Process {
    /// Must not panic, as the test may be panicking already. Must not wait for ever: a process
    /// whose close hangs never ends.
    fn drop(&mut self) {
        let until = Instant::now() + PATIENCE;
        let _ = self.child.kill();
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A daemon and its directory.
#[derive(Debug)]
pub struct Broker {
    setup: Setup,
    dir: TempDir,
    process: Option<Process>,
    /// `None`: this user cannot see the daemon's fds.
    fds_at_start: Option<usize>,
}

impl Broker {
    /// Starts a daemon with defaults.
    pub fn start() -> Broker {
        Setup::new().start()
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn socket(&self) -> PathBuf {
        self.dir().join("fdbroker/broker.sock")
    }

    /// The user that runs the daemon, if it is a service.
    pub fn uid(&self) -> u32 {
        self.setup.uid.expect("a service")
    }

    pub fn admin_socket(&self) -> PathBuf {
        admin_socket(self.dir())
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("the daemon runs")
    }

    pub fn pid(&self) -> Pid {
        self.process().pid()
    }

    /// A client in this process.
    pub fn client(&self, name: &str) -> Client {
        self.builder(name).connect().expect("connect")
    }

    /// A client in this process, with other options.
    pub fn builder(&self, name: &str) -> ClientBuilder {
        Client::builder().socket(self.socket()).name(name)
    }

    pub fn admin(&self) -> Admin {
        Admin::connect(&self.admin_socket())
    }

    pub fn status(&self) -> NodeStatus {
        self.admin().status()
    }

    /// Fds open in the daemon.
    pub fn open_fds(&self) -> usize {
        open_fds(self.pid())
    }

    pub fn settled_fds(&self) -> usize {
        settled_fds(self.pid(), &self.admin_socket())
    }

    /// Kills the daemon with SIGKILL.
    pub fn kill(&mut self) {
        self.process.take().expect("the daemon runs").kill();
    }

    /// Kills the daemon with SIGKILL while a call of a lane hangs: the lane, which still has all
    /// its fds.
    pub fn kill_hung(&mut self) -> Pid {
        let lane = self.until_hung();
        self.kill();
        lane
    }

    /// Waits until a call of a lane hangs.
    pub fn until_hung(&self) -> Pid {
        // Where the kernel waits for a file server. It is in D state once it was killed.
        let is_hung = |pid: &Pid| {
            let place = std::fs::read_to_string(format!("/proc/{pid}/wchan"));
            place.is_ok_and(|place| place == "request_wait_answer")
        };
        eventually_some("a lane hangs", || lanes(self.pid()).into_iter().find(is_hung))
    }

    /// Kills the daemon with SIGKILL, and leaves it to the caller to reap it.
    pub fn kill_unreaped(&mut self) -> Process {
        let mut process = self.process.take().expect("the daemon runs");
        process.child.kill().expect("kill");
        process
    }

    /// Asks the daemon to end, and waits for its end.
    pub fn terminate(&mut self) {
        self.end_by(Signal::SIGTERM);
    }

    /// Has the daemon end by a signal, and waits for its end.
    pub fn end_by(&mut self, signal: Signal) {
        self.signal(signal);
        let mut process = self.process.take().expect("the daemon runs");
        assert!(process.wait().success(), "after {signal}: {}", self.log());
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("it runs");
    }

    /// Stops the daemon: it reads and answers nothing.
    pub fn stop(&self) {
        signal_and_await(self.pid(), Signal::SIGSTOP, 'T');
    }

    /// Lets a stopped daemon go on.
    pub fn go_on(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Starts another daemon in the same directory, with other arguments.
    pub fn restart_with(&mut self, arguments: &[&str]) {
        self.setup = Setup { arguments: Vec::new(), ..self.setup.clone() }.arguments(arguments);
        self.restart();
    }

    /// Starts another daemon in the same directory.
    pub fn restart(&mut self) {
        self.try_restart().expect("it starts");
    }

    /// Starts another daemon in the same directory; the error says why it did not start.
    pub fn try_restart(&mut self) -> Result<(), String> {
        assert!(self.process.is_none(), "it still runs");
        // The first count of fds stays valid: this daemon opens the same ones, and clients may be
        // back already.
        self.process = Some(Process::start(&self.setup, self.dir.path(), &[])?);
        Ok(())
    }

    /// Starts a second daemon that takes over, and waits until it serves and the first one has
    /// ended.
    pub fn take_over(&mut self) {
        self.try_take_over().expect("it takes over");
    }

    /// Has a second daemon take over. The error says why it did not start; then the first one still
    /// serves.
    pub fn try_take_over(&mut self) -> Result<(), String> {
        let successor = self.start_successor(&[])?;
        self.succeed(successor);
        Ok(())
    }

    /// Starts a second daemon in the same directory; the error says why it did not start.
    pub fn start_second(&self) -> Result<Process, String> {
        Process::start(&self.setup, self.dir.path(), &[])
    }

    /// Starts a daemon that takes over, with more arguments.
    pub fn start_successor(&self, more: &[&str]) -> Result<Process, String> {
        let more: Vec<_> = ["--takeover"].iter().chain(more).copied().collect();
        Process::start(&self.setup, self.dir.path(), &more)
    }

    /// Makes `successor` the daemon of this test, and waits for the end of the first one.
    pub fn succeed(&mut self, successor: Process) {
        let mut former = self.process.replace(successor).expect("the daemon runs");
        assert!(former.wait().success(), "after a takeover: {}", self.log());
    }

    /// All that the daemon wrote to stderr.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir().join("log")).unwrap_or_default()
    }

    /// Asserts that nothing is left of any client: all accounts are zero, all its fds are closed.
    #[track_caller]
    pub fn assert_nothing_left(&self) {
        let admin = self.admin();
        eventually_ok("all accounts are zero", || {
            let status = admin.status();
            if is_idle(&status) { Ok(()) } else { Err(format!("{status:#?}")) }
        });
        drop(admin);
        let Some(at_start) = self.fds_at_start else { return };
        eventually_ok("the daemon has as many fds as at its start", || match self.open_fds() {
            fds if fds == at_start => Ok(()),
            fds => Err(format!("{fds}, not {at_start}")),
        });
    }
}

/// Where a private daemon has its administrator's socket.
pub fn admin_socket(dir: &Path) -> PathBuf {
    dir.join("fdbroker-admin/admin.sock")
}

/// Fds open in a process.
pub fn open_fds(pid: Pid) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("/proc").count()
}

/// Waits for the end of a process that is not this one's child.
pub fn until_gone(pid: Pid) {
    eventually("it ends", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.map_or(true, |stat| stat.contains(") Z"))
    });
}

/// The processes of a daemon's lanes: children of its one child.
pub fn lanes(pid: Pid) -> Vec<Pid> {
    let children = |pid: &Pid| {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let pids = children.unwrap_or_default();
        pids.split_whitespace().map(|pid| Pid::from_raw(pid.parse().expect("a pid"))).collect()
    };
    let spawners: Vec<Pid> = children(&pid);
    spawners.iter().flat_map(children).collect()
}

/// Counts the fds of a daemon once it has closed those of ended clients, and those it opens for a
/// moment only. Waits for a stable count, since no fixed time is long enough on a loaded machine.
pub fn settled_fds(pid: Pid, admin_socket: &Path) -> usize {
    let admin = Admin::connect(admin_socket);
    eventually("all closes are done", || admin.status().gauges.closing_fds.get() == 0);
    // The daemon serves administrators in turn: after two answers it has seen the end of each
    // earlier connection.
    for _ in 0..2 {
        admin.status();
    }
    let (with_it, mut last) = (open_fds(pid), usize::MAX);
    drop(admin);
    eventually_some("the daemon's fds settle", || {
        let now = open_fds(pid);
        let settled = now < with_it && now == last;
        last = now;
        settled.then_some(now)
    })
}

pub fn program() -> PathBuf {
    std::env::var_os(PROGRAM_VARIABLE).map_or(PROGRAM.into(), PathBuf::from)
}

/// Why a daemon cannot have a table of `count` fds here; `None`: it can.
pub fn why_not_fds(count: u64) -> Option<String> {
    let (_, hard) = getrlimit(Rlimit::RLIMIT_NOFILE).expect("getrlimit");
    let is_enough = hard >= count || nix::unistd::geteuid().is_root();
    (!is_enough).then(|| format!("needs a hard limit of {count} fds (ulimit -Hn), not {hard}"))
}

/// Whether no client is connected and nothing is charged.
fn is_idle(status: &NodeStatus) -> bool {
    // The broker itself has fds in its table.
    let mut charged = status.uses.iter().filter(|(it, _)| *it != Resource::TablePlaces);
    charged.all(|(_, account)| account.now.get() == 0)
        && status.gauges.stored_fds.get() == 0
        && status.gauges.closing_fds.get() == 0
}

impl Drop for Broker {
    fn drop(&mut self) {
        let mut ended_well = true;
        if let Some(mut process) = self.process.take() {
            // The end of its stdin asks a private daemon to end, as under `fdbroker run`.
            process.lifeline = None;
            ended_well = std::thread::panicking() || process.wait().success();
        }
        let log = self.log();
        if std::thread::panicking() {
            eprintln!("log of the daemon:\n{log}");
            return;
        }
        assert!(ended_well && !log.contains("panicked at"), "the daemon did not end well:\n{log}");
    }
}
