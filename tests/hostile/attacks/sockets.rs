//! Sockets as deposits, in whose queues are fds, each other, or the connection to the broker. Must never have more fds in
//! flight than the kernel lets one user have.

use crate::attack::Attack;
use crate::support::memory::{both_seals, memfd};
use crate::wire::{Conn, Push, block, push, stopped};
use std::os::fd::{AsFd, OwnedFd};

/// Sockets inside sockets, nested: the kernel allows five levels, and counts cycles separately.
const DEPTH: usize = 8;

fn pair() -> (OwnedFd, OwnedFd) {
    fdbroker_scm::seqpacket_pair().expect("a socket pair")
}

/// Cycles and chains, sent to the broker and abandoned.
pub fn nested(attack: &mut Attack) {
    let fd = memfd(c"nested", 4096, both_seals());
    attack.begin();
    while !stopped() {
        let Some(mut conn) = Conn::welcome(&attack.socket, &mut attack.inbox) else { return };
        for _ in 0..4 {
            let (one, other) = pair();
            // A cycle: each has itself and the other in its queue.
            push(one.as_fd(), &[0], &[one.as_fd(), other.as_fd(), fd.as_fd()]);
            push(other.as_fd(), &[0], &[one.as_fd(), other.as_fd()]);
            let (mut outer, mut kept) = pair();
            for _ in 0..DEPTH {
                let (next, next_kept) = pair();
                push(next.as_fd(), &[0], &[outer.as_fd(), kept.as_fd(), conn.socket.as_fd()]);
                (outer, kept) = (next, next_kept);
            }
            let items = [block(1), block(2), block(3)];
            let bytes = conn.register(&items, 16);
            attack.tally.tries += 1;
            conn.push(&bytes, &[one.as_fd(), outer.as_fd(), kept.as_fd()]);
        }
        conn.drain(&mut attack.inbox, |_| {});
    }
}

/// The broker is sent its clients' own ends of their connections. Then the client drops them: only the broker has them.
pub fn own(attack: &mut Attack) {
    attack.begin();
    while !stopped() {
        let Some(mut conn) = Conn::welcome(&attack.socket, &mut attack.inbox) else { return };
        let bytes = conn.register(&[block(1), block(2), block(3)], 16);
        let (Some(events), Some(page)) = (&conn.events, &conn.page) else { continue };
        let ends = [conn.socket.as_fd(), events.as_fd(), page.as_fd()];
        for _ in 0..8 {
            attack.tally.tries += 1;
            if conn.push(&bytes, &ends) != Push::Sent {
                break;
            }
        }
        if attack.rng.below(2) == 0 {
            conn.drain(&mut attack.inbox, |_| {});
        }
    }
}
