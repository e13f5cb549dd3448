//! The life of a connection with a scripted broker: the page, the end, reconnects, drops.

use crate::support::*;
use fdbroker_client::{AllocationId, Client, ErrorCode, Notice};
use fdbroker_protocol::message::{GoingAway, LeaseItem, RevokedItem};
use fdbroker_protocol::page::FUTEX_OWNER_DIED;
use fdbroker_protocol::{Kind, Status, Writer};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

fn noticing() -> (fdbroker_client::ClientBuilder, Receiver<Notice>) {
    let (sender, receiver) = channel();
    let builder = Client::builder().on_notice(move |notice| {
        let _ = sender.send(notice);
    });
    (builder, receiver)
}

fn next(notices: &Receiver<Notice>) -> Notice {
    notices.recv_timeout(PATIENCE).unwrap()
}

#[test]
fn is_current_when_page_changes_then_follows_it() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let id = AllocationId { slot: 5, generation: 3 };
    assert!(!client.is_current(id));
    peer.page.set(id);
    assert!(client.is_current(id));
    assert!(!client.is_current(AllocationId { slot: 5, generation: 2 }));
    assert!(!client.is_current(AllocationId { slot: 6, generation: 0 }), "generation 0 is none");
    assert!(!client.is_current(AllocationId { slot: u32::MAX, generation: 1 }));
    peer.page.end(id);
    assert!(!client.is_current(id));
    peer.page.set(id);
    peer.page.set_liveness(1 | FUTEX_OWNER_DIED);
    assert!(!client.is_current(id), "the broker's main thread has died");
}

#[test]
fn call_when_broker_goes_away_then_not_connected_at_once_and_later_too() {
    let broker = FakeBroker::listen();
    let (builder, notices) = noticing();
    let (client, peer) = broker.client_with(builder.reconnect(false), Terms::default());
    let id = AllocationId { slot: 1, generation: 1 };
    peer.page.set(id);
    let begin = Instant::now();
    thread::scope(|scope| {
        let calls: Vec<_> = (0..4)
            .map(|n| {
                scope.spawn({
                    let c = &client;
                    move || c.acquire(&handle(n), soon())
                })
            })
            .collect();
        (0..4).for_each(|_| drop(peer.recv_kind(Kind::Acquire)));
        assert!(client.is_current(id));
        drop(peer);
        for call in calls {
            assert_eq!(call.join().unwrap().unwrap_err().code, ErrorCode::NotConnected);
        }
    });
    assert!(begin.elapsed() < PATIENCE);
    assert_eq!(next(&notices), Notice::Disconnected);
    assert!(!client.is_current(id), "the page is void without a connection");
    assert!(!client.is_connected());
    let error = client.acquire(&handle(1), soon()).unwrap_err();
    assert_eq!(error.code, ErrorCode::NotConnected);
}

#[test]
fn call_when_event_socket_ends_then_not_connected() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client_with(Client::builder().reconnect(false), Terms::default());
    thread::scope(|scope| {
        let call = scope.spawn(|| client.acquire(&handle(1), soon()).unwrap_err());
        peer.recv_kind(Kind::Acquire);
        let Peer { socket, events, .. } = peer;
        drop(events);
        assert_eq!(call.join().unwrap().code, ErrorCode::NotConnected);
        drop(socket);
    });
}

#[test]
fn call_when_answered_right_before_the_end_then_the_answer_counts() {
    let broker = FakeBroker::listen();
    // Enough rounds for the library thread to see the end first in some.
    for _ in 0..50 {
        let (builder, _notices) = noticing();
        let (client, peer) = broker.client_with(builder.reconnect(false), Terms::default());
        thread::scope(|scope| {
            let call = scope.spawn(|| client.acquire(&handle(1), soon()));
            let request = peer.recv_kind(Kind::Acquire).message(|message| message.id);
            peer.fail(request, Status::error(ErrorCode::ShuttingDown));
            drop(peer);
            assert_eq!(call.join().unwrap().unwrap_err().code, ErrorCode::ShuttingDown);
        });
    }
}

#[test]
fn idle_when_broker_goes_away_then_noticed_without_a_call() {
    let broker = FakeBroker::listen();
    let (builder, notices) = noticing();
    let (client, peer) = broker.client_with(builder.reconnect(false), Terms::default());
    drop(peer);
    assert_eq!(next(&notices), Notice::Disconnected);
    assert!(!client.is_connected());
}

