//! Groups begun and sealed without waiting, with the real daemon: cancelled a thousand times, in
//! the way of a full cap, over the end of a broker.

use crate::support::broker::{Broker, Setup};
use crate::support::wait::{PATIENCE, eventually, patience, soon};
use fdbroker_client::{
    Client, CreateRequest, Deadline, Due, Error, ErrorCode, NewObject, ObjectOptions, Objects,
    Place, Progress, PutObject, PutRequest, Request,
};
use std::collections::{BTreeMap, VecDeque};
use std::thread;
use std::time::{Duration, Instant};

fn start(objects: &Objects, name: &str, deadline: Deadline) -> Result<CreateRequest, Error> {
    let new = [NewObject::new(name, 100)];
    objects.create_start(&new, Place::Host, ObjectOptions::default(), deadline)
}

fn put(objects: &Objects, name: &str, bytes: &[u8]) -> PutRequest {
    let put = [PutObject::new(name, bytes)];
    objects.put_start(&put, ObjectOptions::default(), patience()).expect("it starts")
}

fn done<T>(mut request: Request<'_, T>) -> T {
    loop {
        match request.test() {
            Progress::UnderWay(under_way) => request = under_way,
            Progress::Done(outcome) => return outcome,
        }
        thread::yield_now();
    }
}

/// Nothing is charged or in the making.
fn is_empty(broker: &Broker, objects: &Objects) -> bool {
    let uses = broker.status().uses;
    let counts = [uses.allocations, uses.held_fds, uses.parked_requests, uses.object_names];
    counts.iter().all(|count| count.now.get() == 0) && objects.list("", patience()).next().is_none()
}

#[test]
fn cancel_when_a_thousand_starts_are_cancelled_at_any_moment_then_nothing_is_left() {
    let broker = Broker::start();
    let client: Client = broker.client("maker");
    let objects = client.objects();
    let settled = broker.settled_fds();
    for turn in 0..1000 {
        let mut request = start(&objects, "cancelled", patience()).expect("it starts");
        // None, one and all of its messages are on their way.
        if turn % 3 == 0 {
            drop(request);
            continue;
        }
        if turn % 3 == 1 {
            match request.test() {
                Progress::UnderWay(under_way) => request = under_way,
                Progress::Done(outcome) => drop(outcome),
            }
            continue;
        }
        // The ones before may still have the name.
        let Ok(group) = done(request) else { continue };
        drop(group.seal_start(patience()).expect("nothing has it mapped"));
        // It may be sealed by then.
        let _ = objects.delete("cancelled", None, patience());
    }
    eventually("what was sealed all the same is there", || {
        let _ = objects.delete("cancelled", None, patience());
        is_empty(&broker, &objects)
    });
    eventually("no fd is left", || broker.settled_fds() == settled);
    let group = done(start(&objects, "next", patience()).expect("it starts")).expect("a group");
    done(group.seal_start(patience()).expect("nothing has it mapped")).expect("it is sealed");
}

#[test]
fn cancel_when_a_thousand_puts_are_cancelled_at_any_moment_then_nothing_is_left() {
    let broker = Broker::start();
    let client: Client = broker.client("maker");
    let objects = client.objects();
    let settled = broker.settled_fds();
    for turn in 0..1000 {
        let mut request = Some(put(&objects, &format!("cancelled/{turn}"), b"x"));
        // After the create is sent, or answered, or the seal is sent, or answered.
        for _ in 0..turn % 50 {
            match request.take().expect("under way").test() {
                Progress::UnderWay(under_way) => request = Some(under_way),
                Progress::Done(outcome) => {
                    outcome.expect("it is put");
                    break;
                }
            }
            thread::yield_now();
        }
    }
    eventually("what was sealed all the same is there", || {
        for object in objects.list("", patience()) {
            let name = object.expect("the broker is there").name;
            let _ = objects.delete(&name, None, patience());
        }
        is_empty(&broker, &objects)
    });
    eventually("no fd is left", || broker.settled_fds() == settled);
    done(put(&objects, "empty", b"")).expect("it is put");
    let empty = objects.get("empty", patience()).expect("it is there");
    assert_eq!(empty.len(), 0);
}

