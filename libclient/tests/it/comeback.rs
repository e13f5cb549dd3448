//! A scripted broker that was killed and comes back: what the library names to it, in which order,
//! and what happens to the things that it refuses. Must never rely on durations.

use crate::support::*;
use fdbroker_client::{
    Access, Client, ClientBuilder, Deposit, ErrorCode, Grant, Lease, Notice, Registration,
};
use fdbroker_protocol::message::{RedepositItem, register_flags};
use fdbroker_protocol::page::FUTEX_OWNER_DIED;
use fdbroker_protocol::{AllocationId, Handle, Kind, Status};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

fn noticing() -> (ClientBuilder, Receiver<Notice>) {
    let (sender, receiver) = channel();
    let builder = Client::builder().on_recall(|_| Err(ErrorCode::Again)).on_notice(move |notice| {
        let _ = sender.send(notice);
    });
    (builder, receiver)
}

fn next(notices: &Receiver<Notice>) -> Notice {
    notices.recv_timeout(PATIENCE).unwrap()
}

#[track_caller]
fn assert_reconnected(notices: &Receiver<Notice>) {
    let notice = next(notices);
    assert!(matches!(notice, Notice::Reconnected { .. }), "{notice:?}");
}

fn recallable(id: u64) -> Deposit {
    deposit(id).recallable(true)
}

/// Registers allocations at the slots from `first` on.
fn register(client: &Client, peer: &Peer, deposits: &[Deposit], first: u32) -> Vec<Registration> {
    let fd = memory(b"");
    let fds = vec![fd.as_fd(); deposits.len()];
    thread::scope(|scope| {
        let call = scope.spawn(|| client.register_many(deposits, &fds, soon()).unwrap());
        peer.registered(&peer.recv_kind(Kind::Register), 253, first);
        call.join().unwrap().into_iter().map(Result::unwrap).collect()
    })
}

/// Acquires the handles of the slots from 1 on, as the scripted broker numbers them.
fn acquire(client: &Client, peer: &mut Peer, count: usize) -> Vec<Grant> {
    let fd = memory(b"");
    let first = peer.next_lease as u32;
    let handles: Vec<Handle> = (first..).take(count).map(handle).collect();
    thread::scope(|scope| {
        let call = scope.spawn(|| client.acquire_many(&handles, soon()).unwrap());
        let request = peer.recv_kind(Kind::Acquire);
        peer.grant(request.id, &vec![Answer::Grant(fd.as_fd(), 4096); count]);
        let grants: Vec<Grant> = call.join().unwrap().into_iter().map(Result::unwrap).collect();
        grants.iter().for_each(|grant| peer.page.set(grant.info.id));
        grants
    })
}

fn id(slot: u32) -> AllocationId {
    handle(slot).id()
}

fn lose(peer: Peer, notices: &Receiver<Notice>) {
    drop(peer);
    assert_eq!(next(notices), Notice::Disconnected);
}

