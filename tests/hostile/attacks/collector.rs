//! The kernel's collector of Unix sockets that lie in each other's queues. One attacker leaves more
//! fds unread than the kernel lets a uid have in flight before it waits for the collector; the
//! others give the collector much to walk over. Must never have more sockets in flight than the
//! kernel lets one user have.

use crate::attack::Attack;
use crate::support::memory::{all_seals, memfd};
use crate::wire::{Conn, block, nap, push, stopped};
use fdbroker_protocol::MAX_BATCH;
use std::os::fd::{AsFd, OwnedFd};

/// Connections that leave a whole message of grants unread: 3,036 fds of the broker's uid are in
/// flight. From 2,024 on (UNIX_INFLIGHT_SANE_USER in net/unix/garbage.c) a uid may have to wait for
/// the collector.
const UNREAD: usize = 12;

/// Pairs of sockets of an attacker that lie in each other's queues.
const PAIRS: usize = 400;

/// Pairs that are made and dropped before the attacker looks whether it is to end.
const DROPPED: usize = 16;

fn pair() -> (OwnedFd, OwnedFd) {
    fdbroker_scm::seqpacket_pair().expect("a socket pair")
}

/// The first attacker fills the broker's queues, the others keep the collector busy.
pub fn busy(attack: &mut Attack) {
    match attack.number {
        0 => leave_unread(attack),
        _ => make_cycles(attack),
    }
}

fn leave_unread(attack: &mut Attack) {
    let fd = memfd(c"unread", 4096, all_seals());
    let items: Vec<_> = (0..MAX_BATCH).map(block).collect();
    let (mut conns, mut handles) = (Vec::new(), Vec::new());
    for _ in 0..UNREAD {
        let Some(mut conn) = Conn::welcome(&attack.socket, &mut attack.inbox) else { return };
        if handles.is_empty() {
            let shared = conn.share(&mut attack.inbox, fd.as_fd(), &items);
            handles = shared.iter().map(|it| it.handle.get()).collect();
            assert!(!handles.is_empty(), "its own registers are good");
        }
        let bytes = conn.acquire(&handles, 60_000);
        conn.push(&bytes, &[]);
        attack.tally.tries += 1;
        conns.push(conn);
    }
    attack.begin();
    while !stopped() {
        nap();
    }
}

/// A ring of pairs, each in the queue of the one before it, which this process has open: the
/// collector walks over all of it and may take nothing. Beside it cycles come and go, and each of
/// them starts the collector.
fn make_cycles(attack: &mut Attack) {
    let ring: Vec<_> = (0..PAIRS).map(|_| pair()).collect();
    for (at, (one, _)) in ring.iter().enumerate() {
        let (next, other) = &ring[(at + 1) % PAIRS];
        push(one.as_fd(), &[0], &[next.as_fd(), other.as_fd()]);
    }
    attack.begin();
    while !stopped() {
        for _ in 0..DROPPED {
            let (one, other) = pair();
            push(one.as_fd(), &[0], &[one.as_fd(), other.as_fd()]);
            push(other.as_fd(), &[0], &[one.as_fd(), other.as_fd()]);
            attack.tally.tries += 1;
        }
        nap();
    }
}