#[test]
fn create_start_when_a_cap_is_full_then_it_waits_for_room_or_names_the_cap() {
    let broker =
        Setup::new().config("[caps.node]\nheld_fds = 3\n[limits]\nbase_credits = 0").start();
    let (client, other) = (broker.client("maker"), broker.client("other"));
    let objects = other.objects();
    let mut full = Vec::new();
    loop {
        let made = done(start(&objects, &format!("full/{}", full.len()), soon()).expect("starts"));
        match made {
            Ok(group) => full.push(group),
            Err(error) => {
                assert_eq!(error.code, ErrorCode::NoQuota, "{error}");
                break;
            }
        }
    }
    let objects = client.objects();
    let cancelled = start(&objects, "cancelled", patience()).expect("it starts");
    let waiting = start(&objects, "waiting", patience()).expect("it starts");
    let puts = [put(&objects, "put", b"x"), put(&objects, "cancelled too", b"x")];
    let waits = |count| broker.status().uses.parked_requests.now.get() == count;
    eventually("all wait", || waits(4));
    cancelled.cancel();
    let [waiting_put, cancelled] = puts;
    cancelled.cancel();
    eventually("two wait", || waits(2));
    drop(full);
    drop(done(waiting).expect("there is room"));
    done(waiting_put).expect("there is room");
}

#[test]
fn start_when_the_broker_is_killed_then_not_connected_and_the_next_one_serves() {
    let mut broker = Broker::start();
    let client = broker.client("maker");
    let objects = client.objects();
    let group = done(start(&objects, "sealing", patience()).expect("it starts")).expect("a group");
    broker.stop();
    let creating = start(&objects, "creating", patience()).expect("it starts");
    let sealing = group.seal_start(patience()).expect("nothing has it mapped");
    let putting = put(&objects, "putting", b"x");
    broker.kill();
    broker.restart();
    let error = done(creating).expect_err("its broker is gone");
    assert_eq!(error.code, ErrorCode::NotConnected, "{error}");
    let error = done(putting).expect_err("its broker is gone");
    assert!([ErrorCode::NotConnected, ErrorCode::Aborted].contains(&error.code), "{error}");
    let failure = done(sealing).expect_err("its broker is gone");
    assert!(failure.group.is_none(), "{failure}");
    eventually("it is connected again", || client.is_connected());
    let uses = broker.status().uses;
    assert_eq!((uses.object_names.now.get(), uses.held_fds.now.get()), (0, 0));
    let group = done(start(&objects, "sealing", patience()).expect("it starts")).expect("a group");
    done(group.seal_start(patience()).expect("nothing has it mapped")).expect("it is sealed");
}

#[test]
fn put_when_more_wait_for_room_than_a_client_has_places_then_each_is_done() {
    const COUNT: usize = 150;
    let broker = Setup::new().max_fds(16).start();
    let client = broker.client("maker");
    let objects = client.objects();
    let start = |at: usize| (format!("put-{at}"), put(&objects, &format!("put-{at}"), b"bytes"));
    let mut open: VecDeque<_> = (0..COUNT).map(start).collect();
    // What is there is deleted, which makes room for the others: their seals have to find places.
    while let Some((name, request)) = open.pop_front() {
        match request.test() {
            Progress::UnderWay(under_way) => open.push_back((name, under_way)),
            Progress::Done(outcome) => {
                outcome.expect("there will be room");
                objects.delete(&name, None, patience()).expect("it is there");
            }
        }
    }
    eventually("nothing is left", || is_empty(&broker, &objects));
}

