//! Registrations that are sent early, with a scripted broker: nobody waits for them, and none is
//! left behind.

use crate::support::*;
use fdbroker_client::{Client, Deadline, EarlyRegistration, ErrorCode, Notice};
use fdbroker_protocol::{Kind, Status};
use std::os::fd::AsFd;
use std::sync::mpsc::channel;
use std::thread;

/// Sends one early; there is a credit for it.
#[track_caller]
fn begin(client: &Client, number: u64) -> EarlyRegistration {
    let mut begun = client.register_early(&[deposit(number)], |_| Some(memory(b"")), soon());
    begun.pop().expect("a credit is at hand")
}

#[test]
fn take_early_when_answered_before_then_the_registration_and_credits_are_counted() {
    let broker = FakeBroker::listen();
    let terms = Terms { credits: 2, ..Terms::default() };
    let (client, peer) = broker.client_with(Client::builder(), terms);
    let first = begin(&client, 1);
    let sent = peer.recv_kind(Kind::Register);
    assert_eq!((sent.count, sent.fds.len()), (1, 1));
    peer.registered(&sent, 1, 7);
    let second = begin(&client, 2);
    assert!(client.register_early(&[deposit(3)], |_| panic!("no credit"), soon()).is_empty());
    assert_eq!(client.take_early(first, soon()).unwrap().handle, handle(7));
    peer.registered(&peer.recv_kind(Kind::Register), 4, 8);
    assert_eq!(client.take_early(second, soon()).unwrap().handle, handle(8));
    drop([begin(&client, 3), begin(&client, 4), begin(&client, 5), begin(&client, 6)]);
}

#[test]
fn take_early_when_another_call_has_read_its_answer_then_it_is_there() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let early = begin(&client, 1);
    let sent = peer.recv_kind(Kind::Register);
    thread::scope(|scope| {
        let call = scope.spawn(|| client.register(&deposit(2), memory(b"").as_fd(), soon()));
        let other = peer.recv_kind(Kind::Register);
        peer.registered(&sent, 8, 1);
        peer.registered(&other, 8, 2);
        assert_eq!(call.join().unwrap().unwrap().handle, handle(2));
    });
    assert_eq!(client.take_early(early, soon()).unwrap().handle, handle(1));
    peer.assert_silent();
}

#[test]
fn register_when_the_only_credit_is_on_its_way_with_an_early_one_then_it_is_read() {
    for is_dispatched in [false, true] {
        let broker = FakeBroker::listen();
        let terms = Terms { credits: 1, ..Terms::default() };
        let (client, peer) = broker.client_with(Client::builder().dispatch(is_dispatched), terms);
        let early = begin(&client, 1);
        let sent = peer.recv_kind(Kind::Register);
        thread::scope(|scope| {
            let call = scope.spawn(|| client.register(&deposit(2), memory(b"").as_fd(), soon()));
            peer.assert_silent();
            peer.registered(&sent, 1, 1);
            peer.registered(&peer.recv_kind(Kind::Register), 1, 2);
            assert_eq!(call.join().unwrap().unwrap().handle, handle(2));
        });
        assert_eq!(client.take_early(early, soon()).unwrap().handle, handle(1));
    }
}

#[test]
fn register_when_the_only_credit_was_claimed_for_an_early_one_then_its_answer_is_read() {
    let broker = FakeBroker::listen();
    let terms = Terms { credits: 1, ..Terms::default() };
    let (client, peer) = broker.client_with(Client::builder(), terms);
    let register = |deadline| client.register(&deposit(2), memory(b"").as_fd(), deadline);
    thread::scope(|scope| {
        let mut call = None;
        // The other thread begins to wait when the early one is not on its way yet.
        let export = |_| {
            // At the end of its time it would look by itself.
            let deadline = Deadline::after(2 * PATIENCE);
            call = Some(scope.spawn(move || register(deadline)));
            peer.assert_silent();
            Some(memory(b""))
        };
        let early = client.register_early(&[deposit(1)], export, soon()).pop().unwrap();
        peer.registered(&peer.recv_kind(Kind::Register), 1, 1);
        peer.registered(&peer.recv_kind(Kind::Register), 1, 2);
        assert_eq!(call.unwrap().join().unwrap().unwrap().handle, handle(2));
        assert_eq!(client.take_early(early, soon()).unwrap().handle, handle(1));
    });
}

#[test]
fn register_early_when_it_would_take_the_last_place_then_it_is_left_to_others() {
    for max_parked in [1, 2] {
        let broker = FakeBroker::listen();
        let terms = Terms { max_parked, ..Terms::default() };
        let (client, peer) = broker.client_with(Client::builder(), terms);
        let early = (max_parked > 1).then(|| begin(&client, 1));
        let sent = early.as_ref().map(|_| peer.recv_kind(Kind::Register));
        assert!(client.register_early(&[deposit(2)], |_| Some(memory(b"")), soon()).is_empty());
        thread::scope(|scope| {
            let call = scope.spawn(|| client.register(&deposit(3), memory(b"").as_fd(), soon()));
            peer.registered(&peer.recv_kind(Kind::Register), 8, 3);
            assert_eq!(call.join().unwrap().unwrap().handle, handle(3));
        });
        if let (Some(early), Some(sent)) = (early, sent) {
            peer.registered(&sent, 8, 1);
            assert_eq!(client.take_early(early, soon()).unwrap().handle, handle(1));
        }
    }
}

