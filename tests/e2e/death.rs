//! Processes that end without a word, at the worst moment: owners, consumers, the daemon itself.

use crate::support::broker::{Broker, Setup};
use crate::support::memory::{assert_bytes, assert_import};
use crate::support::owner::{Owner, notices};
use crate::support::peer::{Link, Peer, from_words, to_line};
use crate::support::rank::rank;
use crate::support::raw::{Raw, grants};
use crate::support::wait::{PATIENCE, eventually, patience};
use fdbroker_client::Handle;
use fdbroker_protocol::ErrorCode;
use fdbroker_protocol::admin::AllocationState;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::Path;

/// A broker that holds one fd at a time and does not lose its patience with owners.
fn tight() -> Broker {
    let lines = "[caps.node]\nheld_fds = 1\n[limits]\nbase_credits = 0\nrecall_timeout_ms = 600000";
    Setup::new().config(lines).start()
}

/// The handle, of these, whose fd the broker does not hold.
fn evicted(broker: &Broker, handles: &[Handle]) -> Handle {
    let records = broker.admin().allocations();
    let state = |handle: &Handle| {
        let record = records.iter().find(|record| record.slot.get() == handle.id().slot);
        record.expect("registered").state.get()
    };
    let evicted = |handle: &&Handle| state(handle) == AllocationState::Evicted as u32;
    *handles.iter().find(evicted).expect("one fd fits, so the others are evicted")
}

#[test]
fn acquire_when_the_owner_is_killed_meanwhile_then_every_waiter_is_told_owner_gone() {
    let broker = tight();
    let mut owner = rank(&broker.socket());
    let handles = owner.share(2, 0);
    let wanted = evicted(&broker, &handles);
    owner.stop();
    let clients: Vec<_> = (0..4).map(|n| broker.client(&format!("waiter {n}"))).collect();
    std::thread::scope(|scope| {
        let wait = |client: &fdbroker_client::Client| client.acquire(&wanted, patience());
        let waiters: Vec<_> =
            clients.iter().map(|client| scope.spawn(move || wait(client))).collect();
        let waiters_now = || broker.admin().allocation(wanted.id()).map(|it| it.waiters.get());
        eventually("all wait for the same recall", || waiters_now() == Some(4));
        owner.kill();
        for waiter in waiters {
            let error = waiter.join().expect("no panic").expect_err("nobody can export it");
            assert_eq!(error.code, ErrorCode::OwnerGone, "{error}");
        }
    });
    drop((owner, clients));
    broker.assert_nothing_left();
}

/// Requests that wait for one allocation: more than the broker answers in one step.
const PARKED: u64 = 40;

#[test]
fn requests_when_their_owner_is_killed_then_the_last_says_owner_gone_like_the_first() {
    let broker = tight();
    let mut owner = rank(&broker.socket());
    let handles = owner.share(2, 0);
    let wanted = evicted(&broker, &handles);
    owner.stop();
    let mut consumer = Raw::connect(&broker.socket());
    let mut waiting: Vec<u64> =
        (0..PARKED).map(|_| consumer.start_acquire(&[wanted], 600_000)).collect();
    eventually("all wait", || broker.status().uses.parked_requests.now.get() == PARKED);
    owner.kill();
    for _ in 0..PARKED {
        let answer = consumer.receive().expect("each is answered");
        waiting.retain(|id| *id != answer.message().id);
        let (items, _) = grants(answer);
        assert_eq!(
            items[0].status.get().result(),
            Err(ErrorCode::OwnerGone),
            "{} left",
            waiting.len()
        );
    }
    assert!(waiting.is_empty());
    let (items, _) = consumer.acquire(&[wanted]);
    assert_eq!(items[0].status.get().result(), Err(ErrorCode::OwnerGone));
    drop((owner, consumer));
    broker.assert_nothing_left();
}

#[test]
fn owner_when_killed_while_its_memory_is_held_then_holders_are_told_and_keep_the_bytes() {
    let broker = Broker::start();
    let mut owner = rank(&broker.socket());
    let handles = owner.share(1, 5);
    let (told, on_notice) = notices();
    let client = broker.builder("holder").on_notice(on_notice).connect().expect("connect");
    let import = assert_bytes(client.acquire(&handles[0], patience()).expect("ready"), 5);
    owner.kill();
    assert_eq!(told.until_revoked(handles[0].id()), ErrorCode::OwnerGone);
    assert!(!import.is_current());
    assert_import(&import, 5);
    let error = client.acquire(&handles[0], patience()).expect_err("the owner is gone");
    assert_eq!(error.code, ErrorCode::OwnerGone, "{error}");
    drop((import, client, owner));
    broker.assert_nothing_left();
}

#[test]
fn consumer_when_killed_while_holding_then_its_leases_are_taken_back() {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 3);
    let mut consumer = rank(&broker.socket());
    assert_eq!(consumer.with_handles("hold", &owner.handles()), "OK");
    assert_eq!(consumer.with_handles("import", &owner.handles()), "OK");
    eventually("the ledger shows them", || {
        let status = broker.status();
        (status.uses.open_leases.now.get(), status.uses.mapped_leases.now.get()) == (3, 3)
    });
    owner.client.unregister(&owner.registrations[0]).expect("its own");
    consumer.kill();
    owner.notices.until_drained(owner.id(0));
    drop(owner);
    broker.assert_nothing_left();
}

