//! Who may acquire what: users and listeners as domains, with a daemon that is none of them. The
//! users are processes that give up root, so most of these need it.

use crate::common::not_run;
use crate::support::broker::{Broker, Setup, why_not_fds};
use crate::support::memory::{BLOCK_BYTES, Blocks, all_seals, assert_bytes, memfd};
use crate::support::owner::Owner;
use crate::support::peer::{Peer, from_words, to_line};
use crate::support::raw::{Raw, block_item, grants, hello, open};
use crate::support::wait::{eventually, patience};
use fdbroker_client::{Client, Handle, Share};
use fdbroker_protocol::message::RegisterItem;
use fdbroker_protocol::{ErrorCode, Kind, MAX_BATCH, Writer};
use std::os::fd::AsFd;

/// Two users.
const ALICE: u32 = 61_001;
const BOB: u32 = 61_002;

/// A daemon for all users, if it can be had here. It is not root, so that the kernel's limits hold
/// for it.
fn service(test_name: &str, setup: Setup) -> Option<Broker> {
    if !nix::unistd::geteuid().is_root() {
        not_run(test_name, "other users' processes need root");
        return None;
    }
    Some(setup.service().start())
}

/// A group of both.
const GROUP: u32 = 61_100;

/// A rank of another user, group and further groups.
fn rank_in(broker: &Broker, uid: u32, gid: u32, groups: &[u32]) -> Peer {
    let groups: String = groups.iter().map(|group| format!(" {group}")).collect();
    let mut rank = Peer::start("rank");
    assert_eq!(rank.ask(&format!("user {uid} {gid}{groups}")), "OK");
    assert_eq!(rank.ask(&format!("connect {}", broker.socket().display())), "OK");
    rank
}

/// A rank of another user and group.
fn rank_of(broker: &Broker, uid: u32, gid: u32) -> Peer {
    let mut rank = Peer::start("rank");
    assert_eq!(rank.ask(&format!("user {uid} {gid}")), "OK");
    assert_eq!(rank.ask(&format!("connect {}", broker.socket().display())), "OK");
    rank
}

/// Tells it to deposit one block for these.
#[track_caller]
fn deposit_for(rank: &mut Peer, whom: &str) -> Handle {
    let answer = rank.ask(&format!("deposit {whom}"));
    from_words(answer.split(' '))[0]
}

#[test]
fn acquire_when_shared_within_the_uid_then_another_uid_is_not_permitted() {
    const NAME: &str = "acquire_when_shared_within_the_uid_then_another_uid_is_not_permitted";
    let Some(broker) = service(NAME, Setup::new()) else { return };
    let mut alice = rank_of(&broker, ALICE, ALICE);
    let handle = deposit_for(&mut alice, "uid");
    let mut bob = rank_of(&broker, BOB, BOB);
    assert_eq!(bob.with_handles("check 0", &[handle]), "NOT_PERMITTED");
    // Not the daemon's user, and not root either.
    let mut daemon = rank_of(&broker, broker.uid(), broker.uid());
    assert_eq!(daemon.with_handles("check 0", &[handle]), "NOT_PERMITTED");
    let mut other_alice = rank_of(&broker, ALICE, BOB);
    assert_eq!(other_alice.with_handles("check 0", &[handle]), "OK");
    drop((alice, bob, daemon, other_alice));
    broker.assert_nothing_left();
}

#[test]
fn acquire_when_shared_with_any_then_another_uid_reads_the_bytes() {
    const NAME: &str = "acquire_when_shared_with_any_then_another_uid_reads_the_bytes";
    let Some(broker) = service(NAME, Setup::new()) else { return };
    let mut alice = rank_of(&broker, ALICE, ALICE);
    let handle = deposit_for(&mut alice, "any");
    let mut bob = rank_of(&broker, BOB, BOB);
    assert_eq!(bob.with_handles("check 0", &[handle]), "OK");
    drop((alice, bob));
    broker.assert_nothing_left();
}

#[test]
fn acquire_when_shared_with_the_group_then_its_members_alone_read_the_bytes() {
    const NAME: &str = "acquire_when_shared_with_the_group_then_its_members_alone_read_the_bytes";
    let Some(broker) = service(NAME, Setup::new()) else { return };
    let mut alice = rank_of(&broker, ALICE, GROUP);
    let handle = deposit_for(&mut alice, "gid");
    let mut first_group = rank_of(&broker, BOB, GROUP);
    assert_eq!(first_group.with_handles("check 0", &[handle]), "OK");
    let mut further_group = rank_in(&broker, BOB, BOB, &[ALICE, GROUP, GROUP + 1]);
    assert_eq!(further_group.with_handles("check 0", &[handle]), "OK");
    // A group of the same number as a user is not that user's.
    let mut stranger = rank_in(&broker, BOB, BOB, &[ALICE, GROUP + 1]);
    assert_eq!(stranger.with_handles("check 0", &[handle]), "NOT_PERMITTED");
    let mut other_alice = rank_of(&broker, ALICE, ALICE);
    assert_eq!(other_alice.with_handles("check 0", &[handle]), "OK");
    drop((alice, first_group, further_group, stranger, other_alice));
    broker.assert_nothing_left();
}

