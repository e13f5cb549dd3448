//! Requests and replies with a scripted broker: order, late replies, refusals, threads, full
//! sockets.

use crate::support::*;
use fdbroker_client::{Access, AllocationId, Client, Deadline, Error, ErrorCode, Grant, Lease};
use fdbroker_protocol::{Kind, Resource, Scope, Status, Writer};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// Acquires `count` leases and closes their fds at once.
fn leases(client: &Client, peer: &mut Peer, count: usize) -> Vec<Lease> {
    let fd = memory(b"");
    let handles: Vec<_> = (0..count as u32).map(handle).collect();
    thread::scope(|scope| {
        let taken = scope.spawn(|| {
            let mut leases = Vec::new();
            let each = |_, grant: Result<Grant, _>| leases.push(grant.unwrap().lease);
            client.acquire_each(&handles, soon(), each).unwrap();
            leases
        });
        for chunk in handles.chunks(253) {
            let request = peer.recv_kind(Kind::Acquire);
            peer.grant(request.id, &vec![Answer::Grant(fd.as_fd(), 4096); chunk.len()]);
        }
        taken.join().unwrap()
    })
}

#[test]
fn connect_when_greeted_then_knows_what_the_broker_said() {
    let broker = FakeBroker::listen();
    let builder = Client::builder().name("rank-3").own_fds(5);
    let (client, peer) = broker.client_with(builder, Terms::default());
    assert_eq!(&peer.hello.name[..7], b"rank-3\0");
    assert_eq!(peer.hello.own_fds.get(), 5);
    assert_eq!(peer.hello.pid.get(), std::process::id());
    assert_eq!((client.node(), client.id()), (NODE, 7));
    assert_eq!(client.incarnation(), peer.incarnation);
    assert!(client.is_connected());
}

#[test]
fn connect_when_version_refused_then_protocol_names_both() {
    let broker = FakeBroker::listen();
    let error = thread::scope(|scope| {
        let client = scope.spawn(|| Client::builder().socket(&broker.path).connect().unwrap_err());
        let (socket, hello) = broker.accept_raw();
        let status = Status::with_value(ErrorCode::Protocol, 9);
        let mut writer = Writer::new();
        let bytes = writer.failed(hello.id, status);
        fdbroker_scm::send(socket.as_fd(), bytes, &[]).unwrap();
        drop(socket);
        client.join().unwrap()
    });
    assert_eq!(error.code, ErrorCode::Protocol);
    assert!(error.to_string().contains("version 9"), "{error}");
}

#[test]
fn connect_when_own_fds_do_not_fit_then_no_quota_with_the_cap() {
    let broker = FakeBroker::listen();
    let error = thread::scope(|scope| {
        let builder = Client::builder().socket(&broker.path).own_fds(65);
        let client = scope.spawn(|| builder.connect().unwrap_err());
        let (socket, hello) = broker.accept_raw();
        let status = Status::no_quota(Resource::OwnFds, Scope::Node, 64, 0);
        fdbroker_scm::send(socket.as_fd(), Writer::new().failed(hello.id, status), &[]).unwrap();
        client.join().unwrap()
    });
    assert_eq!(error.code, ErrorCode::NoQuota);
    assert_eq!(error.status.unwrap().value, 64);
}

#[test]
fn acquire_when_granted_then_imported_mapped_and_released_in_order() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    let fd = memory(b"hello");
    thread::scope(|scope| {
        let import = scope.spawn(|| {
            let grant = client.acquire(&handle(3), soon()).unwrap();
            assert_eq!(grant.info.facts.owner_allocation_id, 99);
            grant.import(Access::ReadWrite, 1).unwrap()
        });
        let request = peer.recv();
        assert_eq!(request.acquire().1, [AllocationId { slot: 3, generation: 1 }]);
        let leases = peer.grant(request.id, &[Answer::Grant(fd.as_fd(), 4096)]);
        let mapped = peer.recv_kind(Kind::Mapped);
        assert_eq!((mapped.id, mapped.leases()), (0, leases.clone()));
        let import = import.join().unwrap();
        let mut bytes = [0; 4];
        import.read_at(0, &mut bytes).unwrap();
        assert_eq!((&bytes, import.len()), (b"ello", 4095));
        import.write_at(4095, &[1]).unwrap_err();
        import.release().unwrap();
        assert_eq!(peer.recv_kind(Kind::Release).leases(), leases);
    });
}

