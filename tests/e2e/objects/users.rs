//! Other users' names: unknown to everybody else.

use crate::common::not_run;
use crate::support::broker::{Broker, Setup};
use crate::support::peer::{Link, Peer};
use crate::support::raw::Raw;
use fdbroker_protocol::Status;
use std::path::PathBuf;

/// Two users.
const ALICE: u32 = 61_011;
const BOB: u32 = 61_012;

/// A process of a user with objects. Says the first line `UID SOCKET`, then `put NAME`, `get NAME`, `list` or `delete NAME`.
pub fn play(mut link: Link) {
    let line = link.hear().expect("who it is");
    let (uid, socket) = line.split_once(' ').expect("two words");
    let uid = nix::unistd::Uid::from_raw(uid.parse().expect("a number"));
    let gid = nix::unistd::Gid::from_raw(uid.as_raw());
    nix::unistd::setgroups(&[]).expect("setgroups");
    nix::unistd::setresgid(gid, gid, gid).expect("setresgid");
    nix::unistd::setresuid(uid, uid, uid).expect("setresuid");
    serve(link, socket);
}

/// The same of the test's user. Says the first line `SOCKET`.
pub fn play_own(mut link: Link) {
    let socket = link.hear().expect("where");
    serve(link, &socket);
}

fn serve(mut link: Link, socket: &str) {
    let mut raw = Raw::connect(&PathBuf::from(socket));
    link.say("OK");
    while let Some(line) = link.hear() {
        let (what, name) = line.split_once(' ').unwrap_or((&line, ""));
        let said = |status: Status| match status.result() {
            Ok(()) => "OK".to_owned(),
            Err(code) => code.name().to_owned(),
        };
        let answer = match what {
            "put" => raw.put_bytes(name, &[1; 16], 0).to_string(),
            "get" => raw.get(&[name]).map_or_else(said, |_| "OK".to_owned()),
            "list" => raw.list("").len().to_string(),
            "delete" => said(raw.delete(&[(name, 0)])[0]),
            other => panic!("{other} is nothing to do"),
        };
        link.say(&answer);
    }
}

fn user(broker: &Broker, uid: u32) -> Peer {
    let mut peer = Peer::start("objects");
    assert_eq!(peer.ask(&format!("{uid} {}", broker.socket().display())), "OK");
    peer
}

#[test]
fn get_when_the_name_is_another_users_then_as_if_there_were_none_and_both_may_use_it() {
    const NAME: &str =
        "get_when_the_name_is_another_users_then_as_if_there_were_none_and_both_may_use_it";
    if !nix::unistd::geteuid().is_root() {
        return not_run(NAME, "other users' processes need root");
    }
    let broker = Setup::new().service().start();
    let (mut alice, mut bob) = (user(&broker, ALICE), user(&broker, BOB));
    assert_ne!(alice.ask("put a"), "");
    assert_eq!(bob.ask("get a"), "NOT_FOUND");
    assert_eq!(bob.ask("delete a"), "NOT_FOUND");
    assert_eq!(bob.ask("list"), "0");
    assert_ne!(bob.ask("put a"), "");
    assert_eq!(bob.ask("delete a"), "OK");
    assert_eq!(alice.ask("get a"), "OK");
    // Another process of the same user.
    let mut other = user(&broker, ALICE);
    assert_eq!(other.ask("get a"), "OK");
    drop((alice, bob, other));
    broker.assert_nothing_left();
}

#[test]
fn creator_when_killed_then_nothing_of_it_stays_charged() {
    let broker = Broker::start();
    let mut maker = Peer::start("objects of this user");
    assert_eq!(maker.ask(&broker.socket().display().to_string()), "OK");
    maker.ask("put a");
    maker.ask("put b");
    maker.kill();
    broker.assert_nothing_left();
}