#[test]
fn acquire_when_the_owner_of_another_uid_is_gone_then_no_more_is_told_than_to_a_stranger() {
    const NAME: &str =
        "acquire_when_the_owner_of_another_uid_is_gone_then_no_more_is_told_than_to_a_stranger";
    let Some(broker) = service(NAME, Setup::new()) else { return };
    let mut alice = rank_of(&broker, ALICE, ALICE);
    let handle = deposit_for(&mut alice, "uid");
    let mut bob = rank_of(&broker, BOB, BOB);
    assert_eq!(bob.with_handles("check 0", &[handle]), "NOT_PERMITTED");
    alice.kill();
    eventually("it is noticed", || broker.status().uses.connections.now.get() == 1);
    let answer = bob.with_handles("check 0", &[handle]);
    assert!(["NOT_PERMITTED", "STALE", "OWNER_GONE"].contains(&answer.as_str()), "{answer}");
}

#[test]
fn unregister_when_another_uids_then_not_permitted_whatever_the_share() {
    const NAME: &str = "unregister_when_another_uids_then_not_permitted_whatever_the_share";
    let Some(broker) = service(NAME, Setup::new()) else { return };
    let mut alice = rank_of(&broker, ALICE, ALICE);
    let handle = deposit_for(&mut alice, "any");
    let mut bob = Raw::connect(&broker.socket());
    let statuses = bob.unregister(&[handle.id()]);
    assert_eq!(statuses[0].result(), Err(ErrorCode::NotPermitted));
    assert_eq!(alice.with_handles("check 0", &[handle]), "OK");
}

#[test]
fn acquire_when_the_domain_is_at_its_cap_then_other_domains_are_served() {
    const NAME: &str = "acquire_when_the_domain_is_at_its_cap_then_other_domains_are_served";
    let setup = Setup::new().config("[caps.domain]\nopen_leases = 1");
    let Some(broker) = service(NAME, setup) else { return };
    let mut alice = rank_of(&broker, ALICE, ALICE);
    let handle = deposit_for(&mut alice, "any");
    assert_eq!(alice.with_handles("hold", &[handle]), "OK");
    let mut second = rank_of(&broker, ALICE, ALICE);
    second.link.say(&format!("hold {}", to_line(&[handle])));
    eventually("alice's second waits", || broker.status().uses.parked_requests.now.get() == 1);
    let mut bob = rank_of(&broker, BOB, BOB);
    assert_eq!(bob.with_handles("check 0", &[handle]), "OK");
    assert_eq!(alice.ask("drop"), "OK");
    assert_eq!(second.hear(), "OK");
    drop((alice, second, bob));
    broker.assert_nothing_left();
}

/// A daemon that is not root, because root is exempt from the kernel's limit of fds in flight
/// (ETOOMANYREFS), with a small fd table; an owner who shares with any; and its handles.
fn small_service(test_name: &str) -> Option<(Broker, Owner)> {
    let setup = Setup::new().nofile(1200).config("[caps.domain]\nconnections = 1000");
    let broker = service(test_name, setup)?;
    let owner = Owner::with(&broker, "owner", MAX_BATCH, |mut deposit| {
        deposit.share = Share::Any;
        deposit
    });
    Some((broker, owner))
}

/// A client is served, one by one and many at once.
#[track_caller]
fn assert_served(broker: &Broker, owner: &Owner) {
    let client = broker.client("bystander");
    for (index, handle) in owner.handles().iter().enumerate() {
        let grant = client.acquire(handle, patience()).expect("still served");
        drop(assert_bytes(grant, index as u64));
    }
    let mut granted = 0;
    let count = |_, outcome: Result<_, _>| granted += usize::from(outcome.is_ok());
    client.acquire_each(&owner.handles(), patience(), count).expect("connected");
    assert_eq!(granted, owner.registrations.len());
}

#[test]
fn clients_when_they_never_read_then_fds_in_flight_leave_room_for_others() {
    const NAME: &str = "clients_when_they_never_read_then_fds_in_flight_leave_room_for_others";
    let Some((broker, owner)) = small_service(NAME) else { return };
    // Some want many at once, some one at a time, so that together they fill whatever there is to
    // fill.
    let mut deaf: Vec<_> = (0..24).map(|_| Raw::connect(&broker.socket())).collect();
    for (n, raw) in deaf.iter_mut().enumerate() {
        let count = if n < 8 { 120 } else { 1 };
        for _ in 0..20 {
            raw.start_acquire(&owner.handles()[..count], 600_000);
        }
    }
    assert_served(&broker, &owner);
    drop((deaf, owner));
    broker.assert_nothing_left();
}

