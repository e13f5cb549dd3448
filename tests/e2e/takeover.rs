//! A broker that another one takes over from: clients go on with the same connections and notice
//! nothing, nothing is lost, nothing is left behind, and a takeover that fails harms nobody.

use crate::common::not_run;
use crate::support::broker::{Broker, Setup, program, why_not_fds};
use crate::support::memory::{BLOCK_BYTES, all_seals, assert_bytes, memfd};
use crate::support::owner::{Owner, notices};
use crate::support::raw::{Incoming, Raw, block_item, grants, hello, open, receive_from};
use crate::support::wait::{PATIENCE, eventually, patience};
use fdbroker_client::{Client, Handle};
use fdbroker_protocol::admin::{NodeStatus, Query, TakeoverOffer, TakeoverStep, step};
use fdbroker_protocol::{AllocationId, ErrorCode, Kind, Resource, Writer};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::scope;

/// The format of the state, as the daemon has it.
const FORMAT: u64 = 17;

/// What is charged, each with its highest value.
fn charges(status: &NodeStatus) -> Vec<(u64, u64)> {
    // The successor has a table of its own, and its clients ask again for what was parked.
    let own = [Resource::TablePlaces, Resource::ParkedRequests];
    let all = status.uses.iter().filter(|(resource, _)| !own.contains(resource));
    all.map(|(_, account)| (account.now.get(), account.peak.get())).collect()
}

#[track_caller]
fn assert_served(client: &Client, handles: &[Handle]) {
    for (index, handle) in handles.iter().enumerate() {
        let grant = client.acquire(handle, patience()).expect("served on");
        drop(assert_bytes(grant, index as u64));
    }
}

#[test]
fn clients_when_another_broker_takes_over_then_connections_handles_and_leases_are_as_before() {
    let mut broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 5);
    let (told, on_notice) = notices();
    let consumer = broker.builder("consumer").on_notice(on_notice).connect().expect("connect");
    let handles = owner.handles();
    let grants: Vec<_> =
        handles[..3].iter().map(|it| consumer.acquire(it, patience()).expect("granted")).collect();
    let before = broker.status();
    let leases = broker.admin().leases().len();
    let (first, open_fds) = (broker.pid(), broker.settled_fds());

    broker.take_over();

    let after = broker.status();
    assert_ne!(broker.pid(), first);
    assert_eq!(after.pid.get(), u32::try_from(broker.pid().as_raw()).expect("a pid"));
    assert_eq!(after.incarnation, before.incarnation);
    assert_eq!(charges(&after), charges(&before));
    assert_eq!(
        (after.counters.grants, after.counters.deposits),
        (before.counters.grants, before.counters.deposits)
    );
    assert_eq!(broker.admin().leases().len(), leases);
    eventually("the successor has as many fds", || broker.open_fds() == open_fds);
    assert!(consumer.is_current(owner.id(0)), "a cached import is as good as before");
    for (index, grant) in grants.into_iter().enumerate() {
        drop(assert_bytes(grant, index as u64));
    }
    assert_served(&consumer, &owner.handles());
    assert_eq!(owner.recalls(), 0, "no fd was lost");
    owner.notices.assert_never_disconnected();
    told.assert_never_disconnected();
    drop((owner, consumer));
    broker.assert_nothing_left();
}

#[test]
fn ages_and_commands_when_another_broker_takes_over_then_they_go_on() {
    const A_DAY_MS: u64 = 86_400_000;
    let mut broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 2);
    let grant = owner.client.acquire(&owner.handles()[1], patience()).expect("granted");
    let name = std::fs::read("/proc/self/comm").expect("readable");
    let look = |broker: &Broker| {
        let clients = broker.admin().clients();
        let client = clients.iter().find(|it| it.name.starts_with(b"owner")).expect("it is there");
        assert!(client.command.starts_with(name.trim_ascii_end()), "{client:?}");
        let of = |index| broker.admin().allocation(owner.id(index)).expect("it is there");
        // One record for both: another look comes later.
        let ages = [0, 1].map(of).map(|record| (record.age_ms.get(), record.unused_ms.get()));
        (client.age_ms.get(), ages)
    };
    let (client_ms, before) = look(&broker);
    assert!(before.iter().all(|(age, unused)| age >= unused), "{before:?}");

    broker.take_over();

    let (client_later_ms, after) = look(&broker);
    // A start that was lost would give an age of 0, or of days.
    assert!((client_ms..A_DAY_MS).contains(&client_later_ms), "{client_later_ms}");
    for ((age, unused), (age_later, unused_later)) in before.into_iter().zip(after) {
        assert!((age..A_DAY_MS).contains(&age_later), "{before:?} {after:?}");
        assert!((unused..A_DAY_MS).contains(&unused_later), "{before:?} {after:?}");
    }
    drop((grant, owner));
    broker.assert_nothing_left();
}

