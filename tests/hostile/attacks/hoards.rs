//! Answers to recalls that were never sent, cancelled requests, requests that wait. An attack must
//! never wait itself.

use crate::attack::Attack;
use crate::support::memory::{all_seals, memfd};
use crate::support::raw::hello;
use crate::wire::{Conn, Push, await_ready, block, nap, push, stopped, supply};
use fdbroker_protocol::MAX_BATCH;
use fdbroker_protocol::message::{RegisterItem, RegisterReplyHead, Registered, SupplyItem};
use nix::poll::PollFlags;
use std::os::fd::AsFd;
use zerocopy::FromZeros;

const CONNECTIONS: usize = 48;
/// Requests of each connection that wait: as many as the broker lets one client park.
const PARKED: usize = 64;

/// Supplies with fds for its own allocations, for those of others, and for slots that were never
/// used.
pub fn supplies(attack: &mut Attack) {
    let fd = memfd(c"supply", 4096, all_seals());
    let Some(mut conn) = Conn::welcome(&attack.socket, &mut attack.inbox) else { return };
    let shared = conn.share(&mut attack.inbox, fd.as_fd(), &[block(1)]);
    let Some(own) = shared.first().map(|it| it.handle.get().id()) else { return };
    attack.begin();
    while !stopped() {
        let count = 1 + attack.rng.below(MAX_BATCH);
        let items: Vec<_> = (0..count)
            .map(|_| {
                let mut item = SupplyItem::new_zeroed();
                item.facts.size_bytes = 4096.into();
                (item.slot, item.generation) = match attack.rng.below(3) {
                    0 => (own.slot.into(), own.generation.into()),
                    1 => ((attack.rng.below(100) as u32).into(), 1.into()),
                    _ => ((attack.rng.next() as u32).into(), (attack.rng.next() as u32).into()),
                };
                item
            })
            .collect();
        let Some(events) = &conn.events else { return };
        attack.tally.tries += 1;
        match push(events.as_fd(), &supply(&items, count), &vec![fd.as_fd(); count]) {
            Push::Sent => {}
            Push::Full => await_ready(events.as_fd(), PollFlags::POLLOUT),
            Push::Gone => match Conn::welcome(&attack.socket, &mut attack.inbox) {
                Some(next) => conn = next,
                None => return,
            },
        }
        conn.drain(&mut attack.inbox, |_| {});
    }
}

/// Acquires that need a recall, each cancelled at once; and many cancels of nothing.
pub fn cancels(attack: &mut Attack) {
    let fd = memfd(c"cancel", 4096, all_seals());
    let Some(mut conn) = Conn::welcome(&attack.socket, &mut attack.inbox) else { return };
    let shared = conn.share(&mut attack.inbox, fd.as_fd(), &[block(1)]);
    let Some(own) = shared.first().map(|it| it.handle.get()) else { return };
    attack.begin();
    while !stopped() {
        let acquire = conn.acquire(&[own], 1000);
        let cancel = conn.cancel(u64::from_le_bytes(acquire[8..16].try_into().expect("8 bytes")));
        let nothing = conn.cancel(attack.rng.next() | 1);
        for bytes in [&acquire, &cancel, &nothing, &nothing, &cancel] {
            attack.tally.tries += 1;
            if conn.push(bytes, &[]) == Push::Full {
                await_ready(conn.socket.as_fd(), PollFlags::POLLOUT);
            }
        }
        let mut leases = Vec::new();
        conn.drain(&mut attack.inbox, |message| {
            if let Ok((items, _)) = message.grants() {
                leases.extend(items.iter().map(|it| it.lease.get()).filter(|it| *it != 0));
            }
        });
        for piece in leases.chunks(MAX_BATCH) {
            let bytes = conn.release(piece);
            conn.push(&bytes, &[]);
        }
    }
}

/// A domain at its cap with thousands of requests that wait for it.
pub fn parked(attack: &mut Attack) {
    wait_in_line(attack, 200, 1);
}

/// As many requests of full length as may wait: their items are bounded, too.
pub fn parked_items(attack: &mut Attack) {
    wait_in_line(attack, MAX_BATCH, MAX_BATCH);
}

/// Requests of `batch` items each, of as many blocks, until each connection has as many as may
/// wait.
fn wait_in_line(attack: &mut Attack, blocks: usize, batch: usize) {
    let fd = memfd(c"parked", 4096, all_seals());
    let Some(mut owner) = Conn::welcome(&attack.socket, &mut attack.inbox) else { return };
    let blocks: Vec<_> = (0..blocks).map(block).collect();
    let shared = owner.share(&mut attack.inbox, fd.as_fd(), &blocks);
    let handles: Vec<_> = shared.iter().map(|it| it.handle.get()).collect();
    if handles.is_empty() {
        return;
    }
    let batch = batch.min(handles.len());
    let mut conns = Vec::new();
    for _ in 0..CONNECTIONS {
        let Some(conn) = Conn::welcome(&attack.socket, &mut attack.inbox) else { return };
        conns.push((conn, 0));
    }
    attack.begin();
    while !stopped() {
        for (conn, under_way) in &mut conns {
            while *under_way < PARKED {
                let first = attack.rng.below(handles.len() - batch + 1);
                let bytes = conn.acquire(&handles[first..first + batch], 200);
                if conn.push(&bytes, &[]) != Push::Sent {
                    break;
                }
                *under_way += 1;
                attack.tally.tries += 1;
            }
            // The attack keeps what it is granted, so that soon nothing is granted.
            conn.drain(&mut attack.inbox, |_| *under_way -= 1);
        }
        nap();
    }
}

/// All that one user may have: connections, claimed fds, memory that cannot be recalled, leases.
/// The attack is under way once a connection is refused. It goes on trying.
pub fn everything(attack: &mut Attack) {
    let fd = memfd(c"everything", 4096, all_seals());
    let blocks: Vec<_> = (0..64).map(|index| RegisterItem { flags: 0, ..block(index) }).collect();
    let (mut conns, mut handles, mut is_under_way) = (Vec::new(), Vec::new(), false);
    while !stopped() {
        attack.tally.tries += 1;
        let Some(mut conn) = Conn::silent(&attack.socket) else { return };
        let mut claims = hello();
        claims.own_fds = [0, 64, 2000][attack.rng.below(3)].into();
        conn.push_hello(&claims);
        match conn.await_welcome(&mut attack.inbox) {
            true if handles.is_empty() => {
                // As many as it has credits for: it does not wait for more.
                let count = blocks.len().min(conn.credits as usize);
                let bytes = conn.register(&blocks[..count], MAX_BATCH as u32);
                conn.push(&bytes, &vec![fd.as_fd(); count]);
                conn.drain_some(&mut attack.inbox, |message| {
                    if let Ok((_, items)) =
                        message.head_and_items::<RegisterReplyHead, Registered>()
                    {
                        let good = items.iter().filter(|item| item.status.get().is_ok());
                        handles.extend(good.map(|item| item.handle.get()));
                    }
                });
                conns.push(conn);
            }
            true => conns.push(conn),
            false if !is_under_way => {
                attack.begin();
                is_under_way = true;
            }
            false => nap(),
        }
        if handles.is_empty() {
            continue;
        }
        for conn in &mut conns {
            let bytes = conn.acquire(&handles, 60_000);
            conn.push(&bytes, &[]);
            // What is granted is kept.
            conn.drain(&mut attack.inbox, |_| {});
        }
    }
}
