//! Bytes that are no messages, and messages that are nearly whole. Must never be gentle.

use crate::attack::{Attack, Rng};
use crate::support::memory::{all_seals, memfd};
use crate::wire::{Conn, Push, block, push, stopped, supply};
use fdbroker_protocol::handle::HandlePrefix;
use fdbroker_protocol::message::{DeclareItem, RedepositItem, SupplyItem};
use fdbroker_protocol::{AllocationId, Handle, MAX_BATCH};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use zerocopy::FromZeros;

/// Messages to one connection before another is made.
const MESSAGES: usize = 32;

/// Any packets, with and without fds, before and after hello, on either socket.
pub fn random(attack: &mut Attack) {
    let fd = memfd(c"random", 4096, all_seals());
    let mut bytes = vec![0; 65_536 + 8];
    attack.begin();
    while !stopped() {
        let conn = match attack.rng.below(3) {
            0 => Conn::silent(&attack.socket),
            _ => Conn::welcome(&attack.socket, &mut attack.inbox),
        };
        let Some(mut conn) = conn else { return };
        for _ in 0..MESSAGES {
            let length = match attack.rng.below(4) {
                0 => 1 + attack.rng.below(bytes.len() - 1),
                1 => 16,
                _ => 1 + attack.rng.below(200),
            };
            attack.rng.fill(&mut bytes[..length]);
            if attack.rng.below(2) == 0 {
                // The right version: then the daemon looks at the rest, too.
                bytes[1..3].copy_from_slice(&[0, 1]);
            }
            let count = if attack.rng.below(4) == 0 { attack.rng.below(MAX_BATCH + 1) } else { 0 };
            let fds = vec![fd.as_fd(); count];
            let socket = match (&conn.events, attack.rng.below(4)) {
                (Some(events), 0) => events.as_fd(),
                _ => conn.socket.as_fd(),
            };
            attack.tally.tries += 1;
            if push(socket, &bytes[..length], &fds) == Push::Gone {
                break;
            }
        }
        conn.drain(&mut attack.inbox, |_| {});
    }
}

/// Whole messages of every kind with something wrong.
pub fn mutated(attack: &mut Attack) {
    let fd = memfd(c"mutated", 4096 * MAX_BATCH, all_seals());
    attack.begin();
    while !stopped() {
        let Some(mut conn) = Conn::welcome(&attack.socket, &mut attack.inbox) else { return };
        if !conn.want_credits(&mut attack.inbox) {
            continue;
        }
        for _ in 0..MESSAGES {
            let (mut bytes, mut fds, is_event) = any_message(&mut conn, attack, &fd);
            mutate(&mut bytes, &mut fds, &mut attack.rng, fd.as_fd());
            let socket = match (&conn.events, is_event) {
                (Some(events), true) => events.as_fd(),
                _ => conn.socket.as_fd(),
            };
            attack.tally.tries += 1;
            if push(socket, &bytes, &fds) == Push::Gone || !conn.drain(&mut attack.inbox, |_| {}) {
                break;
            }
            conn.drain_events(&mut attack.inbox);
        }
    }
}

/// A whole message, its fds, and whether it goes to the event socket.
fn any_message<'f>(
    conn: &mut Conn,
    attack: &mut Attack,
    fd: &'f OwnedFd,
) -> (Vec<u8>, Vec<BorrowedFd<'f>>, bool) {
    let rng = &mut attack.rng;
    let count = 1 + rng.below(8);
    let ids: Vec<_> = (0..count)
        .map(|_| AllocationId { slot: rng.below(80) as u32, generation: rng.below(4) as u32 })
        .collect();
    let handles: Vec<Handle> =
        (0..count).map(|_| attack.victims[rng.below(attack.victims.len())]).collect();
    let no_fds = |bytes| (bytes, Vec::new(), false);
    match rng.below(9) {
        0 => {
            let items: Vec<_> = (0..count).map(|_| block(rng.below(300))).collect();
            (conn.register(&items, rng.below(300) as u32), vec![fd.as_fd(); count], false)
        }
        1 => no_fds(conn.unregister(&ids)),
        2 => no_fds(conn.acquire(&handles, rng.below(50) as u32)),
        3 => no_fds(conn.release(&[rng.next() % 500, rng.next()])),
        4 => no_fds(conn.cancel(rng.next() % 100)),
        5 => no_fds(conn.redeposit(&vec![RedepositItem::new_zeroed(); count])),
        6 => {
            let item = DeclareItem {
                handle: HandlePrefix { ..handles[0].prefix }.into(),
                flags: 1.into(),
                reserved: 0.into(),
            };
            no_fds(conn.declare(&vec![item; count]))
        }
        7 => no_fds(conn.register(&[], rng.below(300) as u32)),
        _ => {
            let mut item = SupplyItem::new_zeroed();
            item.slot = ids[0].slot.into();
            item.generation = ids[0].generation.into();
            item.facts.size_bytes = 4096.into();
            (supply(&vec![item; count], count), vec![fd.as_fd(); count], true)
        }
    }
}

fn mutate<'f>(
    bytes: &mut Vec<u8>,
    fds: &mut Vec<BorrowedFd<'f>>,
    rng: &mut Rng,
    fd: BorrowedFd<'f>,
) {
    for _ in 0..rng.below(4) {
        let at = match rng.below(2) {
            0 => rng.below(bytes.len()),
            _ => rng.below(bytes.len().min(32)),
        };
        bytes[at] = match rng.below(3) {
            0 => 0xff,
            1 => 0,
            _ => rng.next() as u8,
        };
    }
    match rng.below(8) {
        0 => bytes.truncate(1 + rng.below(bytes.len())),
        1 => bytes.extend_from_slice(&[0xaa; 24]),
        2 => fds.push(fd),
        3 => drop(fds.pop()),
        _ => {}
    }
}
