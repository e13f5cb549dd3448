//! Objects in the making: one creator of a name, none of it seen before the seal, versions that are
//! never used twice.

use super::maker::{LONG_MS, REPLACE, refused, sized, zeros};
use crate::support::broker::Broker;
use crate::support::objects::{New, seal_memory};
use crate::support::peer::Peer;
use crate::support::raw::Raw;
use fdbroker_protocol::ErrorCode;
use fdbroker_protocol::object::ObjectState;

fn maker(broker: &Broker) -> Peer {
    let mut peer = Peer::start("maker");
    assert_eq!(peer.ask(&format!("connect {}", broker.socket().display())), "OK");
    peer
}

// A duplicate id once hung the server (arrow 28852).
#[test]
fn create_when_two_processes_make_one_name_at_once_then_one_of_them_is_told_exists() {
    let broker = Broker::start();
    let mut makers = [maker(&broker), maker(&broker)];
    let mut reader = Raw::connect(&broker.socket());
    for round in 0..100 {
        makers.iter_mut().for_each(|maker| maker.link.say(&format!("begin a/{round} {round} 0")));
        let mut answers = makers.each_mut().map(Peer::hear);
        let winner = answers.iter().position(|it| it == "OK").expect("one of them makes it");
        answers.sort();
        assert_eq!(answers, ["EXISTS", "OK"], "round {round}");
        makers[winner].ask("seal").parse::<u64>().expect("a version");
        assert_eq!(
            reader.read(&format!("a/{round}")).expect("sealed").0,
            round.to_string().as_bytes()
        );
    }
    // A sealed one is in the way, too.
    assert_eq!(makers[0].ask("begin a/0 x 0"), "EXISTS");
    drop((makers, reader));
    broker.assert_nothing_left();
}

// contains() was true before the seal (arrow 29850).
#[test]
fn stat_when_not_sealed_then_never_shown_as_what_can_be_had() {
    let broker = Broker::start();
    let mut maker = Raw::connect(&broker.socket());
    let mut reader = Raw::connect(&broker.socket());
    for round in 0..50 {
        let name = format!("half/{round}");
        let (group, memfd) = maker.begin(&[(&name, b"text")], 0).expect("begun");
        let record = reader.stat(&[&name])[0].record;
        assert_eq!(record.state, ObjectState::Making as u8);
        assert_eq!(record.version.get(), 0);
        assert_eq!(record.creator_pid.get(), std::process::id());
        let refusal = reader.get(&[&name]).expect_err("it is not sealed");
        assert_eq!(refusal.result(), Err(ErrorCode::NotSealed));
        assert_eq!(refusal.pid.get(), std::process::id());
        seal_memory(&memfd);
        let version = maker.seal(group).expect("sealed");
        let record = reader.stat(&[&name])[0].record;
        assert_eq!((record.state, record.version.get()), (ObjectState::Sealed as u8, version));
    }
}

#[test]
fn seal_when_the_memory_can_still_be_written_then_sealed_busy_and_the_group_is_as_before() {
    let broker = Broker::start();
    let mut maker = Raw::connect(&broker.socket());
    let (group, memfd) = maker.begin(&[("a", b"text")], 0).expect("begun");
    assert_eq!(refused(maker.seal(group)), ErrorCode::SealedBusy);
    assert_eq!(maker.stat(&["a"])[0].record.state, ObjectState::Making as u8);
    seal_memory(&memfd);
    maker.seal(group).expect("sealed");
    assert_eq!(maker.read("a").expect("sealed").0, b"text");
}

#[test]
fn seal_when_two_replace_a_name_then_the_last_to_seal_has_it() {
    let broker = Broker::start();
    let mut client = Raw::connect(&broker.socket());
    let mut reader = Raw::connect(&broker.socket());
    let first = client.put_bytes("weights", b"first", 0);
    let (older, older_memory) = client.begin(&[("weights", b"older")], REPLACE).expect("begun");
    let (newer, newer_memory) = client.begin(&[("weights", b"newer")], REPLACE).expect("begun");
    assert_eq!(reader.read("weights").expect("sealed"), (b"first".to_vec(), first));

    seal_memory(&newer_memory);
    let second = client.seal(newer).expect("sealed");
    assert_eq!(reader.read("weights").expect("sealed"), (b"newer".to_vec(), second));
    seal_memory(&older_memory);
    let third = client.seal(older).expect("the last to seal wins");
    assert_eq!(reader.read("weights").expect("sealed"), (b"older".to_vec(), third));
    assert!(first < second && second < third, "{first} {second} {third}");
    drop((older_memory, newer_memory, client, reader));
    broker.assert_nothing_left();
}

