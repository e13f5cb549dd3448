//! Requests without waiting, with a scripted broker: late replies, full sockets, cancels, other
//! threads.

use crate::support::child::{is_child, leave_room_for, start};
use crate::support::*;
use fdbroker_client::{
    AcquireRequest, AllocationId, Client, Deadline, Error, ErrorCode, Grant, Handle, Progress,
};
use fdbroker_protocol::{Kind, Status};
use std::os::fd::AsFd;
use std::thread;
use std::time::Instant;

type Outcomes = Vec<Result<Grant, Error>>;

const AGAIN: Answer<'_> = Answer::Refuse(ErrorCode::Again);
const STALE: Answer<'_> = Answer::Refuse(ErrorCode::Stale);

/// Tests the request until it is done.
fn finish(request: AcquireRequest) -> Outcomes {
    let mut request = Some(request);
    let mut outcomes = None;
    eventually("the outcome of a request", || {
        match request.take().unwrap().test() {
            Progress::UnderWay(under_way) => request = Some(under_way),
            Progress::Done(done) => outcomes = Some(done),
        }
        outcomes.is_some()
    });
    outcomes.unwrap()
}

/// Tests the request once; it must still be under way.
#[track_caller]
fn assert_under_way(request: AcquireRequest) -> AcquireRequest {
    match request.test() {
        Progress::UnderWay(request) => request,
        Progress::Done(outcomes) => panic!("done: {outcomes:?}"),
    }
}

fn codes(outcomes: &Outcomes) -> Vec<Option<ErrorCode>> {
    outcomes.iter().map(|one| one.as_ref().err().map(|error| error.code)).collect()
}

fn client_with_places(broker: &FakeBroker, max_parked: u32) -> (Client, Peer) {
    let terms = Terms { max_parked, ..Terms::default() };
    broker.client_with(Client::builder(), terms)
}

#[test]
fn test_when_broker_is_silent_then_under_way_each_time_and_done_when_it_answers() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    let fd = memory(b"");
    // A call that waited here would wait until the deadline, and be done then.
    let mut request = client.acquire_start(&[handle(1)], soon()).unwrap();
    for _ in 0..1000 {
        request = assert_under_way(request);
    }
    let received = peer.recv_kind(Kind::Acquire);
    assert_eq!(received.acquire().1, [AllocationId { slot: 1, generation: 1 }]);
    let leases = peer.grant(received.id, &[Answer::Grant(fd.as_fd(), 4096)]);
    let outcomes = finish(request);
    assert_eq!(outcomes[0].as_ref().unwrap().lease.number(), leases[0]);
    drop(outcomes);
    assert_eq!(peer.recv_kind(Kind::Release).leases(), leases);
}

#[test]
fn start_when_no_handles_then_done_at_the_first_test_without_a_message() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let request = client.acquire_start(&[], soon()).unwrap();
    let Progress::Done(outcomes) = request.test() else { panic!("nothing to wait for") };
    assert!(outcomes.is_empty());
    peer.assert_silent();
}

#[test]
fn test_when_some_again_then_asked_again_and_order_kept() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    let fd = memory(b"");
    let handles = [handle(1), handle(2), handle(3), handle(2)];
    let request = client.acquire_start(&handles, soon()).unwrap();
    let first = peer.recv_kind(Kind::Acquire);
    let grant = Answer::Grant(fd.as_fd(), 4096);
    peer.grant(first.id, &[grant, AGAIN, STALE, grant]);
    let second = thread::scope(|scope| {
        let second = scope.spawn(|| {
            let second = peer.recv_kind(Kind::Acquire);
            assert_eq!(second.acquire().1, [AllocationId { slot: 2, generation: 1 }]);
            peer.grant(second.id, &[grant]);
        });
        let outcomes = finish(request);
        second.join().unwrap();
        outcomes
    });
    let leases: Vec<Option<u64>> =
        second.iter().map(|one| one.as_ref().ok().map(|g| g.lease.number())).collect();
    assert_eq!(leases, [Some(1), Some(3), None, Some(2)]);
    assert_eq!(codes(&second)[2], Some(ErrorCode::Stale));
}

