//! What an administrator's look at a full broker costs: the time of `fdbroker ls` over many
//! allocations, of one page of it in the daemon, and what both do to the grants of a client.
//! Prints; must never assert a time.
//!
//! `cargo bench -p fdbroker [-- --allocations N] [-- --grants N]`. Three processes work at once
//! (the daemon, the client here, `ls`): with fewer cores they wait for each other, which the line
//! "beside a busy process" shows; CPU times do not depend on that.

mod page;

use fdbroker_client::host::{Arena, HostBuffer, HostMemory};
use fdbroker_client::{Client, Deadline};
use fdbroker_protocol::Handle;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const FDBROKER: &str = env!("CARGO_BIN_EXE_fdbroker");
const ALLOCATIONS: usize = 100_000;
const GRANTS: usize = 50_000;
/// Bytes of one allocation: a page, which is never touched.
const ALLOCATION_BYTES: usize = 4096;
/// Grants go over the youngest so many, which the broker still holds.
const GRANTED: usize = 2000;
/// Allocations whose pages are measured by themselves.
const PAGES_HELD: usize = 10_000;
/// Runs of each `ls`.
const RUNS: usize = 10;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number_after = |name: &str| -> Option<usize> {
        let at = args.iter().position(|arg| arg == name)?;
        Some(args.get(at + 1)?.parse().expect("a number"))
    };
    let allocations = number_after("--allocations").unwrap_or(ALLOCATIONS);
    let grants = number_after("--grants").unwrap_or(GRANTS);
    let broker = Broker::start();
    let began = Instant::now();
    let owner = connect(&broker.socket, "bench-owner");
    // Before the table is full of deposits.
    let consumer = connect(&broker.socket, "bench-consumer");
    let (_arena, _buffers, handles) = deposit(&owner, allocations);
    let took = began.elapsed().as_secs_f64();
    println!("{allocations} allocations deposited in {took:.1} s; all times in ms unless said");

    for arguments in [
        &["ls"][..],
        &["ls", "--json"],
        &["ls", "--sort", "SIZE:desc"],
        &["ls", "--sort", "NAME"],
        &["ls", "--filter", "MAPPED > 0 and NAME =~ x"],
    ] {
        let before = cpu_of_children_ms();
        let mut times: Vec<Duration> = (0..RUNS).map(|_| broker.list(arguments)).collect();
        println!(
            "{:<46} median {:>7.1}  worst {:>7.1}  its CPU time {:>6.1}",
            format!("fdbroker {}", arguments.join(" ")),
            quantile_us(&mut times, 500) / 1000.0,
            quantile_us(&mut times, 1000) / 1000.0,
            (cpu_of_children_ms() - before) / RUNS as f64,
        );
    }
    // The youngest are those that the broker holds.
    for (what, first) in [("all", 0), ("held", allocations.saturating_sub(PAGES_HELD))] {
        let before = broker.cpu();
        let mut times = page::round_trips(&broker.admin_socket, first);
        let cpu = (broker.cpu() - before).as_nanos() as f64 / 1000.0 / times.len() as f64;
        println!(
            "{:>4} pages of {what:<4} us: p50 {:>6.1}  p99 {:>6.1}  CPU time of the broker's loop each {cpu:>6.1}",
            times.len(),
            quantile_us(&mut times, 500),
            quantile_us(&mut times, 990),
        );
    }
    let handles = &handles[handles.len().saturating_sub(GRANTED)..];
    measure_grants(&consumer, handles, grants / 5);
    report("grants, quiet", &mut measure_grants(&consumer, handles, grants));
    let mut times = beside(busy, || measure_grants(&consumer, handles, grants));
    report("grants, beside a busy process", &mut times);
    let list = || {
        broker.list(&["ls"]);
    };
    let mut times = beside(list, || measure_grants(&consumer, handles, grants));
    report("grants, beside ls in a loop", &mut times);
}

