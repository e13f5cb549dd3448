//! The limits of the process and of the user, and that nothing leaks at them.
//! Every test runs in a process of its own, because it counts fds or changes what is counted.

use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use crate::common::{
    in_own_process, is_open, is_write_side_closed, many, open_fds, pair, pipe, receive, set_nofile,
};
use fdbroker_scm::{MAX_FDS, ReceivedFds, RecvError, SendError, send, send_timeout};

#[test]
fn recv_when_fd_table_is_full_then_what_fits_arrives_and_nothing_leaks() {
    in_own_process("recv_when_fd_table_is_full_then_what_fits_arrives_and_nothing_leaks", || {
        const SENT: usize = 10;
        for fit in [0, 1, 2, 3, SENT - 1, SENT] {
            let (a, b) = pair();
            let (read_end, write_end) = pipe();
            let mut fds = ReceivedFds::new();
            send(a.as_fd(), b"ten", &many(&write_end, SENT)).unwrap();
            drop(write_end);
            let before = open_fds();
            // The limit that leaves exactly `fit` free numbers below it.
            let free = (0..).filter(|fd| !is_open(*fd)).nth(fit).unwrap();

            let old = set_nofile(free as u64);
            let answer = receive(&b, &mut fds);
            set_nofile(old);

            let (bytes, message) = answer.unwrap();
            assert_eq!(bytes, b"ten");
            assert!(!message.payload_truncated);
            assert_eq!((fds.len(), message.fds_truncated), (fit, fit < SENT));
            assert_eq!(open_fds().len(), before.len() + fit);
            assert_eq!(is_write_side_closed(&read_end), fit == 0, "the others must be gone");
            fds.drain().for_each(drop);
            assert_eq!(open_fds(), before);
            assert!(is_write_side_closed(&read_end));
            assert_eq!(receive(&b, &mut fds), Err(RecvError::WouldBlock));
        }
    });
}

#[test]
fn messages_when_100_000_with_fds_then_as_many_fds_open_as_before() {
    in_own_process("messages_when_100_000_with_fds_then_as_many_fds_open_as_before", || {
        let (a, b) = pair();
        let (read_end, write_end) = pipe();
        let (mut fds, mut narrow) = (ReceivedFds::new(), ReceivedFds::with_capacity(1));
        let before = open_fds();
        let mut buf = [0; 64];
        for round in 0..100_000_usize {
            let count = 1 + round % 4;
            send(a.as_fd(), b"message", &many(&write_end, count)).unwrap();
            // Every way out, and every third message truncated.
            let fds = if round % 3 == 0 { &mut narrow } else { &mut fds };
            let message = fdbroker_scm::recv(b.as_fd(), &mut buf, fds).unwrap();
            assert_eq!(message.fds_truncated, fds.len() < count);
            match round % 5 {
                0 => fds.clear(),
                1 => drop(fds.pop_front()),
                2 => drop(fds.take(fds.len() - 1)),
                3 => drop(fds.drain().next()),
                _ => fds.drain().for_each(drop),
            }
            fds.clear();
        }
        assert_eq!(open_fds(), before);
        drop(write_end);
        assert!(is_write_side_closed(&read_end));
    });
}

#[test]
fn fds_when_their_buffer_is_dropped_then_closed() {
    in_own_process("fds_when_their_buffer_is_dropped_then_closed", || {
        let (a, b) = pair();
        let before = open_fds();
        let mut fds = ReceivedFds::new();
        send(a.as_fd(), b"x", &many(&a, MAX_FDS)).unwrap();
        let _ = receive(&b, &mut fds).unwrap();
        assert_eq!(open_fds().len(), before.len() + MAX_FDS);
        drop(fds);
        assert_eq!(open_fds(), before);
    });
}

/// Becomes a user of whom nobody else has fds in flight, and who is not exempt from the limit.
fn become_nobody() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let own = 1_000_000_000 + std::process::id();
    let ids = [own, 65534].into_iter().map(nix::unistd::Uid::from_raw);
    let changed = ids.into_iter().any(|uid| nix::unistd::setuid(uid).is_ok());
    assert!(changed, "setuid");
}

#[test]
fn send_when_too_many_fds_are_in_flight_then_a_state_that_passes() {
    in_own_process("send_when_too_many_fds_are_in_flight_then_a_state_that_passes", || {
        const SENT: usize = 72;
        become_nobody();
        let (a, b) = pair();
        let (other, _its_peer) = pair();
        let (read_end, write_end) = pipe();
        for _ in 0..SENT / 8 {
            let sent = send_timeout(a.as_fd(), b"x", &many(&write_end, 8), None);
            assert_eq!(sent, Ok(()));
        }
        // Less than this process alone has in flight: so it does not matter what other processes of
        // this user have.
        set_nofile(SENT as u64 - 8);

        let refused = send(a.as_fd(), b"x", &many(&write_end, 8));
        let why = "the limit does not apply: CAP_SYS_ADMIN, CAP_SYS_RESOURCE?";
        assert_eq!(refused, Err(SendError::TooManyRefs), "{why}");
        // It is the user's state, not the socket's; and bytes alone still pass.
        assert_eq!(send(other.as_fd(), b"x", &many(&write_end, 1)), Err(SendError::TooManyRefs));
        assert_eq!(send(other.as_fd(), b"x", &[]), Ok(()));
        let waited = send_timeout(
            other.as_fd(),
            b"x",
            &many(&write_end, 1),
            Some(Duration::from_millis(30)),
        );
        assert_eq!(waited, Err(SendError::TimedOut));
        #[cfg(feature = "sendfd")]
        {
            let grant = fdbroker_scm::send_grant(other.as_fd(), b"x", &many(&write_end, 1));
            assert_eq!(grant, Err(SendError::TooManyRefs));
        }

        // Waited out: the peer reads while we wait.
        let reader = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            let mut fds = ReceivedFds::new();
            let mut received = 0;
            while receive(&b, &mut fds).is_ok() {
                received += fds.drain().count();
            }
            (received, b)
        });
        assert_eq!(send_timeout(other.as_fd(), b"x", &many(&write_end, 1), None), Ok(()));
        let (received, b) = reader.join().unwrap();
        assert_eq!(received, SENT);
        // Another process of this user may have some in flight again: then it waits.
        assert_eq!(send_timeout(a.as_fd(), b"x", &many(&write_end, 8), None), Ok(()));

        // Closing unread sockets frees what is in flight.
        drop((write_end, a, b, other, _its_peer));
        let closed = (0..500).any(|_| {
            thread::sleep(Duration::from_millis(2));
            is_write_side_closed(&read_end)
        });
        assert!(closed);
    });
}
