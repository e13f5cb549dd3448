//! Gets: of one moment or none, waiting for what is not sealed, refused with a reason.

use super::maker::{LONG_MS, REPLACE, maker_at};
use crate::support::broker::{Broker, Setup};
use crate::support::objects::{Group, New, SIZE, code, flags, memory, new, seal_memory};
use crate::support::raw::Raw;
use crate::support::wait::{eventually, many_fds};
use fdbroker_protocol::{ErrorCode, Kind, Resource, Status, Writer};
use std::collections::BTreeSet;

fn wait_until_parked(broker: &Broker, count: u64) {
    let admin = broker.admin();
    eventually("they wait", || admin.status().uses[Resource::ParkedRequests].now.get() == count);
}

#[test]
fn get_when_names_of_groups_are_mixed_and_doubled_then_one_grant_for_each_group() {
    let broker = Broker::start();
    let mut client = Raw::connect(&broker.socket());
    let second = New { offset: 16, ..new("b") };
    client.put(
        &memory(&(0..=255).collect::<Vec<u8>>()),
        &Group { size: 256, ..Group::default() },
        &[new("a"), second],
    );
    client.put_bytes("c", &[9; 16], 0);
    let got = client.get(&["b", "c", "b", "a"]).expect("they are there");
    let grants: Vec<u16> = got.items.iter().map(|item| item.grant.get()).collect();
    assert_eq!((grants, got.grants.len(), got.fds.len()), (vec![0, 1, 0, 0], 2, 2));
    assert_eq!(got.bytes(0), (16..32).collect::<Vec<u8>>());
    assert_eq!(got.bytes(1), [9; 16]);
    assert_eq!(got.bytes(3), (0..16).collect::<Vec<u8>>());
    let status = client.get(&["a", "none"]).expect_err("one is missing");
    assert_eq!((code(&status), status.value), (ErrorCode::NotFound, 1));
    assert_eq!(client.release(&got.leases()), [Status::OK; 2]);
    drop((client, got));
    broker.assert_nothing_left();
}

#[test]
fn get_when_its_time_is_over_then_timed_out_names_the_maker_if_there_is_one() {
    let broker = Broker::start();
    let (mut maker, mut reader) = (Raw::connect(&broker.socket()), Raw::connect(&broker.socket()));
    maker.put_bytes("there", &[0; 16], 0);
    maker.create(&memory(&[0; SIZE]), &Group::default(), &[new("made")]).expect("begun");
    for (name, pid) in [("made", std::process::id()), ("unknown", 0)] {
        let status = reader.get_within(&["there", name], 20, 0).expect_err("it does not come");
        let found = (code(&status), status.value, status.pid);
        assert_eq!(found, (ErrorCode::TimedOut, 1, pid));
    }
    assert_eq!(broker.status().uses.open_leases.now.get(), 0, "nothing is granted");
    drop((maker, reader));
    broker.assert_nothing_left();
}

#[test]
fn get_when_replaced_while_another_name_is_waited_for_then_all_are_of_one_moment() {
    let broker = Broker::start();
    let (mut maker, mut reader) = (Raw::connect(&broker.socket()), Raw::connect(&broker.socket()));
    maker.put_bytes("a", &[1; 16], 0);
    let id = reader.start_get(&["a", "b"], LONG_MS);
    wait_until_parked(&broker, 1);
    let memory = memory(&[2; SIZE]);
    let objects = [new("a"), New { offset: 16, ..new("b") }];
    let version = maker.put(&memory, &flags(REPLACE), &objects);
    let got = reader.finish_get(id).expect("both are there");
    assert_eq!((got.versions(), got.grants.len()), (vec![version; 2], 1));
    drop((maker, reader, got));
    broker.assert_nothing_left();
}