#[test]
fn test_when_again_until_deadline_then_timed_out() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    let request = client.acquire_start(&[handle(1)], Deadline::from_ms(100)).unwrap();
    thread::scope(|scope| {
        let outcomes = scope.spawn(|| finish(request));
        let mut asked = 0;
        while !outcomes.is_finished() {
            let Ok(received) = receive(peer.socket.as_fd(), SILENCE) else { continue };
            asked += 1;
            peer.grant(received.id, &[AGAIN]);
        }
        // The library asks again by the clock, after 1 ms doubled up to 20, not with every test.
        assert!((1..=20).contains(&asked), "asked {asked} times");
        assert_eq!(codes(&outcomes.join().unwrap()), [Some(ErrorCode::TimedOut)]);
    });
}

#[test]
fn test_when_unanswered_beyond_the_deadline_then_timed_out_cancelled_and_given_back() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    let request = client.acquire_start(&[handle(1)], Deadline::from_ms(1)).unwrap();
    let received = peer.recv_kind(Kind::Acquire);
    assert_eq!(codes(&finish(request)), [Some(ErrorCode::TimedOut)]);
    assert_late_grant_is_given_back(&mut peer, received.id);
    assert!(client.is_connected());
}

/// The broker grants a cancelled request all the same, and gets the grant back.
#[track_caller]
fn assert_late_grant_is_given_back(peer: &mut Peer, id: u64) {
    assert_eq!(peer.recv_kind(Kind::Cancel).id, id);
    let (canary, sent) = canary();
    let leases = peer.grant(id, &[Answer::Grant(sent.as_fd(), 4096)]);
    drop(sent);
    assert_eq!(peer.recv_kind(Kind::Release).leases(), leases);
    eventually("the late fd's close", || is_closed(&canary));
}

#[test]
fn cancel_when_the_grant_comes_late_then_given_back() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    let request = client.acquire_start(&[handle(1)], soon()).unwrap();
    let received = peer.recv_kind(Kind::Acquire);
    request.cancel();
    assert_late_grant_is_given_back(&mut peer, received.id);
}

#[test]
fn drop_when_never_tested_then_cancelled_and_given_back() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    drop(client.acquire_start(&[handle(1)], soon()).unwrap());
    let received = peer.recv_kind(Kind::Acquire);
    assert_late_grant_is_given_back(&mut peer, received.id);
}

#[test]
fn drop_when_the_reply_lies_unread_then_given_back() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    let request = client.acquire_start(&[handle(1)], soon()).unwrap();
    let received = peer.recv_kind(Kind::Acquire);
    let (canary, sent) = canary();
    let leases = peer.grant(received.id, &[Answer::Grant(sent.as_fd(), 4096)]);
    drop((request, sent));
    // The cancel of an answered request, and the release, in any order.
    let two = [peer.recv(), peer.recv()];
    let release = two.iter().find(|message| message.kind == Kind::Release).unwrap();
    assert_eq!(release.leases(), leases);
    eventually("the late fd's close", || is_closed(&canary));
}

#[test]
fn drop_when_another_thread_has_read_the_reply_then_given_back_without_a_cancel() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    let request = client.acquire_start(&[handle(1)], soon()).unwrap();
    let received = peer.recv_kind(Kind::Acquire);
    let (canary, sent) = canary();
    let leases = peer.grant(received.id, &[Answer::Grant(sent.as_fd(), 4096)]);
    drop(sent);
    thread::scope(|scope| {
        let call = scope.spawn(|| client.acquire(&handle(2), soon()).unwrap_err());
        let received = peer.recv_kind(Kind::Acquire);
        peer.grant(received.id, &[STALE]);
        call.join().unwrap();
    });
    assert!(!is_closed(&canary), "it was delivered to the request");
    drop(request);
    assert_eq!(peer.recv_kind(Kind::Release).leases(), leases);
    assert!(is_closed(&canary));
}