#[test]
fn import_when_offset_outside_then_bad_handle_and_given_back() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    let fd = memory(b"");
    thread::scope(|scope| {
        let acquired = scope.spawn(|| client.acquire(&handle(3), soon()).unwrap());
        let request = peer.recv();
        let leases = peer.grant(request.id, &[Answer::Grant(fd.as_fd(), 4096)]);
        let error = acquired.join().unwrap().import(Access::Read, 4096).unwrap_err();
        assert_eq!(error.code, ErrorCode::BadHandle);
        assert_eq!(peer.recv_kind(Kind::Release).leases(), leases);
    });
}

#[test]
fn acquire_when_refused_then_error_has_the_brokers_detail() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    thread::scope(|scope| {
        let error = scope.spawn(|| client.acquire(&handle(3), soon()).unwrap_err());
        let request = peer.recv();
        peer.grant(request.id, &[Answer::Refuse(ErrorCode::Stale)]);
        assert_eq!(error.join().unwrap().code, ErrorCode::Stale);
        let error = scope.spawn(|| client.acquire(&handle(3), soon()).unwrap_err());
        let status = Status::no_quota(Resource::ParkedRequests, Scope::Client, 4, 0);
        let request = peer.recv();
        peer.fail(request.id, status);
        assert_eq!(error.join().unwrap().status, Some(status));
    });
}

#[test]
fn acquire_many_when_some_again_then_asked_again_and_order_kept() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    let fd = memory(b"");
    let handles = [handle(1), handle(2), handle(3), handle(2)];
    thread::scope(|scope| {
        let grants = scope.spawn(|| client.acquire_many(&handles, soon()).unwrap());
        let first = peer.recv();
        let (grant, again) = (Answer::Grant(fd.as_fd(), 4096), Answer::Refuse(ErrorCode::Again));
        peer.grant(first.id, &[grant, again, Answer::Refuse(ErrorCode::Stale), grant]);
        let second = peer.recv();
        assert_eq!(second.acquire().1, [AllocationId { slot: 2, generation: 1 }]);
        peer.grant(second.id, &[grant]);
        let grants = grants.join().unwrap();
        let leases: Vec<Option<u64>> =
            grants.iter().map(|one| one.as_ref().ok().map(|g| g.lease.number())).collect();
        assert_eq!(leases, [Some(1), Some(3), None, Some(2)]);
        assert_eq!(grants[2].as_ref().unwrap_err().code, ErrorCode::Stale);
    });
}

#[test]
fn acquire_when_again_until_deadline_then_timed_out() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    thread::scope(|scope| {
        let error =
            scope.spawn(|| client.acquire(&handle(1), Deadline::from_ms(4000)).unwrap_err());
        for is_last in [false, true] {
            let request = peer.recv();
            let deadline_ms = request.acquire().0;
            assert!(deadline_ms <= 3000, "its answer is to be here by the deadline");
            if is_last {
                thread::sleep(Duration::from_millis(deadline_ms.into()));
            }
            peer.grant(request.id, &[Answer::Refuse(ErrorCode::Again)]);
        }
        assert_eq!(error.join().unwrap().code, ErrorCode::TimedOut);
    });
}

/// Well above what a call may take beyond its deadline (50 ms), and below what a hang takes.
const LATE: Duration = Duration::from_secs(1);

#[test]
fn calls_when_the_broker_answers_nothing_then_timed_out_at_their_deadlines() {
    for dispatch in [false, true] {
        // Of its own: a client that loses its peer looks for another one.
        let broker = FakeBroker::listen();
        let builder = Client::builder().dispatch(dispatch);
        let terms = Terms { credits: 1, ..Terms::default() };
        let (client, _peer) = broker.client_with(builder, terms);
        let fd = memory(b"");
        for deadline_ms in [0, 100] {
            let timed_out = |what: &str, call: &dyn Fn(Deadline) -> Option<Error>| {
                let begin = Instant::now();
                let error = call(Deadline::from_ms(deadline_ms)).expect(what);
                assert_eq!(error.code, ErrorCode::TimedOut, "{what}: {error}");
                let took = begin.elapsed();
                assert!(took < LATE, "{what} with {deadline_ms} ms took {took:?}");
            };
            timed_out("acquire", &|deadline| client.acquire(&handle(1), deadline).err());
            // The first of them has the credit, the second asks for more.
            timed_out("register", &|d| client.register(&deposit(1), fd.as_fd(), d).err());
            timed_out("flush", &|deadline| client.flush(deadline).err());
            let unknown = AllocationId { slot: 9, generation: 1 };
            timed_out("unregister", &|d| client.unregister_within(unknown, d).err());
        }
    }
}