#[test]
fn tombstones_when_another_broker_takes_over_then_it_remembers_what_has_ended() {
    let mut broker = Broker::start();
    let mut owner = Owner::of(&broker, "owner", 3);
    let ids: Vec<_> = [0, 1].map(|index| owner.id(index)).to_vec();
    let kept = owner.registrations.split_off(2);
    let gone = std::mem::replace(&mut owner.registrations, kept);
    for outcome in owner.client.unregister_many(&gone, patience()).expect("served") {
        outcome.expect("unregistered");
    }
    // All but its age.
    let remembered = |broker: &Broker| -> Vec<_> {
        let all = broker.admin().tombstones();
        let known = all.iter().map(|it| {
            assert!(it.age_ms.get() < 3_600_000, "an hour ago: {it:?}");
            let id = AllocationId { slot: it.slot.get(), generation: it.generation.get() };
            (id, it.inode.get(), it.size_bytes.get(), it.owner_pid.get(), it.code.get(), it.kind)
        });
        known.collect()
    };
    let before = remembered(&broker);
    assert_eq!(before.iter().map(|it| it.0).collect::<Vec<_>>(), ids);
    assert!(before.iter().all(|it| it.1 != 0 && it.2 == BLOCK_BYTES as u64), "{before:?}");
    assert!(before.iter().all(|it| it.3 == std::process::id()), "{before:?}");
    assert!(before.iter().all(|it| it.4 == ErrorCode::Stale as u16), "{before:?}");

    broker.take_over();

    assert_eq!(remembered(&broker), before);
    drop(owner);
    broker.assert_nothing_left();
}

/// A rank's work until it is told to stop: registers, acquires its own and others', gives all back.
/// Any error is its end.
fn work(
    mut own: Owner,
    client: &Client,
    shared: &[Handle],
    is_over: &AtomicBool,
    rounds: &AtomicU64,
) {
    while !is_over.load(Ordering::Relaxed) {
        own.register(0..8, |deposit| deposit);
        assert_served(client, shared);
        assert_served(client, &own.handles());
        let gone: Vec<_> = own.registrations.drain(..).collect();
        for outcome in own.client.unregister_many(&gone, patience()).expect("served on") {
            outcome.expect("unregistered");
        }
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    own.notices.assert_never_disconnected();
}

#[test]
fn clients_when_brokers_take_over_fifty_times_under_load_then_no_error_is_seen_and_nothing_is_left()
{
    const RANKS: usize = 6;
    const TAKEOVERS: u64 = 50;
    // So few that requests are parked, and fds recalled, all the time.
    let mut broker = Setup::new().max_fds(90).start();
    let shared = Owner::of(&broker, "shared", 40);
    let ranks: Vec<(Owner, Client)> = (0..RANKS)
        .map(|_| (Owner::without(&broker, "rank", 8), broker.client("rank's consumer")))
        .collect();
    let handles = shared.handles();
    let (is_over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    scope(|threads| {
        for (own, client) in ranks {
            let (shared, is_over, rounds) = (&handles, &is_over, &rounds);
            threads.spawn(move || work(own, &client, shared, is_over, rounds));
        }
        let stop = StopAtEnd(&is_over);
        for _ in 0..TAKEOVERS {
            let before = rounds.load(Ordering::Relaxed);
            broker.take_over();
            eventually("work goes on", || rounds.load(Ordering::Relaxed) > before);
        }
        drop(stop);
    });
    shared.notices.assert_never_disconnected();
    let status = broker.status();
    assert!(
        status.counters.requests_parked.get() > 0 && status.counters.recalls.get() > 0,
        "no load: {status:?}"
    );
    drop(shared);
    broker.assert_nothing_left();
}

/// Lets the threads end also when this one panics.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn requests_when_unread_at_the_takeover_then_the_successor_serves_them() {
    let mut broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 1);
    let mut raw = Raw::connect(&broker.socket());
    let silent = open(&broker.socket()).expect("connect");
    // The successor asks while the first one sleeps; then come requests, and the first one finds
    // all of it at once.
    broker.stop();
    let successor = std::thread::scope(|threads| {
        let starting = threads.spawn(|| broker.start_successor(&[]));
        let mut wanted = Vec::new();
        for _ in 0..100 {
            wanted.push(raw.start_acquire(&[owner.handle(0)], 0));
        }
        broker.go_on();
        // More come while it hands over.
        for _ in 0..100 {
            wanted.push(raw.start_acquire(&[owner.handle(0)], 0));
        }
        for id in wanted {
            let answer = raw.receive().expect("an answer");
            assert_eq!(answer.message().id, id);
            let (items, fds) = grants(answer);
            assert!(items[0].status.get().is_ok() && fds.len() == 1, "{}", items[0].status.get());
        }
        starting.join().expect("no panic")
    });
    broker.succeed(successor.expect("it takes over"));
    // A connection that had not said a word.
    let mut late = Raw::of(silent);
    let answer = late.request(Kind::Hello, |writer| writer.push(&hello()), 0, &[]);
    assert_eq!(answer.message().kind, Kind::HelloReply);
}

