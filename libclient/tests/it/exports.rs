//! The producer's table with a scripted broker: one registration per allocation, and none for freed
//! memory.

use crate::support::*;
use fdbroker_client::{
    AllocationId, Client, Deadline, Deposit, Drained, Error, ErrorCode, Exports, Handle,
    MemoryKind, Notice, RegisterProgress, RegisterRequest,
};
use fdbroker_protocol::{Facts, Kind};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, OnceLock};
use std::thread;
use std::time::Duration;

const BASE: u64 = 0x7f00_0000_0000;

/// An allocation of `size` bytes at BASE + `offset`, with this id.
fn at(offset: u64, size: u64, owner_allocation_id: u64) -> Deposit {
    let base = BASE + offset;
    Deposit::from(Facts::new(MemoryKind::Memfd, size).owner_allocation_id(owner_allocation_id))
        .base(base)
}

fn id(slot: u32) -> AllocationId {
    AllocationId { slot, generation: 1 }
}

/// An export that must not be called: a known allocation is not exported again.
fn no_export() -> Result<std::os::fd::OwnedFd, Error> {
    panic!("exported although it is known")
}

/// Registers an unknown allocation, as slot `slot`.
#[track_caller]
fn register(exports: &Exports, peer: &Peer, deposit: &Deposit, slot: u32) -> Handle {
    thread::scope(|scope| {
        let call = scope.spawn(|| exports.register(deposit, || Ok(memory(b"")), soon()));
        peer.registered(&peer.recv_kind(Kind::Register), 8, slot);
        call.join().unwrap().unwrap()
    })
}

/// Tests a request until it is done.
fn finish(mut request: RegisterRequest<'_>) -> Vec<Result<Handle, Error>> {
    loop {
        match request.test() {
            RegisterProgress::UnderWay(again) => request = again,
            RegisterProgress::Done(outcomes) => return outcomes,
        }
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn register_start_when_credits_are_few_then_it_asks_and_goes_on_test_by_test() {
    let broker = FakeBroker::listen();
    let terms = Terms { credits: 2, ..Terms::default() };
    let (client, peer) = broker.client_with(Client::builder(), terms);
    let exports = Exports::new(&client);
    let deposits = [at(0, 4096, 1), at(4096, 4096, 2), at(8192, 4096, 3), at(0, 4096, 1)];
    let fd = memory(b"");
    let request = exports.register_start(&deposits, &[fd.as_fd(); 4], soon()).unwrap();
    drop(fd);
    let first = peer.recv_kind(Kind::Register);
    assert_eq!((first.count, first.fds.len()), (2, 2));
    peer.registered(&first, 0, 1);
    let outcomes = thread::scope(|scope| {
        let call = scope.spawn(|| finish(request));
        let ask = peer.recv_kind(Kind::Register);
        assert_eq!((ask.register().0, ask.count, ask.fds.len()), (1, 0, 0));
        peer.registered(&ask, 5, 0);
        let second = peer.recv_kind(Kind::Register);
        assert_eq!((second.count, second.fds.len()), (1, 1));
        peer.registered(&second, 5, 3);
        call.join().unwrap()
    });
    let handles: Vec<Handle> = outcomes.into_iter().map(Result::unwrap).collect();
    assert_eq!(handles, [handle(1), handle(2), handle(3), handle(1)]);
    assert_eq!(exports.len(), 3);
}

#[test]
fn register_start_when_cancelled_before_the_answer_then_undone_and_its_range_is_free() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let exports = Exports::new(&client);
    let (deposit, fd) = (at(0, 4096, 1), memory(b""));
    let request = exports.register_start(&[deposit], &[fd.as_fd()], soon()).unwrap();
    let sent = peer.recv_kind(Kind::Register);
    request.cancel();
    peer.recv_kind(Kind::Cancel);
    peer.registered(&sent, 8, 1);
    let undone = peer.recv_kind(Kind::Unregister);
    assert_eq!(undone.unregister(), [id(1)]);
    peer.unregistered(&undone, true);
    assert_eq!(register(&exports, &peer, &deposit, 2), handle(2));
}

#[test]
fn register_when_known_then_no_message_and_every_interior_pointer_has_its_offset() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let exports = Exports::new(&client);
    let deposit = at(0, 4096, 5);
    assert_eq!(exports.lookup(0, BASE), None);
    let first = register(&exports, &peer, &deposit, 1);
    assert_eq!((first, first.offset_bytes, exports.len()), (handle(1), 0, 1));
    for _ in 0..100 {
        assert_eq!(exports.register(&deposit, no_export, soon()).unwrap(), first);
        let fd = memory(b"");
        assert_eq!(exports.register_shared(&deposit, fd.as_fd(), soon()).unwrap(), first);
    }
    for offset in [0, 1, 17, 4095] {
        assert_eq!(exports.lookup(0, BASE + offset), Some(first.at(offset)));
    }
    for (device, pointer) in [(0, BASE - 1), (0, BASE + 4096), (1, BASE), (0, 0), (0, u64::MAX)] {
        assert_eq!(exports.lookup(device, pointer), None, "{device} {pointer:x}");
    }
    peer.assert_silent();
}