#[test]
fn unregister_when_it_is_answered_too_late_then_a_notice_tells_that_it_is_drained() {
    for dispatch in [false, true] {
        let broker = FakeBroker::listen();
        let (sender, notices) = channel();
        let builder = Client::builder().dispatch(dispatch).on_notice(move |notice| {
            let _ = sender.send(notice);
        });
        let (client, peer) = broker.client_with(builder, Terms::default());
        let fd = memory(b"");
        let registered = thread::scope(|scope| {
            let call = scope.spawn(|| client.register(&deposit(5), fd.as_fd(), soon()).unwrap());
            peer.registered(&peer.recv(), 8, 3);
            call.join().unwrap()
        });
        let error = client.unregister_within(&registered, Deadline::from_ms(0)).unwrap_err();
        assert_eq!(error.code, ErrorCode::TimedOut);
        let request = peer.recv_kind(Kind::Unregister);
        assert_eq!(request.unregister(), [registered.id()]);
        peer.unregistered(&request, true);
        let mut told = None;
        eventually("the notice", || {
            if dispatch {
                client.dispatch(Duration::from_millis(1)).unwrap();
            }
            told = notices.try_recv().ok();
            told.is_some()
        });
        let id = registered.id();
        assert!(told.as_ref().is_some_and(|told| is_drained(told, id, 5)), "{told:?}");
    }
}

#[test]
fn acquire_many_when_more_than_a_message_then_in_chunks_of_253() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    let handles: Vec<_> = (0..600).map(handle).collect();
    thread::scope(|scope| {
        let errors = scope.spawn(|| client.acquire_many(&handles, soon()).unwrap());
        for count in [253, 253, 94] {
            let request = peer.recv();
            assert_eq!(request.count, count);
            peer.grant(request.id, &vec![Answer::Refuse(ErrorCode::Stale); count]);
        }
        assert_eq!(errors.join().unwrap().len(), 600);
    });
}

#[test]
fn acquire_each_when_handed_over_then_no_fds_pile_up() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    let fd = memory(b"x");
    let handles: Vec<_> = (0..506).map(handle).collect();
    thread::scope(|scope| {
        let count = scope.spawn(|| {
            let mut imports = Vec::new();
            let each = |_, grant: Result<Grant, _>| {
                imports.push(grant.unwrap().import(Access::Read, 0).unwrap());
            };
            client.acquire_each(&handles, soon(), each).unwrap();
            imports.len()
        });
        for _ in 0..2 {
            let request = peer.recv();
            peer.grant(request.id, &vec![Answer::Grant(fd.as_fd(), 4096); 253]);
            // All are imported, and so their fds closed, before the client asks for the next ones.
            let mut mapped = 0;
            while mapped < 253 {
                mapped += peer.recv_kind(Kind::Mapped).count;
            }
            assert_eq!(mapped, 253);
        }
        assert_eq!(count.join().unwrap(), 506);
    });
}

#[test]
fn acquire_when_replies_come_in_reverse_then_each_thread_has_its_own() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    for _round in 0..50 {
        let fds: Vec<_> = (0..8u8).map(|n| memory(&[n])).collect();
        thread::scope(|scope| {
            for slot in 0..8u8 {
                let client = &client;
                scope.spawn(move || {
                    let grant = client.acquire(&handle(slot.into()), soon()).unwrap();
                    let import = grant.import(Access::Read, 0).unwrap();
                    let mut byte = [0];
                    import.read_at(0, &mut byte).unwrap();
                    assert_eq!(byte[0], slot);
                });
            }
            let mut requests: Vec<_> = (0..8).map(|_| peer.recv_kind(Kind::Acquire)).collect();
            while let Some(request) = requests.pop() {
                let slot = request.acquire().1[0].slot;
                peer.grant(request.id, &[Answer::Grant(fds[slot as usize].as_fd(), 4096)]);
            }
            // Each is released, and reported as mapped before, unless it was released sooner.
            let mut released = 0;
            while released < 8 {
                let message = peer.recv();
                match message.kind {
                    Kind::Release => released += message.count,
                    kind => assert_eq!(kind, Kind::Mapped),
                }
            }
        });
    }
}

