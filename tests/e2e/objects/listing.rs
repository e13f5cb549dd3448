//! Lists and stats: in order, whole, in pages, while names come and go.

use crate::support::broker::Broker;
use crate::support::objects::{Group, Known, New, code, flags, memory, new, seal_memory};
use crate::support::raw::Raw;
use fdbroker_protocol::object::{ObjectState, object_flags};
use fdbroker_protocol::{ErrorCode, Status};
use std::sync::atomic::{AtomicBool, Ordering};

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}{number:04}")).collect()
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
    let names = names("n", 253);
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

#[test]
fn list_when_names_change_meanwhile_then_those_that_stay_come_once_each() {
    let broker = Broker::start();
    let mut client = Raw::connect(&broker.socket());
    let stay = names("x/", 600);
    for part in stay.chunks(200) {
        let objects: Vec<New> = part.iter().map(|name| new(name)).collect();
        client.put(&memory(&[0; 4096]), &Group::default(), &objects);
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let path = broker.socket();
        let is_over = &is_over;
        scope.spawn(move || {
            let mut other = Raw::connect(&path);
            let passing: Vec<String> = names("x/", 600).iter().map(|it| format!("{it}+")).collect();
            while !is_over.load(Ordering::Relaxed) {
                let objects: Vec<New> = passing[..200].iter().map(|name| new(name)).collect();
                other.put(&memory(&[0; 4096]), &flags(object_flags::REPLACE), &objects);
                let gone: Vec<&str> = passing[..200].iter().map(String::as_str).collect();
                assert_eq!(other.delete(&gone), vec![Status::OK; 200]);
            }
        });
        for _ in 0..50 {
            let all = client.list("x/");
            let mut found: Vec<String> = all.iter().map(Known::text).collect();
            assert!(found.is_sorted(), "in order");
            found.retain(|name| !name.ends_with('+'));
            assert_eq!(found, stay);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    drop(client);
    broker.assert_nothing_left();
}

#[test]
fn stat_when_names_of_a_job_are_meant_and_the_client_is_of_none_or_has_none_then_not_its_domains() {
    let broker = Broker::start();
    let mut client = Raw::connect(&broker.socket());
    client.put_bytes("a", &[0; 16], 0);
    match client.get_within(&["a"], 0, object_flags::JOB) {
        Ok(_) => panic!("the names of a job are others"),
        Err(status) => {
            let code = code(&status);
            assert!(matches!(code, ErrorCode::NotFound | ErrorCode::NotSupported), "{code:?}");
        }
    }
    drop(client);
    broker.assert_nothing_left();
}
