//! Bytes and fds that arrive, or are refused whole.
//! Nothing here counts the process's fds or changes its limits; that is in `limits.rs`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{is_write_side_closed, many, pair, pipe, receive};
use fdbroker_scm::{
    MAX_FDS, Message, ReceivedFds, RecvError, SendError, recv, recv_timeout, recv_waiting, send,
    send_timeout, unread_bytes,
};

const WHOLE: (bool, bool) = (false, false);

fn truncation(message: Message) -> (bool, bool) {
    (message.payload_truncated, message.fds_truncated)
}

/// Sends `count` write ends of one pipe and sees each of them work on the other side.
fn round_trip(count: usize) {
    let (a, b) = pair();
    let (read_end, write_end) = pipe();
    let mut fds = ReceivedFds::new();

    send(a.as_fd(), b"payload", &many(&write_end, count)).expect("send");
    drop(write_end);
    let (bytes, message) = receive(&b, &mut fds).expect("recv");

    assert_eq!((&bytes[..], message.len, truncation(message)), (&b"payload"[..], 7, WHOLE));
    assert_eq!((fds.len(), fds.is_empty(), fds.as_borrowed().len()), (count, count == 0, count));
    for fd in fds.drain() {
        assert_eq!(nix::unistd::write(&fd, b"x"), Ok(1));
    }
    assert_eq!(nix::unistd::read(&read_end, &mut [0; MAX_FDS + 1]).unwrap_or(0), count);
    assert!(is_write_side_closed(&read_end));
}

#[test]
fn round_trip_when_no_fds_then_bytes_arrive() {
    round_trip(0);
}

#[test]
fn round_trip_when_one_fd_then_it_works() {
    round_trip(1);
}

#[test]
fn round_trip_when_two_fds_then_both_work() {
    round_trip(2);
}

#[test]
fn round_trip_when_253_fds_then_all_work() {
    round_trip(MAX_FDS);
}

#[test]
fn round_trip_when_many_fds_then_order_is_kept() {
    let (a, b) = pair();
    let pipes: Vec<(OwnedFd, OwnedFd)> = (0..5).map(|_| pipe()).collect();
    let write_ends: Vec<BorrowedFd<'_>> = pipes.iter().map(|(_, w)| w.as_fd()).collect();
    let mut fds = ReceivedFds::new();

    send(a.as_fd(), b"x", &write_ends).unwrap();
    let _ = receive(&b, &mut fds).unwrap();

    for (index, fd) in fds.as_borrowed().iter().enumerate() {
        nix::unistd::write(fd, &[index as u8]).unwrap();
    }
    for (index, (read_end, _)) in pipes.iter().enumerate() {
        let mut byte = [0; 1];
        assert_eq!((nix::unistd::read(read_end, &mut byte), byte), (Ok(1), [index as u8]));
    }
}

#[test]
fn taking_out_when_by_index_and_from_the_front_then_the_rest_keeps_its_order() {
    let (a, b) = pair();
    let (_read_end, write_end) = pipe();
    let mut fds = ReceivedFds::new();
    send(a.as_fd(), b"x", &many(&write_end, 5)).unwrap();
    let _ = receive(&b, &mut fds).unwrap();
    let numbers: Vec<i32> = fds.as_borrowed().iter().map(|fd| fd.as_raw_fd()).collect();

    let third = fds.take(2).map(|fd| fd.as_raw_fd());
    let first = fds.pop_front().map(|fd| fd.as_raw_fd());
    let beyond = fds.take(3);

    assert_eq!((third, first), (Some(numbers[2]), Some(numbers[0])));
    assert!(beyond.is_none());
    let left: Vec<i32> = fds.as_borrowed().iter().map(|fd| fd.as_raw_fd()).collect();
    assert_eq!(left, [numbers[1], numbers[3], numbers[4]]);
    fds.clear();
    assert!(fds.pop_front().is_none() && fds.as_borrowed().is_empty());
}

#[test]
fn send_when_254_fds_then_refused_and_nothing_sent() {
    let (a, b) = pair();
    let (_read_end, write_end) = pipe();
    let answer = send(a.as_fd(), b"x", &many(&write_end, MAX_FDS + 1));
    assert_eq!(answer, Err(SendError::TooManyFds));
    assert_eq!(receive(&b, &mut ReceivedFds::new()), Err(RecvError::WouldBlock));
}