#[test]
fn acquire_when_reply_comes_too_late_then_cancelled_closed_and_released() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    let error = thread::scope(|scope| {
        let error = scope.spawn(|| client.acquire(&handle(1), Deadline::from_ms(1)).unwrap_err());
        let request = peer.recv();
        let cancel = peer.recv_kind(Kind::Cancel);
        assert_eq!(cancel.id, request.id);
        let (canary, sent) = canary();
        // No call is made: the library thread reads the reply.
        let leases = peer.grant(request.id, &[Answer::Grant(sent.as_fd(), 4096)]);
        drop(sent);
        assert_eq!(peer.recv_kind(Kind::Release).leases(), leases);
        eventually("the late fd's close", || is_closed(&canary));
        error.join().unwrap()
    });
    assert_eq!(error.code, ErrorCode::TimedOut);
    assert!(client.is_connected());
}

#[test]
fn register_when_reply_comes_too_late_then_unregistered_and_credits_counted() {
    let broker = FakeBroker::listen();
    let terms = Terms { credits: 1, ..Terms::default() };
    let (client, peer) = broker.client_with(Client::builder(), terms);
    let fd = memory(b"");
    thread::scope(|scope| {
        let register = |deadline| client.register(&deposit(1), fd.as_fd(), deadline);
        let error = scope.spawn(move || register(Deadline::from_ms(1)).unwrap_err());
        let request = peer.recv_kind(Kind::Register);
        assert_eq!(peer.recv_kind(Kind::Cancel).id, request.id);
        assert_eq!(error.join().unwrap().code, ErrorCode::TimedOut);
        peer.registered(&request, 1, 5);
        let undone = peer.recv_kind(Kind::Unregister);
        assert_eq!(undone.unregister(), [AllocationId { slot: 5, generation: 1 }]);
        peer.unregistered(&undone, true);
        let again = scope.spawn(move || register(soon()).unwrap());
        let request = peer.recv_kind(Kind::Register);
        assert_eq!(request.count, 1, "the late reply gave one credit");
        peer.registered(&request, 1, 6);
        assert_eq!(again.join().unwrap().id().slot, 6);
    });
}

#[test]
fn reply_when_sent_twice_then_second_is_released() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    let fd = memory(b"");
    thread::scope(|scope| {
        let grant = scope.spawn(|| client.acquire(&handle(1), soon()).unwrap());
        let request = peer.recv();
        let first = peer.grant(request.id, &[Answer::Grant(fd.as_fd(), 4096)]);
        let grant = grant.join().unwrap();
        let second = peer.grant(request.id, &[Answer::Grant(fd.as_fd(), 4096)]);
        let other = scope.spawn(|| client.acquire(&handle(2), soon()).unwrap_err());
        let request = peer.recv_kind(Kind::Acquire);
        peer.grant(request.id, &[Answer::Refuse(ErrorCode::Stale)]);
        other.join().unwrap();
        assert_eq!(peer.recv_kind(Kind::Release).leases(), second);
        assert_eq!([grant.lease.number()], first[..]);
    });
}

#[test]
fn acquire_when_more_than_max_parked_then_waits_for_its_turn() {
    let broker = FakeBroker::listen();
    let terms = Terms { max_parked: 1, ..Terms::default() };
    let (client, mut peer) = broker.client_with(Client::builder(), terms);
    thread::scope(|scope| {
        let calls: Vec<_> = (0..3)
            .map(|n| (n, &client))
            .map(|(n, c)| scope.spawn(move || c.acquire(&handle(n), soon())))
            .collect();
        for _ in 0..3 {
            let request = peer.recv_kind(Kind::Acquire);
            peer.assert_silent();
            peer.grant(request.id, &[Answer::Refuse(ErrorCode::Stale)]);
        }
        for call in calls {
            assert_eq!(call.join().unwrap().unwrap_err().code, ErrorCode::Stale);
        }
    });
}