/// Registers `old`s (slots from 1 on), then `new` (slot 50): `retired` of the old ones go at once.
#[track_caller]
fn assert_retires(old: &[Deposit], new: Deposit, retired: &[u32]) {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let exports = Exports::new(&client);
    for (slot, deposit) in (1..).zip(old) {
        register(&exports, &peer, deposit, slot);
    }
    thread::scope(|scope| {
        let call = scope.spawn(|| exports.register(&new, || Ok(memory(b"")), soon()));
        if !retired.is_empty() {
            let mut ids = peer.recv_kind(Kind::Unregister).unregister();
            ids.sort();
            assert_eq!(ids, retired.iter().map(|slot| id(*slot)).collect::<Vec<_>>());
        }
        let request = peer.recv_kind(Kind::Register);
        // The reply is not there yet, but the old registration is gone already.
        for (slot, deposit) in (1..).zip(old) {
            let expected = (!retired.contains(&slot)).then_some(handle(slot));
            assert_eq!(exports.lookup(deposit.facts.device, deposit.base), expected, "slot {slot}");
        }
        peer.registered(&request, 8, 50);
        assert_eq!(call.join().unwrap().unwrap(), handle(50));
    });
    assert_eq!(
        exports.lookup(new.facts.device, new.base + new.facts.size_bytes - 1),
        Some(handle(50).at(new.facts.size_bytes - 1))
    );
    assert_eq!(exports.len(), old.len() - retired.len() + 1);
}

#[test]
fn register_when_the_address_has_another_size_then_the_old_one_is_retired_at_once() {
    assert_retires(&[at(0, 4096, 5)], at(0, 8192, 5), &[1]);
    assert_retires(&[at(0, 8192, 5)], at(0, 4096, 5), &[1]);
}

#[test]
fn register_when_the_address_has_another_id_then_the_old_one_is_retired_at_once() {
    assert_retires(&[at(0, 4096, 5)], at(0, 4096, 6), &[1]);
}

#[test]
fn register_when_it_overlaps_then_all_that_it_overlaps_are_retired_at_once() {
    let old = [at(0, 4096, 1), at(4096, 4096, 2), at(8192, 4096, 3), at(12288, 4096, 4)];
    assert_retires(&old, at(4096 + 4095, 2, 9), &[2, 3]);
    assert_retires(&old, at(0, 16384, 9), &[1, 2, 3, 4]);
    assert_retires(&old, at(4097, 1, 9), &[2]);
    assert_retires(&[at(4096, 65536, 1)], at(8192, 4096, 9), &[1]);
    assert_retires(&[at(4096, 4096, 1)], at(0, 65536, 9), &[1]);
}