#[test]
fn comeback_when_held_then_named_before_anything_else_and_good_under_new_numbers() {
    let broker = FakeBroker::listen();
    let (builder, notices) = noticing();
    let (client, mut peer) = broker.client_with(builder, Terms::default());
    let registered = register(&client, &peer, &[recallable(1), recallable(2)], 100);
    let mut grants = acquire(&client, &mut peer, 3).into_iter();
    let open = grants.next().unwrap();
    let import = grants.next().unwrap().import(Access::Read, 0).unwrap();
    peer.recv_kind(Kind::Mapped);
    drop(grants);
    peer.recv_kind(Kind::Release);
    lose(peer, &notices);

    let mut peer = broker.accept(Terms::default());
    peer.next_lease = 50;
    let request = peer.recv();
    let mut named: Vec<_> =
        request.redeposit().iter().map(|item| (item.handle.get(), item.token)).collect();
    named.sort_by_key(|(handle, _)| handle.id());
    assert_eq!(named, [(handle(100), [9; 16]), (handle(101), [9; 16])]);
    assert!(request.fds.is_empty());
    assert!(!client.is_connected() && !open.lease.is_current());
    assert_eq!(client.acquire(&handle(1), soon()).unwrap_err().code, ErrorCode::NotConnected);
    peer.named(&request, &[Ok(()), Ok(())]);
    let request = peer.recv();
    assert_eq!(request.declare(), [(id(1), true), (id(2), false)], "not the one given back");
    (1..3).for_each(|slot| peer.page.set(id(slot)));
    assert!(!import.is_current() && !client.is_current(id(1)), "not before the answer");
    let leases = peer.declared(&request, &[Ok(()), Ok(())]);
    assert_reconnected(&notices);

    assert!(open.lease.is_current() && import.is_current());
    assert_eq!([open.lease.number(), import.lease().number()], leases[..]);
    let opened = open.import(Access::Read, 0).unwrap();
    assert_eq!(peer.recv_kind(Kind::Mapped).leases(), [leases[0]]);
    drop(opened);
    assert_eq!(peer.recv_kind(Kind::Release).leases(), [leases[0]]);
    drop(import);
    assert_eq!(peer.recv_kind(Kind::Release).leases(), [leases[1]]);
    thread::scope(|scope| {
        let call = scope.spawn(|| client.unregister(&registered[0]));
        let request = peer.recv_kind(Kind::Unregister);
        assert_eq!(request.unregister(), [id(100)]);
        peer.unregistered(&request, true);
        assert!(call.join().unwrap().unwrap().0);
    });
    peer.assert_silent();
}

#[test]
fn comeback_when_refused_then_told_one_by_one_and_no_broker_hears_of_them_again() {
    let broker = FakeBroker::listen();
    let (builder, notices) = noticing();
    let (client, mut peer) = broker.client_with(builder, Terms::default());
    let registered = register(&client, &peer, &[recallable(1), deposit(2), recallable(3)], 100);
    let grants = acquire(&client, &mut peer, 2);
    lose(peer, &notices);

    let mut peer = broker.accept(Terms::default());
    peer.next_lease = 50;
    let request = peer.recv();
    let refused = request.redeposit()[0].handle.get().id();
    peer.named(&request, &[Err(ErrorCode::NotPermitted), Ok(())]);
    let request = peer.recv();
    peer.declared(&request, &[Err(ErrorCode::OwnerGone), Ok(())]);
    let told = [(); 4].map(|()| next(&notices));
    let lost = |notice: &Notice| match *notice {
        Notice::RegistrationLost { id, owner_allocation_id, base: 0, code, .. } => {
            (id, owner_allocation_id, code)
        }
        ref other => panic!("{other:?}"),
    };
    let refused_id = if refused == id(100) { 1 } else { 3 };
    assert_eq!(lost(&told[0]), (id(101), 2, ErrorCode::Lost), "it cannot be recalled");
    assert_eq!(lost(&told[1]), (refused, refused_id, ErrorCode::NotPermitted));
    assert!(is_revoked(&told[2], id(1), 1, ErrorCode::OwnerGone), "{:?}", told[2]);
    assert!(matches!(told[3], Notice::Reconnected { .. }));
    // The page shows it alive by chance.
    peer.page.set(id(1));
    assert!(!grants[0].lease.is_current());
    let error = client.unregister(&registered[1]).unwrap_err();
    assert_eq!(error.code, ErrorCode::Stale);
    let mut leases = grants.into_iter().map(|grant| grant.lease);
    drop(leases.next());
    peer.assert_silent();
    lose(peer, &notices);

    let mut peer = broker.accept(Terms::default());
    let request = peer.recv();
    assert_eq!(request.redeposit().len(), 1);
    peer.named(&request, &[Ok(())]);
    let request = peer.recv();
    assert_eq!(request.declare(), [(id(2), true)]);
    peer.declared(&request, &[Ok(())]);
    assert_reconnected(&notices);
}

