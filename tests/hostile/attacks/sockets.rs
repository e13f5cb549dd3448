//! Sockets as deposits, in whose queues are fds, each other, or the connection to the broker. Must
//! never have more fds in flight than the kernel lets one user have.

use crate::attack::Attack;
use crate::support::memory::{all_seals, memfd};
use crate::support::peer::die_with_parent;
use crate::support::raw::hello;
use crate::wire::{Conn, Push, block, nap, push, stopped};
use fdbroker_protocol::{Kind, MAX_BATCH, Writer};
use nix::sys::socket::{setsockopt, sockopt};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Sockets inside sockets, nested: the kernel allows five levels, and counts cycles separately.
const DEPTH: usize = 8;

fn pair() -> (OwnedFd, OwnedFd) {
    fdbroker_scm::seqpacket_pair().expect("a socket pair")
}

/// Cycles and chains, sent to the broker and abandoned.
pub fn nested(attack: &mut Attack) {
    let fd = memfd(c"nested", 4096, all_seals());
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

/// The broker is sent its clients' own ends of their connections. Then the client drops them: only
/// the broker has them.
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

/// Most TCP connections at a time: each ties up the memory of what is unsent.
const MOST_LINGERING: usize = 200;

/// A TCP socket with so much unsent that its last close waits until the other end, which is
/// returned too, is gone.
fn lingering_pair() -> std::io::Result<(OwnedFd, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    setsockopt(&listener, sockopt::RcvBuf, &4096)?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    setsockopt(&stream, sockopt::SndBuf, &4096)?;
    setsockopt(&stream, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 3600 })?;
    stream.set_nonblocking(true)?;
    while (&stream).write(&[0; 4096]).is_ok() {}
    Ok((stream.into(), other))
}

/// TCP sockets whose last close waits for a reader that does not read, sent in each way in which
/// the broker does not want them. The attacker has no other fd of them.
pub fn lingering(attack: &mut Attack) {
    die_with_parent();
    let mut others = Vec::new();
    attack.begin();
    while !stopped() {
        if others.len() >= MOST_LINGERING {
            nap();
            continue;
        }
        let Ok((fd, other)) = lingering_pair() else { return };
        attack.tally.tries += 1;
        if send_unwanted(attack, fd.as_fd()) == Push::Sent {
            others.push(other);
            // Where the broker has been faster, this is the last one.
            std::thread::spawn(|| drop(fd));
        } else {
            drop(other);
        }
    }
}

fn send_unwanted(attack: &mut Attack, fd: BorrowedFd<'_>) -> Push {
    let way = attack.rng.below(4);
    if way == 0 {
        // With its hello, or before it is known.
        let Some(conn) = Conn::silent(&attack.socket) else { return Push::Gone };
        let mut writer = Writer::new();
        writer.start(Kind::Hello, 1).push(&hello());
        return conn.push(writer.finish(0, 0), &[fd]);
    }
    let conn = Conn::welcome(&attack.socket, &mut attack.inbox);
    let Some(mut conn) = conn else { return Push::Gone };
    let items: Vec<_> = (0..[1, 1, MAX_BATCH, 1][way]).map(block).collect();
    let bytes = conn.register(&items, 0);
    if way == 3 {
        // Behind the end of its connection.
        conn.push(&[0], &[]);
    }
    conn.push(&bytes, &vec![fd; items.len()])
}
