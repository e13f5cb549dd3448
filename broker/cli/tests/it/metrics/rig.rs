//! A broker of a test's own, its clients, and what its metrics are expected to be. Must never wait
//! without an end.

use super::page::{Page, name_of};
use super::seen::Seen;
use crate::common::{LIMIT, Running, TestDir, end, fdbroker, one_json_line, wait_for};
pub use crate::common::{PAGE, memfd};
use fdbroker_client::{Client, ClientBuilder, Deadline, Deposit, ErrorCode, MemoryKind};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// No place is set aside for a client's next deposit: fds held are those of what it has done.
pub const NO_CREDIT: &str = "limits.base_credits=0";

/// What each user and each job has a series of. In tests there is one user with one job, which has
/// all that the node has.
const OF_ACCOUNTS: [&str; 11] = [
    "connections",
    "fds",
    "held_fds",
    "held_bytes",
    "open_leases",
    "mapped_leases",
    "allocations",
    "kept_allocations",
    "own_fds",
    "reserved_places",
    "promised_leases",
];

pub struct Broker {
    pub running: Running,
    pub dir: TestDir,
    /// Before it was started.
    pub start: Instant,
}

impl Broker {
    /// With keys of the configuration.
    pub fn start(name: &str, set: &[&str]) -> Self {
        let arguments: Vec<&str> = set.iter().flat_map(|one| ["--set", one]).collect();
        Broker::start_with(TestDir::new(name), &arguments)
    }

    pub fn start_with(dir: TestDir, arguments: &[&str]) -> Self {
        let start = Instant::now();
        let running = Running::start(broker(dir.path(), arguments));
        let broker = Broker { running, dir, start };
        // It answers when all its sockets stand.
        let answers = || broker.command(&["status"]).output().expect("it starts").status.success();
        wait_for("a broker that answers", || answers().then_some(()));
        broker
    }

    /// Another one goes on in its place, with the same clients.
    pub fn hand_over(&mut self) {
        let successor = Running::start(broker(self.dir.path(), &["--takeover"]));
        let mut former = std::mem::replace(&mut self.running, successor);
        let status = wait_for("end of the former", || former.0.try_wait().expect("own child"));
        assert!(status.success(), "{status}");
    }

    pub fn admin_socket(&self) -> PathBuf {
        self.dir.path().join("fdbroker-admin/admin.sock")
    }

    pub fn client(&self) -> Client {
        self.client_with(1, |builder| builder)
    }

    /// One that keeps so many fds for itself.
    pub fn client_with(
        &self,
        own_fds: u32,
        more: impl FnOnce(ClientBuilder) -> ClientBuilder,
    ) -> Client {
        let socket = self.dir.path().join("fdbroker/broker.sock");
        let builder = Client::builder().socket(socket).own_fds(own_fds);
        let builder = builder.on_recall(|_| Err(ErrorCode::NotSupported));
        more(builder).connect().expect("a broker")
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = fdbroker(arguments);
        command.env("FDBROKER_ADMIN_SOCKET", self.admin_socket());
        // `metrics` says hello at the clients' socket, and would be counted as a client.
        command.env("FDBROKER_SOCKET", "/nowhere/broker.sock");
        command
    }

    /// What a command gives; it must not fail.
    fn output(&self, arguments: &[&str]) -> Output {
        let output = self.command(arguments).output().expect("it starts");
        assert_eq!(end(&output).0, Some(0), "{arguments:?}: {}", end(&output).1);
        output
    }

    pub fn run(&self, arguments: &[&str]) {
        self.output(arguments);
    }

    /// What a command says of this broker, as JSON.
    pub fn ask(&self, arguments: &[&str]) -> serde_json::Value {
        one_json_line(&self.output(arguments))
    }

    pub fn page(&self) -> Page {
        let output = self.output(&["metrics"]);
        Page::read(&String::from_utf8(output.stdout).expect("UTF-8"))
    }

    /// Waits for a page that has all these values, and takes them as seen.
    pub fn see(&self, seen: &mut Seen, expected: &[(&str, u64)]) -> Page {
        let rows = expected.iter().map(|(series, value)| ((*series).to_owned(), *value));
        self.see_all(seen, &rows.collect::<Vec<_>>())
    }

    /// The same, and that this test's user and job are charged for all that the node is.
    pub fn see_with_accounts(&self, seen: &mut Seen, expected: &[(&str, u64)]) -> Page {
        let jobs = self.ask(&["jobs", "--json"]);
        let (job, uid) = (&jobs["jobs"][0]["job"], nix::unistd::getuid());
        let job = job.as_str().expect("one job");
        let of_user = |field: &str| format!("fdbroker_user_{field}{{uid=\"{uid}\"}}");
        let of_job =
            |field: &str| format!("fdbroker_job_{field}{{job_name=\"{job}\",uid=\"{uid}\"}}");
        let mut rows = Vec::new();
        for (series, value) in expected {
            rows.push(((*series).to_owned(), *value));
            let field = series.strip_prefix("fdbroker_").expect("all are called so");
            if OF_ACCOUNTS.contains(&field) {
                rows.extend([(of_user(field), *value), (of_job(field), *value)]);
            }
        }
        self.see_all(seen, &rows)
    }

    fn see_all(&self, seen: &mut Seen, expected: &[(String, u64)]) -> Page {
        let until = Instant::now() + LIMIT;
        loop {
            let page = self.page();
            let is_other =
                |(series, value): &&(String, u64)| page.find(series) != Some(*value as f64);
            let Some((series, value)) = expected.iter().find(is_other) else {
                expected.iter().for_each(|(series, value)| seen.note(series, *value as f64));
                return page;
            };
            let found = page.find(series);
            assert!(Instant::now() < until, "{series} is {found:?} instead of {value}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A broker's command line.
fn broker(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = fdbroker(&["broker", "--private"]);
    command.arg(dir).args(arguments);
    command
}

/// That a page has all buckets of a histogram which has counted one time: its sum.
pub fn see_one_time(seen: &mut Seen, page: &Page, family: &str) {
    let sum = page.get(&format!("{family}_sum"));
    let bucket = format!("{family}_bucket");
    let mut buckets = 0;
    for (series, value) in page.series().filter(|(series, _)| name_of(series) == bucket) {
        let bound = series.split('"').nth(1).expect("a bound");
        let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().expect("seconds") };
        assert_eq!(value, f64::from(u8::from(sum <= bound)), "{series}, sum {sum}");
        seen.note(series, value);
        buckets += 1;
    }
    assert_eq!(buckets, fdbroker_protocol::admin::BUCKET_BOUNDS_US.len() + 1);
}

/// That a series is within bounds, in seconds.
pub fn see_within(seen: &mut Seen, page: &Page, series: &str, least: f64, most: f64) {
    let value = page.get(series);
    assert!((least..=most).contains(&value), "{series} is {value}, not {least} to {most}");
    seen.note(series, value);
}

/// Of memory of so many pages that the broker may ask for again.
pub fn recallable(pages: u64) -> Deposit {
    Deposit::new(MemoryKind::Memfd, pages * PAGE).recallable(true)
}

pub fn soon() -> Deadline {
    Deadline::after(LIMIT)
}