#[test]
fn get_when_cancelled_then_so_it_says_and_nothing_waits() {
    let broker = Broker::start();
    let mut reader = Raw::connect(&broker.socket());
    let id = reader.start_get(&["a"], LONG_MS);
    wait_until_parked(&broker, 1);
    let mut writer = Writer::new();
    writer.start(Kind::Cancel, id);
    reader.send(writer.finish(0, 0), &[]).expect("sent");
    let status = reader.finish_get(id).expect_err("it is cancelled");
    assert_eq!(code(&status), ErrorCode::Cancelled);
    drop(reader);
    broker.assert_nothing_left();
}

#[test]
fn get_when_253_groups_then_all_their_fds_come_or_again_says_how_many() {
    if !crate::common::has_fds(2048) {
        return;
    }
    let _table = many_fds();
    let broker = Setup::new().nofile(2048).start();
    let mut maker = Raw::connect(&broker.socket());
    let names: Vec<String> = (0..253).map(|number| format!("g/{number:03}")).collect();
    for (number, name) in (0..).zip(&names) {
        maker.put_bytes(name, &[number; 16], 0);
    }
    let wanted: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut left = &wanted[..];
    let mut most = left.len();
    let mut seen = 0u8;
    while !left.is_empty() {
        let now = &left[..most.min(left.len())];
        match maker.get(now) {
            Ok(got) => {
                assert_eq!(got.fds.len(), now.len());
                for index in 0..now.len() {
                    assert_eq!(got.bytes(index), [seen; 16]);
                    seen = seen.wrapping_add(1);
                }
                maker.release(&got.leases());
                left = &left[now.len()..];
            }
            Err(status) => {
                assert_eq!(code(&status), ErrorCode::Again);
                most = usize::try_from(status.value).expect("few").max(1);
            }
        }
    }
    drop(maker);
    broker.assert_nothing_left();
}

#[test]
fn get_when_the_leases_are_at_their_cap_then_it_waits_for_one_to_come_back() {
    let broker = Setup::new().config("[caps.client]\nopen_leases = 1").start();
    let (mut maker, mut reader) = (Raw::connect(&broker.socket()), Raw::connect(&broker.socket()));
    maker.put_bytes("a", &[1; 16], 0);
    let first = reader.get(&["a"]).expect("it is there");
    let status = reader.get(&["a"]).expect_err("the cap is full");
    assert_eq!((code(&status), status.resource), (ErrorCode::NoQuota, Resource::OpenLeases as u8));
    let id = reader.start_get(&["a"], LONG_MS);
    wait_until_parked(&broker, 1);
    reader.release_one_way(&first.leases());
    let got = reader.finish_get(id).expect("it is there");
    assert_eq!(got.bytes(0), [1; 16]);
    drop((maker, reader, first, got));
    broker.assert_nothing_left();
}

#[test]
fn get_when_the_seal_that_it_waits_for_fails_then_it_waits_on() {
    let broker = Broker::start();
    let (mut maker, mut reader) = (Raw::connect(&broker.socket()), Raw::connect(&broker.socket()));
    let memory = memory(&[4; SIZE]);
    let group = maker.create(&memory, &Group::default(), &[new("a")]).expect("begun");
    let id = reader.start_get(&["a"], LONG_MS);
    wait_until_parked(&broker, 1);
    assert_eq!(code(&maker.seal(group).expect_err("no seals")), ErrorCode::SealedBusy);
    wait_until_parked(&broker, 1);
    seal_memory(&memory);
    let version = maker.seal(group).expect("sealed");
    let got = reader.finish_get(id).expect("it is there");
    assert_eq!(got.versions(), [version]);
    drop((maker, reader, got));
    broker.assert_nothing_left();
}