#[test]
fn consumer_when_killed_while_it_waits_then_nothing_is_kept_for_it() {
    let broker = tight();
    let mut owner = rank(&broker.socket());
    let handles = owner.share(2, 0);
    let wanted = evicted(&broker, &handles);
    owner.stop();
    let mut consumer = rank(&broker.socket());
    consumer.link.say(&format!("hold {}", to_line(&[wanted])));
    eventually("it waits", || broker.status().uses.parked_requests.now.get() == 1);
    consumer.kill();
    eventually("it is forgotten", || broker.status().uses.parked_requests.now.get() == 0);
    owner.go_on();
    let client = broker.client("another");
    drop(assert_bytes(
        client.acquire(&wanted, patience()).expect("the owner answers again"),
        handles.iter().position(|handle| *handle == wanted).expect("one of them") as u64,
    ));
    drop((owner, client, consumer));
    broker.assert_nothing_left();
}

#[test]
fn acquire_when_another_waiter_for_the_same_recall_is_killed_then_served() {
    let broker = tight();
    let mut owner = rank(&broker.socket());
    let handles = owner.share(2, 0);
    let wanted = evicted(&broker, &handles);
    owner.stop();
    let mut waiters = [rank(&broker.socket()), rank(&broker.socket())];
    let place = handles.iter().position(|handle| *handle == wanted).expect("one of them");
    for (waiter, count) in waiters.iter_mut().zip(1..) {
        waiter.link.say(&format!("check {place} {}", to_line(&[wanted])));
        eventually("it waits", || broker.status().uses.parked_requests.now.get() == count);
    }
    let [mut first, mut second] = waiters;
    first.kill();
    owner.go_on();
    assert_eq!(second.hear(), "OK");
    drop((owner, first, second));
    broker.assert_nothing_left();
}

/// The part of a process that leaves its connection to a child: connects by hand, holds a lease,
/// forks.
pub fn play_forking(mut link: Link) {
    let line = link.hear().expect("a path and a handle");
    let mut words = line.split_ascii_whitespace();
    let path = words.next().expect("a path");
    let handles = from_words(words);
    let mut raw = Raw::connect(Path::new(path));
    let (items, fds) = raw.acquire(&handles);
    assert_eq!((items[0].status.get().result(), fds.len()), (Ok(()), 1));
    // SAFETY: the child makes async-signal-safe calls only.
    let heir = unsafe { libc::fork() };
    if heir == 0 {
        // Its end, should nobody end it.
        // SAFETY: alarm(2) and pause(2) are async-signal-safe.
        unsafe { libc::alarm(PATIENCE.as_secs() as u32 * 2) };
        loop {
            // SAFETY: as above.
            unsafe { libc::pause() };
        }
    }
    link.say(&heir.to_string());
    let _ = link.hear();
}

#[test]
fn death_when_a_forked_heir_keeps_the_socket_open_then_noticed_all_the_same() {
    // The process is found by its socket, or by its pid.
    for setup in [Setup::new(), Setup::new().without_kernel_features("peer_pidfd")] {
        let broker = setup.start();
        let owner = Owner::of(&broker, "owner", 1);
        let mut parent = Peer::start("forking");
        let line = format!("{} {}", broker.socket().display(), to_line(&owner.handles()));
        let heir = Pid::from_raw(parent.ask(&line).parse().expect("a pid"));
        assert_eq!(broker.status().uses.open_leases.now.get(), 1);
        parent.kill();
        eventually("its lease is taken back", || broker.status().uses.open_leases.now.get() == 0);
        assert_eq!(broker.status().uses.connections.now.get(), 1, "the owner alone");
        kill(heir, Signal::SIGKILL).expect("the heir lived all the time");
        drop(owner);
        broker.assert_nothing_left();
    }
}

#[test]
fn death_when_the_kernel_lacks_every_newer_feature_then_noticed_by_the_end_of_the_socket() {
    let features = "peer_pidfd,pidfd_open,dupfd_query,pass_rights";
    let broker = Setup::new().without_kernel_features(features).start();
    let mut owner = rank(&broker.socket());
    let handles = owner.share(2, 0);
    let mut consumer = rank(&broker.socket());
    assert_eq!(consumer.with_handles("hold", &handles), "OK");
    consumer.kill();
    eventually("its leases are taken back", || broker.status().uses.open_leases.now.get() == 0);
    owner.kill();
    drop((owner, consumer));
    broker.assert_nothing_left();
}

#[test]
fn daemon_when_killed_then_a_cached_generation_check_misses_at_once() {
    let mut broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 1);
    let (_told, on_notice) = notices();
    let client = broker.builder("cache").on_notice(on_notice).connect().expect("connect");
    let import = assert_bytes(client.acquire(&owner.handle(0), patience()).expect("ready"), 0);
    let id = owner.id(0);
    assert!(client.is_current(id) && import.is_current());
    broker.kill();
    // No waiting: the kernel has marked the page before the daemon's end could be seen.
    assert!(!client.is_current(id) && !import.is_current());
    assert_import(&import, 0);
}
