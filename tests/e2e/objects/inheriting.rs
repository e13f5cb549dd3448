//! Names that last as they were asked to last, whoever replaces what they lead to, and over the
//! deaths of maker and broker.

use crate::support::broker::Broker;
use crate::support::manager::Manager;
use crate::support::objects::{Group, New, SIZE, code, flags, memory, new, seal_memory};
use crate::support::raw::Raw;
use crate::support::wait::eventually;
use fdbroker_protocol::object::object_flags::{KEEP, NO_KEEP, NO_PIN, OUTLIVE, PIN, REPLACE};
use fdbroker_protocol::object::{ObjectEvent, record_flags};
use fdbroker_protocol::{ErrorCode, Status};
use nix::sys::signal::Signal;

/// What a name is: kept, pinned.
fn lasts(client: &mut Raw, name: &str) -> [bool; 2] {
    let flags = client.stat(&[name])[0].record.flags;
    [record_flags::KEPT, record_flags::PINNED].map(|flag| flags & flag != 0)
}

#[test]
fn replaced_when_nothing_is_said_then_it_outlives_its_maker_and_the_broker_each_time() {
    let mut manager = Manager::new(&["--set", "limits.object_ttl_ms=600000"]);
    manager.start(&[]);
    let mut first = Raw::connect(&manager.socket());
    first.put_bytes("pinned", &[0; 16], PIN);
    first.put_bytes("kept", &[0; 16], KEEP);
    drop(first);
    for (round, signal) in [Signal::SIGKILL, Signal::SIGTERM, Signal::SIGKILL].iter().enumerate() {
        let byte = u8::try_from(round + 1).expect("few");
        let mut maker = Raw::connect(&manager.socket());
        maker.put_bytes("pinned", &[byte; 16], REPLACE);
        maker.put_bytes("kept", &[byte; 16], REPLACE);
        drop(maker);
        manager.end(*signal);
        manager.start(&[]);
        let mut reader = Raw::connect(&manager.socket());
        let got = reader.get(&["pinned", "kept"]).expect("they last");
        assert_eq!([0, 1].map(|at| got.bytes(at)), [[byte; 16]; 2].map(Vec::from), "{signal}");
        assert_eq!(lasts(&mut reader, "pinned"), [true, true]);
        assert_eq!(lasts(&mut reader, "kept"), [true, false]);
    }
}

#[test]
fn sealed_when_a_pin_came_after_its_create_then_pinned_over_a_crash_and_so_is_the_next_one() {
    let mut manager = Manager::new(&["--set", "limits.object_ttl_ms=600000"]);
    manager.start(&[]);
    let mut clients = [0; 3].map(|_| Raw::connect(&manager.socket()));
    clients[0].put_bytes("w", &[0; SIZE], 0);
    let memories = [1, 2].map(|byte| memory(&[byte; SIZE]));
    let groups = [1, 2].map(|at: usize| {
        let group = clients[at].create(&memories[at - 1], &flags(REPLACE), &[new("w")]);
        group.expect("begun")
    });
    assert_eq!(clients[0].touch(&["w"], PIN, 0).expect("touched"), [Status::OK]);
    for at in [2, 1] {
        seal_memory(&memories[at - 1]);
        clients[at].seal(groups[at - 1]).expect("sealed");
    }
    manager.end(Signal::SIGKILL);
    manager.start(&[]);
    let mut reader = Raw::connect(&manager.socket());
    assert_eq!(reader.get(&["w"]).expect("it lasts").bytes(0), [1; 16]);
    assert_eq!(lasts(&mut reader, "w"), [true, true]);
}

#[test]
fn replaced_when_told_otherwise_then_it_ends_with_its_maker_or_stays_as_asked() {
    let broker = Broker::start();
    let mut reader = Raw::connect(&broker.socket());
    for (with, lasting) in [
        (NO_KEEP | NO_PIN, None),
        (NO_PIN, Some([true, false])),
        (NO_KEEP, Some([true, true])),
        (KEEP | NO_PIN, Some([true, false])),
        (OUTLIVE | NO_KEEP | NO_PIN, Some([true, false])),
    ] {
        let mut maker = Raw::connect(&broker.socket());
        maker.put_bytes("w", &[1; 16], KEEP | PIN | REPLACE);
        maker.put_bytes("w", &[2; 16], REPLACE | with);
        drop(maker);
        match lasting {
            None => eventually("it has ended", || reader.list("").is_empty()),
            Some(lasting) => assert_eq!(lasts(&mut reader, "w"), lasting, "{with}"),
        }
    }
    for both in [KEEP | NO_KEEP, PIN | NO_PIN] {
        let refused = reader.create(&memory(&[0; SIZE]), &flags(both), &[new("x")]);
        assert_eq!(code(&refused.expect_err("contradicts itself")), ErrorCode::Protocol);
    }
}

#[test]
fn seal_when_it_expects_another_version_then_watchers_hear_nothing_of_it() {
    let broker = Broker::start();
    let mut clients = [0; 2].map(|_| Raw::connect(&broker.socket()));
    let [maker, watcher] = &mut clients;
    let version = maker.put_bytes("w", &[1; 16], 0);
    assert_eq!(watcher.watch("", 0), Status::OK);
    let expecting = New { expect: Some(version + 7), ..new("w") };
    let late = memory(&[2; SIZE]);
    let group = maker.create(&late, &Group::default(), &[expecting]).expect("begun");
    seal_memory(&late);
    let status = maker.seal(group).expect_err("another version");
    assert_eq!((code(&status), status.value), (ErrorCode::Version, version));
    assert_eq!(maker.abort(group), Status::OK);
    let last = maker.put_bytes("later", &[1; 16], 0);
    assert_eq!(watcher.next_news(), [(ObjectEvent::Sealed, last, "later".to_owned())]);
}
