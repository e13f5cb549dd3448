//! Looks at all messages of a queue with their fds: they see everything, and take nothing out.

use std::os::fd::{AsFd, OwnedFd};

use crate::common::{in_own_process, is_write_side_closed, pair, pipe, receive};
use fdbroker_scm::{ReceivedFds, RecvError, peek_all, recv, send};

/// The bytes of each message, and how many fds came with it; each fd is tried and closed.
fn look(sock: &OwnedFd, most: usize) -> Vec<(Vec<u8>, usize)> {
    let (mut bytes, mut fds, mut seen) = ([0; 8], ReceivedFds::new(), Vec::new());
    peek_all(sock.as_fd(), most, &mut bytes, &mut fds, |message, bytes, fds| {
        assert!(!message.fds_truncated && !message.payload_truncated);
        seen.push((bytes.to_vec(), fds.len()));
        fds.drain().for_each(|fd| assert_eq!(nix::unistd::write(&fd, b"x"), Ok(1)));
    })
    .expect("a look");
    seen
}

#[test]
fn peek_all_when_messages_wait_then_each_is_seen_with_its_fds_and_all_stay() {
    // A child that another test starts has the fds for a moment.
    in_own_process(
        "peek_all_when_messages_wait_then_each_is_seen_with_its_fds_and_all_stay",
        || {
            let (near, far) = pair();
            let (read_end, write_end) = pipe();
            let fd = write_end.as_fd();
            // Lengths of their own: the offset of a look counts bytes.
            send(near.as_fd(), b"one", &[fd]).expect("send");
            send(near.as_fd(), b"2", &[]).expect("send");
            send(near.as_fd(), b"threeeee", &[fd, fd]).expect("send");
            drop(write_end);
            let all = [(b"one".to_vec(), 1), (b"2".to_vec(), 0), (b"threeeee".to_vec(), 2)];
            assert_eq!(look(&far, 10), all);
            assert_eq!(look(&far, 2), all[..2], "no more than asked for");
            assert_eq!(look(&far, 10), all, "from the first one again");
            let mut fds = ReceivedFds::new();
            for (bytes, count) in &all {
                let (got, _) = receive(&far, &mut fds).expect("it is there still");
                assert_eq!((&got, fds.drain().len()), (bytes, *count));
                let left = all.iter().skip_while(|it| it.0 != *bytes).skip(1).cloned();
                assert_eq!(look(&far, 10), left.collect::<Vec<_>>());
            }
            assert_eq!(recv(far.as_fd(), &mut [0; 8], &mut fds), Err(RecvError::WouldBlock));
            let written = nix::unistd::read(&read_end, &mut [0; 64]).expect("what the looks wrote");
            assert!(written > 0);
            assert!(is_write_side_closed(&read_end), "no duplicate is left");
        },
    );
}

#[test]
fn peek_all_when_the_other_end_is_closed_then_what_waits_is_seen_and_no_more() {
    let (near, far) = pair();
    let (_read_end, write_end) = pipe();
    send(near.as_fd(), b"one", &[write_end.as_fd()]).expect("send");
    drop(near);
    for _ in 0..2 {
        assert_eq!(look(&far, 10), [(b"one".to_vec(), 1)]);
    }
}

#[test]
fn peek_all_when_it_is_no_socket_then_an_error() {
    let (read_end, _write_end) = pipe();
    let (mut bytes, mut fds) = ([0; 8], ReceivedFds::new());
    let result = peek_all(read_end.as_fd(), 1, &mut bytes, &mut fds, |_, _, _| {});
    assert!(matches!(result, Err(RecvError::Os(_))), "{result:?}");
}
