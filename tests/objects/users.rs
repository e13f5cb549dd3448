//! Users: names belong to the domain. What another user has cannot be told from what does not exist.

use crate::common::not_run;
use crate::support::broker::{Broker, Setup};
use crate::support::peer::Peer;
use crate::wire::KEEP;

/// Two users.
const ALICE: u32 = 61_001;
const BOB: u32 = 61_002;

fn maker_of(broker: &Broker, uid: u32) -> Peer {
    let mut peer = Peer::start("maker");
    assert_eq!(peer.ask(&format!("user {uid}")), "OK");
    assert_eq!(peer.ask(&format!("connect {}", broker.socket().display())), "OK");
    peer
}

#[test]
fn name_when_it_is_another_users_then_like_one_that_is_unknown() {
    const NAME: &str = "name_when_it_is_another_users_then_like_one_that_is_unknown";
    if !nix::unistd::geteuid().is_root() {
        return not_run(NAME, "other users' processes need root");
    }
    let broker = Setup::new().service().start();
    let (mut alice, mut bob) = (maker_of(&broker, ALICE), maker_of(&broker, BOB));
    alice.ask(&format!("put secret of-alice {KEEP}")).parse::<u64>().expect("a version");
    assert_eq!(alice.ask("begin half of-alice 0"), "OK");
    for name in ["secret", "half", "unknown"] {
        assert_eq!(bob.ask(&format!("read {name}")), "NOT_FOUND");
        assert_eq!(bob.ask(&format!("delete {name}")), "NOT_FOUND");
        assert_eq!(bob.ask(&format!("pin {name}")), "NOT_FOUND");
        assert_eq!(bob.ask(&format!("late {name}")), "TIMED_OUT 0", "nobody is named");
    }
    assert_eq!(bob.ask("list"), "0");
    // The name is free for another user.
    bob.ask("put secret of-bob 0").parse::<u64>().expect("a version");
    assert_eq!(bob.ask("read secret"), "of-bob");
    assert_eq!(alice.ask("read secret"), "of-alice");
    assert_eq!(bob.ask("delete secret"), "OK");
    // Another process of the same user has it, and may end it.
    alice.kill();
    let mut other = maker_of(&broker, ALICE);
    assert_eq!(other.ask("read secret"), "of-alice");
    assert_eq!(other.ask("delete secret"), "OK");
    assert_eq!(other.ask("read half"), "NOT_FOUND");
    drop((bob, other));
    broker.assert_nothing_left();
}
