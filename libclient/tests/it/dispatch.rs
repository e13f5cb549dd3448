//! Dispatch mode with a scripted broker: which calls serve, when the event fd is readable, and lost
//! connections.

use crate::support::child::{is_child, start};
use crate::support::*;
use fdbroker_client::{
    AllocationId, Client, ClientBuilder, Error, ErrorCode, Grant, Notice, Progress, Recall,
    RecallAnswer,
};
use fdbroker_protocol::{Kind, Status};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

const STALE: Answer<'_> = Answer::Refuse(ErrorCode::Stale);

/// A client in dispatch mode that answers recalls.
fn builder() -> ClientBuilder {
    let answer = |recall: &Recall| Ok(RecallAnswer::unchanged(recall, memory(b"")));
    Client::builder().dispatch(true).own_fds(2).on_recall(answer)
}

fn connect(broker: &FakeBroker) -> (Client, Peer) {
    broker.client_with(builder(), Terms::default())
}

fn noticing(builder: ClientBuilder) -> (ClientBuilder, Receiver<Notice>) {
    let (sender, receiver) = channel();
    let builder = builder.on_notice(move |notice| drop(sender.send(notice)));
    (builder, receiver)
}

/// Whether the event fd becomes readable.
fn is_readable_within(client: &Client, patience: Duration) -> bool {
    let limit = PollTimeout::try_from(patience).unwrap();
    let mut fds = [PollFd::new(client.event_fd().unwrap(), PollFlags::POLLIN)];
    poll(&mut fds, limit).unwrap() == 1
}

fn is_readable(client: &Client) -> bool {
    is_readable_within(client, Duration::ZERO)
}

/// Waits until there is something to serve, and serves it.
#[track_caller]
fn serve(client: &Client) -> usize {
    assert!(is_readable_within(client, PATIENCE), "there is nothing to serve");
    client.dispatch(Duration::ZERO).unwrap()
}

/// Serves until the condition is true.
fn serve_until(client: &Client, mut is_true: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_true() {
        assert!(Instant::now() < until, "it did not happen");
        client.dispatch(Duration::from_millis(10)).unwrap();
    }
}

fn recall(peer: &Peer, slot: u32) {
    peer.recall(&[recall_item(AllocationId { slot, generation: 1 }, 5, 0)]);
}

/// Checks that the recall of this slot is answered with an fd.
#[track_caller]
fn assert_supplied(peer: &Peer, slot: u32) {
    let supply = peer.recv_event();
    let items = supply.supply();
    assert_eq!((items.len(), supply.fds.len()), (1, 1));
    assert_eq!((items[0].slot.get(), items[0].code.get()), (slot, 0));
}

#[test]
fn event_fd_when_recalled_then_readable_and_quiet_after_dispatch() {
    let broker = FakeBroker::listen();
    let (client, peer) = connect(&broker);
    assert!(!is_readable(&client));
    for slot in 1..4 {
        recall(&peer, slot);
        assert_eq!(serve(&client), 1);
        assert_supplied(&peer, slot);
        assert!(!is_readable(&client), "it was served");
    }
    assert_eq!(client.dispatch(Duration::ZERO).unwrap(), 0);
    assert_eq!(client.dispatch(Duration::from_millis(1)).unwrap(), 0);
}

#[test]
fn dispatch_when_it_waits_then_returns_when_something_was_served() {
    let broker = FakeBroker::listen();
    let (client, peer) = connect(&broker);
    thread::scope(|scope| {
        let served = scope.spawn(|| client.dispatch(PATIENCE).unwrap());
        recall(&peer, 1);
        assert_supplied(&peer, 1);
        assert_eq!(served.join().unwrap(), 1);
    });
}

#[test]
fn dispatch_when_a_library_thread_serves_then_not_supported() {
    let broker = FakeBroker::listen();
    let (client, _peer) = broker.client();
    assert_eq!(client.event_fd().unwrap_err().code, ErrorCode::NotSupported);
    let error = client.dispatch(Duration::ZERO).unwrap_err();
    assert_eq!(error.code, ErrorCode::NotSupported);
}

