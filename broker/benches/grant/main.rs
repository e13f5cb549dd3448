//! The daemon beside the kernel alone, in one run, on one core, in turns: the round trip of a
//! grant, and grants to many clients at once. Prints medians and ratios, the memory of an
//! allocation, and the longest step of the core. Must never assert a time.
//!
//! `cargo bench -p fdbrokerd --bench grant [-- --samples N]`. Timed is request sent to answer
//! received and its fds closed; giving the leases back is outside the time. No library is between:
//! the client is as lean as one in C.

#[path = "../common/mod.rs"]
mod common;
mod load;
mod raw;
mod steps;

use common::broker::Broker;
use common::{number_after, pin_to_one_cpu, quantile_us, raise_nofile};
use fdbroker_protocol::MAX_BATCH;
use load::{BrokerLoad, Load, RawLoad};
use raw::RawPeer;

/// Raw and broker alternate this often per case, so that both see the machine's good and bad
/// moments.
const TURNS: usize = 20;
/// Samples of a case with one fd.
const SAMPLES: usize = 20_000;
/// Fds of the daemon beside those it holds, for connections and leases.
const ROOM: usize = 2048;
/// Leases of all clients together, before they are given back outside the time.
const LEASES_AT_ONCE: usize = 4096;

fn main() {
    if let Some(batch) = number_after("--raw-server") {
        raw::serve(batch);
    }
    if std::env::args().any(|arg| arg == "--raw-epoll-server") {
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