#[test]
fn notices_when_broker_sends_events_then_told_in_order() {
    let broker = FakeBroker::listen();
    let (builder, notices) = noticing();
    let (_client, peer) = broker.client_with(builder, Terms::default());
    let id = AllocationId { slot: 4, generation: 2 };
    let mut writer = Writer::new();
    let revoked = RevokedItem {
        slot: 4.into(),
        generation: 2.into(),
        lease: 77.into(),
        code: (ErrorCode::OwnerGone as u16).into(),
        reserved: [0; 6],
    };
    writer.start(Kind::Revoked, 0).push(&revoked);
    peer.send_event(writer.finish(1, 0));
    peer.drained(id, 5, 0);
    writer.start(Kind::Reclaim, 0).push(&LeaseItem { lease: 8.into() });
    peer.send_event(writer.finish(1, 0));
    writer.start(Kind::GoingAway, 0).push(&GoingAway { reason: 2.into(), reserved: 0.into() });
    peer.send_event(writer.finish(0, 0));
    let told = [(); 4].map(|()| next(&notices));
    assert!(is_revoked(&told[0], id, 77, ErrorCode::OwnerGone), "{told:?}");
    assert!(is_drained(&told[1], id, 5), "{told:?}");
    assert!(matches!(&told[2], Notice::Reclaim { leases, .. } if leases[..] == [8]), "{told:?}");
    assert!(matches!(told[3], Notice::GoingAway { reason: 2, .. }), "{told:?}");
}

#[test]
fn notice_when_callback_panics_then_the_next_is_told() {
    let broker = FakeBroker::listen();
    let (sender, notices) = channel();
    let builder = Client::builder().on_notice(move |notice| {
        let is_first = matches!(notice, Notice::GoingAway { reason: 1, .. });
        assert!(!is_first, "expected: the test's panic");
        let _ = sender.send(notice);
    });
    let (_client, peer) = broker.client_with(builder, Terms::default());
    let mut writer = Writer::new();
    for reason in [1u32, 2] {
        let body = GoingAway { reason: reason.into(), reserved: 0.into() };
        writer.start(Kind::GoingAway, 0).push(&body);
        peer.send_event(writer.finish(0, 0));
    }
    assert!(matches!(next(&notices), Notice::GoingAway { reason: 2, .. }));
}

#[test]
fn drop_when_last_clone_then_both_sockets_end_though_a_lease_is_left() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    let fd = memory(b"");
    let grant = thread::scope(|scope| {
        let call = scope.spawn(|| client.acquire(&handle(1), soon()).unwrap());
        let request = peer.recv();
        peer.grant(request.id, &[Answer::Grant(fd.as_fd(), 4096)]);
        call.join().unwrap()
    });
    let clone = client.clone();
    drop(client);
    assert!(clone.is_connected());
    drop(clone);
    peer.assert_eof();
    assert!(receive(peer.events.as_fd(), PATIENCE).is_err());
    assert_eq!(grant.lease.release().unwrap_err().code, ErrorCode::NotConnected);
}

#[test]
fn failed_when_shutting_down_then_all_items_of_all_chunks_answer_so() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let handles: Vec<_> = (0..300).map(handle).collect();
    thread::scope(|scope| {
        let call = scope.spawn(|| client.acquire_many(&handles, soon()).unwrap());
        let request = peer.recv_kind(Kind::Acquire);
        peer.fail(request.id, Status::error(ErrorCode::ShuttingDown));
        for outcome in call.join().unwrap() {
            assert_eq!(outcome.unwrap_err().code, ErrorCode::ShuttingDown);
        }
        peer.assert_silent();
    });
}

static IS_GONE: AtomicBool = AtomicBool::new(false);

/// A thread-local value: it is dropped after everything that the thread runs.
struct Last;

impl Drop for Last {
    fn drop(&mut self) {
        thread::sleep(SILENCE);
        IS_GONE.store(true, Ordering::SeqCst);
    }
}

thread_local! {
    static LAST: Last = const { Last };
}

#[test]
fn drop_when_last_client_then_its_thread_is_gone() {
    let broker = FakeBroker::listen();
    let (sender, told) = channel();
    let builder = Client::builder().on_notice(move |_| {
        LAST.with(|_| ());
        sender.send(()).unwrap();
    });
    let (client, peer) = broker.client_with(builder, Terms::default());
    peer.drained(AllocationId { slot: 4, generation: 2 }, 5, 0);
    told.recv_timeout(PATIENCE).unwrap();
    drop(client);
    assert!(IS_GONE.load(Ordering::SeqCst), "it was not waited for to its very end");
}

#[test]
fn drop_when_in_a_callback_then_its_own_thread_is_not_waited_for() {
    let broker = FakeBroker::listen();
    let slot: Arc<Mutex<Option<Client>>> = Arc::default();
    let (in_callback, (sender, dropped)) = (Arc::clone(&slot), channel());
    let builder = Client::builder().on_notice(move |_| {
        drop(in_callback.lock().unwrap().take());
        let _ = sender.send(());
    });
    let (client, peer) = broker.client_with(builder, Terms::default());
    *slot.lock().unwrap() = Some(client);
    peer.drained(AllocationId { slot: 4, generation: 2 }, 5, 0);
    dropped.recv_timeout(PATIENCE).unwrap();
    peer.assert_eof();
}