// A reader got new data under an old id (v6d 1927).
#[test]
fn replace_when_a_reader_has_the_old_version_then_it_keeps_its_bytes() {
    let broker = Broker::start();
    let mut maker = Raw::connect(&broker.socket());
    let mut reader = Raw::connect(&broker.socket());
    let old = maker.put_bytes("a", &[1; 10_000], 0);
    let held = reader.get(&["a"]).expect("sealed");
    let new = maker.put_bytes("a", &[2; 10_000], REPLACE);
    assert_eq!((held.versions()[0], held.bytes(0)), (old, vec![1; 10_000]));
    assert_eq!(reader.read("a").expect("sealed"), (vec![2; 10_000], new));
    // The old one's memory goes with its reader.
    assert_eq!(broker.status().uses.allocations.now.get(), 2);
    reader.give_back(held);
    crate::support::wait::eventually("the old memory goes", || {
        broker.status().uses.allocations.now.get() == 1
    });
    let later = maker.put_bytes("b", b"x", 0);
    assert!(old < new && new < later, "a version is never used twice");
}

#[test]
fn seal_when_the_name_has_moved_meanwhile_then_version_and_nothing_is_changed() {
    let broker = Broker::start();
    let mut client = Raw::connect(&broker.socket());
    let version = client.put_bytes("a", b"one", 0);
    let expecting = |version| New { expect: Some(version), ..New::named("a", 3) };
    let memfd = zeros(3);
    let group = client.create(&memfd, &sized(3), &[expecting(version)]).expect("begun");
    let moved = client.put_bytes("a", b"two", REPLACE);
    seal_memory(&memfd);
    let refusal = client.seal(group).expect_err("it has moved");
    assert_eq!((refusal.result(), refusal.value.get()), (Err(ErrorCode::Version), moved));
    assert_eq!(client.read("a").expect("sealed"), (b"two".to_vec(), moved));
    assert!(client.abort(group).is_ok());

    let memfd = zeros(3);
    let group = client.create(&memfd, &sized(3), &[expecting(moved)]).expect("begun");
    seal_memory(&memfd);
    assert!(client.seal(group).expect("as expected") > moved);
}

#[test]
fn add_when_the_group_is_sealed_then_sealed_and_when_it_is_gone_then_aborted() {
    let broker = Broker::start();
    let mut client = Raw::connect(&broker.socket());
    let (group, memfd) = client.begin(&[("a", b"text")], 0).expect("begun");
    client.add(group, &[New::named("b", 4)]).expect("added");
    seal_memory(&memfd);
    client.seal(group).expect("sealed");
    assert_eq!(refused(client.add(group, &[New::named("c", 4)])), ErrorCode::Sealed);
    assert_eq!(refused(client.seal(group)), ErrorCode::Sealed);
    assert_eq!(client.abort(group).result(), Err(ErrorCode::Sealed));
    let (group, _) = client.begin(&[("d", b"text")], 0).expect("begun");
    assert!(client.abort(group).is_ok());
    assert_eq!(refused(client.add(group, &[New::named("e", 4)])), ErrorCode::Aborted);
    assert_eq!(client.abort(group).result(), Err(ErrorCode::Aborted));
    // Another client's group is none.
    let (group, memfd) = client.begin(&[("f", b"text")], 0).expect("begun");
    let mut other = Raw::connect(&broker.socket());
    assert_eq!(other.abort(group).result(), Err(ErrorCode::Aborted));
    seal_memory(&memfd);
    assert_eq!(refused(other.seal(group)), ErrorCode::Aborted);
    client.seal(group).expect("sealed");
}

#[test]
fn create_when_an_object_is_not_within_the_memory_then_protocol_and_nothing_is_charged() {
    let broker = Broker::start();
    let mut client = Raw::connect(&broker.socket());
    let memfd = zeros(4096);
    let beyond = New { offset: 4000, ..New::named("b", 97) };
    let endless = New { offset: u64::MAX, ..New::named("b", 2) };
    for (objects, at) in [
        ([New::named("a", 4096), beyond.clone()], 1),
        ([endless.clone(), New::named("a", 1)], 0),
        ([New::named("a", 1), New::named("a", 1)], 1),
    ] {
        let refusal = client.create(&memfd, &sized(4096), &objects).expect_err("refused");
        assert_eq!((refusal.result(), refusal.value.get()), (Err(ErrorCode::Protocol), at));
    }
    let uses = broker.status().uses;
    assert_eq!((uses.object_names.now.get(), uses.allocations.now.get()), (0, 0));
    assert!(client.stat(&["a"])[0].record.state == ObjectState::Unknown as u8);
    drop(client);
    broker.assert_nothing_left();
}

#[test]
fn create_when_the_fd_is_no_memory_or_of_another_size_then_a_typed_error() {
    let broker = Broker::start();
    let mut client = Raw::connect(&broker.socket());
    let (pipe, _other) = nix::unistd::pipe().expect("a pipe");
    assert_eq!(
        refused(client.create(&pipe, &sized(1), &[New::named("a", 1)])),
        ErrorCode::UnsupportedFd
    );
    // It claims more than there is.
    let memfd = zeros(4096);
    let outcome = client.create(&memfd, &sized(1 << 30), &[New::named("a", 1)]);
    assert_eq!(refused(outcome), ErrorCode::UnsupportedFd);
    client.put_bytes("a", b"text", 0);
    drop(client);
    broker.assert_nothing_left();
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
