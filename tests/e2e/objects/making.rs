//! Groups from their begin to their end: seen whole or not at all, gone with their creator.

use super::maker::maker_at;
use crate::support::broker::Broker;
use crate::support::objects::{Group, New, SIZE, code, flags, memory, new, seal_memory};
use crate::support::peer::Peer;
use crate::support::raw::Raw;
use crate::support::wait::eventually;
use fdbroker_protocol::object::{ObjectState, object_flags, record_flags};
use fdbroker_protocol::{ErrorCode, FdType, MemoryKind, Status};

/// Bytes that tell where they are.
fn pattern() -> Vec<u8> {
    (0..SIZE).map(|at| (at % 251) as u8).collect()
}

#[test]
fn put_when_several_objects_then_a_reader_gets_their_bytes_versions_and_metadata() {
    let broker = Broker::start();
    let (mut maker, mut reader) = (Raw::connect(&broker.socket()), Raw::connect(&broker.socket()));
    let first = New { metadata: b"shape".to_vec(), ..new("a/first") };
    let second = New { offset: 1000, size: 96, metadata: vec![7; 65], ..new("a/second") };
    let group = maker.create(&memory(&pattern()), &Group::default(), &[first]);
    // The broker has the memory; the test's own fd of it is closed.
    assert!(group.is_ok());
    maker.abort(group.expect("begun"));

    let memory = memory(&pattern());
    let first = New { metadata: b"shape".to_vec(), ..new("a/first") };
    let group = maker.create(&memory, &Group::default(), &[first]).expect("begun");
    maker.add(group, &[second]).expect("added");
    seal_memory(&memory);
    let version = maker.seal(group).expect("sealed");
    let got = reader.get(&["a/second", "a/first"]).expect("they are there");
    assert_eq!(got.versions(), [version, version]);
    assert_eq!((got.grants.len(), got.fds.len()), (1, 1), "one fd for a group");
    assert_eq!(got.bytes(0), &pattern()[1000..1096]);
    assert_eq!(got.bytes(1), &pattern()[..16]);
    assert_eq!(got.metadata, [b"".to_vec(), b"shape".to_vec()], "65 bytes come by stat");
    assert_eq!(got.items[0].metadata_len.get(), 65);
    assert_eq!(reader.release(&got.leases()), [Status::OK]);
    drop((maker, reader));
    broker.assert_nothing_left();
}

#[test]
fn create_when_not_sealed_then_never_seen_but_marked_in_lists() {
    let broker = Broker::start();
    let (mut maker, mut reader) = (Raw::connect(&broker.socket()), Raw::connect(&broker.socket()));
    let memory = memory(&pattern());
    let group = maker.create(&memory, &Group::default(), &[new("a"), new("b")]).expect("begun");
    seal_memory(&memory);
    for names in [&["a"][..], &["b"], &["b", "a"]] {
        let status = reader.get(names).expect_err("it is not sealed");
        assert_eq!(code(&status), ErrorCode::NotSealed);
        assert_eq!(status.pid, std::process::id());
    }
    let known = reader.stat(&["a"]);
    assert_eq!(known[0].record.state, ObjectState::Making as u8);
    assert_eq!(known[0].record.version.get(), 0);
    maker.seal(group).expect("sealed");
    let known = reader.stat(&["a", "none"]);
    assert_eq!(known.iter().map(|it| it.record.state).collect::<Vec<_>>(), [2, 0]);
    assert_eq!(known[0].record.flags, 0);
    assert_eq!(known[0].record.group_names.get(), 2);
    drop((maker, reader));
    broker.assert_nothing_left();
}

#[test]
fn create_when_a_name_is_taken_then_exists_and_the_fd_is_closed() {
    let broker = Broker::start();
    let mut maker = Raw::connect(&broker.socket());
    maker.put_bytes("sealed", b"0123456789abcdef", 0);
    maker.create(&memory(&pattern()), &Group::default(), &[new("made")]).expect("begun");
    let held = broker.status().gauges.stored_fds.get();
    for name in ["made", "sealed"] {
        let objects = [new("other"), new(name)];
        let status = maker.create(&memory(&pattern()), &Group::default(), &objects);
        let status = status.expect_err("it is taken");
        assert_eq!((code(&status), status.value), (ErrorCode::Exists, 1));
    }
    eventually("both fds are closed", || broker.status().gauges.closing_fds.get() == 0);
    assert_eq!(broker.status().gauges.stored_fds.get(), held);
    let known = maker.stat(&["other"]);
    assert_eq!(known[0].record.state, 0, "nothing stays of a create that fails");
    drop(maker);
    broker.assert_nothing_left();
}

