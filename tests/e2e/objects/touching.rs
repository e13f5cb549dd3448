//! Touches: what keeps a group from then on, who is charged for it, and who becomes its creator.

use crate::support::broker::{Broker, Setup};
use crate::support::objects::{Group, SIZE, code, memory, new};
use crate::support::raw::Raw;
use crate::support::wait::eventually;
use fdbroker_protocol::object::{object_flags, record_flags};
use fdbroker_protocol::{ErrorCode, Resource, Scope, Status};

/// Of what is kept by a broker that nobody stores fds for.
const KEPT_HERE: u8 = record_flags::KEPT | record_flags::ENDS_WITH_BROKER;

#[test]
fn touch_when_it_keeps_then_the_group_outlives_its_creator_until_deleted() {
    let broker = Broker::start();
    let (mut maker, mut other) = (Raw::connect(&broker.socket()), Raw::connect(&broker.socket()));
    maker.put_bytes("a", &[1; 16], 0);
    maker.put_bytes("b", &[2; 16], 0);
    assert_eq!(other.touch(&["a"], object_flags::KEEP, 60_000), Ok(vec![Status::OK]));
    let record = other.stat(&["a"])[0].record;
    assert_eq!(record.flags, KEPT_HERE);
    assert!((1..=60_000).contains(&record.ttl_left_ms.get()), "{record:?}");
    drop(maker);
    eventually("what is not kept is gone", || other.list("").len() == 1);
    assert_eq!(other.get(&["a"]).expect("it is kept").bytes(0), [1; 16]);
    assert_eq!(other.delete(&["a"]), [Status::OK]);
    drop(other);
    broker.assert_nothing_left();
}

#[test]
fn touch_when_the_creator_is_gone_then_who_keeps_it_is_its_creator() {
    let broker = Broker::start();
    let mut maker = Raw::connect(&broker.socket());
    maker.put_bytes("a", &[1; 16], object_flags::KEEP);
    drop(maker);
    let mut other = Raw::connect(&broker.socket());
    let is_gone =
        |other: &mut Raw| other.stat(&["a"])[0].record.flags & record_flags::CREATOR_GONE != 0;
    eventually("its creator is gone", || is_gone(&mut other));
    assert_eq!(other.touch(&["a"], 0, 0), Ok(vec![Status::OK]));
    assert!(is_gone(&mut other), "a use alone adopts nothing");
    assert_eq!(other.touch(&["a"], object_flags::KEEP, 0), Ok(vec![Status::OK]));
    assert!(!is_gone(&mut other));
    assert_eq!(other.delete(&["a"]), [Status::OK]);
    drop(other);
    broker.assert_nothing_left();
}

#[test]
fn touch_when_its_time_is_short_then_the_group_ends_unless_it_is_touched_or_pinned() {
    let broker = Broker::start();
    let mut client = Raw::connect(&broker.socket());
    for name in ["short", "pinned"] {
        client.put_bytes(name, &[1; 16], object_flags::KEEP);
    }
    assert_eq!(client.touch(&["pinned"], object_flags::PIN, 0), Ok(vec![Status::OK]));
    let keep = object_flags::KEEP;
    assert_eq!(client.touch(&["short", "pinned"], keep, 1), Ok(vec![Status::OK; 2]));
    eventually("its time is over", || client.list("").len() == 1);
    let record = client.stat(&["pinned"])[0].record;
    assert_eq!(
        (record.flags, record.ttl_left_ms.get()),
        (KEPT_HERE | record_flags::PINNED, u64::MAX)
    );
    assert_eq!(client.touch(&["pinned"], object_flags::UNPIN, 0), Ok(vec![Status::OK]));
    eventually("its time is over, too", || client.list("").is_empty());
    drop(client);
    broker.assert_nothing_left();
}

#[test]
fn touch_when_the_cap_is_full_then_no_quota_and_the_group_is_as_before() {
    let broker = Setup::new().config("[caps.node]\npermanent_bytes = 5000").start();
    let mut client = Raw::connect(&broker.socket());
    client.put(&memory(&[0; SIZE]), &Group::default(), &[new("a")]);
    client.put(&memory(&[0; SIZE]), &Group::default(), &[new("b")]);
    let pinned = client.touch(&["a", "b"], object_flags::PIN, 0).expect("statuses");
    assert!(pinned[0].is_ok());
    let found = (code(&pinned[1]), pinned[1].resource, pinned[1].scope);
    let full = (Resource::PermanentBytes as u8, Scope::Node as u8);
    assert_eq!(found, (ErrorCode::NoQuota, full.0, full.1));
    assert_eq!(client.stat(&["b"])[0].record.flags, 0);
    assert_eq!(client.touch(&["a"], object_flags::UNPIN, 0), Ok(vec![Status::OK]));
    assert_eq!(client.touch(&["b"], object_flags::PIN, 0), Ok(vec![Status::OK]));
    assert_eq!(client.delete(&["a", "b"]), [Status::OK; 2]);
    drop(client);
    broker.assert_nothing_left();
}

#[test]
fn touch_when_it_is_not_sound_or_there_is_no_object_then_says_so() {
    let broker = Broker::start();
    let mut client = Raw::connect(&broker.socket());
    client.create(&memory(&[0; SIZE]), &Group::default(), &[new("made")]).expect("begun");
    let touched = client.touch(&["none", "made"], object_flags::KEEP, 0).expect("statuses");
    assert_eq!(
        touched.iter().map(code).collect::<Vec<_>>(),
        [ErrorCode::NotFound, ErrorCode::NotSealed]
    );
    for wrong in [object_flags::PIN | object_flags::UNPIN, object_flags::REPLACE, 1 << 20] {
        let status = client.touch(&["made"], wrong, 0).expect_err("no such flags");
        assert_eq!(code(&status), ErrorCode::Protocol);
    }
    drop(client);
    broker.assert_nothing_left();
}
