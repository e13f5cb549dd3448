//! Named objects beside a grant by handle and beside plain files in /dev/shm, in one run, on one
//! core, in turns. Prints medians and ratios, and what a million objects take. Must never assert a
//! time.
//!
//! `cargo bench -p fdbrokerd --bench objects [-- --samples N --objects N]`. No library is between:
//! the client is as lean as one in C. What is timed stands at each table.

#[path = "../common/mod.rs"]
mod common;
mod files;
mod groups;

use std::time::{Duration, Instant};

use common::broker::{Broker, Connection};
use common::{number_after, pin_to_one_cpu, quantile_us, raise_nofile};
use fdbroker_protocol::MAX_BATCH;
use files::Files;
use groups::{Group, get, list_page, put};

/// The sides of a comparison alternate this often, so that all see the machine's good and bad
/// moments.
const TURNS: usize = 20;
/// Samples of a comparison.
const SAMPLES: usize = 20_000;
/// Objects of the last table.
const OBJECTS: usize = 1_000_000;
/// Names of the list.
const LISTED: usize = 100_000;
/// Bytes of an object.
const OBJECT_BYTES: u64 = 1024;
/// Fds of the daemon beside those it holds, for connections and leases.
const ROOM: usize = 2048;

fn main() {
    let samples = number_after("--samples").unwrap_or(SAMPLES);
    let objects = number_after("--objects").unwrap_or(OBJECTS);
    let limit = raise_nofile();
    println!("daemon and client on CPU {}, RLIMIT_NOFILE {limit}, medians in us", pin_to_one_cpu());
    gets(samples, limit);
    puts(samples, limit);
    lists(samples, limit);
    many(objects, limit);
}

/// Timed is: asked, answered, the fd closed, given back, and that answered. Of a file: opened and
/// closed.
fn gets(samples: usize, limit: usize) {
    let mut broker = Broker::start(1000, limit, ROOM);
    let mut client = broker.connect();
    let groups: Vec<Group> = (0..1000).map(|number| Group::of(number, 1, OBJECT_BYTES)).collect();
    groups.iter().for_each(|group| put(&mut client, group));
    let files = Files::new(1000);
    let [mut grants, mut got, mut opened] = [const { Vec::new() }; 3];
    for turn in 0..=TURNS {
        for at in 0..samples / TURNS {
            let handle = broker.next();
            grants.push(timed(|| {
                client.ask(&handle);
                client.take();
                client.release();
            }));
            let name = &groups[at * 7919 % groups.len()].names[0];
            got.push(timed(|| {
                get(&mut client, name);
                client.release();
            }));
            opened.push(timed(|| files.open(at)));
        }
        if turn == 0 {
            // The first turn warms caches and lazily grown buffers on all sides.
            [&mut grants, &mut got, &mut opened].into_iter().for_each(Vec::clear);
        }
    }
    let [grant, object, file] = [&mut grants, &mut got, &mut opened].map(|it| quantile_us(it, 50));
    println!(
        "\n{:>20} {:>20} {:>7} {:>18}",
        "grant + release", "get + release", "ratio", "open + close, shm"
    );
    println!("{grant:>20.2} {object:>20.2} {:>7.2} {file:>18.2}", object / grant);
}

/// Timed is all of it: memory made and allocated, written, unmapped, sealed, its names entered, its
/// fd closed. Of files: each made, written and closed.
fn puts(samples: usize, limit: usize) {
    let broker = Broker::start(1, limit, ROOM);
    let mut client = broker.connect();
    let mut files = Files::new(0);
    let rounds = (samples / MAX_BATCH).clamp(TURNS, 1000);
    let (mut groups, mut written) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let group = Group::of(round, MAX_BATCH, OBJECT_BYTES);
        groups.push(timed(|| put(&mut client, &group)));
        written.push(timed(|| files.write(MAX_BATCH, OBJECT_BYTES)));
        if round == 0 {
            groups.clear();
            written.clear();
        }
    }
    let rate = |times: &mut [Duration]| MAX_BATCH as f64 * 1e6 / quantile_us(times, 50);
    println!("\n{:>20} {:>20}", "puts/s, groups of 253", "files/s, shm");
    println!("{:>20.0} {:>20.0}", rate(&mut groups), rate(&mut written));
}