#[test]
fn create_when_it_is_not_sound_then_a_typed_error_and_the_connection_goes_on() {
    let broker = Broker::start();
    let mut maker = Raw::connect(&broker.socket());
    let beyond = New { offset: SIZE as u64 - 15, ..new("a") };
    let endless = New { offset: u64::MAX, ..new("a") };
    let whole = Group::default();
    let wrong = [
        (whole, beyond, ErrorCode::Protocol),
        (whole, endless, ErrorCode::Protocol),
        (Group { size: 0, ..whole }, new("a"), ErrorCode::Protocol),
        (Group { size: SIZE as u64 + 1, ..whole }, new("a"), ErrorCode::UnsupportedFd),
        (Group { fd_offset: 1, ..whole }, new("a"), ErrorCode::UnsupportedFd),
        (Group { kind: MemoryKind::DmaBuf as u8, ..whole }, new("a"), ErrorCode::UnsupportedFd),
        (Group { kind: 77, ..whole }, new("a"), ErrorCode::Protocol),
        (flags(object_flags::UNPIN), new("a"), ErrorCode::Protocol),
        (flags(1 << 30), new("a"), ErrorCode::Protocol),
        (flags(object_flags::JOB | object_flags::PIN), new("a"), ErrorCode::NotSupported),
        (flags(object_flags::JOB | object_flags::KEEP), new("a"), ErrorCode::NotSupported),
    ];
    for (group, object, expected) in wrong {
        let status = maker.create(&memory(&pattern()), &group, &[object]);
        assert_eq!(code(&status.expect_err("it is not sound")), expected, "{group:?}");
    }
    let uses = broker.status().uses;
    assert_eq!(
        (uses.object_names.now.get(), uses.allocations.now.get()),
        (0, 0),
        "none is charged"
    );
    let status = maker.get_within(&["a"], 0, object_flags::PIN).expect_err("no flag of a get");
    assert_eq!(code(&status), ErrorCode::Protocol);
    maker.put_bytes("a", b"0123456789abcdef", 0);
    drop(maker);
    broker.assert_nothing_left();
}

#[test]
fn create_when_the_fd_cannot_be_shared_then_unsupported_names_it() {
    let broker = Broker::start();
    let mut maker = Raw::connect(&broker.socket());
    let (pipe, _other) = nix::unistd::pipe().expect("pipe");
    let status = maker.create(&pipe, &Group::default(), &[new("a")]).expect_err("a pipe");
    let found = (code(&status), status.value);
    assert_eq!(found, (ErrorCode::UnsupportedFd, FdType::Pipe as u64));
    drop(maker);
    broker.assert_nothing_left();
}

#[test]
fn add_when_the_group_is_sealed_anothers_or_full_then_refused() {
    let broker = Broker::start();
    let (mut maker, mut other) = (Raw::connect(&broker.socket()), Raw::connect(&broker.socket()));
    let memory = memory(&pattern());
    let group = maker.create(&memory, &Group::default(), &[]).expect("begun");
    let names: Vec<_> = (0..253).map(|number| new(&format!("n{number}"))).collect();
    maker.add(group, &names).expect("added");
    let status = maker.add(group, &[new("one more")]).expect_err("it is full");
    assert_eq!((code(&status), status.value), (ErrorCode::TooLong, 253));
    let status = other.add(group, &[new("b")]).expect_err("it is another's");
    assert_eq!(code(&status), ErrorCode::Aborted);
    assert_eq!(code(&other.seal(group).expect_err("it is another's")), ErrorCode::Aborted);
    seal_memory(&memory);
    maker.seal(group).expect("sealed");
    assert_eq!(code(&maker.add(group, &[new("b")]).expect_err("sealed")), ErrorCode::Sealed);
    assert_eq!(code(&maker.abort(group)), ErrorCode::Sealed);
    assert_eq!(code(&maker.seal(group).expect_err("sealed")), ErrorCode::Sealed);
    // Of a group that is gone it says so.
    let (gone, _) = maker.begin(&[("d", b"text")], 0).expect("begun");
    assert_eq!(maker.abort(gone), Status::OK);
    assert_eq!(code(&maker.add(gone, &[new("b")]).expect_err("gone")), ErrorCode::Aborted);
    assert_eq!(code(&maker.abort(gone)), ErrorCode::Aborted);
    drop((maker, other));
    broker.assert_nothing_left();
}