#[test]
fn fds_when_8000_are_held_then_all_go_along() {
    const COUNT: usize = 8000;
    const TABLE: u64 = 12_000;
    if let Some(reason) = why_not_fds(TABLE) {
        return not_run("fds_when_8000_are_held_then_all_go_along", &reason);
    }
    let mut broker = Setup::new().nofile(TABLE).start();
    let mut owner = Raw::connect(&broker.socket());
    let block = memfd(c"block", BLOCK_BYTES, all_seals());
    let mut handles = Vec::new();
    while handles.len() < COUNT {
        let credits = owner.want_credits(200).min(200) as usize;
        let items = vec![block_item(); credits];
        let registered = owner.register(&items, &vec![block.as_fd(); credits]);
        handles.extend(registered.iter().map(|one| {
            assert!(one.status.get().is_ok(), "{}", one.status.get());
            one.handle.get()
        }));
    }
    let before = broker.status();
    assert!(before.gauges.stored_fds.get() >= COUNT as u64);
    broker.take_over();
    assert_eq!(charges(&broker.status()), charges(&before));
    assert_eq!(broker.status().gauges.stored_fds, before.gauges.stored_fds);
    for some in handles.chunks(250) {
        let (items, fds) = owner.acquire(some);
        assert!(items.iter().all(|item| item.status.get().is_ok()) && fds.len() == some.len());
        let leases: Vec<u64> = items.iter().map(|item| item.lease.get()).collect();
        owner.release(&leases);
    }
    drop(owner);
    broker.assert_nothing_left();
}

#[test]
fn takeover_when_nobody_serves_then_refused_with_what_to_do() {
    let dir = tempfile::tempdir().expect("a directory");
    let refused = Command::new(program())
        .args(["--takeover", "--private"])
        .arg(dir.path())
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .expect("run");
    assert_eq!(refused.status.code(), Some(1));
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(text.contains("no broker serves") && text.contains("without --takeover"), "{text}");
}

#[test]
fn takeover_when_the_successor_cannot_hold_it_all_then_the_first_one_goes_on() {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 3);
    let clients: Vec<Client> = (0..12).map(|_| broker.client("client")).collect();
    let open_fds = broker.settled_fds();
    let before = broker.status();
    let refused = broker.start_successor(&["--set", "limits.max_clients=9"]).err();
    let text = refused.expect("too many clients");
    assert!(text.contains("nothing is taken over, the other broker goes on"), "{text}");
    assert_eq!(charges(&broker.status()), charges(&before));
    clients.iter().for_each(|client| assert_served(client, &owner.handles()));
    owner.notices.assert_never_disconnected();
    eventually("nothing is left of the tries", || broker.open_fds() == open_fds);
}

