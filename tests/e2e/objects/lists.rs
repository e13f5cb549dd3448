//! Lists: each name that stays is listed exactly once, whatever comes and goes; a prefix visits its
//! own names; a million of them.

use super::maker::{sized, zeros};
use crate::support::broker::Broker;
use crate::support::objects::{Group, Known, New, memory, new, seal_memory};
use crate::support::peer::{Link, Peer};
use crate::support::raw::Raw;
use fdbroker_core::limits::OBJECT_RECORD_BYTES;
use fdbroker_protocol::Status;
use fdbroker_protocol::limits::MAX_GROUP;
use fdbroker_protocol::object::ObjectState;
use std::path::Path;

/// Names that come and go at once.
const CHANGING: usize = 20;

/// Enters so many names, in groups as large as may be.
fn enter(client: &mut Raw, prefix: &str, count: usize) {
    for first in (0..count).step_by(MAX_GROUP) {
        let last = count.min(first + MAX_GROUP);
        let objects: Vec<New> =
            (first..last).map(|number| New::named(format!("{prefix}{number:07}"), 1)).collect();
        let memfd = zeros(1);
        let group = client.create(&memfd, &sized(1), &objects).expect("begun");
        seal_memory(&memfd);
        client.seal(group).expect("sealed");
    }
}

/// Makes and deletes names between those that stay, all over them, until a line comes. Says how
/// often.
pub fn play_changing(mut link: Link) {
    let line = link.hear().expect("what to do");
    let (staying, socket) = line.split_once(' ').expect("two words");
    let apart = staying.parse::<usize>().expect("a number of names") / CHANGING;
    let mut client = Raw::connect(Path::new(socket));
    link.say("OK");
    let mut rounds = 0_u64;
    while !link.has_line() {
        let name = |at: usize| format!("{}x{rounds}", staying_name(at * apart));
        let names: Vec<String> = (0..CHANGING).map(name).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let group: Vec<(&str, &[u8])> = names.iter().map(|name| (*name, &b"x"[..])).collect();
        client.put_group(&group, 0).expect("made");
        assert_eq!(client.delete(&names), [Status::OK; CHANGING]);
        rounds += 1;
    }
    link.say(&rounds.to_string());
}

fn staying_name(number: usize) -> String {
    format!("n/{number:07}")
}

/// Lists names page by page while others come and go between them, and looks at each.
#[track_caller]
fn assert_each_once(client: &mut Raw, staying: usize) {
    let (mut seen, mut last) = (0, Vec::new());
    loop {
        let (page, is_done) = client.page(b"n/", &last);
        for known in page {
            assert!(last < known.name, "in order, none twice: {last:?} {:?}", known.name);
            if !known.name.contains(&b'x') {
                assert_eq!(known.text(), staying_name(seen), "each that stays");
                seen += 1;
            }
            last = known.name;
        }
        if is_done {
            return assert_eq!(seen, staying);
        }
    }
}

/// Lists so many names so often while others come and go.
fn list_while_names_change(staying: usize, rounds: usize) {
    let broker = Broker::start();
    let mut client = Raw::connect(&broker.socket());
    enter(&mut client, "n/", staying);
    let uses = broker.status().uses;
    assert_eq!(uses.object_names.now.get(), staying as u64);
    assert_eq!(uses.held_fds.now.get(), staying.div_ceil(MAX_GROUP) as u64, "one for each group");
    let mut changing = Peer::start("changing");
    assert_eq!(changing.ask(&format!("{staying} {}", broker.socket().display())), "OK");
    (0..rounds).for_each(|_| assert_each_once(&mut client, staying));
    assert_ne!(changing.ask("stop"), "0", "names came and went");
    drop((client, changing));
    broker.assert_nothing_left();
}

// A list missed objects (v6d 544).
#[test]
fn list_when_names_come_and_go_then_each_that_stays_is_listed_exactly_once() {
    list_while_names_change(2000, 100);
}

#[test]
fn list_when_there_are_a_million_names_of_which_some_change_then_each_that_stays_exactly_once() {
    if !crate::common::has_fds(2048) {
        return;
    }
    // Some thousand pages.
    list_while_names_change(1_000_000, 1);
}