#[test]
fn acquire_when_recalled_meanwhile_then_the_waiting_call_serves() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = connect(&broker);
    thread::scope(|scope| {
        let call = scope.spawn(|| client.acquire(&handle(1), soon()));
        let request = peer.recv_kind(Kind::Acquire);
        for slot in 1..4 {
            recall(&peer, slot);
            assert_supplied(&peer, slot);
        }
        peer.grant(request.id, &[STALE]);
        assert_eq!(call.join().unwrap().unwrap_err().code, ErrorCode::Stale);
    });
}

#[test]
fn acquire_when_answered_again_then_serves_between_the_tries() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = connect(&broker);
    thread::scope(|scope| {
        let handles = [handle(1), handle(2)];
        let call = scope.spawn(move || client.acquire_many(&handles, soon()).unwrap());
        for slot in 1..20 {
            let request = peer.recv_kind(Kind::Acquire);
            peer.grant(request.id, &[Answer::Refuse(ErrorCode::Again); 2]);
            recall(&peer, slot);
            assert_supplied(&peer, slot);
        }
        let request = peer.recv_kind(Kind::Acquire);
        peer.grant(request.id, &[STALE; 2]);
        assert_eq!(call.join().unwrap().len(), 2);
    });
}

#[test]
fn acquire_when_no_place_is_free_then_serves_while_it_waits_for_one() {
    let broker = FakeBroker::listen();
    let terms = Terms { max_parked: 1, ..Terms::default() };
    let (client, mut peer) = broker.client_with(builder(), terms);
    let started = client.acquire_start(&[handle(1)], soon()).unwrap();
    let first = peer.recv_kind(Kind::Acquire);
    thread::scope(|scope| {
        let call = scope.spawn(|| client.acquire(&handle(2), soon()));
        recall(&peer, 1);
        assert_supplied(&peer, 1);
        peer.grant(first.id, &[STALE]);
        let second = peer.recv_kind(Kind::Acquire);
        peer.grant(second.id, &[STALE]);
        assert_eq!(call.join().unwrap().unwrap_err().code, ErrorCode::Stale);
    });
    let Progress::Done(outcomes) = started.test() else { panic!("its reply was read") };
    assert_eq!(outcomes[0].as_ref().unwrap_err().code, ErrorCode::Stale);
}

#[test]
fn acquire_when_the_socket_is_full_then_serves_while_it_waits_for_room() {
    let broker = FakeBroker::listen();
    let terms = Terms { max_parked: 10_000, ..Terms::default() };
    let (client, peer) = broker.client_with(builder(), terms);
    let handles: Vec<_> = (0..253).map(handle).collect();
    // More messages than the socket holds, and nobody reads them.
    let started: Vec<_> =
        (0..400).map(|_| client.acquire_start(&handles, soon()).unwrap()).collect();
    thread::scope(|scope| {
        let call = scope.spawn(|| client.acquire(&handle(1), soon()).unwrap_err());
        for slot in 1..4 {
            recall(&peer, slot);
            assert_supplied(&peer, slot);
        }
        drop(peer);
        assert_eq!(call.join().unwrap().code, ErrorCode::NotConnected);
    });
    drop(started);
}

#[test]
fn register_when_recalled_while_it_has_the_whole_window_then_supplied_after() {
    let broker = FakeBroker::listen();
    let (client, peer) = connect(&broker);
    let deposits = [deposit(1), deposit(2), deposit(3)];
    thread::scope(|scope| {
        let call =
            scope.spawn(|| client.register_with(&deposits, |_| Ok(memory(b"")), soon()).unwrap());
        let request = peer.recv_kind(Kind::Register);
        assert_eq!(request.count, 1, "one place");
        // The only thread has the credit itself: it can neither give it back nor wait for it.
        recall(&peer, 9);
        peer.registered(&request, 8, 1);
        // Before the next registration takes the credit again.
        assert_supplied(&peer, 9);
        for slot in 2..4 {
            let request = peer.recv_kind(Kind::Register);
            peer.registered(&request, 8, slot);
        }
        assert!(call.join().unwrap().iter().all(Result::is_ok));
    });
}

#[test]
fn register_when_out_of_credit_then_serves_while_it_waits_for_some() {
    let broker = FakeBroker::listen();
    let terms = Terms { credits: 0, ..Terms::default() };
    let (client, peer) = broker.client_with(builder(), terms);
    let fd = memory(b"");
    thread::scope(|scope| {
        let call = scope.spawn(|| client.register(&deposit(1), fd.as_fd(), soon()));
        let asks = peer.recv_kind(Kind::Register);
        assert_eq!(asks.count, 0);
        recall(&peer, 1);
        assert_supplied(&peer, 1);
        peer.registered(&asks, 1, 0);
        let request = peer.recv_kind(Kind::Register);
        peer.registered(&request, 0, 1);
        assert!(call.join().unwrap().is_ok());
    });
}

