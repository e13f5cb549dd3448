//! Floods of whole and allowed messages, as many and as big as possible. Must never send anything
//! for which the broker may end the connection, unless that is the attack.

use crate::attack::Attack;
use crate::support::memory::{all_seals, memfd};
use crate::wire::{Conn, Push, await_ready, block, nap, stopped};
use fdbroker_protocol::message::RegisterItem;
use fdbroker_protocol::{AllocationId, Handle, MAX_BATCH};
use nix::poll::PollFlags;
use nix::sys::epoll::{Epoll, EpollCreateFlags};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const CONNECTIONS: usize = 48;

/// Requests that a connection has under way.
const PIPELINE: usize = 64;

fn items(count: usize) -> Vec<RegisterItem> {
    (0..count).map(block).collect()
}

/// Whole messages of memfds, which all stay registered; then all are unregistered.
pub fn accepted(attack: &mut Attack) {
    let fd = memfd(c"flood", 4096, all_seals());
    flood_registers(attack, &[fd.as_fd()]);
}

/// Whole messages of fds that are refused.
pub fn refused(attack: &mut Attack) {
    let (pipe, _end) = nix::unistd::pipe().expect("a pipe");
    let (socket, _other) = fdbroker_scm::seqpacket_pair().expect("a pair");
    let epoll: OwnedFd = Epoll::new(EpollCreateFlags::empty()).expect("epoll").0;
    let dir: OwnedFd = File::open("/").expect("a directory").into();
    let fds = [pipe, socket, epoll, dir];
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    flood_registers(attack, &fds);
}