/// One who takes over by hand.
struct ByHand(OwnedFd);

impl ByHand {
    /// Asks, and gets an answer.
    fn ask(broker: &Broker, format: u64) -> (ByHand, Incoming) {
        let socket = open(&broker.admin_socket()).expect("connect");
        let query =
            Query { cursor: 0.into(), filter: 0.into(), value: format.into(), reserved: 0.into() };
        let mut writer = Writer::new();
        writer.start(Kind::AdminTakeover, 1).push(&query);
        let sent =
            fdbroker_scm::send_timeout(socket.as_fd(), writer.finish(0, 0), &[], Some(PATIENCE));
        sent.expect("send");
        let answer = receive_from(socket.as_fd(), PATIENCE).expect("an answer");
        (ByHand(socket), answer)
    }

    fn say(&self, step: u32) {
        let mut writer = Writer::new();
        writer.start(Kind::AdminTakeoverStep, 1).push(&TakeoverStep { step: step.into() });
        let bytes = writer.finish(0, 0);
        fdbroker_scm::send_timeout(self.0.as_fd(), bytes, &[], Some(PATIENCE)).expect("send");
    }

    fn hear(&self) -> u32 {
        let answer = receive_from(self.0.as_fd(), PATIENCE).expect("an answer");
        answer.message().body_as::<TakeoverStep>().expect("a step").step.get()
    }
}

#[test]
fn takeover_when_the_successor_dies_at_any_step_then_the_first_one_goes_on() {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 3);
    let consumer = broker.client("consumer");
    assert_served(&consumer, &owner.handles());
    let open_fds = broker.settled_fds();
    for steps in 0..2 {
        let (successor, offer) = ByHand::ask(&broker, FORMAT);
        assert_eq!(offer.message().kind, Kind::AdminTakeoverOffer);
        let carriers = offer.message().body_as::<TakeoverOffer>().expect("an offer").carriers;
        assert_eq!(offer.fds.len(), 1 + carriers.get() as usize);
        if steps > 0 {
            successor.say(step::READY);
            assert_eq!(successor.hear(), step::GO);
        }
        drop((successor, offer));
        assert_served(&consumer, &owner.handles());
        assert!(consumer.is_current(owner.id(0)));
        eventually("nothing is left of the try", || broker.open_fds() == open_fds);
    }
    owner.notices.assert_never_disconnected();
}

#[test]
fn takeover_when_another_format_is_wanted_then_refused_with_the_format() {
    let broker = Broker::start();
    let (_, answer) = ByHand::ask(&broker, FORMAT + 1);
    let status = answer.failure();
    assert_eq!(status.result(), Err(ErrorCode::NotSupported));
    assert_eq!(status.value, FORMAT);
    broker.status();
}

#[test]
fn takeover_when_too_many_fds_are_in_flight_then_refused_and_possible_once_they_are_read() {
    if !nix::unistd::geteuid().is_root() {
        return not_run("takeover in flight", "needs root, to run the daemon as another user");
    }
    const TABLE: u64 = 1100;
    let mut broker = Setup::new().service().nofile(TABLE).start();
    let mut owner = Raw::connect(&broker.socket());
    let block = memfd(c"block", BLOCK_BYTES, all_seals());
    let mut handles = Vec::new();
    while handles.len() < 240 {
        let credits = owner.want_credits(120).min(120) as usize;
        let registered =
            owner.register(&vec![block_item(); credits], &vec![block.as_fd(); credits]);
        handles.extend(registered.iter().map(|one| one.handle.get()));
    }
    // They do not read what they are sent.
    let mut deaf: Vec<Raw> = (0..6).map(|_| Raw::connect(&broker.socket())).collect();
    // A grant has fewer fds than were asked for while others wait for their turns.
    for _ in 0..4 {
        deaf.iter_mut().for_each(|raw| _ = raw.start_acquire(&handles[..120], 0));
    }
    eventually("they are sent", || broker.status().uses.open_leases.now.get() >= 250);
    let _ = broker.try_take_over();
    drop(deaf);
    broker.take_over();
}
