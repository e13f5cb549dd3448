//! Names and metadata at their bounds and beyond. What cannot be a name ends the connection of its
//! sender, and nobody else's.

use super::maker::{LONG_MS, PIN, REPLACE, refused, sized, zeros};
use crate::support::broker::Broker;
use crate::support::objects::{New, code, seal_memory};
use crate::support::raw::Raw;
use fdbroker_protocol::limits::{METADATA_BYTES, NAME_OF_OBJECT_BYTES};
use fdbroker_protocol::object::ObjectState;
use fdbroker_protocol::{ErrorCode, Kind, Status};

#[test]
fn name_when_of_255_bytes_or_of_any_characters_then_it_is_got_by_it() {
    let broker = Broker::start();
    let mut client = Raw::connect(&broker.socket());
    let longest = "x".repeat(NAME_OF_OBJECT_BYTES);
    let widest = "é".repeat(NAME_OF_OBJECT_BYTES / 2);
    let names =
        [&longest, &widest, "/", "//a", "..", " ", "a\nb", "a\x1b[2J", "\u{10ffff}", "A", "a"];
    for (number, name) in names.iter().enumerate() {
        let text = number.to_string();
        client.put_bytes(name, text.as_bytes(), 0);
        assert_eq!(client.read(name).expect("sealed").0, text.as_bytes(), "{name:?}");
    }
    let mut sorted: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
    sorted.sort_unstable();
    let listed: Vec<Vec<u8>> = client.list("").into_iter().map(|record| record.name).collect();
    assert_eq!(listed, sorted, "in the order of their bytes, each once");
    drop(client);
    broker.assert_nothing_left();
}

#[test]
fn name_when_empty_with_nul_or_not_utf8_then_only_its_sender_is_refused() {
    let broker = Broker::start();
    let mut other = Raw::connect(&broker.socket());
    other.put_bytes("there", b"x", 0);
    let wrong: [&[u8]; 6] = [b"", b"a\0b", b"\0", b"\xff", b"a\xc3", b"\xed\xa0\x80"];
    for name in wrong {
        let mut client = Raw::connect(&broker.socket());
        let memfd = zeros(1);
        match client.create(&memfd, &sized(1), &[New::named(name, 1)]) {
            Err(status) => assert_eq!(status.result(), Err(ErrorCode::Protocol), "{name:?}"),
            Ok(_) => panic!("{name:?} is no name"),
        }
    }
    assert_eq!(other.read("there").expect("others are served").0, b"x");
    assert_eq!(other.list("").len(), 1);
    drop(other);
    broker.assert_nothing_left();
}

// A duplicate id once hung the server (arrow 28852).
#[test]
fn name_when_twice_in_one_message_then_refused_where_it_is_made_and_answered_twice_elsewhere() {
    let broker = Broker::start();
    let (mut client, mut reader) = (Raw::connect(&broker.socket()), Raw::connect(&broker.socket()));
    let waiting = reader.start_get(&["a", "a"], LONG_MS);
    for flags in [0, REPLACE] {
        let refusal = client.put_group(&[("b", b"1"), ("a", b"2"), ("b", b"3")], flags);
        let refusal = refusal.expect_err("which of them is b?");
        assert_eq!((code(&refusal), refusal.value), (ErrorCode::Protocol, 2));
    }
    let (group, memfd) = client.begin(&[("a", b"text")], REPLACE).expect("none is left of those");
    for (names, at) in [(["a", "b"], 0), (["b", "b"], 1)] {
        let twice = names.map(|name| New::named(name, 1));
        let refusal = client.add(group, &twice).expect_err("the group has one");
        assert_eq!((code(&refusal), refusal.value), (ErrorCode::Protocol, at));
    }
    seal_memory(&memfd);
    let version = client.seal(group).expect("as if nothing else had been asked for");

    let got = reader.finish_get(waiting).expect("here it is");
    assert_eq!((got.versions(), got.grants.len()), (vec![version; 2], 1));
    assert_eq!([got.bytes(0), got.bytes(1)], [b"text", b"text"]);
    reader.give_back(got);
    assert_eq!(reader.read("a").expect("sealed").1, version);
    assert_eq!(client.touch(&["a", "a"], PIN, 0), Ok(vec![Status::OK; 2]));
    assert_eq!(broker.status().uses.permanent_bytes.now.get(), 4, "once");
    assert!(client.stat(&["a", "a"]).iter().all(|known| known.record.version.get() == version));
    let deleted = client.delete(&["a", "a"]);
    assert_eq!((deleted[0], code(&deleted[1])), (Status::OK, ErrorCode::NotFound));
    drop((client, reader));
    broker.assert_nothing_left();
}

#[test]
fn metadata_when_as_large_as_may_be_then_stat_has_it_and_beyond_it_the_sender_is_refused() {
    let broker = Broker::start();
    let mut client = Raw::connect(&broker.socket());
    let memfd = zeros(1);
    let with = |name: &str, bytes: usize| New { metadata: vec![9; bytes], ..New::named(name, 1) };
    let largest =
        [with("none", 0), with("short", 64), with("longer", 65), with("a", METADATA_BYTES)];
    let group = client.create(&memfd, &sized(1), &largest).expect("begun");
    seal_memory(&memfd);
    client.seal(group).expect("sealed");
    let got = client.get(&["short", "a", "none", "longer"]).expect("sealed");
    let here: Vec<_> = got.items.iter().map(|item| item.metadata_here).collect();
    assert_eq!(here, [64, 0, 0, 0]);
    assert_eq!(got.metadata, [vec![9; 64], vec![], vec![], vec![]]);
    let lengths: Vec<_> = got.items.iter().map(|item| item.metadata_len.get()).collect();
    assert_eq!(lengths, [64, 4096, 0, 65]);
    let records = client.stat(&["a", "longer", "unknown"]);
    assert_eq!((records[0].metadata.len(), records[1].metadata.len()), (METADATA_BYTES, 65));
    assert_eq!(records[2].record.state, ObjectState::Unknown as u8);
    client.give_back(got);

    let too_long = client.create(&zeros(1), &sized(1), &[with("b", METADATA_BYTES + 1)]);
    let code = refused(too_long);
    assert!([ErrorCode::TooLong, ErrorCode::Protocol].contains(&code), "{code:?}");
    let mut other = Raw::connect(&broker.socket());
    assert!(other.list("b").is_empty());
    drop((client, other));
    broker.assert_nothing_left();
}

#[test]
fn message_when_it_claims_more_names_than_it_has_then_only_its_sender_is_refused() {
    let broker = Broker::start();
    for kind in [
        Kind::ObjectAdd,
        Kind::ObjectGet,
        Kind::ObjectDelete,
        Kind::ObjectStat,
        Kind::ObjectTouch,
        Kind::ObjectList,
        Kind::ObjectWatch,
        Kind::ObjectSeal,
        Kind::ObjectAbort,
    ] {
        for (bytes, count) in [(0, 0), (3, 1), (24, 5), (32_000, 253)] {
            let mut raw = Raw::connect(&broker.socket());
            let body = vec![0xff_u8; bytes];
            let answer = raw.request(kind, |writer| writer.push(body.as_slice()), count, &[]);
            assert_eq!(answer.failure().result(), Err(ErrorCode::Protocol), "{kind} {bytes}");
        }
    }
    let mut client = Raw::connect(&broker.socket());
    client.put_bytes("a", b"x", 0);
    drop(client);
    broker.assert_nothing_left();
}
