//! Requests that nobody waits for, as a progress engine makes them: parked, many, given up, beside
//! calls that block.

use crate::support::broker::{Broker, Setup};
use crate::support::memory::assert_bytes;
use crate::support::owner::Owner;
use crate::support::wait::{PATIENCE, eventually, patience, soon};
use fdbroker_client::{AcquireRequest, Client, Error, Grant, Handle, Progress};
use fdbroker_protocol::ErrorCode;
use std::time::Instant;

type Outcomes = Vec<Result<Grant, Error>>;

fn start(client: &Client, handle: Handle) -> AcquireRequest {
    client.acquire_start(&[handle], patience()).expect("connected")
}

/// Tests it until it is done.
#[track_caller]
fn finish(mut request: AcquireRequest) -> Outcomes {
    let until = Instant::now() + PATIENCE;
    loop {
        match request.test() {
            Progress::UnderWay(under_way) => request = under_way,
            Progress::Done(outcomes) => return outcomes,
        }
        assert!(Instant::now() < until, "it is never done");
        std::thread::yield_now();
    }
}

#[track_caller]
fn assert_under_way(request: AcquireRequest) -> AcquireRequest {
    match request.test() {
        Progress::UnderWay(request) => request,
        Progress::Done(outcomes) => panic!("done: {outcomes:?}"),
    }
}

#[track_caller]
fn assert_no_lease_left(broker: &Broker) {
    eventually("every lease is given back", || {
        let status = broker.status();
        (status.uses.open_leases.now.get(), status.uses.mapped_leases.now.get()) == (0, 0)
    });
}

#[test]
fn request_when_parked_then_under_way_until_there_is_room() {
    let broker = Setup::new().config("[caps.node]\nopen_leases = 1").start();
    let owner = Owner::of(&broker, "owner", 2);
    let client = broker.client("engine");
    let held = owner.client.acquire(&owner.handle(0), patience()).expect("ready");
    let mut request = start(&client, owner.handle(1));
    eventually("it is parked", || broker.status().uses.parked_requests.now.get() == 1);
    for _ in 0..100 {
        request = assert_under_way(request);
    }
    drop(held);
    let grant = finish(request).remove(0).expect("there is room");
    drop(assert_bytes(grant, 1));
    drop((client, owner));
    broker.assert_nothing_left();
}

#[test]
fn request_when_cancelled_while_parked_then_nothing_is_left_of_it() {
    let broker = Setup::new().config("[caps.node]\nopen_leases = 1").start();
    let owner = Owner::of(&broker, "owner", 2);
    let client = broker.client("engine");
    let held = owner.client.acquire(&owner.handle(0), patience()).expect("ready");
    let requests = [start(&client, owner.handle(1)), start(&client, owner.handle(1))];
    eventually("they are parked", || broker.status().uses.parked_requests.now.get() == 2);
    let [cancelled, dropped] = requests;
    cancelled.cancel();
    drop(dropped);
    eventually("they are gone", || broker.status().uses.parked_requests.now.get() == 0);
    drop(held);
    assert_no_lease_left(&broker);
    drop(assert_bytes(client.acquire(&owner.handle(1), patience()).expect("ready"), 1));
    drop((client, owner));
    broker.assert_nothing_left();
}

#[test]
fn request_when_its_deadline_passes_while_parked_then_the_brokers_reason() {
    let broker = Setup::new().config("[caps.node]\nopen_leases = 1").start();
    let owner = Owner::of(&broker, "owner", 2);
    let client = broker.client("engine");
    let _held = owner.client.acquire(&owner.handle(0), patience()).expect("ready");
    let request = client.acquire_start(&[owner.handle(1)], soon()).expect("connected");
    let error = finish(request).remove(0).expect_err("there is no room");
    assert_eq!(error.code, ErrorCode::NoQuota, "{error}");
}

