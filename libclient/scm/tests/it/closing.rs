//! How a connection ends, and what only looks like its end.
//! Each test first makes the kernel show the trap where there is one, so that it cannot pass idly.

use std::os::fd::{AsFd, AsRawFd};

use crate::common::{
    in_own_process, is_write_side_closed, pair, pipe, raw_recv, raw_send, receive,
};
use fdbroker_scm::{ReceivedFds, RecvError, SendError, send};
use nix::errno::Errno;
use nix::sys::socket::{Shutdown, shutdown};

#[test]
fn recv_when_peer_has_closed_then_eof_every_time() {
    let (a, b) = pair();
    drop(a);
    for _ in 0..3 {
        assert_eq!(receive(&b, &mut ReceivedFds::new()), Err(RecvError::Eof));
    }
}

#[test]
fn recv_when_peer_has_shut_down_writing_then_messages_and_eof() {
    let (a, b) = pair();
    send(a.as_fd(), b"last", &[]).unwrap();
    shutdown(a.as_raw_fd(), Shutdown::Write).unwrap();
    assert_eq!(receive(&b, &mut ReceivedFds::new()).unwrap().0, b"last");
    assert_eq!(receive(&b, &mut ReceivedFds::new()), Err(RecvError::Eof));
    // The other direction still works.
    assert_eq!(send(b.as_fd(), b"bye", &[]), Ok(()));
    assert_eq!(receive(&a, &mut ReceivedFds::new()).unwrap().0, b"bye");
}

#[test]
fn recv_when_message_has_no_bytes_then_empty_message_and_the_next_arrives() {
    let (a, b) = pair();
    raw_send(&a, b"", &[]);
    assert_eq!(raw_recv(&b), Ok(0), "the trap: it looks like the end");

    raw_send(&a, b"", &[]);
    send(a.as_fd(), b"next", &[]).unwrap();
    assert_eq!(receive(&b, &mut ReceivedFds::new()), Err(RecvError::EmptyMessage));
    assert_eq!(receive(&b, &mut ReceivedFds::new()).unwrap().0, b"next");
    assert_eq!(receive(&b, &mut ReceivedFds::new()), Err(RecvError::WouldBlock));
}

#[test]
fn recv_when_message_without_bytes_is_the_last_before_close_then_eof() {
    let (a, b) = pair();
    raw_send(&a, b"", &[]);
    drop(a);
    for _ in 0..3 {
        assert_eq!(receive(&b, &mut ReceivedFds::new()), Err(RecvError::Eof));
    }
}

#[test]
fn recv_when_message_without_bytes_comes_before_others_and_close_then_nothing_is_lost() {
    let (a, b) = pair();
    raw_send(&a, b"", &[]);
    raw_send(&a, b"", &[]);
    send(a.as_fd(), b"reply", &[]).unwrap();
    drop(a);
    assert_eq!(receive(&b, &mut ReceivedFds::new()), Err(RecvError::EmptyMessage));
    assert_eq!(receive(&b, &mut ReceivedFds::new()), Err(RecvError::EmptyMessage));
    assert_eq!(receive(&b, &mut ReceivedFds::new()).unwrap().0, b"reply");
    assert_eq!(receive(&b, &mut ReceivedFds::new()), Err(RecvError::Eof));
}

#[test]
fn recv_when_message_has_an_fd_but_no_bytes_then_the_fd_is_handed_over() {
    for close_first in [false, true] {
        let (a, b) = pair();
        let (read_end, write_end) = pipe();
        let mut fds = ReceivedFds::new();
        raw_send(&a, b"", &[write_end.as_raw_fd()]);
        drop(write_end);
        let kept = (!close_first).then_some(a);

        assert_eq!(receive(&b, &mut fds), Err(RecvError::EmptyMessage));
        assert_eq!(fds.len(), 1);
        fds.drain().for_each(drop);
        assert!(is_write_side_closed(&read_end));
        let then = if kept.is_some() { RecvError::WouldBlock } else { RecvError::Eof };
        assert_eq!(receive(&b, &mut fds), Err(then));
    }
}

