//! Ends: of makers, readers, brokers and listeners. What is not sealed or not kept goes with its
//! maker, at once; what is kept stays; nothing stays charged.

use super::maker::{KEEP, LONG_MS, REPLACE, maker_at, refused};
use crate::support::broker::{Broker, Setup};
use crate::support::manager::Manager;
use crate::support::objects::seal_memory;
use crate::support::raw::Raw;
use crate::support::wait::eventually;
use fdbroker_protocol::{ErrorCode, Status};
use nix::sys::signal::Signal;

// 20 unsealed blobs were charged for half a second after a SIGKILL (vineyard).
#[test]
fn maker_when_killed_with_unsealed_groups_then_nothing_stays_charged() {
    let broker = Broker::start();
    let mut maker = maker_at(&broker.socket());
    for at in 0..20 {
        assert_eq!(maker.ask(&format!("begin blob/{at} text 4")), "OK");
    }
    assert_eq!(broker.status().uses.object_names.now.get(), 20);
    maker.kill();
    broker.assert_nothing_left();
}

#[test]
fn maker_when_killed_between_two_seals_then_the_first_stays_and_the_second_never_was() {
    let broker = Broker::start();
    let mut reader = Raw::connect(&broker.socket());
    let mut first = maker_at(&broker.socket());
    assert_eq!(first.ask(&format!("begin second text {KEEP}")), "OK");
    first.ask(&format!("put first text {KEEP}")).parse::<u64>().expect("a version");
    first.ask("put third text 0").parse::<u64>().expect("a version");
    let id = reader.start_get(&["second"], LONG_MS);
    eventually("it waits", || broker.status().uses.parked_requests.now.get() == 1);
    let held = {
        let mut other = Raw::connect(&broker.socket());
        let held = other.get(&["third"]).expect("sealed");
        (other, held)
    };
    first.kill();
    eventually("its end is noticed", || broker.status().uses.connections.now.get() == 2);

    let (mut other, held) = held;
    assert_eq!(other.read("first").expect("it is kept").0, b"text");
    let refusal = other.get(&["third"]).expect_err("it was not kept");
    assert_eq!(refusal.result(), Err(ErrorCode::NotFound));
    assert_eq!(held.bytes(0), b"text", "a reader keeps what it has");
    let mut second = maker_at(&broker.socket());
    second.ask("put second again 0").parse::<u64>().expect("the name is free");
    let got = reader.finish_get(id).expect("another maker came");
    assert_eq!(got.bytes(0), b"again");
    other.give_back(held);
    assert!(other.delete(&["first"])[0].is_ok());
    drop((got, reader, other, second));
    broker.assert_nothing_left();
}

// A disconnect ended others' objects (ARROW-1788).
#[test]
fn client_when_it_ends_then_the_objects_of_others_and_what_they_wait_for_stay() {
    let broker = Broker::start();
    let mut maker = Raw::connect(&broker.socket());
    let mut reader = Raw::connect(&broker.socket());
    maker.put_bytes("a", b"text", 0);
    let (group, memfd) = maker.begin(&[("b", b"more")], 0).expect("begun");
    let id = reader.start_get(&["b", "a"], LONG_MS);
    for _ in 0..20 {
        let mut other = Raw::connect(&broker.socket());
        let got = other.get(&["a"]).expect("sealed");
        other.start_get(&["b"], LONG_MS);
        assert_eq!(other.watch("", 0), Status::OK);
        // Its fds go without a word.
        drop((other, got));
    }
    seal_memory(&memfd);
    maker.seal(group).expect("sealed");
    let got = reader.finish_get(id).expect("both");
    assert_eq!((got.bytes(0), got.bytes(1)), (b"more".to_vec(), b"text".to_vec()));
    drop((got, maker, reader, memfd));
    broker.assert_nothing_left();
}

#[test]
fn reader_when_killed_then_its_leases_go_and_the_memory_with_them() {
    let broker = Broker::start();
    let mut client = Raw::connect(&broker.socket());
    client.put_bytes("a", b"text", KEEP);
    let mut reader = Raw::connect(&broker.socket());
    let got = reader.get(&["a"]).expect("sealed");
    assert_eq!(client.stat(&["a"])[0].record.leases.get(), 1);
    assert!(client.delete(&["a"])[0].is_ok());
    drop((reader, got));
    eventually("it goes", || broker.status().uses.allocations.now.get() == 0);
    drop(client);
    broker.assert_nothing_left();
}

/// One name is created, deleted and created by processes that are killed, over brokers that are
/// killed or asked to end. The one that has the name in the end is another object than all before,
/// also than those that no broker knows of any more.
#[test]
fn name_when_created_deleted_and_created_over_crashes_then_no_version_is_used_twice() {
    let mut manager = Manager::new(&[]);
    manager.start(&[]);
    let mut versions = Vec::new();
    for round in 0..4 {
        let mut maker = maker_at(&manager.socket());
        let mut put = |text: &str, flags: u32| {
            let version = maker.ask(&format!("put name {text} {flags}"));
            versions.push(version.parse::<u64>().expect("a version"));
        };
        put("first", KEEP);
        if round % 2 == 0 {
            // Of this one nothing is written down but that its version is given.
            put("passing", REPLACE);
        }
        assert_eq!(maker.ask("delete name"), "OK");
        manager.end(Signal::SIGKILL);
        maker.kill();
        manager.start(&[]);

        let mut other = maker_at(&manager.socket());
        assert_eq!(other.ask("list"), "0", "what was deleted does not come back");
        let version = other.ask(&format!("put name second {KEEP}")).parse().expect("a version");
        versions.push(version);
        manager.end(if round % 2 == 0 { Signal::SIGKILL } else { Signal::SIGTERM });
        other.kill();
        manager.start(&[]);
        let mut reader = Raw::connect(&manager.socket());
        assert_eq!(reader.read("name").expect("it is kept"), (b"second".to_vec(), version));
        assert!(reader.delete(&["name"])[0].is_ok());
    }
    assert!(versions.is_sorted_by(|before, after| before < after), "{versions:?}");
}

#[test]
fn listener_when_the_next_broker_lacks_it_then_the_first_goes_on_and_its_objects_stay() {
    let setup = Setup::new().listeners(&["one", "two"]);
    let mut broker = setup.start();
    let socket = |broker: &Broker, name: &str| broker.dir().join(name).join("broker.sock");
    let mut client = Raw::connect(&socket(&broker, "two"));
    client.put_bytes("a", b"of two", KEEP);
    drop(client);
    let config = std::fs::read_to_string(broker.dir().join("config.toml")).expect("readable");
    let (one, _) = config.rsplit_once("[[listener]]").expect("two listeners");
    std::fs::write(broker.dir().join("config.toml"), one).expect("written");
    let refusal = broker.try_take_over().expect_err("nobody could ever have its objects");
    assert!(refusal.contains("two/broker.sock"), "{refusal}");

    let mut one = Raw::connect(&socket(&broker, "one"));
    let mut two = Raw::connect(&socket(&broker, "two"));
    assert!(one.list("").is_empty(), "each listener has names of its own");
    assert_eq!(refused(one.get(&["a"])), ErrorCode::NotFound);
    one.put_bytes("a", b"of one", 0);
    assert_eq!(two.read("a").expect("the first broker goes on").0, b"of two");
    assert!(two.delete(&["a"])[0].is_ok());
    drop((one, two));
    std::fs::write(broker.dir().join("config.toml"), config).expect("written");
    broker.assert_nothing_left();
}