#[test]
fn seal_when_two_replace_then_the_last_wins_and_readers_of_the_old_keep_it() {
    let broker = Broker::start();
    let mut makers = [(); 2].map(|()| Raw::connect(&broker.socket()));
    let mut reader = Raw::connect(&broker.socket());
    let replace = flags(object_flags::REPLACE);
    let memories = [b'x', b'y'].map(|byte| memory(&vec![byte; SIZE]));
    let groups: Vec<u64> = makers
        .iter_mut()
        .zip(&memories)
        .map(|(maker, memory)| maker.create(memory, &replace, &[new("a")]).expect("begun"))
        .collect();
    memories.iter().for_each(seal_memory);
    let second = makers[1].seal(groups[1]).expect("sealed");
    let old = reader.get(&["a"]).expect("it is there");
    let first = makers[0].seal(groups[0]).expect("sealed");
    assert!(first > second, "versions grow with seals");
    let now = reader.get(&["a"]).expect("it is there");
    assert_eq!((old.versions(), now.versions()), (vec![second], vec![first]));
    assert_eq!((old.bytes(0), now.bytes(0)), (vec![b'y'; 16], vec![b'x'; 16]));
    // Without REPLACE a name that has come meanwhile is in the way; so is another version than was
    // expected.
    let expecting = |version| New { expect: Some(version), ..new("a") };
    let fresh = memory(&pattern());
    let group = makers[0].create(&fresh, &replace, &[expecting(second)]).expect("begun");
    seal_memory(&fresh);
    let status = makers[0].seal(group).expect_err("it has moved");
    assert_eq!((code(&status), status.value), (ErrorCode::Version, first));
    assert_eq!(reader.get(&["a"]).expect("as before").versions(), [first]);
    drop((makers, reader, old, now));
    broker.assert_nothing_left();
}

#[test]
fn stat_when_kept_pinned_and_evictable_then_it_says_so() {
    let broker = Broker::start();
    let mut maker = Raw::connect(&broker.socket());
    let group = Group { ttl_ms: 5000, ..flags(object_flags::KEEP | object_flags::EVICTABLE) };
    maker.put(&memory(&pattern()), &group, &[new("kept")]);
    maker.put(&memory(&pattern()), &flags(object_flags::PIN), &[new("pinned")]);
    let known = maker.stat(&["kept", "pinned"]);
    let [kept, pinned] = [known[0].record, known[1].record];
    let kept_here = record_flags::KEPT | record_flags::ENDS_WITH_BROKER;
    assert_eq!(kept.flags, kept_here | record_flags::EVICTABLE);
    assert!((1..=5000).contains(&kept.ttl_left_ms.get()), "{kept:?}");
    assert_eq!(pinned.flags, kept_here | record_flags::PINNED);
    assert_eq!(pinned.ttl_left_ms.get(), u64::MAX);
    drop(maker);
    let mut reader = Raw::connect(&broker.socket());
    eventually("its creator is gone", || {
        reader.stat(&["kept"])[0].record.flags & record_flags::CREATOR_GONE != 0
    });
    assert_eq!(reader.get(&["kept"]).expect("it is kept").bytes(0), &pattern()[..16]);
    let deleted = reader.delete(&["kept", "pinned"]);
    assert_eq!(deleted, [Status::OK; 2]);
    drop(reader);
    broker.assert_nothing_left();
}

// A duplicate id once hung the server (arrow 28852).
#[test]
fn create_when_two_processes_make_one_name_at_once_then_one_of_them_is_told_exists() {
    let broker = Broker::start();
    let mut makers = [maker_at(&broker.socket()), maker_at(&broker.socket())];
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