#[test]
fn register_when_it_touches_only_or_is_of_another_device_then_nothing_is_retired() {
    assert_retires(&[at(0, 4096, 1), at(8192, 4096, 2)], at(4096, 4096, 9), &[]);
    assert_retires(&[at(0, 4096, 1).facts(at(0, 4096, 1).facts.device(1))], at(0, 4096, 1), &[]);
}

#[test]
fn register_when_without_an_address_then_anew_each_time_and_not_kept() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let exports = Exports::new(&client);
    let deposit = at(0, 4096, 1).base(0);
    assert_eq!(register(&exports, &peer, &deposit, 1), handle(1));
    assert_eq!(register(&exports, &peer, &deposit, 2), handle(2));
    assert_eq!((exports.len(), exports.lookup(0, 0)), (0, None));
    thread::scope(|scope| {
        let call = scope.spawn(|| exports.unregister(id(1)).unwrap());
        let request = peer.recv();
        assert_eq!(request.unregister(), [id(1)]);
        peer.unregistered(&request, true);
        assert_eq!(call.join().unwrap(), Drained(true));
    });
}

#[test]
fn register_when_many_threads_want_the_same_then_one_registration_and_one_export() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client_with(Client::builder().own_fds(3), Terms::default());
    let exports = Exports::new(&client);
    let (exported, barrier) = (AtomicUsize::new(0), Barrier::new(17));
    let export = || {
        exported.fetch_add(1, Ordering::SeqCst);
        Ok(memory(b""))
    };
    thread::scope(|scope| {
        let call = || {
            barrier.wait();
            exports.register(&at(0, 4096, 5), export, soon()).unwrap()
        };
        let calls: Vec<_> = (0..16).map(|_| scope.spawn(call)).collect();
        barrier.wait();
        let request = peer.recv();
        peer.assert_silent();
        peer.registered(&request, 8, 1);
        assert!(calls.into_iter().all(|call| call.join().unwrap() == handle(1)));
    });
    peer.assert_silent();
    assert_eq!((exported.load(Ordering::SeqCst), exports.len()), (1, 1));
}

#[test]
fn register_when_the_first_thread_fails_or_panics_then_the_next_registers_itself() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client_with(Client::builder().own_fds(3), Terms::default());
    let exports = Exports::new(&client);
    let deposit = at(0, 4096, 5);
    for panics in [false, true] {
        let (inside, is_inside) = channel();
        let (go_on, goes_on) = channel();
        thread::scope(|scope| {
            let (exports, deposit) = (&exports, &deposit);
            let first = scope.spawn(move || {
                let export = || {
                    inside.send(()).unwrap();
                    goes_on.recv_timeout(PATIENCE).unwrap();
                    assert!(!panics, "expected: the test's panic");
                    Err(Error::new(ErrorCode::LocalFdLimit, "the test's"))
                };
                catch_unwind(AssertUnwindSafe(|| exports.register(deposit, export, soon())))
            });
            is_inside.recv_timeout(PATIENCE).unwrap();
            let second = scope.spawn(|| exports.register(deposit, || Ok(memory(b"")), soon()));
            peer.assert_silent();
            go_on.send(()).unwrap();
            match first.join().unwrap() {
                Ok(outcome) => assert_eq!(outcome.unwrap_err().code, ErrorCode::LocalFdLimit),
                Err(_) => assert!(panics),
            }
            peer.registered(&peer.recv(), 8, 1);
            assert_eq!(second.join().unwrap().unwrap(), handle(1));
        });
        assert_eq!(exports.retire(0, BASE), Some(id(1)));
        peer.unregistered(&peer.recv_kind(Kind::Unregister), true);
    }
}

