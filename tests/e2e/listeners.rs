//! Whose what is kept is when the list of listeners changes: it belongs to the path of the listener
//! by which it came, wherever that is listed. Must never let a client of another path have it.

use crate::support::broker::{Broker, Setup};
use crate::support::manager::Manager;
use crate::support::memory::{BLOCK_BYTES, all_seals, memfd};
use crate::support::objects::code;
use crate::support::raw::{Raw, block_item};
use fdbroker_protocol::message::{RegisterItem, register_flags};
use fdbroker_protocol::object::object_flags::PIN;
use fdbroker_protocol::{ErrorCode, Handle};
use nix::sys::signal::Signal;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

fn socket(dir: &Path, name: &str) -> PathBuf {
    dir.join(name).join("broker.sock")
}

/// Puts the pinned object `w`, with these bytes, and a kept allocation of its user's.
fn leave(path: &Path, bytes: &[u8]) -> Handle {
    let mut client = Raw::connect(path);
    client.put_bytes("w", bytes, PIN);
    let block = memfd(c"block", BLOCK_BYTES, all_seals());
    let item = RegisterItem { flags: register_flags::KEEP, ..block_item() };
    let registered = client.register(&[item], &[block.as_fd()])[0];
    assert!(registered.status.get().is_ok(), "{}", registered.status.get());
    registered.handle.get()
}

/// A client there has these bytes by the name `w`, and is granted this one of `handles` alone.
#[track_caller]
fn assert_has(path: &Path, expected: Option<(&[u8], usize)>, handles: &[Handle]) {
    let mut client = Raw::connect(path);
    match (client.read("w"), expected) {
        (Ok((found, _)), Some((bytes, _))) => assert_eq!(found, bytes, "{}", path.display()),
        (Err(status), None) => assert_eq!(code(&status), ErrorCode::NotFound),
        (found, _) => panic!("{}: {found:?}", path.display()),
    }
    assert_eq!(client.list("").len(), usize::from(expected.is_some()));
    let granted = |handle: &Handle| client.acquire(&[*handle]).0[0].status.get().is_ok();
    let granted: Vec<bool> = handles.iter().map(granted).collect();
    let own = expected.map(|(_, own)| own);
    assert_eq!(granted, (0..handles.len()).map(|at| own == Some(at)).collect::<Vec<_>>());
}

#[test]
fn kept_when_listeners_are_listed_anew_and_the_broker_restarts_then_it_stays_with_their_paths() {
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        let mut manager = Manager::new(&[]);
        manager.listen_in(&["a", "b"]);
        manager.start(&[]);
        let at = |name: &str| socket(manager.dir(), name);
        let [a, b, c] = ["a", "b", "c"].map(at);
        let handles = [leave(&a, b"of a"), leave(&b, b"of b")];
        let (of_a, of_b) = (Some((&b"of a"[..], 0)), Some((&b"of b"[..], 1)));
        let mut restart = |names: &[&str]| {
            manager.end(signal);
            manager.listen_in(names);
            manager.start(&[]);
            manager.log()
        };
        restart(&["b", "a"]);
        assert_has(&a, of_a, &handles);
        assert_has(&b, of_b, &handles);
        restart(&["c", "b", "a"]);
        assert_has(&c, None, &handles);
        assert_has(&a, of_a, &handles);
        let log = restart(&["c", "a"]);
        assert!(
            log.contains("2 kept allocations are of a [[listener]] whose path is not"),
            "{log}"
        );
        assert_has(&c, None, &handles);
        assert_has(&a, of_a, &handles);
        restart(&["a", "b"]);
        assert_has(&a, of_a, &handles);
        assert_has(&b, of_b, &handles);
    }
}

fn list(broker: &Broker, names: &[&str]) {
    let path = |name: &&str| format!("[[listener]]\npath = {:?}\n", socket(broker.dir(), name));
    let config = names.iter().map(path).collect::<String>();
    std::fs::write(broker.dir().join("config.toml"), config).expect("written");
}

#[test]
fn listeners_when_listed_anew_and_a_successor_takes_over_then_clients_and_objects_stay_with_theirs()
{
    let mut broker = Setup::new().listeners(&["a", "b"]).start();
    let at = |broker: &Broker, name: &str| Raw::connect(&socket(broker.dir(), name));
    let (mut a, mut b) = (at(&broker, "a"), at(&broker, "b"));
    a.put_bytes("w", b"of a", PIN);
    b.put_bytes("w", b"of b", PIN);
    list(&broker, &["c", "b", "a"]);
    broker.take_over();
    for mut client in [a, at(&broker, "a")] {
        assert_eq!(client.read("w").expect("its own").0, b"of a");
    }
    for mut client in [b, at(&broker, "b")] {
        assert_eq!(client.read("w").expect("its own").0, b"of b");
    }
    let mut c = at(&broker, "c");
    assert_eq!(code(&c.read("w").expect_err("another's")), ErrorCode::NotFound);
    list(&broker, &["c", "b"]);
    let refusal = broker.try_take_over().expect_err("clients came by it");
    assert!(refusal.contains("a/broker.sock, which is no listener any more"), "{refusal}");
}
