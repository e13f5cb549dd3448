//! Errors that are the program's own fault, or of a limit of its own: the code, the cause, and a
//! remedy that helps.

use crate::support::*;
use fdbroker_client::host::{Arena, HostMemory, IsolatedBuffer, IsolatedMemory};
use fdbroker_client::{
    Access, CacheSettings, Client, Deposit, Error, ErrorCode, ImportCache, NewObject,
    ObjectOptions, Place, RecallAnswer, Registration, Share, Touch,
};
use fdbroker_protocol::Kind;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::thread;
use std::time::Duration;

const PAGE: usize = 4096;

#[track_caller]
fn assert_says(error: &Error, code: ErrorCode, text: &str, not_text: &str) {
    let said = error.to_string();
    assert!(error.code == code && said.contains(text) && !said.contains(not_text), "{said}");
}

#[test]
fn import_when_for_writing_and_the_fd_is_read_only_then_not_permitted() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    let fd = memory(&[7; PAGE]);
    let read_only = File::open(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
    let grant = thread::scope(|scope| {
        let call = scope.spawn(|| client.acquire(&handle(1), soon()).unwrap());
        let request = peer.recv_kind(Kind::Acquire);
        peer.grant(request.id, &[Answer::Grant(read_only.as_fd(), PAGE as u64)]);
        call.join().unwrap()
    });
    let error = grant.import(Access::ReadWrite, 0).unwrap_err();
    assert_says(&error, ErrorCode::NotPermitted, "import it for reading", "broker");
}

#[test]
fn import_when_the_offset_is_outside_then_says_of_how_many_bytes() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    let fd = memory(&[7; PAGE]);
    let grant = thread::scope(|scope| {
        let call = scope.spawn(|| client.acquire(&handle(1), soon()).unwrap());
        let request = peer.recv_kind(Kind::Acquire);
        peer.grant(request.id, &[Answer::Grant(fd.as_fd(), PAGE as u64)]);
        call.join().unwrap()
    });
    let error = grant.import(Access::Read, PAGE as u64).unwrap_err();
    assert_says(&error, ErrorCode::BadHandle, "offset 4096 is not inside 4096", "these bytes");
}

#[test]
fn alloc_when_the_arena_is_full_then_no_cap_of_the_broker_is_blamed() {
    let broker = FakeBroker::listen();
    let (client, _peer) = broker.client();
    let arena = Arena::new(&client, HostMemory::Memfd, PAGE).unwrap();
    let _all = arena.alloc(PAGE).unwrap();
    let error = arena.alloc(1).unwrap_err();
    assert_says(&error, ErrorCode::NoQuota, "make a larger arena", "cap");
}

#[test]
fn alloc_when_of_no_bytes_then_says_so() {
    let broker = FakeBroker::listen();
    let (client, _peer) = broker.client();
    let arena = Arena::new(&client, HostMemory::Memfd, PAGE).unwrap();
    let isolated =
        IsolatedBuffer::new(&client, IsolatedMemory::Memfd, 0, Share::Uid, soon()).unwrap_err();
    let made = [Arena::new(&client, HostMemory::Memfd, 0).unwrap_err(), isolated];
    for error in made.into_iter().chain([arena.alloc(0).unwrap_err()]) {
        assert_says(&error, ErrorCode::BadHandle, "ask for at least one", "these bytes");
    }
}

#[test]
fn isolated_when_own_fds_leave_no_window_then_names_where_it_is_set() {
    let broker = FakeBroker::listen();
    let (client, _peer) = broker.client();
    let made = IsolatedBuffer::new(&client, IsolatedMemory::Memfd, 1, Share::Uid, soon());
    let error = made.unwrap_err();
    assert_says(&error, ErrorCode::NotSupported, "`ClientBuilder::own_fds`", "absent");
}

#[test]
fn register_when_the_client_was_ended_then_no_broker_is_to_be_started() {
    let broker = FakeBroker::listen();
    let (client, _peer) = broker.client();
    client.end();
    let error = client.register(&deposit(1), memory(b"").as_fd(), soon()).unwrap_err();
    assert_says(&error, ErrorCode::NotConnected, "make another client", "start");
}

#[test]
fn create_when_larger_than_any_memory_then_no_group_is_blamed() {
    let broker = FakeBroker::listen();
    let (client, _peer) = broker.client();
    for bytes in [u64::MAX, u64::MAX - 1, 1 << 63] {
        let objects = [NewObject::new("a", bytes)];
        let options = ObjectOptions::default();
        let made = client.objects().create(&objects, Place::Host, options, soon());
        let error = made.unwrap_err();
        assert_says(&error, ErrorCode::BadHandle, "no memory is so large", "group");
    }
}

