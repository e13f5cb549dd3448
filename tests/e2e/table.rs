//! The daemon's own fd table at its end, and files whose server hangs: it refuses, pauses, goes on.

use crate::common::not_run;
use crate::support::broker::{Broker, Setup, until_gone};
use crate::support::fuse::HungFile;
use crate::support::fuse_server::why_not;
use crate::support::hello::hello_message;
use crate::support::memory::{BLOCK_BYTES, assert_bytes};
use crate::support::owner::Owner;
use crate::support::raw::{Raw, hello, open};
use crate::support::wait::{eventually, eventually_ok, eventually_some, patience};
use fdbroker_client::{Client, Deposit, Notice};
use fdbroker_protocol::{ErrorCode, Kind, MemoryKind, Resource, Scope, Status};
use std::fs::File;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// A table that has room for some forty clients.
const TABLE: u64 = 1000;

/// Connections beyond what the table has room for.
const BEYOND: usize = 64;

/// Ten times what a broker takes to serve in the place of another one.
const START_LIMIT: Duration = Duration::from_secs(10);

#[track_caller]
fn assert_served(owner: &Owner) {
    for index in 0..owner.registrations.len() {
        let grant = owner.client.acquire(&owner.handle(index), patience()).expect("still served");
        drop(assert_bytes(grant, index as u64));
    }
}

/// Connects and says hello, without awaiting the answer.
fn say_hello(broker: &Broker) -> Option<Raw> {
    let socket = open(&broker.socket()).ok()?;
    let raw = Raw::of(socket);
    // It may have been refused meanwhile.
    let _ = raw.send(&hello_message(&hello()), &[]);
    Some(raw)
}

#[test]
fn daemon_when_its_table_is_full_then_64_more_are_refused_and_the_others_are_served() {
    let broker = Setup::new().nofile(TABLE).config("[limits]\nmax_clients = 4000").start();
    let owner = Owner::of(&broker, "owner", 4);
    let mut welcome = Vec::new();
    let mut refused = 0;
    while refused < BEYOND {
        assert!(welcome.len() as u64 * 4 <= TABLE, "more clients than the table holds");
        let raw = say_hello(&broker).expect("the queue of the listener is long");
        match raw.receive() {
            Ok(answer) if answer.message().kind == Kind::HelloReply => welcome.push((raw, answer)),
            Ok(answer) => {
                let status = answer.failure();
                assert_eq!(status.result(), Err(ErrorCode::NoQuota), "{status}");
                refused += 1;
            }
            // Refused at the door.
            Err(_) => refused += 1,
        }
    }
    assert!(welcome.len() >= 8, "only {} were welcome", welcome.len());
    assert!((broker.open_fds() as u64) < TABLE);
    assert_served(&owner);
    drop(welcome);
    let client = eventually_some("there is room again", || {
        broker.builder("late").reconnect(false).connect().ok()
    });
    drop((client, owner));
    broker.assert_nothing_left();
}

#[test]
fn connect_when_clients_are_at_their_cap_then_no_quota_names_it() {
    let broker = Setup::new().config("[limits]\nmax_clients = 2").start();
    let clients = [broker.client("one"), broker.client("two")];
    let error = broker.builder("three").connect().expect_err("the third of two");
    assert_eq!(error.code, ErrorCode::NoQuota, "{error}");
    let status = error.status.expect("from the broker");
    assert_eq!((status.resource, status.value), (Resource::Connections as u8, 2), "{error}");
    assert!(clients.iter().all(Client::is_connected));
    drop(clients);
    broker.assert_nothing_left();
}

#[test]
fn connect_when_a_domain_is_at_its_cap_of_connections_then_no_quota_names_it_until_one_leaves() {
    let broker = Setup::new().config("[caps.domain]\nconnections = 2").start();
    let (one, two) = (broker.client("one"), broker.client("two"));
    let error = broker.builder("three").connect().expect_err("the third of two");
    let status = error.status.expect("from the broker");
    assert_eq!(status, Status::no_quota(Resource::Connections, Scope::Domain, 2, 0), "{error}");
    assert_eq!(broker.status().uses.connections.now.get(), 2);
    drop(one);
    let three = eventually_some("a place is free", || broker.builder("three").connect().ok());
    drop((two, three));
    broker.assert_nothing_left();
}

