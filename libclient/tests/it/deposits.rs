//! Registering and recalls with a scripted broker: credits, the export window, callbacks.

use crate::support::*;
use fdbroker_client::{
    AllocationId, Client, Deposit, DriverData, Error, ErrorCode, MemoryKind, RecallAnswer, Share,
};
use fdbroker_protocol::message::register_flags;
use fdbroker_protocol::{Facts, Kind, Resource, Scope, Status};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

fn terms(credits: u32) -> Terms {
    Terms { credits, ..Terms::default() }
}

#[test]
fn register_when_sent_then_item_says_what_the_deposit_says() {
    let broker = FakeBroker::listen();
    let builder = Client::builder().on_recall(|_| Err(ErrorCode::Again));
    let (client, peer) = broker.client_with(builder, Terms::default());
    let fd = memory(b"");
    let deposit = Deposit::from(
        Facts::new(MemoryKind::DmaBuf, 8192).fd_offset(4096).owner_allocation_id(5).device(2),
    )
    .base(0x7000)
    .driver_data(DriverData::new(b"abc").unwrap())
    .recallable(true)
    .share(Share::Any);
    thread::scope(|scope| {
        let call = scope.spawn(|| client.register(&deposit, fd.as_fd(), soon()).unwrap());
        let request = peer.recv();
        let (wanted, items) = request.register();
        assert_eq!((wanted, items.len(), request.fds.len()), (0, 1, 1));
        let item = items[0];
        assert_eq!(
            (item.facts.kind, item.flags),
            (MemoryKind::DmaBuf as u8, register_flags::RECALLABLE)
        );
        assert_eq!((item.share, item.facts.device.get()), (Share::Any as u8, 2));
        assert_eq!((item.facts.size_bytes.get(), item.facts.fd_offset.get()), (8192, 4096));
        assert_eq!((item.facts.owner_allocation_id.get(), item.base.get()), (5, 0x7000));
        assert_eq!((item.driver_data_len, &item.driver_data[..3]), (3, &b"abc"[..]));
        peer.registered(&request, 8, 1);
        let registration = call.join().unwrap();
        assert_eq!(registration.handle, handle(1));
        assert_eq!(registration.owner_token(), [9; 16]);
    });
}

#[test]
fn register_many_when_credits_are_few_then_chunks_never_exceed_them() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client_with(Client::builder(), terms(2));
    let fd = memory(b"");
    let deposits: Vec<_> = (0..6).map(deposit).collect();
    let fds = vec![fd.as_fd(); 6];
    thread::scope(|scope| {
        let call = scope.spawn(|| client.register_many(&deposits, &fds, soon()).unwrap());
        let first = peer.recv();
        assert_eq!((first.register().0, first.count, first.fds.len()), (4, 2, 2));
        peer.registered(&first, 3, 0);
        let second = peer.recv();
        assert_eq!((second.register().0, second.count), (1, 3));
        // There is no credit now: the library asks for one.
        peer.registered(&second, 0, 2);
        let ask = peer.recv();
        assert_eq!((ask.register().0, ask.count, ask.fds.len()), (1, 0, 0));
        peer.registered(&ask, 1, 0);
        let last = peer.recv();
        assert_eq!((last.register().0, last.count), (0, 1));
        peer.registered(&last, 1, 5);
        let slots: Vec<u32> =
            call.join().unwrap().into_iter().map(|one| one.unwrap().id().slot).collect();
        assert_eq!(slots, [0, 1, 2, 3, 4, 5]);
    });
}

#[test]
fn register_many_when_no_credit_to_be_had_then_the_rest_answers_no_quota() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client_with(Client::builder(), terms(1));
    let fd = memory(b"");
    let (deposits, fds) = ([deposit(1), deposit(2)], [fd.as_fd(); 2]);
    thread::scope(|scope| {
        let call = scope.spawn(|| client.register_many(&deposits, &fds, soon()).unwrap());
        let first = peer.recv();
        peer.registered(&first, 0, 3);
        let ask = peer.recv();
        assert_eq!(ask.count, 0);
        let status = Status::no_quota(Resource::HeldFds, Scope::Node, 64, 11);
        peer.fail(ask.id, status);
        let outcomes = call.join().unwrap();
        assert_eq!(outcomes[0].as_ref().unwrap().id().slot, 3);
        assert_eq!(outcomes[1].as_ref().unwrap_err().status, Some(status));
    });
}