#[test]
fn register_when_another_thread_does_not_end_then_timed_out_at_the_deadline() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let exports = Exports::new(&client);
    thread::scope(|scope| {
        let first = scope.spawn(|| exports.register(&at(0, 4096, 5), || Ok(memory(b"")), soon()));
        let request = peer.recv();
        let deadline = Deadline::from_ms(20);
        for other in [at(0, 4096, 5), at(0, 4096, 6)] {
            let error = exports.register(&other, no_export, deadline).unwrap_err();
            assert_eq!(error.code, ErrorCode::TimedOut, "{error}");
        }
        peer.registered(&request, 8, 1);
        // The second registration has shown that other memory is there now.
        assert_eq!(first.join().unwrap().unwrap_err().code, ErrorCode::Stale);
    });
    assert_eq!(peer.recv().unregister(), [id(1)]);
    assert_eq!(exports.len(), 0);
}

#[test]
fn retire_when_under_way_then_the_registration_is_undone() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let exports = Exports::new(&client);
    thread::scope(|scope| {
        let call = scope.spawn(|| exports.register(&at(0, 4096, 5), || Ok(memory(b"")), soon()));
        let request = peer.recv();
        assert_eq!(exports.retire(0, BASE + 1), None, "another address");
        assert_eq!(exports.retire(0, BASE), None, "it has no number yet");
        peer.registered(&request, 8, 1);
        assert_eq!(call.join().unwrap().unwrap_err().code, ErrorCode::Stale);
    });
    assert_eq!(peer.recv().unregister(), [id(1)]);
    assert_eq!((exports.len(), exports.lookup(0, BASE)), (0, None));
}

#[test]
fn register_when_other_memory_is_under_way_there_then_the_broker_hears_of_it_after() {
    let broker = FakeBroker::listen();
    // Leaves room in the export window for the second one to send.
    let (client, peer) = broker.client_with(Client::builder().own_fds(3), Terms::default());
    let exports = Exports::new(&client);
    let (inside, is_inside) = channel();
    let (go_on, goes_on) = channel();
    thread::scope(|scope| {
        let exports = &exports;
        let old = scope.spawn(move || {
            let export = || {
                inside.send(()).unwrap();
                goes_on.recv_timeout(PATIENCE).unwrap();
                Ok(memory(b""))
            };
            exports.register(&at(0, 4096, 5), export, soon())
        });
        is_inside.recv_timeout(PATIENCE).unwrap();
        // Shows that other memory is there now.
        let error = exports.register(&at(2048, 4096, 6), no_export, Deadline::from_ms(20));
        assert_eq!(error.unwrap_err().code, ErrorCode::TimedOut);
        let new = scope.spawn(|| exports.register(&at(2048, 4096, 6), || Ok(memory(b"")), soon()));
        peer.assert_silent();
        go_on.send(()).unwrap();
        let request = peer.recv();
        assert_eq!(request.register().1[0].facts.owner_allocation_id.get(), 5);
        peer.registered(&request, 8, 1);
        assert_eq!(old.join().unwrap().unwrap_err().code, ErrorCode::Stale);
        // In any order: the end of the old one, and the new one.
        let mut kinds = Vec::new();
        for _ in 0..2 {
            let request = peer.recv();
            kinds.push(request.kind);
            match request.kind {
                Kind::Unregister => assert_eq!(request.unregister(), [id(1)]),
                _ => peer.registered(&request, 8, 2),
            }
        }
        assert!(kinds.contains(&Kind::Unregister) && kinds.contains(&Kind::Register));
        assert_eq!(new.join().unwrap().unwrap(), handle(2));
    });
    assert_eq!(exports.lookup(0, BASE + 2048), Some(handle(2)));
    assert_eq!(exports.lookup(0, BASE), None);
}

