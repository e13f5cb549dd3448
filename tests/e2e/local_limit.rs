//! Clients whose own fd table is full: told so, nothing lost, and a retry works. Each is a process
//! of its own, because the limit is the process's.

use crate::support::broker::Broker;
use crate::support::memory::{BLOCK_BYTES, pattern};
use crate::support::owner::Owner;
use crate::support::peer::{Link, Peer, from_words, to_line};
use crate::support::wait::{eventually, patience};
use fdbroker_client::{Access, Client, Error, Grant, Handle};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::fs::File;

/// Size of the table of such a process.
const TABLE: u64 = 64;

/// Everything that is free in the fd table, taken.
fn fill() -> Vec<File> {
    let first = File::open("/dev/null").expect("room for one");
    let mut fillers = Vec::new();
    while let Ok(filler) = first.try_clone() {
        fillers.push(filler);
    }
    fillers.push(first);
    fillers
}

/// The part of a process with a small fd table: does what it is told, with as many fds free as it
/// is told.
pub fn play_crowded(mut link: Link) {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("getrlimit");
    setrlimit(Resource::RLIMIT_NOFILE, TABLE, hard).expect("setrlimit");
    let mut client: Option<Client> = None;
    while let Some(line) = link.hear() {
        let mut words = line.split_ascii_whitespace();
        let verb = words.next().expect("a verb");
        let free: usize = words.next().expect("a number").parse().expect("a number");
        let mut fillers = fill();
        fillers.truncate(fillers.len() - free);
        let answer = match verb {
            "connect" => match connect(words.next().expect("a path")) {
                Ok(connected) => {
                    client = Some(connected);
                    "OK".into()
                }
                Err(error) => error.code.name().to_owned(),
            },
            "many" => many(client.as_ref().expect("connected"), &from_words(words)),
            "each" => each(client.as_ref().expect("connected"), &from_words(words)),
            verb => panic!("no such verb: {verb}"),
        };
        drop(fillers);
        link.say(&answer);
    }
}

fn connect(path: &str) -> Result<Client, Error> {
    Client::builder().socket(path).name("crowded").reconnect(false).connect()
}

/// A word: whether it was granted with the right bytes, or why not.
fn word(index: usize, outcome: Result<Grant, Error>) -> String {
    let mut bytes = vec![0; BLOCK_BYTES];
    let read = outcome
        .and_then(|grant| grant.import(Access::Read, 0))
        .and_then(|import| import.read_at(0, &mut bytes));
    match read {
        Ok(()) if bytes == pattern(index as u64) => "OK".into(),
        Ok(()) => "other-bytes".into(),
        Err(error) => error.code.name().to_owned(),
    }
}

/// All at once: as many fds as there are grants.
fn many(client: &Client, handles: &[Handle]) -> String {
    let outcomes = client.acquire_many(handles, patience()).expect("connected");
    let words = outcomes.into_iter().enumerate().map(|(index, outcome)| word(index, outcome));
    words.collect::<Vec<_>>().join(" ")
}

/// One after the other: each fd is closed before the next is needed.
fn each(client: &Client, handles: &[Handle]) -> String {
    let mut words = vec![String::new(); handles.len()];
    let take = |index: usize, outcome| words[index] = word(index, outcome);
    client.acquire_each(handles, patience(), take).expect("connected");
    words.join(" ")
}

/// A broker, an owner of 8 blocks, and a connected process with a small table.
fn crowded() -> (Broker, Owner, Peer) {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 8);
    let mut peer = Peer::start("crowded");
    assert_eq!(peer.ask(&format!("connect 40 {}", broker.socket().display())), "OK");
    (broker, owner, peer)
}

#[track_caller]
fn assert_no_lease_left(broker: &Broker) {
    eventually("every lease is given back", || {
        let status = broker.status();
        (status.uses.open_leases.now.get(), status.uses.mapped_leases.now.get()) == (0, 0)
    });
}

#[test]
fn acquire_when_the_own_table_is_full_then_local_fd_limit_and_a_retry_works() {
    let (broker, owner, mut peer) = crowded();
    let line = to_line(&[owner.handle(0)]);
    assert_eq!(peer.ask(&format!("many 0 {line}")), "LOCAL_FD_LIMIT");
    assert_no_lease_left(&broker);
    assert_eq!(peer.ask(&format!("many 1 {line}")), "OK");
    assert_no_lease_left(&broker);
    drop((peer, owner));
    broker.assert_nothing_left();
}

#[test]
fn acquire_when_only_some_of_a_batch_fit_then_those_are_granted_and_nothing_is_lost() {
    let (broker, owner, mut peer) = crowded();
    let line = to_line(&owner.handles());
    let answer = peer.ask(&format!("many 3 {line}"));
    let words: Vec<_> = answer.split(' ').collect();
    let count = |wanted| words.iter().filter(|word| **word == wanted).count();
    assert_eq!((count("OK"), count("LOCAL_FD_LIMIT")), (3, 5), "{answer}");
    assert_no_lease_left(&broker);
    assert_eq!(peer.ask(&format!("many 8 {line}")), ["OK"; 8].join(" "));
    assert_no_lease_left(&broker);
}

#[test]
fn acquire_each_when_fewer_fds_are_free_than_handles_then_all_are_granted_in_turn() {
    let (broker, owner, mut peer) = crowded();
    let answer = peer.ask(&format!("each 2 {}", to_line(&owner.handles())));
    assert_eq!(answer, ["OK"; 8].join(" "));
    assert_no_lease_left(&broker);
}

#[test]
fn connect_when_the_own_table_is_full_then_local_fd_limit_and_a_retry_works() {
    let broker = Broker::start();
    let mut peer = Peer::start("crowded");
    for free in 0..8 {
        let answer = peer.ask(&format!("connect {free} {}", broker.socket().display()));
        match answer.as_str() {
            "LOCAL_FD_LIMIT" => {}
            // Its sockets, the page, a wake-up: never with fewer than four.
            "OK" => assert!(free >= 4, "connected with {free} fds"),
            other => panic!("with {free} fds free: {other}"),
        }
    }
    assert_eq!(peer.ask(&format!("connect 8 {}", broker.socket().display())), "OK");
    drop(peer);
    broker.assert_nothing_left();
}
