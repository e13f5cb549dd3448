//! metrics as scrapers meet them: what moves which number, and the server.

mod common;

use common::{Running, TestDir, end, fdbroker, one_json_line, run, run_script, wait_for};
use fdbroker_client::{
    Access, Arena, Client, Deadline, Deposit, ErrorCode, Handle, HostMemory, MemoryKind,
};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A broker of a test's own.
struct Broker {
    running: Running,
    dir: TestDir,
}

impl Broker {
    fn start(name: &str, set: &[&str]) -> Self {
        let dir = TestDir::new(name);
        let mut command = fdbroker(&["broker", "--private"]);
        command.arg(dir.path());
        for one in set {
            command.args(["--set", one]);
        }
        let broker = Broker { running: Running::start(command), dir };
        wait_for("the broker's socket", || broker.admin_socket().exists().then_some(()));
        broker
    }

    fn admin_socket(&self) -> PathBuf {
        self.dir.path().join("fdbroker-admin/admin.sock")
    }

    fn client(&self) -> Client {
        let socket = self.dir.path().join("fdbroker/broker.sock");
        Client::builder().socket(socket).own_fds(2).connect().expect("a broker")
    }

    fn set_limits(&self, limits: &[&str]) {
        let mut command = fdbroker(&["limits", "set"]);
        let output =
            command.args(limits).env("FDBROKER_ADMIN_SOCKET", self.admin_socket()).output();
        assert_eq!(end(&output.expect("the command starts")).0, Some(0));
    }

    /// What a command says of this broker, as JSON.
    fn ask(&self, arguments: &[&str]) -> serde_json::Value {
        let mut command = fdbroker(arguments);
        let output = command.env("FDBROKER_ADMIN_SOCKET", self.admin_socket()).output();
        one_json_line(&output.expect("the command starts"))
    }

    fn metrics(&self) -> Metrics {
        let mut command = fdbroker(&["metrics"]);
        let output = command.env("FDBROKER_ADMIN_SOCKET", self.admin_socket()).output();
        let output = output.expect("the command starts");
        assert_eq!(end(&output).0, Some(0), "{}", end(&output).1);
        Metrics::read(&String::from_utf8(output.stdout).expect("UTF-8"))
    }
}

/// Values by series.
struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    fn read(page: &str) -> Self {
        assert!(page.ends_with("# EOF\n"), "{page}");
        let lines = page.lines().filter(|line| !line.starts_with('#'));
        let series = lines.map(|line| {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            (series.to_owned(), value.parse().expect("a number"))
        });
        Metrics(series.collect())
    }

    fn get(&self, series: &str) -> f64 {
        *self.0.get(series).unwrap_or_else(|| panic!("no {series}"))
    }

    /// The sum of all series of a name, whatever their labels.
    fn sum(&self, name: &str) -> f64 {
        let of_it = self.0.iter().filter(|(series, _)| series.split('{').next() == Some(name));
        of_it.map(|(_, value)| value).sum()
    }
}

/// A page of memory that may be shared.
fn memfd() -> OwnedFd {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let fd = memfd_create("test", flags).expect("a memfd");
    nix::unistd::ftruncate(&fd, 4096).expect("its size");
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
    fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).expect("its seals");
    fd
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