#[test]
fn release_when_given_back_before_then_says_so() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    let cache = ImportCache::new(&client, CacheSettings::default());
    let fd = memory(&[7; PAGE]);
    peer.page.set(handle(1).id());
    let pin = thread::scope(|scope| {
        let call =
            scope.spawn(|| cache.import(&handle(1), Access::Read, soon()).unwrap().into_pin());
        let request = peer.recv_kind(Kind::Acquire);
        peer.grant(request.id, &[Answer::Grant(fd.as_fd(), PAGE as u64)]);
        call.join().unwrap()
    });
    cache.release(pin).unwrap();
    let error = cache.release(pin).unwrap_err();
    assert_says(&error, ErrorCode::BadHandle, "give each back once", "these bytes");
}

#[test]
fn dispatch_when_a_library_thread_serves_then_names_the_mode_in_no_languages_words() {
    let broker = FakeBroker::listen();
    let (client, _peer) = broker.client();
    let error = client.dispatch(Duration::ZERO).unwrap_err();
    assert_says(&error, ErrorCode::NotSupported, "ask for dispatch mode", "(");
}

fn register(
    client: &Client,
    peer: &Peer,
    deposits: &[Deposit],
) -> Vec<Result<Registration, Error>> {
    let fd = memory(b"");
    let fds = vec![fd.as_fd(); deposits.len()];
    thread::scope(|scope| {
        let call = scope.spawn(|| client.register_many(deposits, &fds, soon()).unwrap());
        peer.registered(&peer.recv_kind(Kind::Register), 253, 1);
        call.join().unwrap()
    })
}

#[test]
fn register_when_recallable_without_a_recall_callback_then_that_one_is_refused() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let deposits = [deposit(1).recallable(true), deposit(2)];
    let outcomes = register(&client, &peer, &deposits);
    let error = outcomes[0].as_ref().unwrap_err();
    assert_says(error, ErrorCode::NotSupported, "set a recall callback", "absent");
    assert_eq!(outcomes[1].as_ref().unwrap().handle, handle(1), "it went alone");

    let answer = |recall: &_| Ok(RecallAnswer::unchanged(recall, memory(b"")));
    let builder = Client::builder().on_recall(answer);
    let (client, peer) = broker.client_with(builder, Terms::default());
    assert!(register(&client, &peer, &deposits).iter().all(Result::is_ok));
}

#[test]
fn register_when_it_is_no_allocation_then_that_one_is_refused_with_what_is_wrong() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let facts = deposit(1).facts;
    let deposits = [
        deposit(1).facts(facts.size_bytes(0)),
        deposit(1).base(u64::MAX),
        deposit(1).facts(facts.device(1 << 16)),
        deposit(2),
    ];
    let outcomes = register(&client, &peer, &deposits);
    for (outcome, why) in outcomes.iter().zip(["has bytes", "its address", "of its device"]) {
        let error = outcome.as_ref().unwrap_err();
        assert_says(error, ErrorCode::BadHandle, why, "these bytes");
    }
    assert_eq!(outcomes[3].as_ref().unwrap().handle, handle(1), "it went alone");
    let fd = memory(b"");
    let place = Place::Fd(fd.as_fd(), &deposits[0]);
    let objects = client.objects();
    let made = objects.create(&[NewObject::new("a", 0)], place, ObjectOptions::default(), soon());
    assert_says(&made.unwrap_err(), ErrorCode::BadHandle, "has bytes", "these bytes");
}

#[test]
fn objects_when_a_jobs_are_to_be_kept_or_pinned_then_says_that_they_cannot() {
    let broker = FakeBroker::listen();
    let (client, _peer) = broker.client();
    let objects = client.objects().of_job();
    let new = [NewObject::new("a", 1)];
    let time = Duration::from_secs(1);
    let options = ObjectOptions::default();
    for lasting in [options.pin(true), options.keep(time), options.outlive(true)] {
        let made = objects.create(&new, Place::Host, lasting, soon());
        for error in [made.unwrap_err(), objects.put("a", b"x", lasting, soon()).unwrap_err()] {
            assert_says(&error, ErrorCode::NotSupported, "neither kept nor pinned", "absent");
        }
    }
    for touch in [Touch::default().pin(true), Touch::default().keep(time)] {
        let error = objects.touch(&["a"], touch, soon()).unwrap_err();
        assert_says(&error, ErrorCode::NotSupported, "neither kept nor pinned", "absent");
    }
}

#[test]
fn unregister_when_it_is_a_buffers_then_refused_and_the_free_gives_its_range_back() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let arena = Arena::new(&client, HostMemory::Memfd, PAGE).unwrap();
    let buffer = arena.alloc(PAGE).unwrap();
    let handle = thread::scope(|scope| {
        let call = scope.spawn(|| buffer.register(soon()).unwrap());
        peer.registered(&peer.recv_kind(Kind::Register), 8, 1);
        call.join().unwrap()
    });
    let error = client.unregister(handle.id()).unwrap_err();
    assert_says(&error, ErrorCode::NotPermitted, "free the buffer", "another user");
    assert_eq!(buffer.handle(), Some(handle));
    drop(buffer);
    peer.unregistered(&peer.recv_kind(Kind::Unregister), true);
    eventually("its return", || arena.free_bytes() == PAGE);
}