#[test]
fn connect_when_own_fds_do_not_fit_then_no_quota_and_nothing_is_charged() {
    let broker = Setup::new().max_fds(50).start();
    let error = broker.builder("big").own_fds(51).connect().expect_err("51 of 50");
    assert_eq!(error.code, ErrorCode::NoQuota, "{error}");
    let client = broker.builder("fits").own_fds(40).connect().expect("40 of 50");
    assert_eq!(broker.status().uses.own_fds.now.get(), 40);
    drop(client);
    broker.assert_nothing_left();
}

#[test]
fn connect_when_the_node_is_full_of_idle_fds_then_room_is_made() {
    let broker = Setup::new().max_fds(20).start();
    let owner = Owner::of(&broker, "owner", 40);
    let before = broker.status();
    assert!(before.gauges.stored_fds.get() > 10, "the cap is full of idle fds");
    let late = broker.builder("late").own_fds(8).connect().expect("idle fds make room");
    assert_eq!(broker.status().uses.own_fds.now.get(), before.uses.own_fds.now.get() + 8);
    drop((late, owner));
    broker.assert_nothing_left();
}

#[test]
fn connect_when_32_ranks_start_together_at_a_small_cap_then_all_get_in() {
    for cap in [80, 128] {
        let broker = Setup::new().max_fds(cap).start();
        // The node is full when they come: of idle fds, and of what the ranks before them deposit.
        let first = Owner::of(&broker, "first", 2 * cap as usize);
        let owners: Vec<_> = std::thread::scope(|scope| {
            let ranks = (0..32).map(|_| scope.spawn(|| Owner::of(&broker, "rank", 4)));
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().expect("it gets in")).collect()
        });
        assert_eq!(broker.status().uses.connections.now.get(), 33);
        drop((owners, first));
        broker.assert_nothing_left();
    }
}

#[test]
fn connect_when_a_user_has_its_part_of_the_lobby_then_again_at_the_door_until_one_leaves() {
    const NAME: &str =
        "connect_when_a_user_has_its_part_of_the_lobby_then_again_at_the_door_until_one_leaves";
    if !nix::unistd::geteuid().is_root() {
        return not_run(NAME, "a service needs a user of its own: root");
    }
    let broker = Setup::new().service().start();
    let owner = Owner::of(&broker, "owner", 4);
    let silent: Vec<_> = (0..16).map(|_| open(&broker.socket()).expect("queued")).collect();
    let late = Raw::of(open(&broker.socket()).expect("queued"));
    let answer = late.receive().expect("it is told");
    assert_eq!(answer.failure().result(), Err(ErrorCode::Again));
    assert_served(&owner);
    // The library tries again until there is room.
    let client = std::thread::scope(|scope| {
        let connects = scope.spawn(|| broker.builder("late").reconnect(false).connect());
        drop(silent);
        connects.join().expect("no panic").expect("it gets in")
    });
    drop((client, owner));
    broker.assert_nothing_left();
}

#[test]
fn daemon_when_hundreds_connect_and_say_nothing_then_the_others_are_served() {
    let mut broker = Setup::new().nofile(TABLE).start();
    let owner = Owner::of(&broker, "owner", 4);
    // Only from now on: the owner's hello has all the time that it needs.
    let hasty = broker.start_successor(&["--set", "limits.handshake_timeout_ms=100"]);
    broker.succeed(hasty.expect("it takes over"));
    let silent: Vec<_> = (0..300).map(|_| open(&broker.socket()).expect("queued")).collect();
    assert_served(&owner);
    let client = eventually_some("the silent ones are sent away", || {
        broker.builder("late").reconnect(false).connect().ok()
    });
    drop((client, owner));
    eventually("no client is left", || broker.status().uses.connections.now.get() == 0);
    drop(silent);
    broker.assert_nothing_left();
}

#[test]
fn register_when_the_file_server_hangs_then_refused_and_everybody_is_served() {
    const NAME: &str = "register_when_the_file_server_hangs_then_refused_and_everybody_is_served";
    if let Some(reason) = why_not() {
        return not_run(NAME, reason);
    }
    let broker = Setup::new().config("[limits]\nmax_refused_per_domain = 3").start();
    let owner = Owner::of(&broker, "owner", 4);
    let mut hung = HungFile::new(broker.dir(), &broker.socket());
    for _ in 0..3 {
        let answer = hung.deposit();
        assert!(answer.contains("UNSUPPORTED_FD"), "{answer}");
        assert_served(&owner);
    }
    // Three closes hang, and that is the bound.
    let answer = hung.deposit();
    assert!(answer.contains("NO_QUOTA") && answer.contains("refused_fds = 3"), "{answer}");
    assert_served(&owner);
    hung.server.kill();
    let null = File::open("/dev/null").expect("open");
    let deposit = Deposit::new(MemoryKind::Memfd, BLOCK_BYTES as u64);
    // Who comes before the kernel has let enough of them go is sent away once more.
    let client = eventually_ok("the kernel lets the closes go", || {
        let client = broker.builder("late").connect()?;
        match client.register(&deposit, null.as_fd(), patience()) {
            Err(error) if error.code == ErrorCode::UnsupportedFd => Ok(client),
            Err(error) => Err(error),
            Ok(_) => panic!("/dev/null is no memory"),
        }
    });
    drop((hung, client, owner));
    broker.assert_nothing_left();
}

