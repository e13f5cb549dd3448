//! Gets that wait: for a name that never comes, that is aborted, that is replaced; and of several
//! names, which are of one moment.

use super::maker::LONG_MS;
use crate::support::broker::Broker;
use crate::support::objects::seal_memory;
use crate::support::peer::Peer;
use crate::support::raw::Raw;
use crate::support::wait::eventually;
use fdbroker_protocol::ErrorCode;
use std::collections::BTreeSet;

#[test]
fn get_when_the_name_never_comes_then_timed_out_says_that_it_is_unknown() {
    let broker = Broker::start();
    let mut client = Raw::connect(&broker.socket());
    client.put_bytes("there", b"x", 0);
    let refusal = client.get_within(&["there", "never"], 50, 0).expect_err("it never comes");
    assert_eq!(refusal.result(), Err(ErrorCode::TimedOut));
    assert_eq!((refusal.pid.get(), refusal.value.get()), (0, 1), "nobody makes it");
    assert_eq!(broker.status().uses.open_leases.now.get(), 0, "nothing is granted");
    let refusal = client.get(&["never"]).expect_err("it is not there");
    assert_eq!(refusal.result(), Err(ErrorCode::NotFound));
    drop(client);
    broker.assert_nothing_left();
}

#[test]
fn get_when_its_maker_never_seals_then_timed_out_names_the_maker() {
    let broker = Broker::start();
    let mut peer = Peer::start("maker");
    peer.ask(&format!("connect {}", broker.socket().display()));
    assert_eq!(peer.ask("begin a text 0"), "OK");
    let mut client = Raw::connect(&broker.socket());
    let refusal = client.get_within(&["a"], 50, 0).expect_err("it is not sealed");
    assert_eq!(refusal.result(), Err(ErrorCode::TimedOut));
    assert_eq!(refusal.pid.get(), peer.pid().as_raw().unsigned_abs());
}

#[test]
fn get_when_its_maker_aborts_or_dies_then_it_waits_for_the_next() {
    let broker = Broker::start();
    let mut first = Raw::connect(&broker.socket());
    let mut reader = Raw::connect(&broker.socket());
    let (group, _memfd) = first.begin(&[("a", b"one")], 0).expect("begun");
    let id = reader.start_get(&["a"], LONG_MS);
    eventually("it waits", || broker.status().uses.parked_requests.now.get() == 1);
    assert!(first.abort(group).is_ok());

    let mut second = Peer::start("maker");
    second.ask(&format!("connect {}", broker.socket().display()));
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
    eventually("it waits", || broker.status().uses.parked_requests.now.get() == 1);
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
    let mut maker = Peer::start("maker");
    maker.ask(&format!("connect {}", broker.socket().display()));
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

// A delete once ended the store (arrow 7063).
#[test]
fn delete_when_a_reader_has_it_then_the_name_goes_at_once_and_the_bytes_stay() {
    let broker = Broker::start();
    let mut maker = Raw::connect(&broker.socket());
    let mut reader = Raw::connect(&broker.socket());
    maker.put_bytes("a", &[7; 100_000], 0);
    let held = reader.get(&["a"]).expect("sealed");
    assert!(maker.delete(&["a"])[0].is_ok());
    let refusal = reader.get(&["a"]).expect_err("the name is gone");
    assert_eq!(refusal.result(), Err(ErrorCode::NotFound));
    maker.put_bytes("a", b"another", 0);
    assert_eq!(held.bytes(0), vec![7; 100_000]);
    assert_eq!(reader.read("a").expect("the new one").0, b"another");
    assert_eq!(maker.delete(&["b"])[0].result(), Err(ErrorCode::NotFound));
    reader.give_back(held);
    assert!(maker.delete(&["a"])[0].is_ok());
    eventually("nothing is held", || broker.status().uses.held_bytes.now.get() == 0);
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
    assert_eq!(statuses[0].value.get(), version);
}
