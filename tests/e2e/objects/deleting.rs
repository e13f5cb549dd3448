//! Deletes: the name goes at once, the memory with the last name and the last lease.

use crate::support::broker::Broker;
use crate::support::objects::{Group, New, code, memory, new};
use crate::support::raw::Raw;
use crate::support::wait::eventually;
use fdbroker_protocol::{ErrorCode, Resource, Status};

#[test]
fn delete_when_252_of_253_then_the_memory_stays_for_the_last_name() {
    let broker = Broker::start();
    let mut client = Raw::connect(&broker.socket());
    let names: Vec<String> = (0..253).map(|number| format!("n{number:03}")).collect();
    let objects: Vec<New> = names.iter().map(|name| new(name)).collect();
    let bytes = [6; 4096];
    client.put(&memory(&bytes), &Group::default(), &objects);
    let most: Vec<&str> = names[..252].iter().map(String::as_str).collect();
    assert_eq!(client.delete(&most), vec![Status::OK; 252]);
    let admin = broker.admin();
    let now = |resource: Resource| admin.status().uses[resource].now.get();
    assert_eq!((now(Resource::ObjectNames), now(Resource::HeldFds)), (1, 1));
    assert_eq!(client.get(&["n252"]).expect("it is there").bytes(0), [6; 16]);
    assert_eq!(client.stat(&["n252"])[0].record.group_names.get(), 1);
    assert_eq!(client.delete(&["n252"]), [Status::OK]);
    eventually("the broker's fd is closed", || now(Resource::HeldFds) == 0);
    assert_eq!(now(Resource::ObjectNames), 0);
    drop((client, admin));
    broker.assert_nothing_left();
}

#[test]
fn delete_when_leased_then_the_reader_goes_on_and_nobody_else_gets_it() {
    let broker = Broker::start();
    let (mut maker, mut reader) = (Raw::connect(&broker.socket()), Raw::connect(&broker.socket()));
    maker.put_bytes("a", &[1; 16], 0);
    let got = reader.get(&["a"]).expect("it is there");
    assert_eq!(maker.delete(&["a"]), [Status::OK]);
    assert_eq!(code(&reader.get(&["a"]).expect_err("gone")), ErrorCode::NotFound);
    maker.put_bytes("a", &[2; 16], 0);
    assert_eq!(got.bytes(0), [1; 16]);
    assert_eq!(reader.get(&["a"]).expect("the new one").bytes(0), [2; 16]);
    drop((maker, reader, got));
    broker.assert_nothing_left();
}

#[test]
fn delete_when_unknown_unsealed_or_of_another_version_then_each_says_why() {
    let broker = Broker::start();
    let mut client = Raw::connect(&broker.socket());
    let version = client.put_bytes("a", &[1; 16], 0);
    client.create(&memory(&[0; 4096]), &Group::default(), &[new("made")]).expect("begun");
    let deleted =
        client.delete_versions(&[("none", 0), ("made", 0), ("a", version + 1), ("a", version)]);
    let codes: Vec<_> = deleted.iter().map(|status| status.result().err()).collect();
    let expected = [ErrorCode::NotFound, ErrorCode::NotSealed, ErrorCode::Version].map(Some);
    assert_eq!(codes[..3], expected);
    assert_eq!((deleted[2].value.get(), codes[3]), (version, None));
    drop(client);
    broker.assert_nothing_left();
}