#[test]
fn get_when_its_maker_aborts_or_dies_then_it_waits_for_the_next() {
    let broker = Broker::start();
    let mut first = Raw::connect(&broker.socket());
    let mut reader = Raw::connect(&broker.socket());
    let (group, _memfd) = first.begin(&[("a", b"one")], 0).expect("begun");
    let id = reader.start_get(&["a"], LONG_MS);
    wait_until_parked(&broker, 1);
    assert!(first.abort(group).is_ok());

    let mut second = maker_at(&broker.socket());
    assert_eq!(second.ask("begin a two 0"), "OK");
    second.kill();
    eventually("its end is noticed", || broker.status().uses.connections.now.get() == 2);
    assert_eq!(broker.status().uses.parked_requests.now.get(), 1, "it still waits");

    let (group, memfd) = first.begin(&[("a", b"three")], 0).expect("the name is free");
    seal_memory(&memfd);
    let version = first.seal(group).expect("sealed");
    let got = reader.finish_get(id).expect("here it is");
    assert_eq!((got.bytes(0), got.versions()[0]), (b"three".to_vec(), version));
    drop((got, first, second, reader));
    broker.assert_nothing_left();
}

#[test]
fn get_when_it_waits_for_several_then_nothing_is_granted_before_the_last_is_sealed() {
    let broker = Broker::start();
    let mut maker = Raw::connect(&broker.socket());
    let mut reader = Raw::connect(&broker.socket());
    let id = reader.start_get(&["c", "a", "b", "a"], LONG_MS);
    maker.put_bytes("a", b"A", 0);
    maker.put_bytes("b", b"B", 0);
    wait_until_parked(&broker, 1);
    assert_eq!(broker.status().uses.open_leases.now.get(), 0, "no part of it");
    maker.put_bytes("c", b"C", 0);
    let got = reader.finish_get(id).expect("all of them");
    let text: Vec<_> = (0..4).map(|at| got.bytes(at)).collect();
    assert_eq!(text, [b"C", b"A", b"B", b"A"]);
    assert_eq!(got.grants.len(), 3, "the same name twice is one lease");
}

#[test]
fn get_when_the_group_of_two_names_is_replaced_meanwhile_then_never_two_versions_mixed() {
    let broker = Broker::start();
    let mut maker = maker_at(&broker.socket());
    assert_eq!(maker.ask("replace left right"), "OK");
    let mut reader = Raw::connect(&broker.socket());
    let mut versions = BTreeSet::new();
    for _ in 0..2000 {
        let got = reader
            .get_within(&["left", "right"], LONG_MS, 0)
            .expect("they are there from the first on");
        assert_eq!(got.versions()[0], got.versions()[1]);
        assert_eq!(got.bytes(0), got.bytes(1), "of one version");
        assert_eq!(got.grants.len(), 1, "of one group");
        versions.insert(got.versions()[0]);
        reader.give_back(got);
    }
    assert_ne!(maker.ask("stop"), "0", "it has replaced them meanwhile");
    assert!(versions.len() > 1, "more than one version was seen");
    drop((maker, reader));
    broker.assert_nothing_left();
}

#[test]
fn delete_when_in_the_making_or_of_another_version_then_it_stays() {
    let broker = Broker::start();
    let mut client = Raw::connect(&broker.socket());
    let version = client.put_bytes("a", b"text", 0);
    let (_group, _memfd) = client.begin(&[("b", b"text")], 0).expect("begun");
    let statuses =
        client.delete_versions(&[("a", version + 1), ("b", 0), ("c", 0), ("a", version), ("a", 0)]);
    let codes: Vec<_> = statuses.iter().map(|it| it.result().err()).collect();
    let expected = [
        Some(ErrorCode::Version),
        Some(ErrorCode::NotSealed),
        Some(ErrorCode::NotFound),
        None,
        Some(ErrorCode::NotFound),
    ];
    assert_eq!(codes, expected);
    assert_eq!(statuses[0].value, version);
}

#[test]
fn get_when_waiting_for_a_maker_that_replaces_then_it_has_what_is_there_at_once() {
    let broker = Broker::start();
    let mut maker = Raw::connect(&broker.socket());
    let mut reader = Raw::connect(&broker.socket());
    let version = maker.put_bytes("a", b"old", 0);
    let (_group, _memfd) = maker.begin(&[("a", b"new")], REPLACE).expect("begun");
    let got = reader.get_within(&["a"], LONG_MS, 0).expect("the old one is sealed");
    assert_eq!((got.bytes(0), got.versions()[0]), (b"old".to_vec(), version));
}