#[test]
fn metrics_when_ranks_share_memory_then_each_number_moves_by_what_they_did() {
    let broker = Broker::start("metrics-moved", &["caps.node.held_fds=8"]);
    let before = broker.metrics();
    assert_eq!(before.get("fdbroker_up"), 1.0);
    let (owner, consumer) = (broker.client(), broker.client());
    let arena = Arena::new(&owner, HostMemory::Memfd, 1 << 20).expect("an arena");
    let buffers: Vec<_> = (0..12).map(|_| arena.alloc(4096).expect("room")).collect();
    let handles: Vec<Handle> =
        buffers.iter().map(|buffer| buffer.register(soon()).expect("registered")).collect();
    // Some of the first are evicted by now.
    let mut imports = Vec::new();
    for handle in &handles {
        let grant = consumer.acquire(handle, soon()).expect("a grant");
        imports.push(grant.import(Access::Read, 0).expect("an import"));
    }
    let open = consumer.acquire(&handles[11], soon()).expect("a grant");
    consumer.flush(soon()).expect("told");
    let after = broker.metrics();
    for (name, by) in [
        ("fdbroker_clients", 2.0),
        ("fdbroker_users", 1.0),
        ("fdbroker_jobs", 1.0),
        ("fdbroker_allocations", 12.0),
        ("fdbroker_peak_allocations", 12.0),
        ("fdbroker_registrations_total", 12.0),
        ("fdbroker_grants_total", 13.0),
        ("fdbroker_grant_latency_seconds_count", 13.0),
        ("fdbroker_mapped_leases", 12.0),
        ("fdbroker_open_leases", 1.0),
        ("fdbroker_own_fds", 4.0),
        ("fdbroker_user_clients", 2.0),
        ("fdbroker_user_allocations", 12.0),
        ("fdbroker_user_mapped_leases", 12.0),
        ("fdbroker_user_open_leases", 1.0),
        ("fdbroker_job_clients", 2.0),
        ("fdbroker_job_allocations", 12.0),
        ("fdbroker_job_mapped_leases", 12.0),
        ("fdbroker_job_open_leases", 1.0),
    ] {
        assert_eq!(after.sum(name) - before.sum(name), by, "{name}");
    }
    for name in [
        "fdbroker_uptime_seconds",
        "fdbroker_fds",
        "fdbroker_peak_fds",
        "fdbroker_held_fds",
        "fdbroker_held_peak_fds",
        "fdbroker_held_bytes",
        "fdbroker_held_peak_bytes",
        "fdbroker_open_peak_leases",
        "fdbroker_mapped_peak_leases",
        "fdbroker_own_peak_fds",
        "fdbroker_table_fds",
        "fdbroker_table_peak_fds",
        "fdbroker_stored_fds",
        "fdbroker_evictions_total",
        "fdbroker_recalls_total",
        "fdbroker_recall_time_seconds_count",
        "fdbroker_recall_time_seconds_sum",
        "fdbroker_grant_latency_seconds_sum",
        "fdbroker_requests_parked_total",
        "fdbroker_user_fds",
        "fdbroker_user_held_bytes",
        "fdbroker_job_fds",
        "fdbroker_job_held_bytes",
    ] {
        assert!(after.sum(name) > before.sum(name), "{name}");
    }
    assert_eq!(after.get("fdbroker_held_cap_fds"), 8.0);
    let all = "fdbroker_grant_latency_seconds_bucket{le=\"+Inf\"}";
    assert_eq!(after.get(all), after.get("fdbroker_grant_latency_seconds_count"));

    // What has ended stays pinned by who has it mapped.
    drop(buffers);
    let pinned = || broker.metrics().get("fdbroker_pinned_bytes");
    wait_for("pinned memory", || (pinned() > 0.0).then_some(()));
    assert!(broker.metrics().get("fdbroker_pinned_peak_bytes") > 0.0);
    drop((open, imports));
    wait_for("its end", || (pinned() == 0.0).then_some(()));
}