/// Timed is a list of all names, page after page; and a grant, alone and with a page of a list
/// asked for right before it.
fn lists(samples: usize, limit: usize) {
    let mut broker = Broker::start(1000, limit, ROOM);
    let (mut maker, mut lister, mut client) =
        (broker.connect(), broker.connect(), broker.connect());
    enter(&mut maker, LISTED);
    let files = Files::new(LISTED);
    let (mut whole, mut read, mut pages) = (Vec::new(), Vec::new(), 0);
    for _ in 0..TURNS {
        whole.push(timed(|| pages = list_all(&mut lister, LISTED)));
        read.push(timed(|| assert_eq!(files.list(), LISTED)));
    }
    println!("\n{:>14} {:>7} {:>20} {:>20}", "names", "pages", "list, ms", "readdir, shm, ms");
    let ms = |times: &mut [Duration]| quantile_us(times, 50) / 1000.0;
    println!("{LISTED:>14} {pages:>7} {:>20.1} {:>20.1}", ms(&mut whole), ms(&mut read));

    let (mut alone, mut beside, mut after) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TURNS {
        for _ in 0..samples / TURNS {
            alone.push(grant(&mut broker, &mut client));
            // The broker reads the request for a page first.
            groups::ask_page(&mut lister, &after);
            beside.push(grant(&mut broker, &mut client));
            after = groups::take_page(&mut lister).1;
            client.release();
        }
    }
    println!(
        "\n{:>20} {:>20} {:>14} {:>14}",
        "grant, alone", "behind a page", "p99, alone", "p99, behind"
    );
    let [p50, p99] = [50, 99].map(|it| [&mut alone, &mut beside].map(|of| quantile_us(of, it)));
    println!("{:>20.2} {:>20.2} {:>14.2} {:>14.2}", p50[0], p50[1], p99[0], p99[1]);
}

/// What many objects of 1 KiB take in the daemon. Their pages are never written.
fn many(objects: usize, limit: usize) {
    let broker = Broker::start(1, limit, ROOM);
    let mut maker = broker.connect();
    // Tables that are there once are not counted for each object.
    enter(&mut maker, MAX_BATCH);
    let (fds, bytes) = (broker.open_fds(), broker.resident_bytes());
    let begun = Instant::now();
    let named = enter_from(&mut maker, 1, objects);
    let took = begun.elapsed();
    let fds = broker.open_fds() - fds;
    let each = (broker.resident_bytes() - bytes) as f64 / objects as f64;
    let name = named as f64 / objects as f64;
    println!(
        "\n{:>14} {:>7} {:>13} {:>12} {:>12} {:>12}",
        "objects", "fds", "objects/fd", "bytes each", "name bytes", "beside it"
    );
    println!(
        "{objects:>14} {fds:>7} {:>13.0} {each:>12.0} {name:>12.0} {:>12.0}   entered in {:.1} s",
        objects as f64 / fds as f64,
        each - name,
        took.as_secs_f64()
    );
}

/// Enters so many objects, their pages unwritten.
fn enter(maker: &mut Connection, count: usize) {
    enter_from(maker, 0, count);
}

/// The same, the first of them in this group; gives the bytes of their names.
fn enter_from(maker: &mut Connection, first: usize, count: usize) -> usize {
    let mut bytes = 0;
    for at in 0..count.div_ceil(MAX_BATCH) {
        let group = Group::of(first + at, MAX_BATCH.min(count - at * MAX_BATCH), OBJECT_BYTES);
        bytes += group.names.iter().map(String::len).sum::<usize>();
        groups::enter(maker, &group, groups::memory(group.bytes()));
    }
    bytes
}

/// Lists all names; gives the number of pages.
fn list_all(lister: &mut Connection, expected: usize) -> usize {
    let (mut after, mut names) = (Vec::new(), 0);
    for pages in 1.. {
        let (count, last) = list_page(lister, &after);
        names += count;
        after = last;
        if after.is_empty() {
            assert_eq!(names, expected, "each name is listed once");
            return pages;
        }
    }
    unreachable!("a list ends")
}

/// The round trip of a grant. The lease is given back outside the time.
fn grant(broker: &mut Broker, client: &mut Connection) -> Duration {
    let handle = broker.next();
    timed(|| {
        client.ask(&handle);
        client.take();
    })
}

fn timed(work: impl FnOnce()) -> Duration {
    let begun = Instant::now();
    work();
    begun.elapsed()
}