#[test]
fn comeback_when_ended_while_there_was_no_broker_then_not_named() {
    let broker = FakeBroker::listen();
    let (builder, notices) = noticing();
    let (client, mut peer) = broker.client_with(builder, Terms::default());
    let at = |id, base| recallable(id).base(base);
    let deposits = [at(1, 4096), at(2, 8192), at(3, 12288)];
    let registered = register(&client, &peer, &deposits, 100);
    let mut leases: Vec<Lease> =
        acquire(&client, &mut peer, 3).into_iter().map(|grant| grant.lease).collect();
    lose(peer, &notices);
    assert!(!client.unregister(&registered[0]).unwrap().0, "nobody knows whether it is drained");
    assert_eq!(client.unregister(&registered[0]).unwrap_err().code, ErrorCode::Stale);
    // Other memory at the second one's address.
    let error = client.register(&at(9, 8192), memory(b"").as_fd(), soon()).unwrap_err();
    assert_eq!(error.code, ErrorCode::NotConnected);
    assert_eq!(leases.remove(0).release().unwrap_err().code, ErrorCode::NotConnected);
    leases[0].mapped();

    let mut peer = broker.accept(Terms::default());
    let request = peer.recv();
    let named: Vec<_> = request.redeposit().iter().map(|item| item.handle.get().id()).collect();
    assert_eq!(named, [id(102)]);
    peer.named(&request, &[Ok(())]);
    let request = peer.recv();
    assert_eq!(request.declare(), [(id(2), false), (id(3), true)]);
    peer.declared(&request, &[Ok(()), Ok(())]);
    assert_reconnected(&notices);
    assert_eq!(client.unregister(&registered[1]).unwrap_err().code, ErrorCode::Stale);
    peer.assert_silent();
}

#[test]
fn unregister_when_the_broker_is_lost_before_its_answer_then_ended_all_the_same() {
    let broker = FakeBroker::listen();
    let (builder, notices) = noticing();
    let (client, peer) = broker.client_with(builder, Terms::default());
    let registered = register(&client, &peer, &[recallable(1)], 100);
    thread::scope(|scope| {
        let call = scope.spawn(|| client.unregister(&registered[0]));
        peer.recv_kind(Kind::Unregister);
        lose(peer, &notices);
        assert!(!call.join().unwrap().unwrap().0);
    });
    let peer = broker.accept(Terms::default());
    assert_reconnected(&notices);
    peer.assert_silent();
}

#[test]
fn comeback_when_ended_before_the_answer_then_ended_at_the_broker_too() {
    let broker = FakeBroker::listen();
    let (builder, notices) = noticing();
    let (client, mut peer) = broker.client_with(builder, Terms::default());
    let registered = register(&client, &peer, &[recallable(1)], 100);
    let mut leases: Vec<Lease> =
        acquire(&client, &mut peer, 2).into_iter().map(|grant| grant.lease).collect();
    lose(peer, &notices);
    let mut peer = broker.accept(Terms::default());
    peer.next_lease = 50;
    let request = peer.recv();
    assert!(!client.unregister(&registered[0]).unwrap().0);
    peer.named(&request, &[Ok(())]);
    // The end of one and the declaration of the others come in either order.
    let (ended, declared): (Vec<_>, Vec<_>) =
        [peer.recv(), peer.recv()].into_iter().partition(|one| one.kind == Kind::Unregister);
    assert_eq!(ended[0].unregister(), [id(100)]);
    peer.unregistered(&ended[0], true);
    drop(leases.remove(0));
    leases[0].mapped();
    let new = peer.declared(&declared[0], &[Ok(()), Ok(())]);
    assert_eq!(peer.recv_kind(Kind::Mapped).leases(), [new[1]]);
    assert_eq!(peer.recv_kind(Kind::Release).leases(), [new[0]]);
    assert_reconnected(&notices);
    assert_eq!(leases[0].number(), new[1]);
}

#[test]
fn comeback_when_registered_twice_then_named_once_and_ended_by_the_second_unregister() {
    let broker = FakeBroker::listen();
    let (builder, notices) = noticing();
    let (client, peer) = broker.client_with(builder, Terms::default());
    let deposit = recallable(1).base(4096);
    let once = register(&client, &peer, &[deposit], 100);
    assert_eq!(register(&client, &peer, &[deposit], 100), once);
    lose(peer, &notices);
    let peer = broker.accept(Terms::default());
    let request = peer.recv();
    assert_eq!(request.count, 1);
    peer.named(&request, &[Ok(())]);
    assert_reconnected(&notices);
    assert!(!client.unregister(&once[0]).unwrap().0, "one is left");
    peer.assert_silent();
    thread::scope(|scope| {
        let call = scope.spawn(|| client.unregister(&once[0]));
        peer.unregistered(&peer.recv_kind(Kind::Unregister), true);
        assert!(call.join().unwrap().unwrap().0);
    });
}