/// One pool for all domains was emptied by 60 connections of one.
#[test]
fn clients_when_60_of_one_domain_never_read_then_another_domain_gets_whole_batches() {
    const NAME: &str =
        "clients_when_60_of_one_domain_never_read_then_another_domain_gets_whole_batches";
    const TABLE: u64 = 12_000;
    if let Some(reason) = why_not_fds(TABLE) {
        return not_run(NAME, &reason);
    }
    let broker = Setup::new().nofile(TABLE).listeners(&["first", "second"]).start();
    let socket = |name: &str| broker.dir().join(name).join("broker.sock");
    let mut owner = Raw::connect(&socket("first"));
    let block = memfd(c"block", BLOCK_BYTES, all_seals());
    let item = RegisterItem { share: Share::Any as u8, ..block_item() };
    let mut handles: Vec<Handle> = Vec::new();
    while handles.len() < MAX_BATCH {
        let credits = owner.want_credits(64).min(64) as usize;
        let count = credits.min(MAX_BATCH - handles.len());
        let registered = owner.register(&vec![item; count], &vec![block.as_fd(); count]);
        handles.extend(registered.iter().map(|one| one.handle.get()));
    }
    let mut deaf: Vec<_> = (0..60).map(|_| Raw::connect(&socket("first"))).collect();
    for raw in &mut deaf {
        for _ in 0..8 {
            raw.start_acquire(&handles, 600_000);
        }
    }
    let mut bystander = Raw::connect(&socket("second"));
    let mut acquire = || {
        bystander.start_acquire(&handles, 10_000);
        let (items, fds) = grants(bystander.receive().expect("an answer"));
        let granted = items.iter().map(|item| item.lease.get()).filter(|lease| *lease != 0);
        bystander.release(&granted.collect::<Vec<u64>>());
        fds.len()
    };
    // As long as others are served beside it, a grant has only a part.
    eventually("a whole batch", || acquire() == MAX_BATCH);
    drop((deaf, owner, bystander));
    broker.assert_nothing_left();
}

#[test]
fn clients_when_they_leave_fds_unread_and_keep_their_sockets_then_others_are_served() {
    const NAME: &str =
        "clients_when_they_leave_fds_unread_and_keep_their_sockets_then_others_are_served";
    let Some((broker, owner)) = small_service(NAME) else { return };
    // The kernel counts what lies unread in a socket, also when the broker has long closed its end.
    let mut kept = Vec::new();
    for _ in 0..40 {
        let Ok(socket) = open(&broker.socket()) else { break };
        let mut raw = Raw::of(socket);
        let mut writer = Writer::new();
        writer.start(Kind::Hello, raw.fresh_id()).push(&hello());
        let sent = raw.send(writer.finish(0, 0), &[]);
        let answer = sent.ok().and_then(|()| raw.receive().ok());
        if answer.as_ref().is_some_and(|it| it.message().kind == Kind::HelloReply) {
            raw.start_acquire(&owner.handles()[..100], 600_000);
            raw.start_acquire(&owner.handles()[..1], 600_000);
            // Makes the broker end the connection.
            raw.send(&[0], &[]).expect("sent");
        }
        kept.push((raw, answer));
    }
    assert_served(&broker, &owner);
    drop((kept, owner));
    broker.assert_nothing_left();
}

#[test]
fn acquire_when_it_came_by_another_listener_then_another_domain_even_for_the_same_user() {
    let broker = Setup::new().listeners(&["first", "second"]).start();
    let connect = |name: &str| {
        let socket = broker.dir().join(name).join("broker.sock");
        Client::builder().socket(socket).name(name).connect().expect("connect")
    };
    let (first, same, second) = (connect("first"), connect("first"), connect("second"));
    let blocks = Blocks::new(2);
    let mut deposits = [blocks.deposit(0), blocks.deposit(1)];
    deposits.iter_mut().for_each(|deposit| deposit.recallable = false);
    deposits[1].share = Share::Any;
    let export = |index: usize| Ok(blocks.export(index));
    let registered = first.register_with(&deposits, export, patience()).expect("connected");
    let handle = |index: usize| registered[index].as_ref().expect("registered").handle;
    drop(assert_bytes(same.acquire(&handle(0), patience()).expect("the same domain"), 0));
    let error = second.acquire(&handle(0), patience()).expect_err("another domain");
    assert_eq!(error.code, ErrorCode::NotPermitted, "{error}");
    drop(assert_bytes(second.acquire(&handle(1), patience()).expect("shared with any"), 1));
}
