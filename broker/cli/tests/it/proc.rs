//! The numbers on the screen are those of /proc: the fds that status, clients, jobs and metrics
//! show are open, in the broker and in the processes that they name. Must never take a screen for
//! what another screen says.

use crate::common::{Running, end, fdbroker};
use crate::shared::full_name;
use fdbroker_client::{Client, Deadline, Deposit, Grant, MemoryKind, Registration};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{ChildStdout, Command, Stdio};
use std::time::Duration;

const TEST: &str = "screens_when_memory_is_shared_then_their_numbers_are_those_of_proc";

/// Set in the ranks that the test starts: how many fds of its own the rank has.
const RANK: &str = "FDBROKER_TEST_RANK";

/// How the links of the test's memory begin in /proc/PID/fd.
const MEMORY: &str = "/memfd:screens";

/// What a rank's answers begin with, among the lines of the test's harness.
const ANSWER: &str = "answer ";

#[test]
fn screens_when_memory_is_shared_then_their_numbers_are_those_of_proc() {
    if let Ok(own_fds) = std::env::var(RANK) {
        return play(own_fds.parse().expect("a number"));
    }
    let node = Node::start();
    let (mut owner, mut consumer) = (Rank::start(&node, 1), Rank::start(&node, 0));
    let ranks = [owner.process.pid(), consumer.process.pid()];
    node.shows("nothing is shared", &ranks, Fds { own: 1, ..Fds::default() });

    let handle = owner.ask("register");
    let deposited = Fds { own: 1, held: 1, ..Fds::default() };
    node.shows("a buffer is registered", &ranks, deposited);
    consumer.ask(&format!("acquire {handle}"));
    let granted = Fds { open: 1, ..deposited };
    node.shows("a consumer has it", &ranks, granted);
    consumer.ask("release");
    node.shows("it has given it back", &ranks, deposited);
    consumer.ask(&format!("acquire {handle}"));
    node.shows("it has it again", &ranks, granted);
    owner.ask("unregister");
    node.shows("the buffer has ended", &ranks, Fds { held: 0, ..granted });
    drop((owner, consumer));
    node.shows("both have ended", &[], Fds::default());
}

/// How many fds of the memory there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fds {
    /// In the owner, which has declared them.
    own: u64,
    /// In the broker.
    held: u64,
    /// In the consumer.
    open: u64,
}

/// A broker of `fdbroker run`.
struct Node {
    socket: String,
    admin_socket: String,
    broker: u32,
    _running: Running,
}

impl Node {
    fn start() -> Self {
        let script = "echo $FDBROKER_SOCKET; echo $FDBROKER_ADMIN_SOCKET; read line";
        let mut command = fdbroker(&["run", "--", "sh", "-c", script]);
        command.stdin(Stdio::piped());
        let mut running = Running::start(command);
        let mut lines = BufReader::new(running.0.stdout.as_mut().expect("piped")).lines();
        let mut line = || lines.next().expect("a socket").expect("readable");
        let (socket, admin_socket) = (line(), line());
        let mut node = Node { socket, admin_socket, broker: 0, _running: running };
        node.broker = u32::try_from(number(&node.json("status")["pid"])).expect("a pid");
        node
    }