#[test]
fn take_early_when_refused_then_why_and_a_registration_can_be_made() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let early = begin(&client, 1);
    peer.fail(peer.recv_kind(Kind::Register).id, Status::from(ErrorCode::Again));
    assert_eq!(client.take_early(early, soon()).unwrap_err().code, ErrorCode::Again);
    thread::scope(|scope| {
        let call = scope.spawn(|| client.register(&deposit(1), memory(b"").as_fd(), soon()));
        peer.registered(&peer.recv_kind(Kind::Register), 8, 3);
        assert_eq!(call.join().unwrap().unwrap().handle, handle(3));
    });
}

#[test]
fn drop_when_answered_or_not_then_the_registration_is_ended() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    // Nobody has read the answer.
    let early = begin(&client, 1);
    let sent = peer.recv_kind(Kind::Register);
    drop(early);
    peer.recv_kind(Kind::Cancel);
    peer.registered(&sent, 8, 1);
    let undone = peer.recv_kind(Kind::Unregister);
    assert_eq!(undone.unregister(), [handle(1).id()]);
    peer.unregistered(&undone, true);
    // Another call has.
    let early = begin(&client, 2);
    let sent = peer.recv_kind(Kind::Register);
    thread::scope(|scope| {
        let call = scope.spawn(|| client.register(&deposit(3), memory(b"").as_fd(), soon()));
        let other = peer.recv_kind(Kind::Register);
        peer.registered(&sent, 8, 2);
        peer.registered(&other, 8, 3);
        call.join().unwrap().unwrap();
    });
    drop(early);
    let undone = peer.recv_kind(Kind::Unregister);
    assert_eq!(undone.unregister(), [handle(2).id()]);
    peer.unregistered(&undone, true);
    peer.assert_silent();
}

#[test]
fn take_early_when_the_broker_is_lost_then_not_connected() {
    let mut broker = FakeBroker::listen();
    let (told, notices) = channel();
    let on_notice = move |notice| drop(told.send(notice));
    let (client, peer) =
        broker.client_with(Client::builder().on_notice(on_notice), Terms::default());
    let early = begin(&client, 1);
    broker.stop();
    drop(peer);
    assert!(matches!(notices.recv().unwrap(), Notice::Disconnected));
    assert_eq!(client.take_early(early, soon()).unwrap_err().code, ErrorCode::NotConnected);
    assert!(client.register_early(&[deposit(1)], |_| panic!("no broker"), soon()).is_empty());
}

#[test]
fn register_early_when_there_is_no_fd_then_its_credit_is_not_lost() {
    let broker = FakeBroker::listen();
    let terms = Terms { credits: 1, ..Terms::default() };
    let (client, peer) = broker.client_with(Client::builder(), terms);
    for _ in 0..3 {
        assert!(client.register_early(&[deposit(1)], |_| None, soon()).is_empty());
    }
    peer.assert_silent();
    let early = begin(&client, 1);
    peer.registered(&peer.recv_kind(Kind::Register), 1, 1);
    client.take_early(early, soon()).unwrap();
}

/// Sends three in one message.
fn begin_three(client: &Client, peer: &Peer) -> (Vec<EarlyRegistration>, Received) {
    let deposits = [1, 2, 3].map(deposit);
    let early = client.register_early(&deposits, |_| Some(memory(b"")), soon());
    let sent = peer.recv_kind(Kind::Register);
    assert_eq!((early.len(), sent.count, sent.fds.len()), (3, 3, 3));
    (early, sent)
}

#[test]
fn register_early_when_there_are_fewer_credits_or_fds_then_the_first_ones() {
    let broker = FakeBroker::listen();
    let terms = Terms { credits: 3, ..Terms::default() };
    let (client, peer) = broker.client_with(Client::builder(), terms);
    let deposits = [1, 2, 3, 4].map(deposit);
    let two = |index| (index < 2).then(|| memory(b""));
    let early = client.register_early(&deposits, two, soon());
    assert_eq!((early.len(), peer.recv_kind(Kind::Register).fds.len()), (2, 2));
    // The credit that no fd came for is still there.
    let more = client.register_early(&deposits, |_| Some(memory(b"")), soon());
    assert_eq!((more.len(), peer.recv_kind(Kind::Register).fds.len()), (1, 1));
}

#[test]
fn take_early_when_several_are_in_one_message_then_each_has_its_own_and_the_rest_ends() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let (mut early, sent) = begin_three(&client, &peer);
    let [one, two, three] = [early.remove(0), early.remove(0), early.remove(0)];
    // Before anybody has its answer, and after.
    drop(one);
    peer.registered(&sent, 8, 11);
    assert_eq!(client.take_early(three, soon()).unwrap().handle, handle(13));
    assert_eq!(peer.recv_kind(Kind::Unregister).unregister(), [handle(11).id()]);
    drop(two);
    assert_eq!(peer.recv_kind(Kind::Unregister).unregister(), [handle(12).id()]);
}

#[test]
fn take_early_when_two_threads_take_of_one_message_then_both_have_theirs() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let (early, sent) = begin_three(&client, &peer);
    thread::scope(|scope| {
        let take = |early| scope.spawn(|| client.take_early(early, soon()).unwrap().handle);
        let threads: Vec<_> = early.into_iter().map(take).collect();
        peer.assert_silent();
        peer.registered(&sent, 8, 11);
        let taken: Vec<_> = threads.into_iter().map(|it| it.join().unwrap()).collect();
        assert_eq!(taken, [11, 12, 13].map(handle));
    });
    peer.assert_silent();
}

#[test]
fn drop_when_all_of_one_message_are_given_up_then_all_end() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let (early, sent) = begin_three(&client, &peer);
    drop(early);
    peer.recv_kind(Kind::Cancel);
    peer.registered(&sent, 8, 11);
    let undone = peer.recv_kind(Kind::Unregister);
    assert_eq!(undone.unregister(), [11, 12, 13].map(|it| handle(it).id()));
}