#[test]
fn drop_when_partly_granted_then_what_was_granted_is_given_back() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    let fd = memory(b"");
    let mut request = Some(client.acquire_start(&[handle(1), handle(2)], soon()).unwrap());
    let received = peer.recv_kind(Kind::Acquire);
    let leases = peer.grant(received.id, &[Answer::Grant(fd.as_fd(), 4096), AGAIN]);
    // Test until the library has asked again.
    let again = thread::scope(|scope| {
        let again = scope.spawn(|| peer.recv_kind(Kind::Acquire));
        eventually("the second message", || {
            request = Some(assert_under_way(request.take().unwrap()));
            again.is_finished()
        });
        again.join().unwrap()
    });
    drop(request);
    let two = [peer.recv(), peer.recv()];
    let of = |kind| two.iter().find(|message| message.kind == kind).unwrap();
    assert_eq!(of(Kind::Release).leases(), leases);
    assert_eq!(of(Kind::Cancel).id, again.id);
}

#[test]
fn start_when_more_than_max_parked_then_sent_in_turn_by_later_tests() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = client_with_places(&broker, 2);
    const REQUESTS: u32 = 20;
    let mut requests: Vec<_> =
        (0..REQUESTS).map(|n| client.acquire_start(&[handle(n)], soon()).unwrap()).collect();
    let mut done = 0;
    let mut answered = 0;
    while done < REQUESTS {
        let open = std::mem::take(&mut requests);
        for request in open {
            match request.test() {
                Progress::UnderWay(request) => requests.push(request),
                Progress::Done(outcomes) => {
                    assert_eq!(codes(&outcomes), [Some(ErrorCode::Stale)]);
                    done += 1;
                }
            }
        }
        // The library sends those under way and no more, however many wait.
        let expected = 2.min(REQUESTS - answered);
        for received in (0..expected).map(|_| peer.recv_kind(Kind::Acquire)).collect::<Vec<_>>() {
            peer.grant(received.id, &[STALE]);
            answered += 1;
        }
    }
    peer.assert_silent();
}

#[test]
fn start_and_cancel_when_the_broker_does_not_read_then_what_is_owed_stays_bounded() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = client_with_places(&broker, 4);
    // Far more requests than the library lets a broker owe.
    for n in 0..5000 {
        client.acquire_start(&[handle(n)], soon()).unwrap().cancel();
    }
    assert!(client.is_connected());
    let (mut asked, mut cancelled) = (Vec::new(), Vec::new());
    while cancelled.len() < 4 {
        let received = peer.recv();
        match received.kind {
            Kind::Acquire => asked.push(received.id),
            Kind::Cancel => cancelled.push(received.id),
            kind => panic!("unexpected {kind}"),
        }
    }
    assert_eq!(asked, cancelled);
    peer.assert_silent();
    asked.iter().for_each(|id| drop(peer.grant(*id, &[STALE])));
    // The places are free again.
    let mut request = None;
    let received = thread::scope(|scope| {
        let received = scope.spawn(|| peer.recv_kind(Kind::Acquire));
        let mut again = client.acquire_start(&[handle(1)], soon()).unwrap();
        eventually("the message", || {
            let under_way =
                std::mem::replace(&mut again, client.acquire_start(&[], soon()).unwrap());
            again = assert_under_way(under_way);
            received.is_finished()
        });
        request = Some(again);
        received.join().unwrap()
    });
    peer.grant(received.id, &[STALE]);
    assert_eq!(codes(&finish(request.unwrap())), [Some(ErrorCode::Stale)]);
}