#[test]
fn recv_when_message_without_bytes_hides_an_fd_behind_it_and_peer_closes_then_not_the_end() {
    let (a, b) = pair();
    let mut fds = ReceivedFds::new();
    raw_send(&a, b"", &[]);
    raw_send(&a, b"", &[a.as_raw_fd()]);
    shutdown(a.as_raw_fd(), Shutdown::Both).unwrap();
    assert_eq!(receive(&b, &mut fds), Err(RecvError::EmptyMessage));
    assert!(fds.is_empty());
    assert_eq!(receive(&b, &mut fds), Err(RecvError::EmptyMessage));
    assert_eq!(fds.drain().count(), 1);
    assert_eq!(receive(&b, &mut fds), Err(RecvError::Eof));
}

#[test]
fn recv_when_fds_of_an_empty_message_have_no_room_then_still_a_message() {
    let (a, b) = pair();
    let mut fds = ReceivedFds::with_capacity(0);
    raw_send(&a, b"", &[a.as_raw_fd()]);
    assert_eq!(receive(&b, &mut fds), Err(RecvError::EmptyMessage));
    assert!(fds.is_empty());
}

#[test]
fn recv_when_peer_closed_with_unread_input_then_the_queued_reply_still_arrives() {
    let reset_pair = || {
        let (a, b) = pair();
        let (read_end, _write_end) = pipe();
        send(b.as_fd(), b"reply", &[read_end.as_fd()]).unwrap();
        send(a.as_fd(), b"never read", &[]).unwrap();
        drop(b);
        a
    };
    let a = reset_pair();
    assert_eq!(raw_recv(&a), Err(Errno::ECONNRESET), "the trap: the reset comes first");

    let a = reset_pair();
    let mut fds = ReceivedFds::new();
    assert_eq!(receive(&a, &mut fds).unwrap().0, b"reply");
    assert_eq!(fds.drain().count(), 1);
    assert_eq!(receive(&a, &mut fds), Err(RecvError::Eof));
}

#[test]
fn send_when_peer_closed_with_unread_input_then_peer_gone_and_the_reply_still_arrives() {
    let (a, b) = pair();
    send(b.as_fd(), b"reply", &[]).unwrap();
    send(a.as_fd(), b"never read", &[]).unwrap();
    drop(b);
    assert_eq!(send(a.as_fd(), b"x", &[]), Err(SendError::PeerGone));
    assert_eq!(send(a.as_fd(), b"x", &[]), Err(SendError::PeerGone));
    assert_eq!(receive(&a, &mut ReceivedFds::new()).unwrap().0, b"reply");
}

#[test]
fn send_when_peer_is_gone_then_peer_gone_and_no_sigpipe() {
    in_own_process("send_when_peer_is_gone_then_peer_gone_and_no_sigpipe", || {
        use nix::sys::signal::{SigHandler, Signal, signal};
        // Kernel 6.18 raises SIGPIPE for streams only; this holds the crate to it on any other.
        // SAFETY: the default action replaces "ignore"; no handler is installed.
        unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) }.unwrap();
        let (a, b) = pair();
        drop(b);
        assert_eq!(send(a.as_fd(), b"x", &[]), Err(SendError::PeerGone));
        assert_eq!(send(a.as_fd(), b"x", &[a.as_fd()]), Err(SendError::PeerGone));
        let waiting = fdbroker_scm::send_timeout(a.as_fd(), b"x", &[], None);
        assert_eq!(waiting, Err(SendError::PeerGone));
    });
}

#[test]
fn recv_when_socket_is_not_connected_then_eof() {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    let lone =
        socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    assert_eq!(receive(&lone, &mut ReceivedFds::new()), Err(RecvError::Eof));
}