#[test]
fn test_when_recalled_then_serves_without_waiting() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = connect(&broker);
    let mut request = client.acquire_start(&[handle(1)], soon()).unwrap();
    let received = peer.recv_kind(Kind::Acquire);
    recall(&peer, 1);
    while peer_is_silent(&peer) {
        let Progress::UnderWay(under_way) = request.test() else { panic!("nobody answered") };
        request = under_way;
    }
    assert_supplied(&peer, 1);
    peer.grant(received.id, &[STALE]);
    // The fd is readable for the reply, too, and no longer once that is read.
    assert!(is_readable_within(&client, PATIENCE));
    serve_until(&client, || !is_readable(&client));
    let Progress::Done(outcomes) = request.test() else { panic!("its reply was read") };
    assert_eq!(outcomes[0].as_ref().unwrap_err().code, ErrorCode::Stale);
    assert!(!is_readable(&client));
}

fn peer_is_silent(peer: &Peer) -> bool {
    let mut fds = [PollFd::new(peer.events.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).unwrap() == 0
}

#[test]
fn event_fd_when_requests_are_under_way_then_quiet_until_one_is_answered() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = connect(&broker);
    let requests = [1, 2].map(|n| client.acquire_start(&[handle(n)], soon()).unwrap());
    let received = [1, 2].map(|_| peer.recv_kind(Kind::Acquire));
    serve_until(&client, || !is_readable(&client));
    assert!(!is_readable_within(&client, SILENCE));
    peer.grant(received[1].id, &[STALE]);
    assert_eq!(serve(&client), 1);
    let [first, second] = requests;
    assert!(matches!(second.test(), Progress::Done(_)));
    assert!(matches!(first.test(), Progress::UnderWay(_)));
}

#[test]
fn cancel_when_the_grant_comes_late_then_the_event_fd_tells_and_dispatch_gives_it_back() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = connect(&broker);
    client.acquire_start(&[handle(1)], soon()).unwrap().cancel();
    let received = peer.recv_kind(Kind::Acquire);
    assert_eq!(peer.recv_kind(Kind::Cancel).id, received.id);
    serve_until(&client, || !is_readable(&client));
    let (canary, sent) = canary();
    let leases = peer.grant(received.id, &[Answer::Grant(sent.as_fd(), 4096)]);
    drop(sent);
    assert_eq!(serve(&client), 1);
    assert_eq!(peer.recv_kind(Kind::Release).leases(), leases);
    assert!(is_closed(&canary));
    assert!(!is_readable(&client));
}

#[test]
fn drop_when_the_socket_is_full_then_dispatch_sends_the_rest() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = connect(&broker);
    const LEASES: usize = 3 * 253;
    let handles: Vec<_> = (0..LEASES as u32).map(handle).collect();
    let fd = memory(b"");
    let leases = thread::scope(|scope| {
        let taken = scope.spawn(|| {
            let mut leases = Vec::new();
            let each = |_, grant: Result<Grant, Error>| leases.push(grant.unwrap().lease);
            client.acquire_each(&handles, soon(), each).unwrap();
            leases
        });
        for chunk in handles.chunks(253) {
            let request = peer.recv_kind(Kind::Acquire);
            peer.grant(request.id, &vec![Answer::Grant(fd.as_fd(), 4096); chunk.len()]);
        }
        taken.join().unwrap()
    });
    // Each round sends one message, until the socket is full.
    drop(leases);
    thread::scope(|scope| {
        let released = scope.spawn(|| {
            let mut released = Vec::new();
            while released.len() < LEASES {
                released.extend(peer.recv_kind(Kind::Release).leases());
            }
            released
        });
        serve_until(&client, || released.is_finished());
        let mut released = released.join().unwrap();
        released.sort_unstable();
        assert_eq!(released, (1..=LEASES as u64).collect::<Vec<_>>());
    });
    serve_until(&client, || !is_readable(&client));
}

