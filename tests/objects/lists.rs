//! Lists: each name that stays is listed exactly once, whatever comes and goes; a prefix visits its own names; a million of them.

use crate::support::broker::Broker;
use crate::support::peer::{Link, Peer};
use crate::wire::{New, Objects, memory, seal_memory};
use fdbroker_protocol::limits::MAX_GROUP;
use std::collections::BTreeSet;
use std::path::Path;

/// Variable that says how many names the test of many names makes.
const MANY_VARIABLE: &str = "FDBROKER_TEST_NAMES";

/// Names of the test of many names, where nothing else is said: a list of some hundred pages.
const MANY: usize = 100_000;

/// Enters so many names, in groups as large as may be.
fn enter(client: &mut Objects, prefix: &str, count: usize) {
    for first in (0..count).step_by(MAX_GROUP) {
        let last = count.min(first + MAX_GROUP);
        let objects: Vec<New> =
            (first..last).map(|number| New::named(format!("{prefix}{number:07}"), 1)).collect();
        let memfd = memory(1);
        let group = client.create(&objects, &memfd, 1, 0).expect("begun");
        seal_memory(&memfd);
        client.seal(group).expect("sealed");
    }
}

/// Makes and deletes names between those that stay, until a line comes.
pub fn play_changing(mut link: Link) {
    let socket = link.hear().expect("a socket");
    let mut client = Objects::connect(Path::new(&socket));
    link.say("OK");
    let mut rounds = 0_u64;
    while !link.has_line() {
        let names: Vec<String> = (0..20).map(|at| format!("n/{:07}x{rounds}", at * 97)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let group: Vec<(&str, &[u8])> = names.iter().map(|name| (*name, &b"x"[..])).collect();
        client.put_group(&group, 0).expect("made");
        assert!(client.delete(&names).iter().all(fdbroker_protocol::Status::is_ok));
        rounds += 1;
    }
    link.say(&rounds.to_string());
}

// A list missed objects (v6d 544).
#[test]
fn list_when_names_come_and_go_then_each_that_stays_is_listed_exactly_once() {
    const STAYING: usize = 2000;
    let broker = Broker::start();
    let mut client = Objects::connect(&broker.socket());
    enter(&mut client, "n/", STAYING);
    let mut changing = Peer::start("changing");
    assert_eq!(changing.ask(&broker.socket().display().to_string()), "OK");
    let staying: Vec<Vec<u8>> = (0..STAYING).map(|at| format!("n/{at:07}").into_bytes()).collect();
    for _ in 0..100 {
        let listed: Vec<Vec<u8>> = client.list("n/").into_iter().map(|it| it.name).collect();
        assert!(listed.is_sorted_by(|one, other| one < other), "in order, none twice");
        let stays = |name: &&Vec<u8>| !name.contains(&b'x');
        assert!(listed.iter().filter(stays).eq(&staying), "each that stays");
    }
    assert_ne!(changing.ask("stop"), "0", "names came and went");
    drop((client, changing));
    broker.assert_nothing_left();
}

#[test]
fn list_when_a_prefix_has_few_then_these_alone_and_in_one_page() {
    let broker = Broker::start();
    let mut client = Objects::connect(&broker.socket());
    enter(&mut client, "a/", 1000);
    enter(&mut client, "b/", 3);
    enter(&mut client, "c/", 1000);
    let (page, done) = client.page(b"b/", b"", 0).expect("a page");
    assert_eq!((page.len(), done), (3, true));
    let (page, done) = client.page(b"b/", b"b/0000000", 0).expect("a page");
    assert_eq!((page.len(), done), (2, true));
    let (page, done) = client.page(b"zz", b"", 0).expect("a page");
    assert_eq!((page.len(), done), (0, true));
    // A name that never was is a place, too; and so is one that is outside of the prefix.
    let (page, _) = client.page(b"b/", b"a/9", 0).expect("a page");
    assert_eq!(page.len(), 3);
    let (page, done) = client.page(b"b/", b"c/0", 0).expect("a page");
    assert_eq!((page.len(), done), (0, true));
    assert_eq!(client.list("").len(), 2003);
    // A prefix may end within a character.
    client.put("é", b"x", 0).expect("made");
    let (page, _) = client.page(&"é".as_bytes()[..1], b"", 0).expect("a page");
    assert_eq!(page.len(), 1);
}

#[test]
fn list_when_there_are_very_many_names_then_each_once_and_nothing_is_left_of_them() {
    let count = std::env::var(MANY_VARIABLE).ok();
    let count = count.map_or(MANY, |text| text.parse().expect("a number of names"));
    let broker = Broker::start();
    let mut client = Objects::connect(&broker.socket());
    enter(&mut client, "n/", count);
    let uses = broker.status().uses;
    assert_eq!(uses.object_names.now.get(), count as u64);
    assert_eq!(uses.held_fds.now.get(), count.div_ceil(MAX_GROUP) as u64, "one fd for each group");
    let listed = client.list("");
    let distinct: BTreeSet<&[u8]> = listed.iter().map(|record| record.name.as_slice()).collect();
    assert_eq!((listed.len(), distinct.len()), (count, count));
    drop(client);
    broker.assert_nothing_left();
}