/// Requests in an event loop: each is tested when it has told, and when its time has come.
struct Loop<'a, T> {
    due: Due,
    /// By their tokens, with that time.
    open: BTreeMap<u64, (Request<'a, T>, Instant)>,
    tests: usize,
}

impl<'a, T> Loop<'a, T> {
    fn of(requests: impl Iterator<Item = Request<'a, T>>) -> Self {
        let due = Due::new().expect("an fd");
        let enter = |(token, mut request): (u64, Request<'a, T>)| {
            request.tell(&due, token);
            let at = Instant::now() + request.due_within();
            (token, (request, at))
        };
        let open = (0..).zip(requests).map(enter).collect();
        Loop { due, open, tests: 0 }
    }

    /// Tests those that are due; what has come of them.
    fn turn(&mut self) -> Vec<(u64, T)> {
        let now = Instant::now();
        let late = self.open.iter().filter(|(_, (_, at))| *at <= now).map(|(token, _)| *token);
        let mut tokens: Vec<u64> = late.collect();
        tokens.extend(std::iter::from_fn(|| self.due.take()));
        let mut outcomes = Vec::new();
        for token in tokens {
            let Some((request, _)) = self.open.remove(&token) else { continue };
            self.tests += 1;
            match request.test() {
                Progress::UnderWay(request) => {
                    let at = Instant::now() + request.due_within();
                    self.open.insert(token, (request, at));
                }
                Progress::Done(outcome) => outcomes.push((token, outcome)),
            }
        }
        outcomes
    }

    fn finish(&mut self, mut done: impl FnMut(u64, T)) {
        let until = Instant::now() + PATIENCE;
        while !self.open.is_empty() {
            assert!(Instant::now() < until, "{} are still open", self.open.len());
            self.turn().into_iter().for_each(|(token, outcome)| done(token, outcome));
            thread::yield_now();
        }
    }
}

#[test]
fn get_when_more_wait_than_a_client_has_places_then_told_of_a_free_one_and_not_tested_before() {
    const COUNT: usize = 250;
    let broker = Broker::start();
    let (client, maker) = (broker.client("reader"), broker.client("maker"));
    let objects = client.objects();
    let names: Vec<String> = (0..COUNT).map(|at| format!("get-{at}")).collect();
    let start = |name: &String| objects.get_start(&[name], patience()).expect("it starts");
    let mut waiting = Loop::of(names.iter().map(start));
    // All have found that they wait, for an answer or for a place.
    eventually("none is due soon", || {
        assert!(waiting.turn().is_empty());
        waiting.open.values().all(|(_, at)| *at > Instant::now() + Duration::from_secs(1))
    });
    assert!(waiting.tests <= COUNT, "{} tests", waiting.tests);
    // Those that have places, and some that were told when these are gone: others get theirs.
    for token in 0..100 {
        waiting.open.remove(&token);
    }
    let put: Vec<_> = names.iter().map(|name| PutObject::new(name, b"bytes")).collect();
    maker.objects().put_many(&put, ObjectOptions::default(), patience()).expect("there is room");
    let mut got = 0;
    waiting.finish(|_, outcome| got += outcome.expect("it is there").len());
    assert_eq!(got, COUNT - 100);
    assert!(waiting.tests <= 6 * COUNT, "{} tests", waiting.tests);
}

#[test]
fn put_when_more_wait_for_room_than_a_client_has_places_then_each_is_told_of_its_place() {
    const COUNT: u64 = 150;
    let broker = Setup::new().max_fds(16).start();
    let client = broker.client("maker");
    let objects = client.objects();
    let start = |at: u64| put(&objects, &format!("put-{at}"), b"bytes");
    let mut waiting = Loop::of((0..COUNT).map(start));
    waiting.finish(|token, outcome| {
        outcome.expect("there will be room");
        objects.delete(&format!("put-{token}"), None, patience()).expect("it is there");
    });
    eventually("nothing is left", || is_empty(&broker, &objects));
}
