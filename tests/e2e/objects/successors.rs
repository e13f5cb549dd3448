//! Objects over a takeover: they, their leases and groups in the making are there as before.

use crate::support::broker::Broker;
use crate::support::objects::{Group, SIZE, code, flags, memory, new, seal_memory};
use crate::support::raw::Raw;
use crate::support::wait::{PATIENCE, eventually};
use fdbroker_protocol::object::object_flags;
use fdbroker_protocol::{ErrorCode, Resource, Status};

#[test]
fn objects_when_another_broker_takes_over_then_all_goes_on_and_versions_grow() {
    let mut broker = Broker::start();
    let (mut maker, mut reader) = (Raw::connect(&broker.socket()), Raw::connect(&broker.socket()));
    let half_made = memory(&[3; SIZE]);
    let group = maker.create(&half_made, &Group::default(), &[new("half")]).expect("begun");
    let kept = maker.put_bytes("kept", &[1; 16], object_flags::KEEP);
    let pinned = maker.put_bytes("pinned", &[4; 16], object_flags::PIN);
    let plain = maker.put_bytes("plain", &[2; 16], 0);
    let leased = reader.get(&["plain"]).expect("it is there");

    broker.take_over();

    let got = reader.get(&["kept", "plain", "pinned"]).expect("they are there");
    assert_eq!(got.versions(), [kept, plain, pinned]);
    assert_eq!([0, 1, 2].map(|at| got.bytes(at)), [1, 2, 4].map(|byte| vec![byte; 16]));
    assert_eq!(reader.release(&leased.leases()), [Status::OK]);
    maker.add(group, &[new("other half")]).expect("added");
    seal_memory(&half_made);
    assert!(maker.seal(group).expect("sealed") > plain, "a version is never used twice");
    assert_eq!(reader.get(&["half"]).expect("it is there").bytes(0), [3; 16]);
    drop((maker, leased, got));
    eventually("the creator is gone", || reader.list("").len() == 2);
    assert_eq!(reader.delete(&["kept", "pinned"]), [Status::OK; 2]);
    drop(reader);
    broker.assert_nothing_left();
}

#[test]
fn get_when_another_broker_takes_over_while_it_waits_then_again_and_the_next_one_waits_on() {
    let mut broker = Broker::start();
    let (mut maker, mut reader) = (Raw::connect(&broker.socket()), Raw::connect(&broker.socket()));
    let ms = u32::try_from(PATIENCE.as_millis()).expect("minutes");
    let id = reader.start_get(&["a"], ms);
    let admin = broker.admin();
    eventually("it waits", || admin.status().uses[Resource::ParkedRequests].now.get() == 1);
    drop(admin);

    broker.take_over();

    let status = reader.finish_get(id).expect_err("the broker leaves");
    assert_eq!(code(&status), ErrorCode::Again);
    let id = reader.start_get(&["a"], ms);
    maker.put_bytes("a", &[1; 16], 0);
    let got = reader.finish_get(id).expect("it is there");
    assert_eq!(got.bytes(0), [1; 16]);
    drop((maker, reader, got));
    broker.assert_nothing_left();
}

#[test]
fn seals_when_another_broker_takes_over_meanwhile_then_each_is_answered() {
    let mut broker = Broker::start();
    let path = broker.socket();
    let maker = std::thread::spawn(move || {
        let mut maker = Raw::connect(&path);
        for round in 0..200u8 {
            let memory = memory(&[round; SIZE]);
            let replace = flags(object_flags::REPLACE);
            let group = maker.create(&memory, &replace, &[new("a")]).expect("begun");
            seal_memory(&memory);
            while let Err(status) = maker.seal(group) {
                assert_eq!(code(&status), ErrorCode::Again);
            }
        }
    });
    for _ in 0..3 {
        broker.take_over();
    }
    maker.join().expect("the maker");
    broker.assert_nothing_left();
}