#[test]
fn send_when_no_bytes_then_refused_and_nothing_sent() {
    let (a, b) = pair();
    assert_eq!(send(a.as_fd(), b"", &many(&a, 1)), Err(SendError::Empty));
    assert_eq!(receive(&b, &mut ReceivedFds::new()), Err(RecvError::WouldBlock));
}

#[test]
fn send_when_one_fd_is_bad_then_bad_fd_and_nothing_sent() {
    let (a, b) = pair();
    let (_read_end, write_end) = pipe();
    // SAFETY: not open, as this number is beyond any limit, so nothing is done to it; that the
    // kernel refuses it is what is tested.
    let bad = unsafe { BorrowedFd::borrow_raw(i32::MAX - 1) };
    for position in 0..3 {
        let mut fds = many(&write_end, 3);
        fds[position] = bad;
        assert_eq!(send(a.as_fd(), b"x", &fds), Err(SendError::BadFd));
    }
    assert_eq!(unread_bytes(a.as_fd()).unwrap(), 0);
    assert_eq!(receive(&b, &mut ReceivedFds::new()), Err(RecvError::WouldBlock));
}

#[test]
fn recv_when_fds_come_then_they_are_close_on_exec() {
    let (a, b) = pair();
    // A sender's fd without the flag: it is the receiver that must set it.
    // SAFETY: F_SETFD only changes a flag of this fd.
    let set = unsafe { libc::fcntl(a.as_raw_fd(), libc::F_SETFD, 0) };
    let mut fds = ReceivedFds::new();

    send(a.as_fd(), b"x", &many(&a, 3)).unwrap();
    let _ = receive(&b, &mut fds).unwrap();

    assert_eq!((set, fds.len()), (0, 3));
    for fd in fds.as_borrowed() {
        // SAFETY: F_GETFD only reads.
        let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) };
        assert_eq!(flags, libc::FD_CLOEXEC);
    }
}

#[test]
fn recv_when_room_for_one_and_two_come_then_the_padding_slot_is_handed_over() {
    let (a, b) = pair();
    let (read_end, write_end) = pipe();
    let mut fds = ReceivedFds::with_capacity(1);

    send(a.as_fd(), b"x", &many(&write_end, 2)).unwrap();
    drop(write_end);
    let (_, message) = receive(&b, &mut fds).unwrap();

    assert_eq!((fds.len(), message.fds_truncated), (2, false));
    fds.drain().for_each(drop);
    assert!(is_write_side_closed(&read_end));
}

#[test]
fn recv_when_more_come_than_there_is_room_for_then_truncation_is_told_and_the_rest_is_closed() {
    // (room, sent, arrive): an odd room admits one more; room for 253 admits all there can be.
    for (room, sent, arrive) in [
        (0, 1, 0),
        (1, 3, 2),
        (2, 3, 2),
        (3, 9, 4),
        (252, 253, 252),
        (253, 253, 253),
        (999, 253, 253),
    ] {
        let (a, b) = pair();
        let (read_end, write_end) = pipe();
        let mut fds = ReceivedFds::with_capacity(room);

        send(a.as_fd(), b"four", &many(&write_end, sent)).unwrap();
        drop(write_end);
        let (bytes, message) = receive(&b, &mut fds).unwrap();

        assert_eq!(bytes, b"four");
        assert_eq!((fds.len(), message.fds_truncated), (arrive, arrive < sent), "room {room}");
        fds.drain().for_each(drop);
        assert!(is_write_side_closed(&read_end));
    }
}

#[test]
fn recv_when_credentials_come_too_then_all_fds_arrive() {
    let (a, b) = pair();
    nix::sys::socket::setsockopt(&b, nix::sys::socket::sockopt::PassCred, &true).unwrap();
    let (_read_end, write_end) = pipe();
    let mut fds = ReceivedFds::new();

    send(a.as_fd(), b"x", &many(&write_end, MAX_FDS)).unwrap();
    let (_, message) = receive(&b, &mut fds).unwrap();

    assert_eq!((fds.len(), truncation(message)), (MAX_FDS, WHOLE));
}