#[test]
fn register_when_it_must_wait_then_what_else_it_overlaps_is_retired_all_the_same() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let exports = Exports::new(&client);
    register(&exports, &peer, &at(8192, 4096, 1), 1);
    let export = || Ok(memory(b""));
    thread::scope(|scope| {
        let under_way = scope.spawn(|| exports.register(&at(0, 4096, 2), export, soon()));
        let first = peer.recv_kind(Kind::Register);
        let over_both = scope.spawn(|| exports.register(&at(0, 12288, 3), export, soon()));
        assert_eq!(peer.recv().unregister(), [id(1)]);
        assert_eq!(exports.lookup(0, BASE + 8192), None);
        peer.registered(&first, 8, 2);
        assert_eq!(under_way.join().unwrap().unwrap_err().code, ErrorCode::Stale);
        for _ in 0..2 {
            let request = peer.recv();
            match request.kind {
                Kind::Unregister => assert_eq!(request.unregister(), [id(2)]),
                _ => peer.registered(&request, 8, 3),
            }
        }
        assert_eq!(over_both.join().unwrap().unwrap(), handle(3));
    });
    assert_eq!((exports.lookup(0, BASE + 8192), exports.len()), (Some(handle(3).at(8192)), 1));
}

#[test]
fn retire_when_known_then_gone_at_once_and_unregistered_without_waiting() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let exports = Exports::new(&client);
    register(&exports, &peer, &at(0, 4096, 5), 1);
    assert_eq!(exports.retire(1, BASE), None, "another device");
    assert_eq!(exports.retire(0, BASE), Some(id(1)));
    assert_eq!((exports.lookup(0, BASE + 9), exports.len()), (None, 0));
    assert_eq!(exports.retire(0, BASE), None, "once");
    assert_eq!(peer.recv().unregister(), [id(1)]);
    // The same once more is a new registration.
    assert_eq!(register(&exports, &peer, &at(0, 4096, 5), 2), handle(2));
}

#[test]
fn unregister_when_known_then_gone_at_once_and_the_answer_is_waited_for() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let exports = Exports::new(&client);
    register(&exports, &peer, &at(0, 4096, 5), 1);
    thread::scope(|scope| {
        let call = scope.spawn(|| exports.unregister(id(1)).unwrap());
        let request = peer.recv();
        assert_eq!(request.unregister(), [id(1)]);
        assert_eq!((exports.lookup(0, BASE), exports.len()), (None, 0));
        peer.unregistered(&request, false);
        assert_eq!(call.join().unwrap(), Drained(false));
    });
}

#[test]
fn lookup_when_ended_by_others_then_none_and_register_makes_a_new_one() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let exports = Exports::new(&client);
    let deposit = at(0, 4096, 5);
    register(&exports, &peer, &deposit, 1);
    peer.page.end(id(1));
    assert_eq!(exports.lookup(0, BASE), None);
    thread::scope(|scope| {
        let call = scope.spawn(|| exports.register(&deposit, || Ok(memory(b"")), soon()));
        assert_eq!(peer.recv().unregister(), [id(1)]);
        peer.registered(&peer.recv(), 8, 2);
        assert_eq!(call.join().unwrap().unwrap(), handle(2));
    });
    assert_eq!((exports.lookup(0, BASE + 1), exports.len()), (Some(handle(2).at(1)), 1));
}