#[test]
fn comeback_when_what_was_to_replace_it_was_refused_and_it_is_registered_again_then_named() {
    let broker = FakeBroker::listen();
    let (builder, notices) = noticing();
    let (client, peer) = broker.client_with(builder, Terms::default());
    let [first, other] = [1, 2].map(|id| recallable(id).base(4096));
    register(&client, &peer, &[first], 100);
    let refused = thread::scope(|scope| {
        let call = scope.spawn(|| client.register(&other, memory(b"").as_fd(), soon()));
        let request = peer.recv_kind(Kind::Register);
        peer.fail(request.id, Status::error(ErrorCode::NoQuota));
        call.join().unwrap()
    });
    assert_eq!(refused.unwrap_err().code, ErrorCode::NoQuota);
    // The broker has not ended it, so it counts it again.
    register(&client, &peer, &[first], 100);
    lose(peer, &notices);
    let peer = broker.accept(Terms::default());
    let request = peer.recv_kind(Kind::Redeposit);
    assert_eq!(request.redeposit()[0].handle.get().id(), id(100));
    peer.named(&request, &[Ok(())]);
    assert_reconnected(&notices);
    // It is replaced, so the next broker does not hear of it.
    register(&client, &peer, &[other], 200);
    lose(peer, &notices);
    let peer = broker.accept(Terms::default());
    let request = peer.recv_kind(Kind::Redeposit);
    let named: Vec<_> = request.redeposit().iter().map(|item| item.handle.get().id()).collect();
    assert_eq!(named, [id(200)]);
    peer.named(&request, &[Ok(())]);
    assert_reconnected(&notices);
}

#[test]
fn comeback_when_registered_again_over_the_next_connection_then_the_last_unregister_ends_it() {
    let broker = FakeBroker::listen();
    let (builder, notices) = noticing();
    let (client, peer) = broker.client_with(builder, Terms::default());
    let deposit = recallable(1).base(4096);
    let first = register(&client, &peer, &[deposit], 100).remove(0);
    let come_back = |peer: Peer| {
        lose(peer, &notices);
        let peer = broker.accept(Terms::default());
        peer.named(&peer.recv_kind(Kind::Redeposit), &[Ok(())]);
        assert_reconnected(&notices);
        peer
    };
    // The broker hears of both ends: it counted both.
    let end = |peer: &Peer, one: &Registration| {
        thread::scope(|scope| {
            let call = scope.spawn(|| client.unregister(one));
            let request = peer.recv_kind(Kind::Unregister);
            assert_eq!(request.unregister(), [id(100)]);
            peer.unregistered(&request, true);
            call.join().unwrap().unwrap();
        });
    };
    let peer = come_back(peer);
    let second = register(&client, &peer, &[deposit], 100).remove(0);
    end(&peer, &second);
    let peer = come_back(peer);
    end(&peer, &first);
    lose(peer, &notices);
    let peer = broker.accept(Terms::default());
    assert_reconnected(&notices);
    peer.assert_silent();
}

#[test]
fn comeback_when_more_than_a_message_takes_then_in_as_many_as_it_takes() {
    let broker = FakeBroker::listen();
    let (builder, notices) = noticing();
    let terms = Terms { credits: 1000, ..Terms::default() };
    let (client, mut peer) = broker.client_with(builder, terms);
    let mut held = Vec::new();
    for _ in 0..3 {
        held.extend(acquire(&client, &mut peer, 200).into_iter().map(|grant| grant.lease));
    }
    lose(peer, &notices);
    let mut peer = broker.accept(Terms::default());
    for expected in [253, 253, 94] {
        let request = peer.recv_kind(Kind::Declare);
        assert_eq!(request.count, expected);
        peer.declared(&request, &vec![Ok(()); expected]);
    }
    assert_reconnected(&notices);
    let numbers: Vec<u64> = held.iter().map(Lease::number).collect();
    assert_eq!(numbers, (1..=600).collect::<Vec<_>>());
}

