//! Signals with a scripted broker: interrupted system calls, SIGPIPE, and the thread that a signal
//! runs on.

use crate::support::child::{is_child, start};
use crate::support::*;
use fdbroker_client::{Client, ClientBuilder, ErrorCode, Progress};
use fdbroker_protocol::Kind;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// The number of signals handled so far.
static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count(_: libc::c_int) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

/// The pause between two signals: less than any wait takes, more than the handler takes.
const INTERVAL: Duration = Duration::from_micros(100);

/// Runs `calls` while signals interrupt its thread all the time; their handler does not restart
/// system calls.
fn in_a_storm(calls: impl FnOnce()) {
    let action = SigAction::new(SigHandler::Handler(count), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler does one atomic add, which is async-signal-safe.
    unsafe { sigaction(Signal::SIGUSR1, &action) }.unwrap();
    // SAFETY: it asks for a number.
    let target = unsafe { libc::pthread_self() };
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                // SAFETY: the thread waits for this scope, so it is alive.
                assert_eq!(unsafe { libc::pthread_kill(target, libc::SIGUSR1) }, 0);
                thread::sleep(INTERVAL);
            }
        });
        calls();
        is_over.store(true, Ordering::Relaxed);
    });
}

/// Waits until the library's caller was interrupted a few more times.
fn until_interrupted() {
    let before = HANDLED.load(Ordering::Relaxed);
    eventually("some signals", || HANDLED.load(Ordering::Relaxed) > before + 5);
}

/// Signals interrupt every wait of a call many times, and every call succeeds.
#[track_caller]
fn assert_calls_succeed_in_a_storm(builder: ClientBuilder) {
    const ROUNDS: u32 = 20;
    let broker = FakeBroker::listen();
    let terms = Terms { credits: 0, ..Terms::default() };
    let (client, mut peer) = broker.client_with(builder, terms);
    let fd = memory(b"");
    thread::scope(|scope| {
        let calls = scope.spawn(|| {
            in_a_storm(|| {
                for round in 0..ROUNDS {
                    drop(client.acquire(&handle(round), soon()).unwrap());
                    client.register(&deposit(round.into()), fd.as_fd(), soon()).unwrap();
                    let mut request = client.acquire_start(&[handle(round)], soon()).unwrap();
                    loop {
                        match request.test() {
                            Progress::UnderWay(under_way) => request = under_way,
                            Progress::Done(outcomes) => break assert!(outcomes[0].is_ok()),
                        }
                    }
                }
                drop(client);
            });
        });
        let mut answered = 0;
        while let Ok(received) = receive(peer.socket.as_fd(), PATIENCE) {
            match received.kind {
                Kind::Acquire => {
                    until_interrupted();
                    let again = [Answer::Refuse(ErrorCode::Again)];
                    let grant = [Answer::Grant(fd.as_fd(), 4096)];
                    answered += 1;
                    // Every second one also waits between two attempts.
                    peer.grant(received.id, if answered % 2 == 0 { &grant } else { &again });
                }
                Kind::Register => {
                    until_interrupted();
                    peer.registered(&received, u32::from(received.count == 0), answered);
                }
                Kind::Release => {}
                kind => panic!("unexpected {kind}"),
            }
        }
        calls.join().unwrap();
        assert_eq!(answered, 4 * ROUNDS);
    });
}

#[test]
fn calls_when_signals_interrupt_them_all_the_time_then_succeed() {
    assert_calls_succeed_in_a_storm(Client::builder());
}

#[test]
fn calls_when_signals_interrupt_them_in_dispatch_mode_then_succeed() {
    assert_calls_succeed_in_a_storm(Client::builder().dispatch(true));
}

#[test]
fn connect_when_signals_interrupt_it_then_succeeds() {
    let broker = FakeBroker::listen();
    let path = broker.path.clone();
    thread::scope(|scope| {
        let client = scope.spawn(move || {
            in_a_storm(|| drop(Client::builder().socket(path).connect().unwrap()));
        });
        until_interrupted();
        let peer = broker.accept(Terms::default());
        peer.assert_eof();
        client.join().unwrap();
    });
}

#[test]
fn process_when_the_broker_is_gone_then_no_sigpipe_kills_it() {
    if is_child() {
        return child_that_would_die_of_sigpipe();
    }
    let broker = FakeBroker::listen();
    let mut child = start("process_when_the_broker_is_gone_then_no_sigpipe_kills_it", &broker);
    for round in 0..40 {
        let mut peer = broker.accept(Terms::default());
        let fd = memory(b"");
        let request = peer.recv_kind(Kind::Acquire);
        peer.grant(request.id, &[Answer::Grant(fd.as_fd(), 4096)]);
        let item = recall_item(handle(1).id(), 5, 0);
        peer.recall(&[item]);
        // Closes one socket before the other, at times between two messages of the client.
        let Peer { socket, events, .. } = peer;
        match round % 2 {
            0 => drop((socket, events)),
            _ => drop((events, socket)),
        }
    }
    let status = child.wait().unwrap();
    assert!(status.success(), "{status}, signal {:?}", status.signal());
}

fn child_that_would_die_of_sigpipe() {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: no handler is set.
    unsafe { sigaction(Signal::SIGPIPE, &default) }.unwrap();
    for round in 0..40 {
        let answer = |recall: &fdbroker_client::Recall| {
            Ok(fdbroker_client::RecallAnswer::unchanged(recall, memory(b"")))
        };
        let builder = Client::builder().reconnect(false).own_fds(2).on_recall(answer);
        let client = builder.dispatch(round % 4 < 2).connect().unwrap();
        let grant = client.acquire(&handle(1), soon()).unwrap();
        drop(grant);
        let request = client.acquire_start(&[handle(2)], soon());
        let error = client.acquire(&handle(1), soon()).unwrap_err();
        assert_eq!(error.code, ErrorCode::NotConnected);
        drop(request);
    }
}