fn report(what: &str, times: &mut [Duration]) {
    println!(
        "{what:<32} us: p50 {:>7.1}  p99 {:>7.1}  p99.9 {:>7.1}  worst {:>8.1}",
        quantile_us(times, 500),
        quantile_us(times, 990),
        quantile_us(times, 999),
        quantile_us(times, 1000)
    );
}

/// Does `work` while another thread does `noise` over and over.
fn beside<T>(noise: impl Fn() + Sync, work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                noise();
            }
        });
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        done
    })
}

/// Some tens of milliseconds of work without a system call.
fn busy() {
    let sum = (0..20_000_000u64).fold(0, |sum: u64, n| sum.wrapping_mul(31) ^ n);
    std::hint::black_box(sum);
}

fn measure_grants(client: &Client, handles: &[Handle], count: usize) -> Vec<Duration> {
    let one = |index: usize| {
        // A stride prime to the count, so that grants are far apart in the registry.
        let handle = &handles[index * 7919 % handles.len()];
        let began = Instant::now();
        let grant = client.acquire(handle, Deadline::longest()).expect("granted");
        let took = began.elapsed();
        drop(grant);
        took
    };
    (0..count).map(one).collect()
}

fn connect(socket: &Path, name: &str) -> Client {
    Client::builder().socket(socket).name(name).connect().expect("the broker answers")
}

/// Buffers of one arena, and their handles.
fn deposit(owner: &Client, count: usize) -> (Arena, Vec<HostBuffer>, Vec<Handle>) {
    let arena = Arena::new(owner, HostMemory::Memfd, count * ALLOCATION_BYTES).expect("an arena");
    let alloc = |_| arena.alloc(ALLOCATION_BYTES).expect("room");
    let buffers: Vec<HostBuffer> = (0..count).map(alloc).collect();
    let registered = arena.register(&buffers, Deadline::longest()).expect("connected");
    let handles = registered.into_iter().map(|it| it.expect("registered")).collect();
    (arena, buffers, handles)
}

fn quantile_us(times: &mut [Duration], per_mille: usize) -> f64 {
    times.sort_unstable();
    times[(times.len() - 1) * per_mille / 1000].as_nanos() as f64 / 1000.0
}

/// CPU time of all children that have ended.
fn cpu_of_children_ms() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("getrusage");
    let ms = |time: TimeVal| time.tv_sec() as f64 * 1000.0 + time.tv_usec() as f64 / 1000.0;
    ms(usage.user_time()) + ms(usage.system_time())
}

/// A private broker, ended with this.
struct Broker {
    child: Child,
    socket: PathBuf,
    admin_socket: PathBuf,
}

impl Broker {
    fn start() -> Self {
        let script = "echo $FDBROKER_SOCKET; echo $FDBROKER_ADMIN_SOCKET; read line";
        let mut command = Command::new(FDBROKER);
        command.args(["run", "--", "sh", "-c", script]).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.as_mut().expect("piped")).lines();
        let places: Vec<PathBuf> = lines.take(2).map(|it| it.expect("readable").into()).collect();
        Broker { child, socket: places[0].clone(), admin_socket: places[1].clone() }
    }

    /// CPU time of its main thread, which is its loop.
    fn cpu(&self) -> Duration {
        let mut command = Command::new(FDBROKER);
        command.args(["status", "--json"]).env("FDBROKER_ADMIN_SOCKET", &self.admin_socket);
        let output = command.output().expect("it starts");
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let path = format!("/proc/{0}/task/{0}/schedstat", status["pid"]);
        let text = std::fs::read_to_string(path).expect("CONFIG_SCHED_INFO, as everywhere");
        let nanos = text.split_whitespace().next().expect("time on the CPU, in ns");
        Duration::from_nanos(nanos.parse().expect("a number"))
    }

    /// Runs a command to its end.
    fn list(&self, arguments: &[&str]) -> Duration {
        let began = Instant::now();
        let status = Command::new(FDBROKER)
            .args(arguments)
            .env("FDBROKER_ADMIN_SOCKET", &self.admin_socket)
            .stdout(Stdio::null())
            .status();
        assert!(status.expect("it starts").success());
        began.elapsed()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // The script ends with its input.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