#[test]
fn comeback_when_the_broker_dies_again_while_it_is_told_then_all_is_named_to_the_next() {
    let broker = FakeBroker::listen();
    let (builder, notices) = noticing();
    let (client, mut peer) = broker.client_with(builder, Terms::default());
    register(&client, &peer, &[recallable(1), recallable(2)], 100);
    let grants = acquire(&client, &mut peer, 2);
    lose(peer, &notices);
    // The broker dies before the first answer, after half of them, and before the last.
    for answered in 0..3 {
        let mut peer = broker.accept(Terms::default());
        peer.next_lease = 50;
        let request = peer.recv();
        assert_eq!(request.redeposit().len(), 2);
        if answered > 0 {
            peer.named(&request, &[Ok(()), Ok(())]);
            let request = peer.recv();
            assert_eq!(request.declare().len(), 2);
            if answered > 1 {
                // It may die before the client has read the answer.
                peer.declared(&request, &[Ok(()), Ok(())]);
            }
        }
    }
    let mut peer = broker.accept(Terms::default());
    peer.next_lease = 70;
    let request = peer.recv();
    peer.named(&request, &[Ok(()), Ok(())]);
    let request = peer.recv();
    let leases = peer.declared(&request, &[Ok(()), Ok(())]);
    // It may have seen the third one for a moment before its release.
    eventually("it is connected", || client.is_connected());
    eventually("the numbers are those of the last", || {
        grants.iter().map(|grant| grant.lease.number()).eq(leases.iter().copied())
    });
}