#[test]
fn requests_when_far_more_than_may_be_parked_then_all_are_granted_in_turn() {
    const REQUESTS: usize = 300;
    let broker = Setup::new()
        .config("[caps.node]\nheld_fds = 2\n[limits]\nbase_credits = 0\nrecall_timeout_ms = 600000\nmax_parked_per_client = 8")
        .start();
    let owner = Owner::of(&broker, "owner", 50);
    let client = broker.client("engine");
    let mut requests: Vec<_> =
        (0..REQUESTS).map(|n| (start(&client, owner.handle(n % 50)), n % 50)).collect();
    let until = Instant::now() + PATIENCE;
    while !requests.is_empty() {
        assert!(Instant::now() < until, "{} are never done", requests.len());
        for (request, index) in std::mem::take(&mut requests) {
            match request.test() {
                Progress::UnderWay(request) => requests.push((request, index)),
                Progress::Done(mut outcomes) => {
                    let grant = outcomes.remove(0).expect("granted in turn");
                    drop(assert_bytes(grant, index as u64));
                }
            }
        }
    }
    drop((client, owner));
    broker.assert_nothing_left();
}

#[test]
fn request_when_of_many_handles_some_stale_then_one_outcome_each_in_order() {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 300);
    let client = broker.client("engine");
    for index in (0..300).step_by(7) {
        owner.client.unregister(&owner.registrations[index]).expect("its own");
    }
    let request = client.acquire_start(&owner.handles(), patience()).expect("connected");
    for (index, outcome) in finish(request).into_iter().enumerate() {
        match index % 7 {
            0 => assert_eq!(outcome.expect_err("ended").code, ErrorCode::Stale),
            _ => drop(assert_bytes(outcome.expect("it lives"), index as u64)),
        }
    }
    drop((client, owner));
    broker.assert_nothing_left();
}

#[test]
fn requests_when_given_up_at_any_moment_then_no_lease_is_left() {
    let broker = Setup::new()
        .config("[caps.node]\nheld_fds = 2\n[limits]\nbase_credits = 0\nrecall_timeout_ms = 600000")
        .start();
    let owner = Owner::of(&broker, "owner", 20);
    let client = broker.client("engine");
    for n in 0..400 {
        let mut request = Some(start(&client, owner.handle(n % 20)));
        // Not at all, or a while: before, while and after it is answered.
        for _ in 0..(n * 7) % 64 {
            match request.take().map(AcquireRequest::test) {
                Some(Progress::UnderWay(under_way)) => request = Some(under_way),
                Some(Progress::Done(outcomes)) => {
                    let mut outcomes = outcomes;
                    let grant = outcomes.remove(0).expect("granted");
                    drop(assert_bytes(grant, (n % 20) as u64));
                }
                None => break,
            }
        }
    }
    eventually("nothing is parked", || broker.status().uses.parked_requests.now.get() == 0);
    assert_no_lease_left(&broker);
    assert!(client.is_connected());
    drop((client, owner));
    broker.assert_nothing_left();
}

#[test]
fn requests_when_other_threads_block_then_each_gets_its_own() {
    const ROUNDS: usize = 50;
    let broker = Setup::new()
        .config("[caps.node]\nheld_fds = 4\n[limits]\nbase_credits = 0\nrecall_timeout_ms = 600000\nmax_parked_per_client = 4")
        .start();
    let owner = Owner::of(&broker, "owner", 16);
    let client = broker.client("engine");
    let handles = owner.handles();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (client, handles) = (&client, &handles);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let index = (thread * 5 + round) % 16;
                    let grant = client.acquire(&handles[index], patience()).expect("granted");
                    drop(assert_bytes(grant, index as u64));
                }
            });
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let indices = [0, 1, 2].map(|n| (thread * 3 + round + n * 5) % 16);
                    let requests = indices.map(|index| start(client, handles[index]));
                    for (index, request) in indices.into_iter().zip(requests) {
                        let grant = finish(request).remove(0).expect("granted");
                        drop(assert_bytes(grant, index as u64));
                    }
                }
            });
        }
    });
    drop((client, owner));
    broker.assert_nothing_left();
}

#[test]
fn request_when_the_broker_is_killed_then_not_connected() {
    let mut broker = Setup::new().config("[caps.node]\nopen_leases = 1").start();
    let owner = Owner::of(&broker, "owner", 2);
    let client = broker.client("engine");
    let held = owner.client.acquire(&owner.handle(0), patience()).expect("ready");
    let request = start(&client, owner.handle(1));
    eventually("it is parked", || broker.status().uses.parked_requests.now.get() == 1);
    broker.kill();
    let error = finish(request).remove(0).expect_err("there is no broker");
    assert_eq!(error.code, ErrorCode::NotConnected, "{error}");
    drop(held);
}
