//! The daemon beside the kernel alone, in one run, on one core, in turns: the round trip of a grant, and grants to many
//! clients at once. Prints medians and ratios, the memory of an allocation, and the
//! longest step of the core. Must never assert a time.
//!
//! `cargo bench -p fdbrokerd [-- --samples N]`. Timed is request sent to answer received and its fds closed; giving the leases
//! back is outside the time. No library is between: the client is as lean as one in C.

mod broker;
mod load;
mod raw;
mod steps;
mod wire;

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use broker::Broker;
use fdbroker_protocol::MAX_BATCH;
use load::{BrokerLoad, Load, RawLoad};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::unistd::Pid;
use raw::RawPeer;

/// Raw and broker alternate this often per case, so that both see the machine's good and bad moments.
const TURNS: usize = 20;
/// Samples of a case with one fd.
const SAMPLES: usize = 20_000;
/// Fds of the daemon beside those it holds, for connections and leases.
const ROOM: usize = 2048;
/// Leases of all clients together, before they are given back outside the time.
const LEASES_AT_ONCE: usize = 4096;
/// No more fds than this are asked for, whatever the hard limit.
const MOST_FDS: u64 = 1 << 20;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number_after = |name: &str| -> Option<usize> {
        let at = args.iter().position(|arg| arg == name)?;
        Some(args.get(at + 1)?.parse().expect("a number"))
    };
    if let Some(batch) = number_after("--raw-server") {
        raw::serve(batch);
    }
    if args.iter().any(|arg| arg == "--raw-epoll-server") {
        raw::serve_many();
    }
    let samples = number_after("--samples").unwrap_or(SAMPLES);
    let limit = raise_nofile();
    println!("daemon and client on CPU {}, RLIMIT_NOFILE {limit}, medians in us", pin_to_one_cpu());
    round_trips(samples, limit);
    loads(samples, limit);
    steps::print_longest();
}

fn round_trips(samples: usize, limit: usize) {
    println!(
        "\n{:>10} {:>7} {:>5} {:>8} {:>8} {:>6} {:>8} {:>9} {:>11} {:>11} {:>9}",
        "registered",
        "held",
        "fds",
        "raw",
        "grant",
        "ratio",
        "raw p99",
        "grant p99",
        "raw fd/s",
        "grant fd/s",
        "bytes/reg"
    );
    for registered in [1_000, 100_000, 1_000_000] {
        let mut broker = Broker::start(registered, limit, ROOM);
        for batch in [1, 16, MAX_BATCH] {
            // A case with many fds takes longer per sample, so it gets fewer.
            let samples = if batch == 1 { samples } else { (samples * 4 / batch).max(TURNS * 20) };
            let mut raw = RawPeer::start(batch);
            compare(&mut broker, &mut raw, batch, samples, registered);
        }
    }
}

/// Grants to many clients at once, beside a raw server.
fn loads(samples: usize, limit: usize) {
    println!(
        "\n{:>10} {:>10} {:>10} {:>6} {:>13} {:>15} {:>13} {:>15}",
        "clients",
        "raw/s",
        "grants/s",
        "ratio",
        "raw p99/p50",
        "grant p99/p50",
        "raw evenness",
        "grant evenness"
    );
    for count in [1, 8, 64, 256] {
        let mut broker = Broker::start(1000, limit, limit / 2);
        let mut broker = BrokerLoad::new(&mut broker, count);
        let mut raw = RawLoad::new(count);
        let (mut of_raw, mut of_broker) = (Load::default(), Load::default());
        let each = LEASES_AT_ONCE / count;
        for turn in 0..=(samples / LEASES_AT_ONCE).max(1) * 4 {
            of_raw.round(&mut raw, each);
            of_broker.round(&mut broker, each);
            if turn == 0 {
                (of_raw, of_broker) = (Load::default(), Load::default());
            }
        }
        let spread =
            |of: &mut Load| quantile_us(&mut of.times, 99) / quantile_us(&mut of.times, 50);
        println!(
            "{count:>10} {:>10.0} {:>10.0} {:>6.2} {:>13.2} {:>15.2} {:>13.2} {:>15.2}",
            of_raw.rate(),
            of_broker.rate(),
            of_broker.rate() / of_raw.rate(),
            spread(&mut of_raw),
            spread(&mut of_broker),
            of_raw.evenness(),
            of_broker.evenness(),
        );
    }
}

fn compare(
    broker: &mut Broker,
    raw: &mut RawPeer,
    batch: usize,
    samples: usize,
    registered: usize,
) {
    let (mut raw_times, mut grant_times) = (Vec::new(), Vec::new());
    for turn in 0..=TURNS {
        raw_times.extend((0..samples / TURNS).map(|_| raw.round_trip()));
        grant_times.extend((0..samples / TURNS).map(|_| broker.round_trip(batch)));
        if turn == 0 {
            // The first turn warms caches and lazily grown buffers on both sides.
            raw_times.clear();
            grant_times.clear();
        }
    }
    let (raw_us, grant_us) = (quantile_us(&mut raw_times, 50), quantile_us(&mut grant_times, 50));
    println!(
        "{registered:>10} {:>7} {batch:>5} {raw_us:>8.2} {grant_us:>8.2} {:>6.2} {:>8.2} {:>9.2} {:>11.0} {:>11.0} {:>9.0}",
        broker.held(),
        grant_us / raw_us,
        quantile_us(&mut raw_times, 99),
        quantile_us(&mut grant_times, 99),
        batch as f64 * 1e6 / raw_us,
        batch as f64 * 1e6 / grant_us,
        broker.bytes_per_allocation(),
    );
}

fn quantile_us(times: &mut [Duration], percent: usize) -> f64 {
    times.sort_unstable();
    times[(times.len() - 1) * percent / 100].as_nanos() as f64 / 1000.0
}

fn raise_nofile() -> usize {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("getrlimit");
    let limit = hard.min(MOST_FDS);
    setrlimit(Resource::RLIMIT_NOFILE, limit, hard).expect("up to the hard limit is allowed");
    usize::try_from(limit).expect("at most MOST_FDS")
}

/// Pins this process, and so its children, to the last CPU it may run on.
fn pin_to_one_cpu() -> usize {
    let myself = Pid::from_raw(0);
    let allowed = sched_getaffinity(myself).expect("affinity");
    let cpu = (0..CpuSet::count()).rev().find(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    let cpu = cpu.expect("this process runs somewhere");
    let mut one = CpuSet::new();
    one.set(cpu).expect("a CPU of this machine");
    sched_setaffinity(myself, &one).expect("affinity");
    cpu
}

fn connect_to(path: &Path) -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC;
    let sock = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).expect("socket");
    connect(sock.as_raw_fd(), &UnixAddr::new(path).expect("a short path")).expect("connect");
    sock
}

/// Makes `fd` the child's fd 3, open across exec.
fn give_fd_3(command: &mut Command, fd: i32) {
    let dup = move || match fd {
        // dup2 onto itself would leave close-on-exec set.
        // SAFETY: fcntl is async-signal-safe and touches no memory of this process.
        3 => unsafe { libc::fcntl(3, libc::F_SETFD, 0) },
        // SAFETY: as above, for dup2.
        _ => unsafe { libc::dup2(fd, 3) },
    };
    // SAFETY: `dup` only makes async-signal-safe calls.
    unsafe {
        command.pre_exec(move || match dup() {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
}

fn end(child: &mut Child) {
    // One that has ended already is what is wanted.
    let _ = child.kill();
    let _ = child.wait();
}