#[test]
fn callback_when_it_calls_what_waits_then_not_supported_whoever_serves() {
    let broker = FakeBroker::listen();
    let client: Arc<std::sync::OnceLock<Client>> = Arc::default();
    let (in_callback, (sender, codes)) = (Arc::clone(&client), channel());
    let builder = builder().on_notice(move |_| {
        let client = in_callback.get().unwrap();
        let acquired = client.acquire(&handle(1), soon()).unwrap_err();
        let dispatched = client.dispatch(PATIENCE).unwrap_err();
        let started = client.acquire_start(&[handle(3)], soon()).unwrap().test();
        assert!(matches!(started, Progress::UnderWay(_)));
        sender.send([acquired.code, dispatched.code]).unwrap();
    });
    let (connected, mut peer) = broker.client_with(builder, Terms::default());
    let client = client.get_or_init(|| connected);
    peer.drained(AllocationId { slot: 4, generation: 2 }, 5, 0);
    assert_eq!(serve(client), 1);
    assert_eq!(codes.try_recv().unwrap(), [ErrorCode::NotSupported; 2]);
    let started = peer.recv_kind(Kind::Acquire);
    assert_eq!(peer.recv_kind(Kind::Cancel).id, started.id);
    thread::scope(|scope| {
        let call = scope.spawn(|| client.acquire(&handle(2), soon()));
        let request = peer.recv_kind(Kind::Acquire);
        peer.drained(AllocationId { slot: 4, generation: 2 }, 5, 0);
        assert_eq!(codes.recv_timeout(PATIENCE).unwrap(), [ErrorCode::NotSupported; 2]);
        for id in [peer.recv_kind(Kind::Acquire).id, request.id] {
            peer.grant(id, &[STALE]);
        }
        assert_eq!(call.join().unwrap().unwrap_err().code, ErrorCode::Stale);
    });
    // Otherwise the callback would keep it for ever.
    assert!(client.is_connected());
}

#[test]
fn callback_when_it_takes_long_then_other_threads_calls_go_on() {
    let broker = FakeBroker::listen();
    let ((entered, has_entered), (go, may_go)) = (channel(), channel());
    let may_go = std::sync::Mutex::new(may_go);
    let builder = builder().on_recall(move |recall| {
        entered.send(()).unwrap();
        may_go.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        Ok(RecallAnswer::unchanged(recall, memory(b"")))
    });
    let (client, mut peer) = broker.client_with(builder, Terms::default());
    thread::scope(|scope| {
        let acquire = |n: u32| client.acquire(&handle(n), soon()).unwrap_err().code;
        let serving = scope.spawn(move || acquire(1));
        let first = peer.recv_kind(Kind::Acquire);
        recall(&peer, 1);
        has_entered.recv_timeout(PATIENCE).unwrap();
        // Both threads are in the library, and the one that reads for both is inside the callback.
        let other = scope.spawn(move || acquire(2));
        let second = peer.recv_kind(Kind::Acquire);
        peer.grant(second.id, &[STALE]);
        assert_eq!(other.join().unwrap(), ErrorCode::Stale);
        go.send(()).unwrap();
        assert_supplied(&peer, 1);
        peer.grant(first.id, &[STALE]);
        assert_eq!(serving.join().unwrap(), ErrorCode::Stale);
    });
}