#[test]
fn reply_when_of_the_wrong_kind_then_protocol_and_the_end() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client_with(Client::builder().reconnect(false), Terms::default());
    thread::scope(|scope| {
        let error = scope.spawn(|| client.acquire(&handle(1), soon()).unwrap_err());
        let request = peer.recv();
        let mut writer = Writer::new();
        writer.start(Kind::LeaseReply, request.id);
        peer.send(writer.finish(0, 0), &[]);
        assert_eq!(error.join().unwrap().code, ErrorCode::Protocol);
    });
    peer.assert_eof();
    assert!(!client.is_connected());
}

#[test]
fn grant_when_items_are_fewer_than_asked_then_protocol() {
    let broker = FakeBroker::listen();
    let (client, mut peer) =
        broker.client_with(Client::builder().reconnect(false), Terms::default());
    thread::scope(|scope| {
        let call = scope.spawn(|| client.acquire_many(&[handle(1), handle(2)], soon()).unwrap());
        let request = peer.recv();
        peer.grant(request.id, &[Answer::Refuse(ErrorCode::Stale)]);
        for outcome in call.join().unwrap() {
            assert_eq!(outcome.unwrap_err().code, ErrorCode::Protocol);
        }
    });
}

#[test]
fn drop_when_socket_is_full_then_never_waits_and_nothing_is_lost() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    const LEASES: usize = 3 * 253;
    let leases = leases(&client, &mut peer, LEASES);
    let begin = Instant::now();
    drop(leases);
    assert!(begin.elapsed() < PATIENCE / 2);
    let mut released = Vec::new();
    while released.len() < LEASES {
        released.extend(peer.recv_kind(Kind::Release).leases());
    }
    released.sort_unstable();
    assert_eq!(released, (1..=LEASES as u64).collect::<Vec<_>>());
    peer.assert_silent();
}

#[test]
fn call_when_broker_reads_only_after_its_replies_are_read_then_no_deadlock() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    let fd = memory(b"");
    const CALLS: u32 = 400;
    let failed = AtomicUsize::new(0);
    thread::scope(|scope| {
        // The broker's side is full of unasked replies before the client's side is. The broker then
        // waits, like a real one, until the client reads, before it reads itself.
        for slot in 0..CALLS {
            let (client, failed) = (&client, &failed);
            if slot % 50 == 0 {
                scope.spawn(move || {
                    for n in 0..50 {
                        if client.acquire(&handle(slot + n), soon()).is_err() {
                            failed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        }
        for _ in 0..CALLS {
            let request = loop {
                let received = peer.recv();
                if received.kind == Kind::Acquire {
                    break received;
                }
            };
            // Sent twice: nobody waits for the second reply, and its release makes the client send
            // more.
            peer.grant(request.id, &[Answer::Grant(fd.as_fd(), 4096)]);
            peer.grant(request.id, &[Answer::Grant(fd.as_fd(), 4096)]);
        }
    });
    assert_eq!(failed.load(Ordering::Relaxed), 0);
    assert!(client.is_connected());
}

#[test]
fn send_when_both_directions_are_full_then_reads_and_goes_on() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    let leases = leases(&client, &mut peer, 506);
    thread::scope(|scope| {
        // Fills the client's direction: each round sends one message, until the socket is full.
        drop(leases);
        let call = scope.spawn(|| client.acquire(&handle(600), soon()));
        thread::sleep(SILENCE);
        // Fills the broker's direction with more than the socket holds: this returns only when the
        // client reads, although its own send is stuck.
        for n in 0..1000u64 {
            peer.fail(1 << 40 | n, Status::error(ErrorCode::Stale));
        }
        let request = loop {
            let received = peer.recv();
            if received.kind == Kind::Acquire {
                break received;
            }
        };
        peer.grant(request.id, &[Answer::Refuse(ErrorCode::Stale)]);
        assert_eq!(call.join().unwrap().unwrap_err().code, ErrorCode::Stale);
    });
}

#[test]
fn release_many_when_given_back_then_one_message() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    let fd = memory(b"");
    thread::scope(|scope| {
        let handles = [handle(1), handle(2), handle(3)];
        let taken = scope.spawn(move || client.acquire_many(&handles, soon()).map(|g| (client, g)));
        let request = peer.recv();
        let leases = peer.grant(request.id, &[Answer::Grant(fd.as_fd(), 4096); 3]);
        let (_client, grants) = taken.join().unwrap().unwrap();
        Lease::release_many(grants.into_iter().map(|grant| grant.unwrap().lease));
        assert_eq!(peer.recv_kind(Kind::Release).leases(), leases);
        peer.assert_silent();
    });
}