#[test]
fn register_when_threads_share_few_credits_then_none_is_overdrawn() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client_with(Client::builder(), terms(3));
    let fd = memory(b"");
    const THREADS: usize = 6;
    const EACH: usize = 10;
    let done = AtomicUsize::new(0);
    thread::scope(|scope| {
        for n in 0..THREADS {
            let (client, fd, done) = (&client, &fd, &done);
            scope.spawn(move || {
                for m in 0..EACH {
                    let deposit = deposit((n * EACH + m) as u64);
                    client.register(&deposit, fd.as_fd(), soon()).unwrap();
                }
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        let mut credits = 3usize;
        let mut registered = 0;
        while registered < THREADS * EACH {
            let request = peer.recv_kind(Kind::Register);
            assert!(request.fds.len() <= credits, "{} fds on {credits} credits", request.fds.len());
            credits = (credits - request.fds.len()).max(1);
            if registered % 7 == 0 {
                credits = 3;
            }
            peer.registered(&request, credits as u32, registered as u32);
            registered += request.count;
        }
    });
    assert_eq!(done.load(Ordering::SeqCst), THREADS);
}

#[test]
fn register_with_when_window_is_small_then_no_more_exports_exist_at_once() {
    let broker = FakeBroker::listen();
    // One fd for an arena, three in the export window.
    let (client, peer) = broker.client_with(Client::builder().own_fds(4), terms(100));
    let deposits: Vec<_> = (0..8).map(deposit).collect();
    thread::scope(|scope| {
        let call = scope.spawn(|| {
            let export = |index| match index {
                5 => Err(Error::new(ErrorCode::LocalFdLimit, "the test's")),
                _ => Ok(memory(b"")),
            };
            client.register_with(&deposits, export, soon()).unwrap()
        });
        for (count, slot) in [(3, 0), (2, 3), (2, 6)] {
            let request = peer.recv();
            assert_eq!((request.count, request.fds.len()), (count, count));
            peer.registered(&request, 100, slot);
        }
        let outcomes = call.join().unwrap();
        for (index, outcome) in outcomes.iter().enumerate() {
            match index {
                5 => assert_eq!(outcome.as_ref().unwrap_err().code, ErrorCode::LocalFdLimit),
                _ => assert_eq!(outcome.as_ref().unwrap().id().slot as usize, index),
            }
        }
    });
}

#[test]
fn unregister_many_when_answered_then_each_says_whether_drained() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client();
    let ids = [AllocationId { slot: 1, generation: 1 }, AllocationId { slot: 2, generation: 1 }];
    thread::scope(|scope| {
        let call = scope.spawn(|| client.unregister_many(ids, soon()).unwrap());
        let request = peer.recv();
        assert_eq!(request.unregister(), ids);
        peer.unregistered(&request, true);
        assert!(call.join().unwrap().into_iter().all(|one| one.unwrap().0));
    });
}

#[test]
fn recall_when_callback_answers_then_supplied_and_closed() {
    let broker = FakeBroker::listen();
    let (canary, sent) = canary();
    let sent = std::sync::Mutex::new(Some(sent));
    let builder =
        Client::builder().on_recall(move |recall| match recall.facts.owner_allocation_id {
            1 => Ok(RecallAnswer::unchanged(recall, sent.lock().unwrap().take().unwrap())),
            2 => Err(ErrorCode::Stale),
            3 => {
                let facts = recall.facts.owner_allocation_id(33);
                Ok(RecallAnswer::new(memory(b""), facts))
            }
            _ => panic!("expected: the test's panic"),
        });
    let (_client, peer) = broker.client_with(builder, Terms::default());
    let id = |slot| AllocationId { slot, generation: 1 };
    peer.recall(&[1, 2, 3, 4].map(|n| recall_item(id(n), n.into(), 0)));
    let (mut items, mut fds) = (Vec::new(), Vec::new());
    while items.len() < 4 {
        let mut supply = peer.recv_event();
        items.extend(supply.supply());
        fds.append(&mut supply.fds);
    }
    let codes: Vec<u16> = items.iter().map(|item| item.code.get()).collect();
    let (stale, internal) = (ErrorCode::Stale as u16, ErrorCode::Internal as u16);
    assert_eq!(codes, [0, stale, stale, internal]);
    assert_eq!(items[0].facts.size_bytes.get(), 4096);
    assert_eq!(fds.len(), 1, "only what is still the same allocation");
    assert!(!is_closed(&canary));
    drop(fds);
    eventually("the export's close", || is_closed(&canary));
}

#[test]
fn recall_when_more_than_the_window_then_supplied_in_parts() {
    let broker = FakeBroker::listen();
    let builder = Client::builder()
        .own_fds(3)
        .on_recall(|recall| Ok(RecallAnswer::unchanged(recall, memory(b""))));
    let (_client, peer) = broker.client_with(builder, Terms::default());
    let id = |slot| AllocationId { slot, generation: 1 };
    let items: Vec<_> = (0..5).map(|n| recall_item(id(n), n.into(), 0)).collect();
    peer.recall(&items);
    for count in [2, 2, 1] {
        let supply = peer.recv_event();
        assert_eq!((supply.count, supply.fds.len()), (count, count));
    }
}

#[test]
fn recall_when_no_callback_then_not_supported() {
    let broker = FakeBroker::listen();
    let (_client, peer) = broker.client();
    peer.recall(&[recall_item(AllocationId { slot: 1, generation: 1 }, 1, 0)]);
    let supply = peer.recv_event();
    assert_eq!(supply.supply()[0].code.get(), ErrorCode::NotSupported as u16);
}

#[test]
fn recall_when_callback_calls_the_library_then_refused_instead_of_deadlock() {
    let broker = FakeBroker::listen();
    static CLIENT: OnceLock<Client> = OnceLock::new();
    let builder = Client::builder().on_recall(|_| {
        let client = CLIENT.get().ok_or(ErrorCode::Again)?;
        let errors = [
            client.acquire(&handle(1), soon()).unwrap_err(),
            client.unregister(AllocationId { slot: 1, generation: 1 }).unwrap_err(),
            client.register(&deposit(1), memory(b"").as_fd(), soon()).unwrap_err(),
        ];
        assert!(errors.iter().all(|error| error.code == ErrorCode::NotSupported));
        assert!(errors[0].to_string().contains("callback"), "{}", errors[0]);
        Err(ErrorCode::Cancelled)
    });
    let (client, peer) = broker.client_with(builder, Terms::default());
    assert!(CLIENT.set(client).is_ok());
    peer.recall(&[recall_item(AllocationId { slot: 1, generation: 1 }, 1, 0)]);
    assert_eq!(peer.recv_event().supply()[0].code.get(), ErrorCode::Cancelled as u16);
}