#[test]
fn threads_when_one_dispatches_and_others_wait_then_all_are_served_and_no_two_callbacks_at_once() {
    let broker = FakeBroker::listen();
    let (is_busy, calls) = (AtomicBool::new(false), Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&calls);
    let builder = builder().on_recall(move |recall| {
        assert!(!is_busy.swap(true, Ordering::SeqCst), "two callbacks at once");
        thread::yield_now();
        is_busy.store(false, Ordering::SeqCst);
        counter.fetch_add(1, Ordering::SeqCst);
        Ok(RecallAnswer::unchanged(recall, memory(b"")))
    });
    let (client, mut peer) = broker.client_with(builder, Terms::default());
    const THREADS: u32 = 4;
    const ROUNDS: u32 = 50;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for n in 0..THREADS {
            let client = &client;
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let error = client.acquire(&handle(n), soon()).unwrap_err();
                    assert_eq!(error.code, ErrorCode::Stale);
                }
            });
        }
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                client.dispatch(Duration::from_millis(20)).unwrap();
            }
        });
        for round in 0..THREADS * ROUNDS {
            let request = peer.recv_kind(Kind::Acquire);
            recall(&peer, round);
            if round % 2 == 0 {
                assert_supplied(&peer, round);
                peer.grant(request.id, &[STALE]);
            } else {
                peer.grant(request.id, &[STALE]);
                assert_supplied(&peer, round);
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(calls.load(Ordering::SeqCst), (THREADS * ROUNDS) as usize);
}

#[test]
fn loss_when_dispatched_then_told_once_and_calls_answer_at_once() {
    let broker = FakeBroker::listen();
    let (builder, notices) = noticing(builder().reconnect(false));
    let (client, peer) = broker.client_with(builder, Terms::default());
    drop(peer);
    serve_until(&client, || !client.is_connected());
    serve_until(&client, || !is_readable(&client));
    assert_eq!(notices.try_iter().collect::<Vec<_>>(), [Notice::Disconnected]);
    for _ in 0..3 {
        let error = client.acquire(&handle(1), soon()).unwrap_err();
        assert_eq!(error.code, ErrorCode::NotConnected);
        let error = client.acquire_start(&[handle(1)], soon()).unwrap_err();
        assert_eq!(error.code, ErrorCode::NotConnected);
    }
    assert_eq!(client.dispatch(Duration::from_millis(1)).unwrap(), 0);
    assert_eq!(notices.try_iter().count(), 0);
}

#[test]
fn reconnect_when_dispatched_then_the_same_event_fd_tells_of_the_new_connection() {
    let mut broker = FakeBroker::listen();
    let (builder, notices) = noticing(builder());
    let (client, peer) = broker.client_with(builder, Terms::default());
    let event_fd = client.event_fd().unwrap().as_raw_fd();
    let incarnation = client.incarnation();
    broker.stop();
    drop(peer);
    assert_eq!(serve(&client), 1);
    assert_eq!(notices.try_recv().unwrap(), Notice::Disconnected);
    // The fd stays readable, so dispatch is called again and again.
    (0..3).for_each(|_| assert_eq!(serve(&client), 0));
    let error = client.acquire(&handle(1), soon()).unwrap_err();
    assert_eq!(error.code, ErrorCode::NotConnected);
    broker.start();
    let mut peer = thread::scope(|scope| {
        let peer = scope.spawn(|| broker.accept(Terms::default()));
        while !client.is_connected() {
            serve(&client);
        }
        peer.join().unwrap()
    });
    let told = notices.try_recv().unwrap();
    let is_new =
        matches!(told, Notice::Reconnected { incarnation, .. } if incarnation == peer.incarnation);
    assert!(is_new, "{told:?}");
    assert_ne!(client.incarnation(), incarnation);
    assert_eq!(client.event_fd().unwrap().as_raw_fd(), event_fd);
    assert!(!is_readable(&client));
    recall(&peer, 3);
    assert_eq!(serve(&client), 1);
    assert_supplied(&peer, 3);
    thread::scope(|scope| {
        let call = scope.spawn(|| client.acquire(&handle(2), soon()));
        let request = peer.recv_kind(Kind::Acquire);
        peer.grant(request.id, &[STALE]);
        assert_eq!(call.join().unwrap().unwrap_err().code, ErrorCode::Stale);
    });
}

#[test]
fn reconnect_when_nobody_dispatches_then_the_calls_do_it() {
    let mut broker = FakeBroker::listen();
    let (builder, notices) = noticing(builder());
    let (client, peer) = broker.client_with(builder, Terms::default());
    broker.stop();
    drop(peer);
    eventually("the loss", || client.acquire(&handle(1), soon()).is_err());
    broker.start();
    thread::scope(|scope| {
        let peer = scope.spawn(|| {
            let mut peer = broker.accept(Terms::default());
            let request = peer.recv_kind(Kind::Acquire);
            peer.grant(request.id, &[STALE]);
            peer
        });
        eventually("a call that finds the broker", || {
            client.acquire(&handle(1), soon()).unwrap_err().code == ErrorCode::Stale
        });
        peer.join().unwrap();
    });
    let told: Vec<_> = notices.try_iter().take(2).collect();
    assert!(matches!(told[..], [Notice::Disconnected, Notice::Reconnected { .. }]), "{told:?}");
}

#[test]
fn reconnect_when_the_broker_does_not_answer_hello_then_nobody_waits_for_it() {
    let broker = FakeBroker::listen();
    let (client, peer) = connect(&broker);
    drop(peer);
    // connect(2) succeeds, but nobody accepts: a call that waited for hello would take seconds.
    serve_until(&client, || !client.is_connected());
    for _ in 0..1000 {
        assert!(client.acquire(&handle(1), soon()).is_err());
        assert_eq!(client.dispatch(Duration::ZERO).unwrap(), 0);
    }
    let (_socket, hello) = broker.accept_raw();
    assert_eq!(hello.kind, Kind::Hello);
}

#[test]
fn call_when_answered_right_before_the_end_then_the_answer_counts() {
    let broker = FakeBroker::listen();
    for _ in 0..50 {
        let builder = builder().reconnect(false);
        let (client, peer) = broker.client_with(builder, Terms::default());
        thread::scope(|scope| {
            let call = scope.spawn(|| client.acquire(&handle(1), soon()));
            let request = peer.recv_kind(Kind::Acquire).id;
            peer.fail(request, Status::error(ErrorCode::ShuttingDown));
            drop(peer);
            assert_eq!(call.join().unwrap().unwrap_err().code, ErrorCode::ShuttingDown);
        });
    }
}

#[test]
fn call_when_the_event_socket_ends_then_not_connected() {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client_with(builder().reconnect(false), Terms::default());
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
fn drop_when_last_clone_then_both_sockets_end() {
    let broker = FakeBroker::listen();
    let (client, peer) = connect(&broker);
    let request = client.acquire_start(&[handle(1)], soon()).unwrap();
    drop(client);
    peer.recv_kind(Kind::Acquire);
    peer.assert_eof();
    assert!(receive(peer.events.as_fd(), PATIENCE).is_err());
    let Progress::Done(outcomes) = request.test() else { panic!("it is over") };
    assert_eq!(outcomes[0].as_ref().unwrap_err().code, ErrorCode::NotConnected);
}

/// The names of this process's threads.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
    };
    tasks.filter_map(name).map(|name| name.trim_end().to_owned()).collect()
}