#[test]
fn metrics_when_refused_waiting_kept_silent_and_capped_then_each_is_counted() {
    let set = ["caps.node.held_fds=2", "limits.base_credits=0", "limits.recall_timeout_ms=50"];
    let broker = Broker::start("metrics-trouble", &set);
    let before = broker.metrics();
    // Serves no recall, since nobody dispatches.
    let socket = broker.dir.path().join("fdbroker/broker.sock");
    let owner = Client::builder().socket(socket).own_fds(2).dispatch(true).connect();
    let owner = owner.expect("a broker");
    let consumer = broker.client();
    let mut handles = Vec::new();
    for number in 1..=4 {
        let mut deposit = Deposit::new(MemoryKind::Memfd, 4096);
        (deposit.recallable, deposit.owner_allocation_id) = (true, number);
        let registered = owner.register(&deposit, memfd().as_fd(), soon());
        handles.push(registered.expect("registered").handle);
    }
    // The first is evicted, and its owner does not answer.
    let error = consumer.acquire(&handles[0], soon()).expect_err("silent");
    assert_eq!(error.code, ErrorCode::OwnerSilent);
    assert_eq!(broker.metrics().get("fdbroker_recalls_unanswered_total"), 1.0);

    // A cap that is full: another waits for it, and its holder is asked.
    let held = consumer.acquire(&handles[3], soon()).expect("a grant");
    assert_eq!(broker.metrics().get("fdbroker_cap_fds"), before.get("fdbroker_cap_fds"));
    broker.set_limits(&["node.fds=100", "client.open_leases=1"]);
    assert_eq!(broker.metrics().get("fdbroker_cap_fds"), 100.0);
    let waiting = consumer.acquire_start(&handles[3..], soon()).expect("started");
    let waits = || broker.metrics().get("fdbroker_requests_waiting");
    wait_for("a waiting request", || (waits() == 1.0).then_some(()));
    let reclaimed = || broker.metrics().get("fdbroker_leases_reclaimed_total");
    wait_for("a reclaim", || (reclaimed() > 0.0).then_some(()));
    let error = consumer.acquire(&handles[3], Deadline::from_ms(1)).expect_err("full");
    assert_eq!(error.code, ErrorCode::NoQuota);
    assert!(broker.metrics().get("fdbroker_requests_refused_total") > 0.0);
    waiting.cancel();
    wait_for("its end", || (waits() == 0.0).then_some(()));
    drop(held);

    let mut kept = Deposit::new(MemoryKind::Memfd, 4096);
    kept.keep = true;
    broker.set_limits(&["node.held_fds=none"]);
    consumer.register(&kept, memfd().as_fd(), soon()).expect("registered");
    let after = broker.metrics();
    assert_eq!(after.get("fdbroker_kept_allocations"), 1.0);
    assert_eq!(after.get("fdbroker_kept_peak_allocations"), 1.0);
    assert!(!after.0.contains_key("fdbroker_held_cap_fds"), "there is none any more");
}

#[test]
fn metrics_when_a_job_has_a_series_then_jobs_clients_and_ls_know_it_by_the_same_name() {
    let broker = Broker::start("metrics-job", &["caps.job.fds=50"]);
    let client = broker.client();
    let deposit = Deposit::new(MemoryKind::Memfd, 4096);
    client.register(&deposit, memfd().as_fd(), soon()).expect("registered");
    let jobs = broker.ask(&["jobs", "--json"]);
    let [job] = &jobs["jobs"].as_array().expect("a list")[..] else { panic!("{jobs}") };
    assert_eq!((&job["clients"], &job["allocations"]), (&1.into(), &1.into()));
    assert_eq!(job["fds_cap"], 50);
    let (name, uid) = (job["job"].as_str().expect("a name"), &job["uid"]);
    let series = format!("fdbroker_job_allocations{{job_name=\"{name}\",uid=\"{uid}\"}}");
    assert_eq!(broker.metrics().get(&series), 1.0);
    let filter = format!("JOB == '{name}'");
    for list in ["clients", "ls"] {
        let of_it = broker.ask(&[list, "--json", "--filter", &filter]);
        let of_others = broker.ask(&[list, "--json", "--filter", "JOB == slurm:0"]);
        let count = |answer: &serde_json::Value| {
            let lists = answer.as_object().expect("an object").values();
            lists.map(|list| list.as_array().expect("a list").len()).sum::<usize>()
        };
        assert_eq!((count(&of_it), count(&of_others)), (1, 0), "{list}");
    }
}

#[test]
fn metrics_when_no_broker_then_exit_3_and_when_the_address_is_not_this_machines_then_2() {
    assert_eq!(end(&run(&["metrics"])).0, Some(3));
    for address in ["0.0.0.0:9400", "10.1.2.3:80", "[::]:9400", "localhost:1", "unix:"] {
        let (code, stderr) = end(&run(&["metrics", "--listen", address]));
        assert_eq!(code, Some(2), "{address}: {stderr}");
        assert!(stderr.contains("unix:PATH"), "{stderr}");
    }
}