#[test]
fn start_when_the_socket_is_full_then_sent_by_later_tests() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = client_with_places(&broker, 10_000);
    let handles: Vec<Handle> = (0..253).map(handle).collect();
    // 8 KB each, in all more than any socket holds.
    const REQUESTS: usize = 400;
    let mut requests: Vec<_> =
        (0..REQUESTS).map(|_| client.acquire_start(&handles, soon()).unwrap()).collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..REQUESTS {
                let received = peer.recv_kind(Kind::Acquire);
                peer.grant(received.id, &[STALE; 253]);
            }
        });
        for request in requests.drain(..) {
            assert_eq!(codes(&finish(request)), [Some(ErrorCode::Stale); 253]);
        }
    });
}

#[test]
fn test_when_more_than_a_message_then_in_chunks_of_253_one_under_way() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    let handles: Vec<Handle> = (0..600).map(handle).collect();
    let request = client.acquire_start(&handles, soon()).unwrap();
    thread::scope(|scope| {
        let outcomes = scope.spawn(|| finish(request));
        for count in [253, 253, 94] {
            let received = peer.recv_kind(Kind::Acquire);
            assert_eq!(received.count, count);
            peer.grant(received.id, &vec![STALE; count]);
        }
        assert_eq!(codes(&outcomes.join().unwrap()), [Some(ErrorCode::Stale); 600]);
    });
}

#[test]
fn acquire_when_started_requests_take_all_places_then_reads_for_them_and_gets_its_turn() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = client_with_places(&broker, 1);
    let fd = memory(b"");
    let request = client.acquire_start(&[handle(1)], soon()).unwrap();
    thread::scope(|scope| {
        // The first request is not tested any more: the one that waits for its place has to read.
        let call = scope.spawn(|| client.acquire(&handle(2), soon()));
        let first = peer.recv_kind(Kind::Acquire);
        peer.assert_silent();
        peer.grant(first.id, &[Answer::Grant(fd.as_fd(), 4096)]);
        let second = peer.recv_kind(Kind::Acquire);
        peer.grant(second.id, &[STALE]);
        assert_eq!(call.join().unwrap().unwrap_err().code, ErrorCode::Stale);
    });
    assert!(finish(request)[0].is_ok());
}

#[test]
fn test_when_connection_is_lost_in_between_then_granted_ones_stay_and_others_not_connected() {
    let broker = FakeBroker::listen();
    let (client, mut peer) =
        broker.client_with(Client::builder().reconnect(false), Terms::default());
    let fd = memory(b"");
    let handles: Vec<Handle> = (0..300).map(handle).collect();
    let request = client.acquire_start(&handles, soon()).unwrap();
    let received = peer.recv_kind(Kind::Acquire);
    let mut answers = vec![AGAIN; 253];
    answers[7] = Answer::Grant(fd.as_fd(), 4096);
    thread::scope(|scope| {
        let outcomes = scope.spawn(|| finish(request));
        peer.grant(received.id, &answers);
        peer.recv_kind(Kind::Acquire);
        drop(peer);
        let outcomes = outcomes.join().unwrap();
        for (index, code) in codes(&outcomes).into_iter().enumerate() {
            assert_eq!(code, (index != 7).then_some(ErrorCode::NotConnected), "{index}");
        }
    });
    let error = client.acquire_start(&handles, soon()).unwrap_err();
    assert_eq!(error.code, ErrorCode::NotConnected);
}

#[test]
fn test_when_refused_as_a_whole_then_every_handle_says_so() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let handles: Vec<Handle> = (0..300).map(handle).collect();
    let request = client.acquire_start(&handles, soon()).unwrap();
    let received = peer.recv_kind(Kind::Acquire);
    peer.fail(received.id, Status::error(ErrorCode::ShuttingDown));
    assert_eq!(codes(&finish(request)), [Some(ErrorCode::ShuttingDown); 300]);
    peer.assert_silent();
}