/// Four connections in turn, a whole message each.
fn flood_registers(attack: &mut Attack, fds: &[BorrowedFd<'_>]) {
    let mut conns: Vec<Option<Conn>> = (0..4).map(|_| None).collect();
    attack.begin();
    let fds: Vec<_> = fds.iter().copied().cycle().take(MAX_BATCH).collect();
    while !stopped() {
        for place in &mut conns {
            let Some(conn) = place else {
                *place = Conn::welcome(&attack.socket, &mut attack.inbox);
                continue;
            };
            if !conn.want_credits(&mut attack.inbox) {
                *place = None;
                continue;
            }
            let mut ids = Vec::new();
            let count = MAX_BATCH.min(conn.credits as usize);
            let bytes = conn.register(&items(count), MAX_BATCH as u32);
            attack.tally.tries += 1;
            let is_sent = conn.push(&bytes, &fds[..count]) == Push::Sent;
            let is_alive =
                is_sent && conn.drain_some(&mut attack.inbox, |message| collect(message, &mut ids));
            if is_alive && !ids.is_empty() {
                let bytes = conn.unregister(&ids);
                conn.push(&bytes, &[]);
                conn.drain_events(&mut attack.inbox);
            }
            if !is_alive {
                *place = None;
            }
        }
    }
}

fn collect(message: &fdbroker_protocol::Message<'_>, ids: &mut Vec<AllocationId>) {
    use fdbroker_protocol::message::{RegisterReplyHead, Registered};
    if let Ok((_, items)) = message.head_and_items::<RegisterReplyHead, Registered>() {
        ids.extend(
            items
                .iter()
                .filter(|item| item.status.get().is_ok())
                .map(|item| item.handle.get().id()),
        );
    }
}

/// Whole messages of fds beyond the credit: each ends its connection.
pub fn without_credit(attack: &mut Attack) {
    let (pipe, _end) = nix::unistd::pipe().expect("a pipe");
    let fds = vec![pipe.as_fd(); MAX_BATCH];
    attack.begin();
    while !stopped() {
        let Some(mut conn) = Conn::welcome(&attack.socket, &mut attack.inbox) else { return };
        let bytes = conn.register(&items(MAX_BATCH), MAX_BATCH as u32);
        for _ in 0..4 {
            attack.tally.tries += 1;
            if conn.push(&bytes, &fds) != Push::Sent {
                break;
            }
        }
    }
}

/// The same fd as the same allocation, thousands of times.
pub fn same(attack: &mut Attack) {
    let fd = memfd(c"same", 4096, all_seals());
    let Some(mut conn) = Conn::welcome(&attack.socket, &mut attack.inbox) else { return };
    attack.begin();
    while !stopped() {
        if !conn.want_credits(&mut attack.inbox) {
            return;
        }
        let count = MAX_BATCH.min(conn.credits as usize);
        let bytes = conn.register(&vec![block(0); count], MAX_BATCH as u32);
        attack.tally.tries += 1;
        if conn.push(&bytes, &vec![fd.as_fd(); count]) == Push::Sent {
            conn.drain_some(&mut attack.inbox, |_| {});
        }
    }
}

/// Many connections, each pipelining acquires of one and their releases.
pub fn acquires(attack: &mut Attack) {
    flood_acquires(attack, CONNECTIONS, 1, PIPELINE);
}

/// Several connections, each pipelining whole messages.
pub fn big_acquires(attack: &mut Attack) {
    flood_acquires(attack, 8, MAX_BATCH, 4);
}

fn flood_acquires(attack: &mut Attack, connections: usize, batch: usize, pipeline: usize) {
    let fd = memfd(c"flood", 4096, all_seals());
    let inbox = &mut attack.inbox;
    let mut conns = Vec::new();
    let mut handles: Vec<Handle> = Vec::new();
    for _ in 0..connections {
        let Some(mut conn) = Conn::welcome(&attack.socket, inbox) else { return };
        if handles.is_empty() {
            let registered = conn.share(inbox, fd.as_fd(), &items(batch));
            handles = registered.iter().map(|it| it.handle.get()).collect();
        }
        conns.push((conn, 0_usize));
    }
    assert!(!handles.is_empty(), "its own registers are good");
    attack.begin();
    while !stopped() {
        for (conn, under_way) in &mut conns {
            while *under_way < pipeline {
                let bytes = conn.acquire(&handles, 1000);
                if conn.push(&bytes, &[]) != Push::Sent {
                    break;
                }
                attack.tally.tries += 1;
                *under_way += 1;
            }
            let mut leases = Vec::new();
            let is_alive = conn.drain(&mut attack.inbox, |message| {
                *under_way = under_way.saturating_sub(1);
                if let Ok((items, _)) = message.grants() {
                    leases.extend(
                        items.iter().filter(|it| it.status.get().is_ok()).map(|it| it.lease.get()),
                    );
                }
            });
            assert!(is_alive, "nothing is wrong with it");
            for piece in leases.chunks(MAX_BATCH) {
                let bytes = conn.release(piece);
                while conn.push(&bytes, &[]) == Push::Full && !stopped() {
                    await_ready(conn.socket.as_fd(), PollFlags::POLLOUT);
                }
            }
        }
    }
}

/// One allocation begins and ends, pipelined, on many connections.
pub fn storm(attack: &mut Attack) {
    let fd = memfd(c"storm", 4096, all_seals());
    let mut conns = Vec::new();
    for _ in 0..CONNECTIONS {
        let Some(mut conn) = Conn::welcome(&attack.socket, &mut attack.inbox) else { return };
        if conn.credits == 0 {
            let bytes = conn.register(&[], 16);
            conn.push(&bytes, &[]);
        }
        conns.push((conn, Vec::new()));
    }
    attack.begin();
    while !stopped() {
        let mut is_anything_done = false;
        for (conn, ids) in &mut conns {
            assert!(
                conn.drain(&mut attack.inbox, |message| collect(message, ids)),
                "all is allowed"
            );
            conn.drain_events(&mut attack.inbox);
            for id in ids.drain(..) {
                let bytes = conn.unregister(&[id]);
                conn.push(&bytes, &[]);
            }
            while conn.credits > 0 {
                conn.credits -= 1;
                let bytes = conn.register(&[block(conn.credits as usize)], 16);
                if conn.push(&bytes, &[fd.as_fd()]) != Push::Sent {
                    break;
                }
                attack.tally.tries += 1;
                is_anything_done = true;
            }
        }
        if !is_anything_done {
            nap();
        }
    }
}

/// Many small allocations, then one that covers them all.
pub fn reuse(attack: &mut Attack) {
    let fd = memfd(c"reuse", 4096 * MAX_BATCH, all_seals());
    let fds = vec![fd.as_fd(); MAX_BATCH];
    let Some(mut conn) = Conn::welcome(&attack.socket, &mut attack.inbox) else { return };
    attack.begin();
    while !stopped() {
        if !conn.want_credits(&mut attack.inbox) {
            return;
        }
        conn.share(&mut attack.inbox, fd.as_fd(), &items(MAX_BATCH));
        let mut whole = block(0);
        whole.facts.size_bytes = (4096 * MAX_BATCH as u64).into();
        whole.facts.owner_allocation_id = (attack.rng.next()).into();
        while !stopped() && conn.credits == 0 {
            let bytes = conn.register(&[], 253);
            conn.push(&bytes, &[]);
            conn.drain_some(&mut attack.inbox, |_| {});
        }
        let bytes = conn.register(&[whole], MAX_BATCH as u32);
        conn.push(&bytes, &fds[..1]);
        conn.drain_some(&mut attack.inbox, |_| {});
        conn.drain_events(&mut attack.inbox);
        attack.tally.tries += 1;
    }
}