#[test]
fn list_when_a_prefix_has_few_then_these_alone_and_in_one_page() {
    let broker = Broker::start();
    let mut client = Raw::connect(&broker.socket());
    enter(&mut client, "a/", 1000);
    enter(&mut client, "b/", 3);
    enter(&mut client, "c/", 1000);
    let (page, done) = client.page(b"b/", b"");
    assert_eq!((page.len(), done), (3, true));
    let (page, done) = client.page(b"b/", b"b/0000000");
    assert_eq!((page.len(), done), (2, true));
    let (page, done) = client.page(b"zz", b"");
    assert_eq!((page.len(), done), (0, true));
    // A name that never was is a place, too; and so is one that is outside of the prefix.
    let (page, _) = client.page(b"b/", b"a/9");
    assert_eq!(page.len(), 3);
    let (page, done) = client.page(b"b/", b"c/0");
    assert_eq!((page.len(), done), (0, true));
    assert_eq!(client.list("").len(), 2003);
    // A prefix may end within a character.
    client.put_bytes("é", b"x", 0);
    let (page, _) = client.page(&"é".as_bytes()[..1], b"");
    assert_eq!(page.len(), 1);
}

#[test]
fn list_when_names_have_a_prefix_then_those_in_order_with_what_is_known() {
    let broker = Broker::start();
    let mut client = Raw::connect(&broker.socket());
    for name in ["b", "a/2", "a/1", "a", "ab", "a0"] {
        client.put_bytes(name, &[0; 16], 0);
    }
    client.create(&memory(&[0; 4096]), &Group::default(), &[new("a/3")]).expect("begun");
    let text = |prefix, client: &mut Raw| -> Vec<String> {
        client.list(prefix).iter().map(Known::text).collect()
    };
    assert_eq!(text("a/", &mut client), ["a/1", "a/2", "a/3"]);
    assert_eq!(text("", &mut client), ["a", "a/1", "a/2", "a/3", "a0", "ab", "b"]);
    assert_eq!(text("c", &mut client), Vec::<String>::new());
    let (page, is_done) = client.page(b"a/", b"a/1");
    assert_eq!((page.len(), is_done), (2, true));
    let states: Vec<u8> = page.iter().map(|it| it.record.state).collect();
    assert_eq!(states, [ObjectState::Sealed as u8, ObjectState::Making as u8]);
    drop(client);
    broker.assert_nothing_left();
}

#[test]
fn list_and_stat_when_253_names_of_255_bytes_with_4_kib_of_metadata_then_all_in_pages() {
    let broker = Broker::start();
    let mut client = Raw::connect(&broker.socket());
    let long: Vec<String> = (0..253).map(|number| format!("{number:0>255}")).collect();
    let memory = memory(&[0; 4096]);
    let group = client.create(&memory, &Group::default(), &[]).expect("begun");
    for (number, name) in (0..).zip(&long) {
        let object = New { metadata: vec![number; 4096], ..new(name) };
        client.add(group, &[object]).expect("added");
    }
    let uses = broker.status().uses;
    assert_eq!((uses.object_names.now.get(), uses.held_fds.now.get()), (253, 1), "one fd for all");
    assert_eq!(uses.metadata_bytes.now.get(), 253 * (OBJECT_RECORD_BYTES + 255 + 4096));
    seal_memory(&memory);
    let version = client.seal(group).expect("sealed");

    let listed = client.list("");
    let found: Vec<String> = listed.iter().map(Known::text).collect();
    assert_eq!(found, long);
    assert!(listed.iter().all(|it| it.record.metadata_len.get() == 4096 && it.metadata.is_empty()));
    let long: Vec<&str> = long.iter().map(String::as_str).collect();
    // A request has 32 KiB as well.
    let known: Vec<Known> = long.chunks(100).flat_map(|part| client.stat(part)).collect();
    assert_eq!(known.len(), long.len());
    for (number, it) in (0u8..).zip(&known) {
        assert_eq!(it.metadata, vec![number; 4096]);
        assert_eq!(it.record.version.get(), version);
    }
    // One get of all of them would be above 32 KiB with such names; half of them is not.
    let got = client.get(&long[..120]).expect("they are there");
    assert_eq!((got.items.len(), got.grants.len()), (120, 1));
    drop((client, got));
    broker.assert_nothing_left();
}

#[test]
fn get_when_253_names_of_one_group_then_one_grant() {
    let broker = Broker::start();
    let mut client = Raw::connect(&broker.socket());
    let names: Vec<String> = (0..253).map(|number| format!("n{number}")).collect();
    let objects: Vec<New> =
        names.iter().map(|name| New { metadata: vec![5; 64], ..new(name) }).collect();
    client.put(&memory(&[0; 4096]), &Group::default(), &objects);
    let wanted: Vec<&str> = names.iter().map(String::as_str).collect();
    let got = client.get(&wanted).expect("they are there");
    assert_eq!((got.items.len(), got.grants.len(), got.fds.len()), (253, 1, 1));
    assert!(got.metadata.iter().all(|it| *it == [5; 64]), "there is room for all of it");
    drop((client, got));
    broker.assert_nothing_left();
}