#[test]
fn reconnect_when_registered_before_then_known_unless_freed_replaced_or_lost() {
    let broker = FakeBroker::listen();
    let (sender, notices) = channel();
    let builder = Client::builder().on_recall(|_| Err(ErrorCode::Again));
    let builder = builder.on_notice(move |notice| {
        let _ = sender.send(notice);
    });
    let (client, peer) = broker.client_with(builder, Terms::default());
    let exports = Exports::new(&client);
    let recallable = |address, id| at(address, 4096, id).recallable(true);
    let [stays, freed, replaced, refused] =
        [(0, 5), (65536, 6), (131_072, 7), (262_144, 8)].map(|(at, id)| recallable(at, id));
    let resident = at(524_288, 4096, 9);
    for (slot, deposit) in (1..).zip([stays, freed, replaced, refused, resident]) {
        register(&exports, &peer, &deposit, slot);
    }
    drop(peer);
    assert_eq!(notices.recv_timeout(PATIENCE).unwrap(), Notice::Disconnected);
    assert_eq!((exports.lookup(0, BASE), exports.len()), (None, 5));
    assert_eq!(exports.retire(0, freed.base), Some(id(2)));
    for deposit in [stays, replaced.facts(replaced.facts.owner_allocation_id(70))] {
        let error = exports.register(&deposit, no_export, soon()).unwrap_err();
        assert_eq!(error.code, ErrorCode::NotConnected);
    }
    let peer = broker.accept(Terms::default());
    let request = peer.recv();
    let mut named: Vec<_> = request.redeposit().iter().map(|item| item.handle.get()).collect();
    let answer = |handle: &Handle| match handle.id() == id(4) {
        true => Err(ErrorCode::Lost),
        false => Ok(()),
    };
    peer.named(&request, &named.iter().map(answer).collect::<Vec<_>>());
    named.sort_by_key(|handle| handle.id());
    assert_eq!(
        named,
        [1, 4].map(handle),
        "neither freed, nor replaced, nor without a way to export it"
    );
    let lost = |notice| match notice {
        Notice::RegistrationLost { id, owner_allocation_id, base, code, .. } => {
            (id, owner_allocation_id, base, code)
        }
        other => panic!("{other:?}"),
    };
    let told = [(); 2].map(|()| lost(notices.recv_timeout(PATIENCE).unwrap()));
    let gone = ErrorCode::Lost;
    assert_eq!(told, [(id(5), 9, resident.base, gone), (id(4), 8, refused.base, gone)]);
    assert!(matches!(notices.recv_timeout(PATIENCE).unwrap(), Notice::Reconnected { .. }));
    // The new broker's page shows this for all, for a time.
    (1..6).for_each(|slot| peer.page.set(id(slot)));
    assert_eq!((exports.lookup(0, BASE + 7), exports.len()), (Some(handle(1).at(7)), 1));
    assert_eq!(exports.register(&stays, no_export, soon()).unwrap(), handle(1));
    for deposit in [freed, replaced, refused, resident] {
        assert_eq!(exports.lookup(0, deposit.base), None);
    }
    peer.assert_silent();
    assert_eq!(exports.retire(0, stays.base), Some(id(1)));
    assert_eq!(peer.recv().unregister(), [id(1)]);
}

#[test]
fn register_when_the_connection_is_lost_before_the_answer_then_not_kept() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client_with(Client::builder().reconnect(false), Terms::default());
    let exports = Exports::new(&client);
    thread::scope(|scope| {
        let calls = [0, 1]
            .map(|_| scope.spawn(|| exports.register(&at(0, 64, 5), || Ok(memory(b"")), soon())));
        peer.recv();
        drop(peer);
        for call in calls {
            assert_eq!(call.join().unwrap().unwrap_err().code, ErrorCode::NotConnected);
        }
    });
    assert_eq!(exports.len(), 0);
}

#[test]
fn register_many_when_some_are_known_twice_or_without_address_then_only_the_rest_travels() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let exports = Exports::new(&client);
    register(&exports, &peer, &at(0, 4096, 1), 1);
    let deposits = [
        at(0, 4096, 1),
        at(8192, 4096, 2),
        at(8192, 4096, 2),
        at(0, 4096, 3).base(0),
        at(16384, 4096, 4),
    ];
    let fd = memory(b"");
    thread::scope(|scope| {
        let call = scope.spawn(|| exports.register_many(&deposits, &[fd.as_fd(); 5], soon()));
        let request = peer.recv();
        let ids: Vec<u64> =
            request.register().1.iter().map(|item| item.facts.owner_allocation_id.get()).collect();
        assert_eq!(ids, [2, 3, 4]);
        peer.registered(&request, 8, 10);
        let handles = call.join().unwrap().unwrap().into_iter().map(Result::unwrap);
        assert_eq!(handles.collect::<Vec<_>>(), [1, 10, 10, 11, 12].map(handle));
    });
    peer.assert_silent();
    assert_eq!(exports.len(), 3);
    let again = exports.register_many(&deposits[..3], &[fd.as_fd(); 3], soon()).unwrap();
    assert!(again.into_iter().all(|one| one.is_ok()));
}

