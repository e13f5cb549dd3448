//! Groups begun, sealed and put while nobody waits, with a scripted broker: messages, credit,
//! cancels at each point, what the broker refuses, and its end.

use crate::objects::{client, created, plain};
use crate::support::*;
use fdbroker_client::{
    Client, CreateRequest, Deadline, Due, Error, ErrorCode, Group, NewObject, Objects, Place,
    Progress, PutObject, PutRequest, Request, SealRequest,
};
use fdbroker_protocol::object::ObjectGroup;
use fdbroker_protocol::{Kind, Status};
use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

fn start(objects: &Objects, name: &str, deadline: Deadline) -> CreateRequest {
    objects.create_start(&[NewObject::new(name, 10)], Place::Host, plain(), deadline).unwrap()
}

fn under_way<T: std::fmt::Debug>(request: Request<'_, T>) -> Request<'_, T> {
    match request.test() {
        Progress::UnderWay(request) => request,
        Progress::Done(outcome) => panic!("it is done: {outcome:?}"),
    }
}

fn done<T>(request: Request<'_, T>) -> T {
    let mut request = Some(request);
    let mut outcome = None;
    eventually("the outcome", || {
        match request.take().unwrap().test() {
            Progress::UnderWay(it) => request = Some(it),
            Progress::Done(it) => outcome = Some(it),
        }
        outcome.is_some()
    });
    outcome.unwrap()
}

/// A group that the broker has begun.
fn group(objects: &Objects, peer: &Peer, number: u64) -> Group {
    let request = start(objects, "a", soon());
    peer.answer_create(&peer.recv(), number);
    done(request).unwrap()
}

fn group_of(request: &Received) -> u64 {
    request.message(|it| it.body_as::<ObjectGroup>().unwrap().group.get())
}

fn put(objects: &Objects, name: &str, bytes: &[u8]) -> PutRequest {
    objects.put_start(&[PutObject::new(name, bytes).expect(3)], plain(), soon()).unwrap()
}

fn seal(group: Group) -> SealRequest {
    group.seal_start(soon()).unwrap()
}

#[test]
fn create_start_when_the_metadata_exceeds_a_message_then_the_rest_is_added_test_by_test() {
    let (_broker, _client, peer, objects) = client();
    let names: Vec<String> = (0..20).map(|at| format!("n{at}")).collect();
    let new: Vec<NewObject<'_>> =
        names.iter().map(|name| NewObject::new(name, 10).metadata(&[1; 4096])).collect();
    let mut request = objects.create_start(&new, Place::Host, plain(), soon()).unwrap();
    drop(new);
    let first = peer.recv();
    let mut count = created(&first).1.len();
    request = under_way(request);
    peer.answer_create(&first, 5);
    while count < names.len() {
        request = under_way(request);
        let add = peer.recv_kind(Kind::ObjectAdd);
        count += add.count;
        peer.answer_statuses(&add, &[Status::OK]);
    }
    let mut group = done(request).unwrap();
    assert_eq!((group.len(), group.number()), (20, 5));
    group.write_at(19, 0, b"written").unwrap();
    let request = seal(group);
    let asked = peer.recv();
    assert_eq!(group_of(&asked), 5);
    let request = under_way(request);
    peer.answer_seal(&asked, 77);
    assert_eq!(done(request).unwrap(), 77);
    peer.assert_silent();
}

#[test]
fn cancel_when_a_create_is_answered_all_the_same_then_its_group_is_given_up() {
    let (_broker, _client, peer, objects) = client();
    for has_come in [false, true] {
        let request = start(&objects, "a", soon());
        let asked = peer.recv_kind(Kind::ObjectCreate);
        if has_come {
            peer.answer_create(&asked, 9);
        }
        request.cancel();
        if !has_come {
            assert_eq!(peer.recv_kind(Kind::Cancel).id, asked.id);
            peer.answer_create(&asked, 9);
        }
        let next = peer.recv();
        // The library thread may not have read the answer before the cancel.
        let abort = if next.kind == Kind::Cancel { peer.recv() } else { next };
        assert_eq!((abort.kind, group_of(&abort)), (Kind::ObjectAbort, 9));
        peer.answer_statuses(&abort, &[Status::OK]);
    }
    peer.assert_silent();
}

#[test]
fn cancel_when_a_seal_is_under_way_then_the_group_is_given_up() {
    let (_broker, _client, peer, objects) = client();
    let request = seal(group(&objects, &peer, 4));
    let asked = peer.recv_kind(Kind::ObjectSeal);
    drop(under_way(request));
    assert_eq!(peer.recv_kind(Kind::Cancel).id, asked.id);
    assert_eq!(group_of(&peer.recv_kind(Kind::ObjectAbort)), 4);
}

#[test]
fn create_start_when_there_is_no_credit_then_it_asks_and_is_cancelled_or_goes_on() {
    let broker = FakeBroker::listen();
    let terms = Terms { credits: 0, ..Terms::default() };
    let (client, peer) = broker.client_with(Client::builder(), terms);
    let objects = client.objects();
    let request = start(&objects, "a", soon());
    let asked = peer.recv();
    assert_eq!(asked.register().1.len(), 0);
    under_way(request).cancel();
    assert_eq!(peer.recv_kind(Kind::Cancel).id, asked.id);
    peer.fail(asked.id, ErrorCode::Cancelled.into());
    let request = start(&objects, "a", soon());
    let asked = peer.recv();
    let request = under_way(request);
    thread::scope(|scope| {
        let outcome = scope.spawn(|| done(request));
        peer.registered(&asked, 1, 0);
        let create = peer.recv_kind(Kind::ObjectCreate);
        assert_eq!(create.fds.len(), 1);
        peer.answer_create(&create, 3);
        assert_eq!(outcome.join().unwrap().unwrap().number(), 3);
    });
}

#[test]
fn create_start_when_refused_then_the_outcome_names_the_object() {
    let (_broker, _client, peer, objects) = client();
    let request = start(&objects, "taken", soon());
    peer.fail(peer.recv().id, Status::with_value(ErrorCode::Exists, 0));
    let error = done(request).unwrap_err();
    assert!(error.to_string().starts_with("create taken: EXISTS: "), "{error}");
}

#[test]
fn seal_start_when_refused_for_now_then_the_group_can_be_sealed_again() {
    let (_broker, _client, peer, objects) = client();
    let request = seal(group(&objects, &peer, 4));
    peer.fail(peer.recv().id, ErrorCode::Exists.into());
    let failure = done(request).unwrap_err();
    assert_eq!(failure.error.code, ErrorCode::Exists);
    let request = seal(*failure.group.unwrap());
    peer.answer_seal(&peer.recv(), 8);
    assert_eq!(done(request).unwrap(), 8);
}

#[test]
fn start_when_the_broker_does_not_answer_then_timed_out_at_the_deadline() {
    let (_broker, _client, peer, objects) = client();
    let sealed = group(&objects, &peer, 4).seal_start(Deadline::from_ms(50)).unwrap();
    let created = start(&objects, "a", Deadline::from_ms(50));
    let failure = done(sealed).unwrap_err();
    assert!(failure.error.code == ErrorCode::TimedOut && failure.group.is_none());
    assert_eq!(done(created).unwrap_err().code, ErrorCode::TimedOut);
}

#[test]
fn start_when_the_broker_goes_then_told_and_not_connected_and_the_next_one_serves() {
    let (broker, client, peer, objects) = client();
    let due = Due::new().unwrap();
    let mut sealing = seal(group(&objects, &peer, 4));
    let mut creating = start(&objects, "a", soon());
    sealing.tell(&due, 1);
    creating.tell(&due, 2);
    assert!(sealing.due_within() > Duration::from_secs(1));
    drop(peer);
    let mut told = Vec::new();
    eventually("both are told", || {
        told.extend(due.take());
        told.len() == 2
    });
    let code = |error: Error| error.code;
    assert_eq!(done(creating).map_err(code).unwrap_err(), ErrorCode::NotConnected);
    let failure = done(sealing).unwrap_err();
    assert!(failure.group.is_none());
    let gone = [ErrorCode::NotConnected, ErrorCode::Aborted];
    assert!(gone.contains(&failure.error.code), "{failure}");
    let peer = broker.accept(Terms::default());
    eventually("it is connected", || client.is_connected());
    assert_eq!(group(&objects, &peer, 6).number(), 6);
}

#[test]
fn put_start_when_tested_then_its_sealed_bytes_go_first_and_the_version_is_the_outcome() {
    let (_broker, _client, peer, objects) = client();
    for bytes in [&b"copied"[..], b""] {
        let mut own = bytes.to_vec();
        let request = put(&objects, "a", &own);
        // They were copied.
        own.fill(0);
        let asked = peer.recv_kind(Kind::ObjectCreate);
        let mut file = std::fs::File::from(asked.fds[0].try_clone().unwrap());
        let mut sent = vec![0xff; bytes.len()];
        file.read_exact(&mut sent).unwrap();
        assert_eq!(sent, bytes);
        file.write_all(b"x").unwrap_err();
        let request = under_way(request);
        peer.answer_create(&asked, 5);
        thread::scope(|scope| {
            let outcome = scope.spawn(|| done(request));
            let asked = peer.recv_kind(Kind::ObjectSeal);
            assert_eq!(group_of(&asked), 5);
            peer.answer_seal(&asked, 77);
            assert_eq!(outcome.join().unwrap().unwrap(), 77);
        });
        peer.assert_silent();
    }
}

#[test]
fn put_start_when_the_metadata_exceeds_a_message_then_all_is_added_before_the_seal() {
    let (_broker, _client, peer, objects) = client();
    let names: Vec<String> = (0..20).map(|at| format!("n{at}")).collect();
    let puts: Vec<PutObject<'_>> =
        names.iter().map(|name| PutObject::new(name, b"x").metadata(&[1; 4096])).collect();
    let request = objects.put_start(&puts, plain(), soon()).unwrap();
    thread::scope(|scope| {
        let outcome = scope.spawn(|| done(request));
        let first = peer.recv();
        let mut count = created(&first).1.len();
        peer.answer_create(&first, 5);
        while count < names.len() {
            let add = peer.recv_kind(Kind::ObjectAdd);
            count += add.count;
            peer.answer_statuses(&add, &[Status::OK]);
        }
        peer.answer_seal(&peer.recv_kind(Kind::ObjectSeal), 9);
        assert_eq!(outcome.join().unwrap().unwrap(), 9);
    });
}

#[test]
fn put_start_when_refused_at_the_seal_or_cancelled_then_its_group_is_given_up() {
    let (_broker, _client, peer, objects) = client();
    for code in [ErrorCode::Version, ErrorCode::NoQuota] {
        let request = put(&objects, "a", b"x");
        peer.answer_create(&peer.recv_kind(Kind::ObjectCreate), 4);
        thread::scope(|scope| {
            let outcome = scope.spawn(|| done(request));
            peer.fail(peer.recv_kind(Kind::ObjectSeal).id, code.into());
            let error = outcome.join().unwrap().unwrap_err();
            let names = error.to_string().starts_with("seal a: VERSION");
            assert_eq!((error.code, names), (code, code == ErrorCode::Version), "{error}");
        });
        assert_eq!(group_of(&peer.recv_kind(Kind::ObjectAbort)), 4);
    }
    let request = put(&objects, "a", b"x");
    let asked = peer.recv_kind(Kind::ObjectCreate);
    drop(under_way(request));
    assert_eq!(peer.recv_kind(Kind::Cancel).id, asked.id);
    peer.answer_create(&asked, 6);
    assert_eq!(group_of(&peer.recv_kind(Kind::ObjectAbort)), 6);
}