#[test]
fn recv_when_buffer_is_too_short_then_truncation_is_told_and_fds_arrive() {
    let (a, b) = pair();
    let mut fds = ReceivedFds::new();
    let mut buf = [0; 4];

    send(a.as_fd(), b"longer", &many(&a, 1)).unwrap();
    send(a.as_fd(), b"four", &[]).unwrap();
    let first = recv(b.as_fd(), &mut buf, &mut fds).unwrap();
    assert_eq!((first.len, truncation(first), fds.len()), (4, (true, false), 1));
    assert_eq!(&buf, b"long");
    fds.clear();

    // The rest of the first is gone, it does not stick to the second.
    let second = recv(b.as_fd(), &mut buf, &mut fds).unwrap();
    assert_eq!((second.len, truncation(second)), (4, WHOLE));
    assert_eq!(&buf, b"four");
}

#[test]
fn recv_when_nothing_is_queued_then_would_block_also_on_a_blocking_socket() {
    let (a, b) = pair();
    // SAFETY: F_SETFL only changes flags of this socket.
    unsafe { libc::fcntl(b.as_raw_fd(), libc::F_SETFL, 0) };
    assert_eq!(receive(&b, &mut ReceivedFds::new()), Err(RecvError::WouldBlock));
    drop(a);
}

#[test]
fn recv_waiting_when_the_socket_blocks_then_waits_as_long_as_it_says() {
    use nix::sys::socket::{setsockopt, sockopt::ReceiveTimeout};
    use nix::sys::time::{TimeVal, TimeValLike};
    let (a, b) = pair();
    let receive = || recv_waiting(b.as_fd(), &mut [0; 8], &mut ReceivedFds::new());
    assert_eq!(receive().unwrap_err(), RecvError::WouldBlock, "it does not block");
    let flags = nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty());
    nix::fcntl::fcntl(&b, flags).unwrap();
    setsockopt(&b, ReceiveTimeout, &TimeVal::milliseconds(20)).unwrap();
    let begin = std::time::Instant::now();
    assert_eq!(receive().unwrap_err(), RecvError::WouldBlock);
    assert!(begin.elapsed() >= Duration::from_millis(20));
    assert_eq!(recv(b.as_fd(), &mut [0; 8], &mut ReceivedFds::new()), Err(RecvError::WouldBlock));
    setsockopt(&b, ReceiveTimeout, &TimeVal::milliseconds(0)).unwrap();
    std::thread::scope(|scope| {
        let received = scope.spawn(receive);
        send(a.as_fd(), b"late", &[]).unwrap();
        assert_eq!(received.join().unwrap().unwrap().len, 4);
        let ended = scope.spawn(receive);
        drop(a);
        assert_eq!(ended.join().unwrap().unwrap_err(), RecvError::Eof);
    });
}

#[test]
fn recv_timeout_when_nothing_comes_then_timed_out_after_the_time() {
    let (_a, b) = pair();
    let start = Instant::now();
    let timeout = Duration::from_millis(30);
    let answer = recv_timeout(b.as_fd(), &mut [0; 8], &mut ReceivedFds::new(), Some(timeout));
    assert_eq!(answer, Err(RecvError::TimedOut));
    assert!(start.elapsed() >= timeout);
}

#[test]
fn recv_timeout_when_message_comes_later_then_received() {
    let (a, b) = pair();
    let sender = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        send(a.as_fd(), b"late", &[a.as_fd()])
    });
    let mut fds = ReceivedFds::new();
    let message = recv_timeout(b.as_fd(), &mut [0; 8], &mut fds, None).unwrap();
    assert_eq!((message.len, fds.len()), (4, 1));
    sender.join().unwrap().unwrap();
}

#[test]
fn recv_timeout_when_peer_closes_then_eof() {
    let (a, b) = pair();
    let closer = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        drop(a);
    });
    let answer = recv_timeout(b.as_fd(), &mut [0; 8], &mut ReceivedFds::new(), None);
    assert_eq!(answer, Err(RecvError::Eof));
    closer.join().unwrap();
}

/// Sends until the socket is full; returns how many went.
fn fill(sock: &OwnedFd, bytes: &[u8]) -> usize {
    for sent in 0.. {
        match send(sock.as_fd(), bytes, &[]) {
            Ok(()) => {}
            Err(SendError::WouldBlock) => return sent,
            Err(other) => panic!("{other}"),
        }
    }
    unreachable!()
}