#[test]
fn start_when_a_killed_broker_hangs_in_a_close_then_the_next_one_serves_at_once() {
    const NAME: &str =
        "start_when_a_killed_broker_hangs_in_a_close_then_the_next_one_serves_at_once";
    if let Some(reason) = why_not() {
        return not_run(NAME, reason);
    }
    let mut broker = Broker::start();
    let mut hung = HungFile::new(broker.dir(), &broker.socket());
    let answer = hung.deposit();
    assert!(answer.contains("UNSUPPORTED_FD"), "{answer}");
    let lane = broker.kill_hung();
    let began = Instant::now();
    broker.restart();
    assert!(began.elapsed() < START_LIMIT, "{:?}", began.elapsed());
    let owner = Owner::of(&broker, "owner", 4);
    assert_served(&owner);
    let error = broker.start_second().expect_err("one serves");
    assert!(error.contains("another broker serves"), "{error}");
    hung.server.kill();
    until_gone(lane);
    assert_served(&owner);
}

#[test]
fn message_when_broken_and_full_of_hung_fds_then_others_of_the_same_user_are_served() {
    const NAME: &str =
        "message_when_broken_and_full_of_hung_fds_then_others_of_the_same_user_are_served";
    if let Some(reason) = why_not() {
        return not_run(NAME, reason);
    }
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 4);
    let mut hung = HungFile::new(broker.dir(), &broker.socket());
    hung.send_broken(200);
    for _ in 0..5 {
        assert_served(&owner);
    }
    assert!(owner.client.is_connected());
    drop(owner);
    hung.server.kill();
    drop(hung);
    broker.assert_nothing_left();
}

#[test]
fn daemon_when_asked_to_end_while_a_close_hangs_then_another_can_take_its_place() {
    const NAME: &str =
        "daemon_when_asked_to_end_while_a_close_hangs_then_another_can_take_its_place";
    if let Some(reason) = why_not() {
        return not_run(NAME, reason);
    }
    let mut broker = Broker::start();
    let mut hung = HungFile::new(broker.dir(), &broker.socket());
    let answer = hung.deposit();
    assert!(answer.contains("UNSUPPORTED_FD"), "{answer}");
    let owner = Owner::of(&broker, "owner", 2);
    broker.until_hung();
    // It is reaped, its clients hear of its end, and nothing of it is in the way, though a lane has
    // all its fds still.
    let began = Instant::now();
    broker.terminate();
    owner
        .notices
        .until("disconnected", |notice| matches!(notice, Notice::Disconnected).then_some(()));
    broker.restart();
    assert!(began.elapsed() < START_LIMIT, "{:?}", began.elapsed());
    let is_back = |notice| matches!(notice, Notice::Reconnected { .. }).then_some(());
    owner.notices.until("reconnected", is_back);
    assert_served(&owner);
    // Nor is it in the way of one that takes over, whose clients notice nothing.
    let mut again = HungFile::new(broker.dir(), &broker.socket());
    again.deposit();
    broker.until_hung();
    broker.take_over();
    assert_served(&owner);
    owner.notices.assert_never_disconnected();
    again.server.kill();
    hung.server.kill();
}

#[test]
fn administrators_when_more_than_are_served_at_once_then_in_turn_and_clients_all_the_time() {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 2);
    let mut admins: Vec<_> = (0..40).map(|_| broker.admin()).collect();
    assert_eq!(admins[0].status().uses.connections.now.get(), 1);
    assert_served(&owner);
    // Those at the front leave, and those behind them are served.
    let last = admins.pop().expect("40 of them");
    drop(admins);
    assert_eq!(last.status().uses.connections.now.get(), 1);
    drop((last, owner));
    broker.assert_nothing_left();
}
