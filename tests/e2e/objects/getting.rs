//! Gets: of one moment or none, waiting for what is not sealed, refused with a reason.

use crate::support::broker::{Broker, Setup};
use crate::support::objects::{Group, New, SIZE, code, flags, memory, new, seal_memory};
use crate::support::raw::Raw;
use crate::support::wait::{PATIENCE, eventually, many_fds};
use fdbroker_protocol::object::object_flags;
use fdbroker_protocol::{ErrorCode, Kind, Resource, Status, Writer};

/// The deadline of a get that is expected to wait.
fn long_ms() -> u32 {
    u32::try_from(PATIENCE.as_millis()).expect("minutes")
}

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
    assert_eq!((code(&status), status.value.get()), (ErrorCode::NotFound, 1));
    assert_eq!(client.release(&got.leases()), [Status::OK; 2]);
    drop((client, got));
    broker.assert_nothing_left();
}

#[test]
fn get_when_a_name_is_sealed_while_it_waits_then_it_is_answered() {
    let broker = Broker::start();
    let (mut maker, mut reader) = (Raw::connect(&broker.socket()), Raw::connect(&broker.socket()));
    let id = reader.start_get(&["a", "b"], long_ms());
    wait_until_parked(&broker, 1);
    let a = maker.put_bytes("a", &[1; 16], 0);
    wait_until_parked(&broker, 1);
    let b = maker.put_bytes("b", &[2; 16], 0);
    let got = reader.finish_get(id).expect("both are there");
    assert_eq!(got.versions(), [a, b]);
    drop((maker, reader, got));
    broker.assert_nothing_left();
}

#[test]
fn get_when_the_maker_it_waits_for_aborts_then_another_may_come() {
    let broker = Broker::start();
    let mut makers = [(); 2].map(|()| Raw::connect(&broker.socket()));
    let mut reader = Raw::connect(&broker.socket());
    let group = makers[0].create(&memory(&[0; SIZE]), &Group::default(), &[new("a")]);
    let group = group.expect("begun");
    let id = reader.start_get(&["a"], long_ms());
    wait_until_parked(&broker, 1);
    assert_eq!(makers[0].abort(group), Status::OK);
    eventually("the name is free", || makers[1].stat(&["a"])[0].record.state == 0);
    wait_until_parked(&broker, 1);
    makers[1].put_bytes("a", &[3; 16], 0);
    let got = reader.finish_get(id).expect("it is there");
    assert_eq!(got.bytes(0), [3; 16]);
    drop((makers, reader, got));
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
        let found = (code(&status), status.value.get(), status.pid.get());
        assert_eq!(found, (ErrorCode::TimedOut, 1, pid));
    }
    drop((maker, reader));
    broker.assert_nothing_left();
}

#[test]
fn get_when_replaced_while_another_name_is_waited_for_then_all_are_of_one_moment() {
    let broker = Broker::start();
    let (mut maker, mut reader) = (Raw::connect(&broker.socket()), Raw::connect(&broker.socket()));
    maker.put_bytes("a", &[1; 16], 0);
    let id = reader.start_get(&["a", "b"], long_ms());
    wait_until_parked(&broker, 1);
    let memory = memory(&[2; SIZE]);
    let objects = [new("a"), New { offset: 16, ..new("b") }];
    let version = maker.put(&memory, &flags(object_flags::REPLACE), &objects);
    let got = reader.finish_get(id).expect("both are there");
    assert_eq!((got.versions(), got.grants.len()), (vec![version; 2], 1));
    drop((maker, reader, got));
    broker.assert_nothing_left();
}

#[test]
fn get_when_cancelled_then_so_it_says_and_nothing_waits() {
    let broker = Broker::start();
    let mut reader = Raw::connect(&broker.socket());
    let id = reader.start_get(&["a"], long_ms());
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
                most = usize::try_from(status.value.get()).expect("few").max(1);
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
    let id = reader.start_get(&["a"], long_ms());
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
    let id = reader.start_get(&["a"], long_ms());
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