#[test]
fn register_many_when_its_own_overlap_then_one_is_left_and_the_others_are_stale() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let exports = Exports::new(&client);
    let deposits = [at(0, 4096, 1), at(2048, 4096, 2), at(65536, 4096, 3)];
    let fd = memory(b"");
    thread::scope(|scope| {
        let call = scope.spawn(|| exports.register_many(&deposits, &[fd.as_fd(); 3], soon()));
        let request = peer.recv();
        assert_eq!(request.count, 2);
        peer.registered(&request, 8, 10);
        assert_eq!(peer.recv().unregister(), [id(10)]);
        peer.registered(&peer.recv(), 8, 20);
        let outcomes = call.join().unwrap().unwrap();
        assert_eq!(outcomes[0].as_ref().unwrap_err().code, ErrorCode::Stale);
        assert_eq!(outcomes[1].as_ref().unwrap(), &handle(20));
        assert_eq!(outcomes[2].as_ref().unwrap(), &handle(11));
    });
    assert_eq!(exports.lookup(0, BASE + 2048), Some(handle(20)));
    assert_eq!((exports.lookup(0, BASE), exports.len()), (None, 2));
}

#[test]
fn register_many_when_two_threads_want_the_same_in_opposite_order_then_both_get_all() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let exports = Exports::new(&client);
    const COUNT: u64 = 40;
    let deposits: Vec<_> = (0..COUNT).map(|n| at(n * 4096, 4096, n)).collect();
    let reversed: Vec<_> = deposits.iter().rev().copied().collect();
    let fd = memory(b"");
    let fds = vec![fd.as_fd(); COUNT as usize];
    thread::scope(|scope| {
        let calls = [&deposits, &reversed]
            .map(|deposits| scope.spawn(|| exports.register_many(deposits, &fds, soon()).unwrap()));
        let mut registered = 0;
        while registered < COUNT as u32 {
            let request = peer.recv_kind(Kind::Register);
            peer.registered(&request, 8, registered);
            registered += request.count as u32;
        }
        let [one, other] = calls
            .map(|call| call.join().unwrap().into_iter().map(Result::unwrap).collect::<Vec<_>>());
        assert_eq!(one, other.into_iter().rev().collect::<Vec<_>>());
    });
    peer.assert_silent();
    assert_eq!(exports.len(), COUNT as usize);
}

#[test]
fn lookup_and_retire_when_in_a_callback_then_work_and_register_of_the_unknown_is_refused() {
    static EXPORTS: OnceLock<Arc<Exports>> = OnceLock::new();
    let broker = FakeBroker::listen();
    let builder = Client::builder().on_recall(|_| {
        let exports = EXPORTS.get().ok_or(ErrorCode::Again)?;
        assert!(exports.lookup(0, BASE).is_some());
        assert!(exports.register(&at(0, 4096, 5), no_export, soon()).is_ok());
        let error = exports.register(&at(8192, 4096, 6), no_export, soon()).unwrap_err();
        assert_eq!(error.code, ErrorCode::NotSupported);
        assert_eq!(exports.unregister(id(1)).unwrap_err().code, ErrorCode::NotSupported);
        assert!(exports.retire(0, BASE).is_some());
        Err(ErrorCode::Cancelled)
    });
    let (client, peer) = broker.client_with(builder, Terms::default());
    let exports = Arc::new(Exports::new(&client));
    register(&exports, &peer, &at(0, 4096, 5), 1);
    assert!(EXPORTS.set(Arc::clone(&exports)).is_ok());
    peer.recall(&[recall_item(id(1), 5, BASE)]);
    // A panic in the callback would be answered by INTERNAL.
    assert_eq!(peer.recv_event().supply()[0].code.get(), ErrorCode::Cancelled as u16);
    assert_eq!(peer.recv().unregister(), [id(1)]);
}
