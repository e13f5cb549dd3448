//! A program that closes the library's fds and has its own there: in processes of their own, each
//! with a scripted broker.

use crate::support::child::{is_child, start};
use crate::support::*;
use fdbroker_client::{Arena, Client, ErrorCode, HostMemory, Notice, own_fds};
use fdbroker_protocol::Kind;
use fdbroker_scm::RecvError;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::mpsc::channel;

/// Has one end of a pair of sockets under each of these numbers; the other end hears what is sent
/// there.
fn take(numbers: &[RawFd]) -> (OwnedFd, OwnedFd) {
    let (own, other) = fdbroker_scm::seqpacket_pair().unwrap();
    for number in numbers {
        // SAFETY: what is closed so is the library's, which is what is tested.
        let done = unsafe { libc::dup3(own.as_raw_fd(), *number, libc::O_CLOEXEC) };
        assert_eq!(done, *number);
    }
    (own, other)
}

fn assert_untouched(numbers: &[RawFd], pair: &(OwnedFd, OwnedFd)) {
    let mut byte = [0];
    // SAFETY: room for one byte, which lives over the call.
    let got =
        unsafe { libc::recv(pair.1.as_raw_fd(), byte.as_mut_ptr().cast(), 1, libc::MSG_DONTWAIT) };
    assert_eq!(got, -1, "something was sent, or the socket was shut down");
    let link = |number: RawFd| fs::read_link(format!("/proc/self/fd/{number}")).unwrap();
    let own = link(pair.0.as_raw_fd());
    numbers.iter().for_each(|number| assert_eq!(link(*number), own));
}

fn guarded() -> Vec<RawFd> {
    let mut room = [0; 64];
    let count = own_fds::list(&mut room);
    room[..count].to_vec()
}

fn memfds() -> Vec<RawFd> {
    let all = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let is_arena = |entry: &fs::DirEntry| {
        let link = fs::read_link(entry.path()).unwrap_or_default();
        link.to_string_lossy().starts_with("/memfd:fdbroker-arena")
    };
    all.filter(is_arena).map(|entry| entry.file_name().to_str().unwrap().parse().unwrap()).collect()
}

#[test]
fn acquire_when_all_fds_are_anothers_then_this_one_or_the_next_works() {
    let test = "acquire_when_all_fds_are_anothers_then_this_one_or_the_next_works";
    grants_over_a_second_connection(test, false);
}

#[test]
fn acquire_when_all_fds_are_anothers_in_dispatch_mode_then_this_one_or_the_next_works() {
    let test = "acquire_when_all_fds_are_anothers_in_dispatch_mode_then_this_one_or_the_next_works";
    grants_over_a_second_connection(test, true);
}

fn grants_over_a_second_connection(test: &str, dispatch: bool) {
    if is_child() {
        return acquires_twice(dispatch);
    }
    let broker = FakeBroker::listen();
    let mut child = start(test, &broker);
    // Nothing is sent by the first one.
    broker.accept(Terms::default()).assert_eof();
    let mut second = broker.accept(Terms::default());
    let request = second.recv_kind(Kind::Acquire);
    assert_eq!(request.acquire().1, [handle(7).id()]);
    let fd = memory(b"seen");
    second.grant(request.id, &[Answer::Grant(fd.as_fd(), 4)]);
    assert!(child.wait().unwrap().success());
}

fn acquires_twice(dispatch: bool) {
    let client = Client::builder().dispatch(dispatch).connect().unwrap();
    let numbers = guarded();
    assert_eq!(numbers.len(), 4);
    let pair = take(&numbers);
    let grant = client.acquire(&handle(7), soon()).or_else(|error| {
        assert_eq!(error.code, ErrorCode::NotConnected);
        client.acquire(&handle(7), soon())
    });
    let grant = grant.unwrap();
    assert!(client.is_connected());
    drop((grant, client));
    assert_untouched(&numbers, &pair);
}

#[test]
fn registrations_when_their_arenas_fd_is_anothers_then_lost_by_name_and_the_memory_stays() {
    let test =
        "registrations_when_their_arenas_fd_is_anothers_then_lost_by_name_and_the_memory_stays";
    if is_child() {
        return loses_its_arena();
    }
    let broker = FakeBroker::listen();
    let mut child = start(test, &broker);
    let first = broker.accept(Terms::default());
    first.registered(&first.recv_kind(Kind::Register), 8, 1);
    first.assert_eof();
    let second = broker.accept(Terms::default());
    // It names nothing that it could not export again. The flush comes here where the library
    // found the sockets gone before it.
    match receive(second.socket.as_fd(), PATIENCE) {
        Err(RecvError::Eof) => {}
        flush => {
            let flush = flush.unwrap();
            assert_eq!(flush.unregister(), []);
            second.unregistered(&flush, true);
            second.assert_eof();
        }
    }
    assert!(child.wait().unwrap().success());
}

fn loses_its_arena() {
    let (sender, receiver) = channel();
    let builder = Client::builder().on_notice(move |notice| drop(sender.send(notice)));
    let client = builder.connect().unwrap();
    let arena = Arena::new(&client, HostMemory::Memfd, 1 << 20).unwrap();
    let buffer = arena.alloc(64).unwrap();
    let id = buffer.register(soon()).unwrap().id();
    buffer.write_at(0, b"kept").unwrap();
    // The memory first: the library names it again as soon as it finds the sockets gone.
    let mut numbers = memfds();
    numbers.extend(guarded());
    let pair = take(&numbers);
    if let Err(error) = client.flush(soon()) {
        assert_eq!(error.code, ErrorCode::NotConnected, "{error}");
    }
    eventually("it is connected again", || client.is_connected());
    let is_lost = |notice: Notice| match notice {
        Notice::RegistrationLost { id: lost, code, .. } => (lost, code) == (id, ErrorCode::Lost),
        _ => false,
    };
    assert!(receiver.try_iter().any(is_lost));
    assert_eq!(buffer.handle(), None);
    let error = buffer.register(soon()).unwrap_err();
    assert_eq!(error.code, ErrorCode::NotSupported, "{error}");
    let mut bytes = [0; 4];
    buffer.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"kept");
    drop((buffer, arena, client));
    assert_untouched(&numbers, &pair);
}