#[test]
fn send_when_buffer_is_full_then_would_block_and_what_was_sent_arrives_whole() {
    let (a, b) = pair();
    // SAFETY: F_SETFL only changes flags: a blocking socket must not block either.
    unsafe { libc::fcntl(a.as_raw_fd(), libc::F_SETFL, 0) };
    let mut fds = ReceivedFds::new();

    let sent = fill(&a, &[7; 64]);
    assert!(sent > 16);
    assert!(unread_bytes(a.as_fd()).unwrap() >= sent * 64);
    for _ in 0..sent {
        assert_eq!(receive(&b, &mut fds).unwrap().0, [7; 64]);
    }
    assert_eq!(unread_bytes(a.as_fd()).unwrap(), 0);
    assert_eq!(receive(&b, &mut fds), Err(RecvError::WouldBlock));
    assert_eq!(send(a.as_fd(), b"again", &[]), Ok(()));
}

#[test]
fn send_timeout_when_full_and_nobody_reads_then_timed_out() {
    let (a, _b) = pair();
    fill(&a, &[0; 64]);
    let start = Instant::now();
    for timeout in [Duration::ZERO, Duration::from_millis(30)] {
        let answer = send_timeout(a.as_fd(), b"x", &[], Some(timeout));
        assert_eq!(answer, Err(SendError::TimedOut));
    }
    assert!(start.elapsed() >= Duration::from_millis(30));
}

#[test]
fn send_timeout_when_one_message_is_read_then_sent_though_the_kernel_says_not_writable() {
    let (a, b) = pair();
    fill(&a, &[0; 64]);
    let reader = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        receive(&b, &mut ReceivedFds::new()).map(|_| b)
    });
    assert_eq!(send_timeout(a.as_fd(), b"x", &[], None), Ok(()));
    reader.join().unwrap().unwrap();
}

#[test]
fn send_timeout_when_full_and_peer_closes_then_peer_gone() {
    let (a, b) = pair();
    fill(&a, &[0; 64]);
    let closer = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        drop(b);
    });
    assert_eq!(send_timeout(a.as_fd(), b"x", &[], None), Err(SendError::PeerGone));
    closer.join().unwrap();
}

#[test]
fn send_when_larger_than_the_send_buffer_then_too_large() {
    let (a, b) = pair();
    nix::sys::socket::setsockopt(&a, nix::sys::socket::sockopt::SndBuf, &4096).unwrap();
    assert_eq!(send(a.as_fd(), &[0; 65536], &[a.as_fd()]), Err(SendError::TooLarge));
    assert_eq!(receive(&b, &mut ReceivedFds::new()), Err(RecvError::WouldBlock));
}

#[test]
fn errors_when_printed_then_say_what_to_do() {
    assert!(SendError::TooManyRefs.to_string().contains("raise RLIMIT_NOFILE"));
    assert!(SendError::Os(libc::EPERM).to_string().contains("Operation not permitted"));
    assert!(RecvError::Eof.to_string().contains("connect again"));
}

#[cfg(feature = "sendfd")]
mod grant {
    use super::*;
    use fdbroker_scm::send_grant;

    #[test]
    fn grant_when_0_1_2_and_253_fds_then_all_arrive_and_the_socket_stays_open() {
        let (a, b) = pair();
        let (_read_end, write_end) = pipe();
        let mut fds = ReceivedFds::new();
        for count in [0, 1, 2, MAX_FDS] {
            send_grant(a.as_fd(), b"grant", &many(&write_end, count)).unwrap();
            let (bytes, message) = receive(&b, &mut fds).unwrap();
            assert_eq!((&bytes[..], truncation(message)), (&b"grant"[..], WHOLE));
            assert_eq!(fds.drain().count(), count);
        }
    }

    #[test]
    fn grant_when_it_cannot_be_sent_then_the_error_is_that_of_send() {
        let (a, b) = pair();
        // SAFETY: not open, as in the test of `send`.
        let bad = unsafe { BorrowedFd::borrow_raw(i32::MAX - 1) };
        assert_eq!(send_grant(a.as_fd(), b"x", &[a.as_fd(), bad]), Err(SendError::BadFd));
        assert_eq!(send_grant(a.as_fd(), b"", &[a.as_fd()]), Err(SendError::Empty));
        let too_many = many(&a, MAX_FDS + 1);
        assert_eq!(send_grant(a.as_fd(), b"x", &too_many), Err(SendError::TooManyFds));
        fill(&a, &[0; 64]);
        assert_eq!(send_grant(a.as_fd(), b"x", &[a.as_fd()]), Err(SendError::WouldBlock));
        drop(b);
        // The test program ignores SIGPIPE, as the daemon does.
        assert_eq!(send_grant(a.as_fd(), b"x", &[a.as_fd()]), Err(SendError::PeerGone));
    }
}
