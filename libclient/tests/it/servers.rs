//! Another user serves the broker's socket: the library says nothing to that server, at the first
//! connection or a later one.

use crate::shared::{as_user, not_run};
use crate::support::*;
use fdbroker_client::{Client, ErrorCode};
use fdbroker_scm::RecvError;
use std::fs::{Permissions, set_permissions};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;

/// A uid that no machine uses.
const MALLORY: u32 = 61_003;

/// A broker in a directory in which another user may take its place. `None`: this user cannot
/// become another.
fn in_an_open_directory(test: &str) -> Option<FakeBroker> {
    if !nix::unistd::geteuid().is_root() {
        not_run(test, "needs root, for another user");
        return None;
    }
    let broker = FakeBroker::listen();
    set_permissions(broker.path.parent().unwrap(), Permissions::from_mode(0o1777)).unwrap();
    Some(broker)
}

fn replace(broker: &mut FakeBroker, uid: u32) {
    broker.stop();
    as_user(uid, || broker.start());
}

#[test]
fn connect_when_another_user_serves_then_not_permitted_names_it_and_nothing_is_sent() {
    let Some(mut broker) = in_an_open_directory("connect_when_another_user_serves") else { return };
    replace(&mut broker, MALLORY);
    for dispatch in [false, true] {
        let builder = Client::builder().socket(&broker.path).dispatch(dispatch);
        let error = builder.connect().unwrap_err();
        assert_eq!(error.code, ErrorCode::NotPermitted);
        let text = error.to_string();
        let path = broker.path.to_str().unwrap();
        for part in [path, "served by uid 61003: NOT_PERMITTED: ", "FDBROKER_SOCKET"] {
            assert!(text.contains(part), "no `{part}` in: {text}");
        }
        assert!(!text.contains("allocation"), "{text}");
        let seen = receive(broker.accept_silent().as_fd(), PATIENCE).map(|_| ());
        assert_eq!(seen, Err(RecvError::Eof));
    }
}

#[test]
fn reconnect_when_another_user_has_taken_the_place_then_waits_for_a_broker_to_trust() {
    let Some(mut broker) = in_an_open_directory("reconnect_when_another_user") else { return };
    let (client, peer) = broker.client();
    replace(&mut broker, MALLORY);
    drop(peer);
    for _ in 0..3 {
        let seen = receive(broker.accept_silent().as_fd(), PATIENCE).map(|_| ());
        assert_eq!(seen, Err(RecvError::Eof));
    }
    assert!(!client.is_connected());
    replace(&mut broker, 0);
    let _peer = broker.accept(Terms::default());
    eventually("connection", || client.is_connected());
}