/// The server, and where it says it is.
fn serve(listen: &str, admin_socket: Option<&Path>) -> (Running, String) {
    let mut command = fdbroker(&["metrics", "--listen", listen]);
    if let Some(path) = admin_socket {
        command.env("FDBROKER_ADMIN_SOCKET", path);
    }
    let mut running = Running::start(command);
    let mut line = String::new();
    let stderr = running.0.stderr.as_mut().expect("piped");
    BufReader::with_capacity(1, stderr).read_line(&mut line).expect("readable");
    let at = line.trim_end().strip_prefix("fdbroker: metrics at ").expect("where it serves");
    (running, at.to_owned())
}

fn ask(mut stream: impl Read + Write, request: &str) -> (String, String) {
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer, and its end");
    let (head, body) = answer.split_once("\r\n\r\n").expect("headers");
    let length = format!("Content-Length: {}", body.len());
    assert!(head.lines().any(|line| line == length), "{head}");
    (head.to_owned(), body.to_owned())
}

const GET: &str = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

#[test]
fn metrics_when_served_on_loopback_then_answers_by_http_whatever_others_do() {
    let broker = Broker::start("metrics-loopback", &[]);
    let (mut server, at) = serve("127.0.0.1:0", Some(&broker.admin_socket()));
    let address = at.strip_prefix("http://").and_then(|at| at.strip_suffix("/metrics"));
    let connect = || TcpStream::connect(address.expect("a URL")).expect("it listens");
    // One says nothing, one goes away at once.
    let _silent = connect();
    drop(connect());
    let (head, body) = ask(connect(), GET);
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert!(head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
    assert_eq!(Metrics::read(&body).get("fdbroker_up"), 1.0);
    assert!(ask(connect(), "GET /x HTTP/1.1\r\n\r\n").0.starts_with("HTTP/1.1 404"));
    assert!(ask(connect(), "DELETE /metrics HTTP/1.1\r\n\r\n").0.starts_with("HTTP/1.1 405"));
    assert!(ask(connect(), "nonsense\r\n\r\n").0.starts_with("HTTP/1.1 400"));

    // The broker goes away: the server says so and stays.
    broker.running.signal("TERM");
    wait_for("its end", || (!broker.admin_socket().exists()).then_some(()));
    let (_, body) = ask(connect(), GET);
    assert_eq!(Metrics::read(&body).get("fdbroker_up"), 0.0);
    server.signal("TERM");
    let code = wait_for("end of the server", || server.0.try_wait().expect("own child"));
    assert_eq!(code.code(), Some(0));
}

#[test]
fn metrics_when_served_on_a_socket_then_for_this_user_alone_and_removed_at_the_end() {
    let broker = Broker::start("metrics-socket", &[]);
    let path = broker.dir.path().join("metrics.sock");
    let listen = format!("unix:{}", path.display());
    let (server, at) = serve(&listen, Some(&broker.admin_socket()));
    assert_eq!(at, listen);
    let mode = std::fs::metadata(&path).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let connect = || UnixStream::connect(&path).expect("it listens");
    let (_, body) = ask(connect(), GET);
    assert_eq!(Metrics::read(&body).get("fdbroker_up"), 1.0);

    // A second one does not take its place; one that was killed is in nobody's way.
    let (code, stderr) = end(&run(&["metrics", "--listen", &listen]));
    assert_eq!(code, Some(1), "{stderr}");
    server.signal("KILL");
    drop(server);
    assert!(path.exists());
    let (mut server, _) = serve(&listen, None);
    assert_eq!(Metrics::read(&ask(connect(), GET).1).get("fdbroker_up"), 0.0);
    server.signal("INT");
    wait_for("end of the server", || server.0.try_wait().expect("own child"));
    assert!(!path.exists());
}

#[test]
fn metrics_when_inside_run_then_a_page() {
    let output = run_script("$F metrics");
    assert_eq!(end(&output).0, Some(0));
    let page = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(Metrics::read(&page).get("fdbroker_clients"), 0.0);
}