#[test]
fn connect_when_dispatching_then_no_thread_is_started() {
    if is_child() {
        let before = threads().len();
        let client = Client::builder().dispatch(true).connect().unwrap();
        assert_eq!(threads().len(), before);
        drop(client);
        let client = Client::connect().unwrap();
        assert_eq!(threads().len(), before + 1);
        eventually("its name", || threads().contains(&"fdbroker".to_owned()));
        return drop(client);
    }
    let broker = FakeBroker::listen();
    let mut child = start("connect_when_dispatching_then_no_thread_is_started", &broker);
    let _peers = [broker.accept(Terms::default()), broker.accept(Terms::default())];
    assert!(child.wait().unwrap().success());
}

#[test]
fn fork_when_dispatching_then_the_child_is_told_and_the_parents_event_fd_is_undisturbed() {
    if is_child() {
        return child_that_forks();
    }
    let broker = FakeBroker::listen();
    let mut child = start(
        "fork_when_dispatching_then_the_child_is_told_and_the_parents_event_fd_is_undisturbed",
        &broker,
    );
    let mut peer = broker.accept(Terms::default());
    // A message of the parent says that its child has ended.
    let request = peer.recv_kind(Kind::Acquire);
    peer.drained(AllocationId { slot: 4, generation: 2 }, 5, 0);
    peer.grant(request.id, &[STALE]);
    assert!(child.wait().unwrap().success());
}

fn child_that_forks() {
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};
    let (builder, notices) = noticing(builder());
    let client = builder.connect().unwrap();
    // SAFETY: the child only calls this library and _exit; glibc's allocator survives a fork.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let checks = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                let error = client.dispatch(PATIENCE).unwrap_err();
                assert_eq!(error.code, ErrorCode::NotConnected);
                assert_eq!(client.event_fd().unwrap_err().code, ErrorCode::NotConnected);
                assert!(client.acquire(&handle(1), soon()).is_err());
                drop(client);
            }));
            // SAFETY: ends the child without running the test harness's exit handlers.
            unsafe { libc::_exit(i32::from(checks.is_err())) };
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
    let error = client.acquire(&handle(1), soon()).unwrap_err();
    assert_eq!(error.code, ErrorCode::Stale);
    serve_until(&client, || notices.try_recv().is_ok());
}