    fn text(&self, arguments: &[&str]) -> String {
        let mut command = fdbroker(arguments);
        let output = command.env("FDBROKER_ADMIN_SOCKET", &self.admin_socket).output();
        let output = output.expect("it starts");
        assert_eq!(end(&output), (Some(0), String::new()), "{arguments:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    fn json(&self, command: &str) -> Value {
        serde_json::from_str(&self.text(&[command, "--json"])).expect("JSON")
    }

    /// That /proc and each screen have these numbers, as soon as the last close has returned.
    fn shows(&self, when: &str, ranks: &[u32], expected: Fds) {
        let mut seen = String::new();
        let shown = wait_for_equal(|| {
            seen.clear();
            let mut all = true;
            for (screen, is, right) in self.look(ranks, expected) {
                all &= is == right;
                let _ = writeln!(seen, "{screen}: {is:?}, expected {right:?}");
            }
            all
        });
        assert!(shown, "{when}:\n{seen}");
    }

    /// What each place says, and what it should say.
    fn look(&self, ranks: &[u32], expected: Fds) -> Vec<(&'static str, Vec<u64>, Vec<u64>)> {
        let Fds { own, held, open } = expected;
        // All that are open through the broker, in the broker, on lease.
        let three = vec![held + open, held, open];
        let mut all = Vec::new();
        let of_ranks = ranks.iter().map(|pid| in_proc(*pid));
        let found = std::iter::once(in_proc(self.broker)).chain(of_ranks).collect();
        let right = [held, own, open].into_iter().take(1 + ranks.len()).collect();
        all.push(("/proc", found, right));

        let keys = ["fds", "held_fds", "open_leases"];
        let status = self.json("status");
        let now = |key: &str| number(&status[key]["now"]);
        all.push(("status --json", keys.map(now).into(), three.clone()));
        all.push(("own fds of status", vec![now("own_fds")], vec![own]));
        let kept = ["reserved_places", "promised_leases", "own_fds"].map(now).iter().sum();
        all.push(("status --json, reserved", vec![number(&status["fds"]["reserved"])], vec![kept]));
        let text = self.text(&["status"]);
        let row = |key: &str| {
            let mut rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let found = rows.find(|row| row.first() == Some(&key)).expect("a row of each");
            found[1].parse().expect("a number")
        };
        all.push(("status", keys.map(row).into(), three.clone()));

        let clients = self.json("clients");
        for (pid, right) in ranks.iter().zip([[held, held, 0], [open, 0, open]]) {
            let list = clients["clients"].as_array().expect("a list");
            let one = list.iter().find(|it| it["pid"] == *pid).expect("each client");
            all.push(("clients --json", keys.map(|key| number(&one[key])).into(), right.into()));
            let filter = format!("PID == {pid}");
            let found = self.columns("clients", &["--filter", &filter]);
            all.push(("clients", found, right.into()));
        }
        let jobs = self.json("jobs");
        if !ranks.is_empty() {
            let job = &jobs["jobs"][0];
            all.push(("jobs --json", keys.map(|key| number(&job[key])).into(), three.clone()));
            all.push(("jobs", self.columns("jobs", &[]), three.clone()));
        }

        let page = self.text(&["metrics"]);
        let series = |name: &str| {
            let mut lines = page.lines().filter_map(|line| line.rsplit_once(' '));
            lines
                .find(|(series, _)| *series == name)
                .map(|(_, value)| value.parse().expect("a count"))
        };
        let of_node = keys.map(|key| series(&format!("fdbroker_{key}")).expect("of the node"));
        all.push(("metrics", of_node.into(), three.clone()));
        if !ranks.is_empty() {
            let uid = nix::unistd::getuid();
            let of_user = keys.map(|key| series(&format!("fdbroker_user_{key}{{uid=\"{uid}\"}}")));
            all.push(("metrics of the user", of_user.into_iter().flatten().collect(), three));
        }
        all
    }

    /// The same numbers of a list without JSON.
    fn columns(&self, list: &str, more: &[&str]) -> Vec<u64> {
        let columns = [list, "-o", "FDS,HELD_FDS,OPEN_LEASES", "--no-headings"];
        let text = self.text(&[&columns[..], more].concat());
        text.split_whitespace().map(|word| word.parse().expect("a number")).collect()
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Whether it becomes true: closes go on beside the answers.
fn wait_for_equal(mut is_equal: impl FnMut() -> bool) -> bool {
    (0..50).any(|_| {
        let is_now = is_equal();
        if !is_now {
            std::thread::sleep(Duration::from_millis(20));
        }
        is_now
    })
}

/// The fds of the memory that a process has open.
fn in_proc(pid: u32) -> u64 {
    let folder = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a process of this user");
    let links = folder.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with(MEMORY)).count() as u64
}

/// A process that does what its lines say.
struct Rank {
    process: Running,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Rank {
    fn start(node: &Node, own_fds: u32) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("own path"));
        command.args(["--exact", &full_name(TEST), "--nocapture"]).stdin(Stdio::piped());
        command.env(RANK, own_fds.to_string()).env("FDBROKER_SOCKET", &node.socket);
        let mut process = Running::start(command);
        let answers = BufReader::new(process.0.stdout.take().expect("piped")).lines();
        let mut rank = Rank { process, answers };
        rank.hear();
        rank
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.process.0.stdin.as_mut().expect("piped"), "{line}").expect("it lives");
        self.hear()
    }

    fn hear(&mut self) -> String {
        let mut lines = self.answers.by_ref().map(|line| line.expect("readable"));
        lines.find_map(|line| Some(line.strip_prefix(ANSWER)?.to_owned())).expect("an answer")
    }
}

/// The part of a rank.
fn play(own_fds: u32) {
    let soon = || Deadline::after(Duration::from_secs(30));
    let client = Client::builder().own_fds(own_fds).connect().expect("a broker");
    let memory = (own_fds > 0).then(memfd);
    let mut registered: Option<Registration> = None;
    let mut grant: Option<Grant> = None;
    println!("\n{ANSWER}connected");
    for line in std::io::stdin().lines() {
        let line = line.expect("readable");
        let answer = match line.split_once(' ').unwrap_or((&line, "")) {
            ("register", _) => {
                let deposit = Deposit::new(MemoryKind::Memfd, PAGE_BYTES);
                let memory = memory.as_ref().expect("its own");
                let it = client.register(&deposit, memory.as_fd(), soon()).expect("registered");
                let handle = it.handle.to_string();
                registered = Some(it);
                handle
            }
            ("unregister", _) => {
                let it = registered.take().expect("it is registered");
                client.unregister(&it).expect("its own");
                String::new()
            }
            ("acquire", handle) => {
                grant = Some(
                    client.acquire(&handle.parse().expect("a handle"), soon()).expect("granted"),
                );
                String::new()
            }
            ("release", _) => {
                drop(grant.take());
                client.flush(soon()).expect("told");
                String::new()
            }
            (other, _) => panic!("{other}?"),
        };
        println!("{ANSWER}{answer}");
    }
}

const PAGE_BYTES: u64 = 4096;

fn memfd() -> OwnedFd {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let fd = memfd_create("screens", flags).expect("a memfd");
    nix::unistd::ftruncate(&fd, 4096).expect("its size");
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
    fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).expect("its seals");
    fd
}