#[test]
fn comeback_when_recalled_meanwhile_then_answered_before_the_declaration_is() {
    for dispatch in [false, true] {
        let broker = FakeBroker::listen();
        let (builder, notices) = noticing();
        let builder = builder
            .dispatch(dispatch)
            .on_recall(|recall| Ok(fdbroker_client::RecallAnswer::unchanged(recall, memory(b""))));
        let (client, mut peer) = broker.client_with(builder, Terms::default());
        let done = std::sync::atomic::AtomicBool::new(false);
        thread::scope(|scope| {
            let (client, done) = (&client, &done);
            let serve = move || {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    client.dispatch(Duration::from_millis(5)).unwrap();
                }
            };
            if dispatch {
                scope.spawn(serve);
            }
            register(client, &peer, &[recallable(1)], 100);
            let grants = acquire(client, &mut peer, 1);
            lose(peer, &notices);
            let mut peer = broker.accept(Terms::default());
            let request = peer.recv();
            peer.named(&request, &[Ok(())]);
            let declare = peer.recv();
            peer.recall(&[recall_item(id(100), 1, 0)]);
            let supply = peer.recv_event();
            assert_eq!((supply.kind, supply.fds.len()), (Kind::Supply, 1));
            peer.declared(&declare, &[Ok(())]);
            assert_reconnected(&notices);
            drop(grants);
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
}

#[test]
fn unregister_when_named_already_and_the_connection_is_not_there_yet_then_the_broker_hears_of_it() {
    for keep in [false, true] {
        let broker = FakeBroker::listen();
        let (builder, notices) = noticing();
        let (client, mut peer) = broker.client_with(builder, Terms::default());
        let made = register(&client, &peer, &[recallable(1).keep(keep)], 100);
        let grants = acquire(&client, &mut peer, 1);
        lose(peer, &notices);
        let mut peer = broker.accept(Terms::default());
        peer.named(&peer.recv_kind(Kind::Redeposit), &[Ok(())]);
        let declare = peer.recv_kind(Kind::Declare);

        assert!(!client.is_connected());
        assert!(!client.unregister(&made[0]).unwrap().0);
        let request = peer.recv_kind(Kind::Unregister);
        assert_eq!(request.unregister(), [id(100)]);
        peer.unregistered(&request, true);
        peer.declared(&declare, &[Ok(())]);
        assert_reconnected(&notices);
        drop(grants);
    }
}

#[test]
fn comeback_when_again_is_answered_then_named_again() {
    let broker = FakeBroker::listen();
    let (builder, notices) = noticing();
    let (client, peer) = broker.client_with(builder, Terms::default());
    register(&client, &peer, &[recallable(1)], 100);
    lose(peer, &notices);
    let peer = broker.accept(Terms::default());
    for _ in 0..3 {
        let request = peer.recv_kind(Kind::Redeposit);
        peer.named(&request, &[Err(ErrorCode::Again)]);
    }
    let request = peer.recv_kind(Kind::Redeposit);
    peer.named(&request, &[Ok(())]);
    assert_reconnected(&notices);
}

#[test]
fn liveness_when_it_dies_and_comes_back_on_the_same_page_then_all_goes_on_and_nothing_is_named() {
    let broker = FakeBroker::listen();
    let (builder, notices) = noticing();
    let (client, mut peer) = broker.client_with(builder, Terms::default());
    let grants = acquire(&client, &mut peer, 1);
    assert!(grants[0].lease.is_current());
    peer.page.set_liveness(1 | FUTEX_OWNER_DIED);
    assert!(!grants[0].lease.is_current() && client.is_connected());
    // A thread of another process.
    peer.page.set_liveness(77);
    assert!(grants[0].lease.is_current());
    peer.assert_silent();
    assert!(notices.try_recv().is_err());
}

#[test]
fn client_when_dropped_while_the_next_broker_is_told_then_its_connection_ends() {
    for dispatch in [false, true] {
        let broker = FakeBroker::listen();
        let (builder, notices) = noticing();
        let (client, mut peer) = broker.client_with(builder.dispatch(dispatch), Terms::default());
        let grants = acquire(&client, &mut peer, 1);
        drop(peer);
        let peer = thread::scope(|scope| {
            let accept = scope.spawn(|| broker.accept(Terms::default()));
            while dispatch && !accept.is_finished() {
                client.dispatch(Duration::from_millis(1)).unwrap();
            }
            accept.join().unwrap()
        });
        assert_eq!(next(&notices), Notice::Disconnected);
        if dispatch {
            eventually("it declares", || {
                client.dispatch(Duration::from_millis(1)).unwrap();
                receive(peer.socket.as_fd(), Duration::ZERO).is_ok()
            });
        } else {
            peer.recv_kind(Kind::Declare);
        }
        drop(client);
        peer.assert_eof();
        drop(grants);
    }
}

#[test]
fn comeback_when_a_kept_one_has_ended_unheard_then_it_is_named_as_ended_until_it_is_drained() {
    let broker = FakeBroker::listen();
    let (builder, notices) = noticing();
    let (client, peer) = broker.client_with(builder, Terms::default());
    let kept = |id| deposit(id).base(4096 * id).keep(true);
    let made = register(&client, &peer, &[1, 2, 3, 4].map(kept), 100);
    let unregister = |one| client.unregister(one).unwrap().0;
    thread::scope(|scope| {
        let call = scope.spawn(|| unregister(&made[0]));
        peer.unregistered(&peer.recv_kind(Kind::Unregister), false);
        assert!(!call.join().unwrap());
        // The broker is lost with the message.
        let call = scope.spawn(|| unregister(&made[1]));
        peer.recv_kind(Kind::Unregister);
        lose(peer, &notices);
        assert!(!call.join().unwrap());
    });
    assert!(!unregister(&made[2]));
    for _ in 0..2 {
        let peer = broker.accept(Terms::default());
        let request = peer.recv_kind(Kind::Redeposit);
        let is_ended = |it: &RedepositItem| it.item.flags & register_flags::ENDED != 0;
        let named = request.redeposit();
        let named: BTreeMap<_, _> =
            named.iter().map(|it| (it.handle.get().id(), is_ended(it))).collect();
        assert_eq!(named, [(id(101), true), (id(102), true), (id(103), false)].into());
        peer.named(&request, &[Ok(()); 3]);
        assert_reconnected(&notices);
        lose(peer, &notices);
    }
}