#[test]
fn client_when_dropped_while_a_request_is_under_way_then_not_connected() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let request = client.acquire_start(&[handle(1)], soon()).unwrap();
    drop(client);
    peer.recv_kind(Kind::Acquire);
    peer.assert_eof();
    assert_eq!(codes(&finish(request)), [Some(ErrorCode::NotConnected)]);
}

#[test]
fn test_when_called_in_a_callback_then_works_there() {
    let broker = FakeBroker::listen();
    let (sender, outcomes) = std::sync::mpsc::channel();
    type Slot = std::sync::Arc<std::sync::Mutex<Option<(Client, AcquireRequest)>>>;
    let slot = Slot::default();
    let in_callback = Slot::clone(&slot);
    let builder = Client::builder().on_notice(move |_| {
        let Some((client, request)) = in_callback.lock().unwrap().take() else { return };
        let blocked = client.acquire(&handle(9), soon()).unwrap_err();
        assert_eq!(blocked.code, ErrorCode::NotSupported);
        let other = client.acquire_start(&[handle(2)], soon()).unwrap();
        let _ = sender.send((finish(request), finish(other), client));
    });
    let (client, mut peer) = broker.client_with(builder, Terms::default());
    let request = client.acquire_start(&[handle(1)], soon()).unwrap();
    *slot.lock().unwrap() = Some((client, request));
    peer.drained(AllocationId { slot: 4, generation: 2 }, 5, 0);
    for _ in 0..2 {
        let received = peer.recv_kind(Kind::Acquire);
        peer.grant(received.id, &[STALE]);
    }
    let (first, second, client) = outcomes.recv_timeout(PATIENCE).unwrap();
    assert_eq!(codes(&first), [Some(ErrorCode::Stale)]);
    assert_eq!(codes(&second), [Some(ErrorCode::Stale)]);
    drop(client);
}

#[test]
fn requests_when_threads_block_and_test_at_once_then_each_has_its_own() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = client_with_places(&broker, 8);
    const ROUNDS: u32 = 100;
    const THREADS: u32 = 3;
    let fds: Vec<_> = (0..32u8).map(|n| memory(&[n])).collect();
    let check = |slot: u32, grant: Grant| {
        let import = grant.import(fdbroker_client::Access::Read, 0).unwrap();
        let mut byte = [0];
        import.read_at(0, &mut byte).unwrap();
        assert_eq!(u32::from(byte[0]), slot);
    };
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for thread in 0..THREADS {
            let client = &client;
            threads.push(scope.spawn(move || {
                for round in 0..ROUNDS {
                    let slot = (thread * 7 + round) % 32;
                    check(slot, client.acquire(&handle(slot), soon()).unwrap());
                }
            }));
            threads.push(scope.spawn(move || {
                for round in 0..ROUNDS {
                    let slots = [0, 1, 2, 3].map(|n| (thread * 5 + round + n) % 32);
                    let requests =
                        slots.map(|slot| client.acquire_start(&[handle(slot)], soon()).unwrap());
                    for (slot, request) in slots.into_iter().zip(requests) {
                        // Each round drops one of them.
                        match slot % 4 {
                            0 => drop(request),
                            _ => check(slot, finish(request).pop().unwrap().unwrap()),
                        }
                    }
                }
            }));
        }
        // A dropped request may never have been sent, so silence is the end, after all have asked
        // and given back.
        let mut granted = Vec::new();
        let mut released = Vec::new();
        let mut last = Instant::now();
        loop {
            let all_have_asked = threads.iter().all(|thread| thread.is_finished());
            let Ok(received) = receive(peer.socket.as_fd(), SILENCE) else {
                let is_over = all_have_asked && released.len() >= granted.len();
                if is_over || last.elapsed() > PATIENCE {
                    break;
                }
                continue;
            };
            last = Instant::now();
            match received.kind {
                Kind::Acquire => {
                    let slot = received.acquire().1[0].slot as usize;
                    let answer = Answer::Grant(fds[slot].as_fd(), 4096);
                    granted.extend(peer.grant(received.id, &[answer]));
                }
                Kind::Release => released.extend(received.leases()),
                _ => {}
            }
        }
        released.sort_unstable();
        assert_eq!(released, granted, "every grant came back once");
    });
    assert!(client.is_connected());
}

