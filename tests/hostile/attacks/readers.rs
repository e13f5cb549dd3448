//! Clients that do not read, or read badly. Must never read more than their description says.

use crate::attack::Attack;
use crate::support::memory::{all_seals, memfd};
use crate::support::raw::hello;
use crate::wire::{Conn, Push, block, nap, stopped};
use nix::sys::socket::{MsgFlags, Shutdown, recv, shutdown};
use std::os::fd::{AsFd, AsRawFd};

/// Connections of `never`.
const CONNECTIONS: usize = 32;
/// Connections of `unread_hellos`.
const HORDE: usize = 800;
/// Requests on each connection before a new connection takes its place.
const REQUESTS: usize = 400;

/// Acquires without end, and reads no answer; ends its own allocations meanwhile, so that events
/// come, too.
pub fn never(attack: &mut Attack) {
    let fd = memfd(c"never", 4096, all_seals());
    attack.begin();
    while !stopped() {
        let mut conns = Vec::new();
        for _ in 0..CONNECTIONS {
            let Some(mut conn) = Conn::welcome(&attack.socket, &mut attack.inbox) else { return };
            let registered = conn.share(&mut attack.inbox, fd.as_fd(), &[block(1)]);
            let Some(own) = registered.first().map(|it| it.handle.get()) else { continue };
            for _ in 0..REQUESTS {
                let bytes = conn.acquire(&[own], 1000);
                attack.tally.tries += 1;
                if stopped() || conn.push(&bytes, &[]) != Push::Sent {
                    break;
                }
            }
            let bytes = conn.unregister(&[own.id()]);
            conn.push(&bytes, &[]);
            conns.push(conn);
        }
        nap();
    }
}

/// So many connections that looking at each costs something.
pub fn unread_hellos(attack: &mut Attack) {
    let fd = memfd(c"horde", 4096, all_seals());
    let Some(mut owner) = Conn::welcome(&attack.socket, &mut attack.inbox) else { return };
    let blocks: Vec<_> = (0..253).map(block).collect();
    let shared = owner.share(&mut attack.inbox, fd.as_fd(), &blocks);
    let handles: Vec<_> = shared.iter().map(|it| it.handle.get()).collect();
    let mut conns = Vec::new();
    attack.begin();
    while !stopped() {
        if conns.len() < HORDE {
            let Some(mut conn) = Conn::silent(&attack.socket) else { return };
            conn.push_hello(&hello());
            conns.push(conn);
            attack.tally.tries += 1;
            continue;
        }
        // By now they are welcome: each is granted memory, and does not read that, either.
        for conn in &mut conns {
            let bytes = conn.acquire(&handles, 60_000);
            conn.push(&bytes, &[]);
            attack.tally.tries += 1;
        }
        nap();
    }
}

/// Each answer is read with room for one byte and no fd: the kernel drops the rest.
pub fn one_byte(attack: &mut Attack) {
    let fd = memfd(c"one", 4096, all_seals());
    let Some(mut owner) = Conn::welcome(&attack.socket, &mut attack.inbox) else { return };
    let shared = owner.share(&mut attack.inbox, fd.as_fd(), &[block(1)]);
    let Some(own) = shared.first().map(|it| it.handle.get()) else { return };
    attack.begin();
    while !stopped() {
        let Some(mut conn) = Conn::welcome(&attack.socket, &mut attack.inbox) else { return };
        let mut byte = [0];
        // The leases are never given back: the connection's end does that.
        for _ in 0..REQUESTS {
            let bytes = conn.acquire(&[own], 1000);
            attack.tally.tries += 1;
            if stopped() || conn.push(&bytes, &[]) == Push::Gone {
                break;
            }
            if attack.rng.below(4) == 0 {
                let _ = recv(conn.socket.as_raw_fd(), &mut byte, MsgFlags::MSG_DONTWAIT);
            }
        }
        for _ in 0..REQUESTS {
            let _ = recv(conn.socket.as_raw_fd(), &mut byte, MsgFlags::MSG_DONTWAIT);
        }
    }
}

/// Requests are under way when one direction is shut down.
pub fn half_closed(attack: &mut Attack) {
    let fd = memfd(c"half", 4096, all_seals());
    attack.begin();
    let mut kept = std::collections::VecDeque::new();
    while !stopped() {
        let Some(mut conn) = Conn::welcome(&attack.socket, &mut attack.inbox) else { return };
        let shared = conn.share(&mut attack.inbox, fd.as_fd(), &[block(1)]);
        let Some(own) = shared.first().map(|it| it.handle.get()) else { continue };
        for _ in 0..8 {
            let bytes = conn.acquire(&[own], 1000);
            conn.push(&bytes, &[]);
        }
        let how = [Shutdown::Read, Shutdown::Write, Shutdown::Both][attack.rng.below(3)];
        let socket = match (&conn.events, attack.rng.below(3)) {
            (Some(events), 0) => events.as_raw_fd(),
            _ => conn.socket.as_raw_fd(),
        };
        let _ = shutdown(socket, how);
        let bytes = conn.acquire(&[own], 1000);
        conn.push(&bytes, &[]);
        attack.tally.tries += 1;
        kept.push_back(conn);
        if kept.len() > CONNECTIONS {
            kept.pop_front();
        }
    }
}