#[test]
fn test_when_fd_table_is_full_then_local_fd_limit_and_nothing_leaks() {
    if is_child() {
        return child_with_a_full_fd_table();
    }
    let broker = FakeBroker::listen();
    let mut child =
        start("test_when_fd_table_is_full_then_local_fd_limit_and_nothing_leaks", &broker);
    let mut peer = broker.accept(Terms::default());
    let fd = memory(b"");
    let (mut granted, mut released) = (Vec::new(), Vec::new());
    while let Ok(received) = receive(peer.socket.as_fd(), PATIENCE) {
        match received.kind {
            Kind::Acquire => {
                let answers = vec![Answer::Grant(fd.as_fd(), 4096); received.count];
                granted.extend(peer.grant(received.id, &answers));
            }
            Kind::Release => released.extend(received.leases()),
            kind => panic!("unexpected {kind}"),
        }
    }
    released.sort_unstable();
    assert_eq!(released, granted);
    assert!(child.wait().unwrap().success());
}

fn child_with_a_full_fd_table() {
    let client = Client::connect().unwrap();
    leave_room_for(3);
    let handles: Vec<_> = (0..5).map(handle).collect();
    let outcomes = finish(client.acquire_start(&handles, soon()).unwrap());
    assert_eq!(outcomes.iter().filter(|one| one.is_ok()).count(), 3);
    let limit = Some(ErrorCode::LocalFdLimit);
    assert_eq!(codes(&outcomes).iter().filter(|code| **code == limit).count(), 2);
    drop(outcomes);
    let outcomes = finish(client.acquire_start(&handles[..3], soon()).unwrap());
    assert!(outcomes.iter().all(Result::is_ok));
}

#[test]
fn fork_when_requests_are_under_way_then_the_child_is_told_and_the_parent_goes_on() {
    if is_child() {
        return child_that_forks();
    }
    let broker = FakeBroker::listen();
    let mut child = start(
        "fork_when_requests_are_under_way_then_the_child_is_told_and_the_parent_goes_on",
        &broker,
    );
    let mut peer = broker.accept(Terms::default());
    let fd = memory(b"");
    let first = peer.recv_kind(Kind::Acquire);
    let second = peer.recv_kind(Kind::Acquire);
    // The parent's message says that its child has ended. No message came before it, above all no
    // cancel.
    let third = peer.recv_kind(Kind::Acquire);
    for received in [first, second, third] {
        peer.grant(received.id, &[Answer::Grant(fd.as_fd(), 4096)]);
    }
    let released: usize = (0..3).map(|_| peer.recv_kind(Kind::Release).count).sum();
    assert_eq!(released, 3);
    assert!(child.wait().unwrap().success());
}

fn child_that_forks() {
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};
    let client = Client::connect().unwrap();
    let requests = [1, 2].map(|n| client.acquire_start(&[handle(n)], soon()).unwrap());
    // SAFETY: the child only calls this library and _exit; glibc's allocator survives a fork.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let checks = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                let [tested, dropped] = requests;
                assert_eq!(codes(&finish(tested)), [Some(ErrorCode::NotConnected)]);
                drop(dropped);
                let error = client.acquire_start(&[handle(1)], soon()).unwrap_err();
                assert_eq!(error.code, ErrorCode::NotConnected);
                drop(client);
            }));
            // SAFETY: ends the child without running the test harness's exit handlers.
            unsafe { libc::_exit(i32::from(checks.is_err())) };
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
    let third = client.acquire_start(&[handle(3)], soon()).unwrap();
    for request in requests.into_iter().chain([third]) {
        assert!(finish(request)[0].is_ok());
    }
}
