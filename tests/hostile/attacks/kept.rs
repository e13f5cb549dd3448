//! Kept memory that its owner leaves behind. Counts what it gets beyond the caps, and answers that
//! are wrong: there must be none. Must never keep more than a few dozen allocations of one
//! connection.

use crate::attack::Attack;
use crate::support::memory::{all_seals, memfd};
use crate::wire::{Conn, Push, block, stopped};
use fdbroker_protocol::message::{RegisterItem, RegisterReplyHead, Registered, register_flags};
use fdbroker_protocol::{ErrorCode, MAX_BATCH, Message, Resource, Share, Status};
use std::os::fd::{AsFd, BorrowedFd};

/// Messages of each connection.
const MESSAGES: usize = 3;

/// Connections that may pass before an answer names the cap. The first should do: it asks for more
/// than a client may keep.
const CONNECTIONS_BEFORE_CAP: usize = 20;

/// Registers allocations to be kept, as many as one message takes, some with an invalid share or
/// invalid flags. Then the connection ends, and a new one follows. The attack is under way once the
/// cap is reached: how soon is up to the machine.
pub fn hoard(attack: &mut Attack) {
    let fd = memfd(c"kept", 4096, all_seals());
    let mut named = false;
    for _ in 0..CONNECTIONS_BEFORE_CAP {
        if !named {
            leave_behind(attack, fd.as_fd(), &mut named);
        }
    }
    // A cap that was never reached was not tested.
    attack.tally.wrong += u64::from(!named);
    attack.begin();
    while !stopped() {
        leave_behind(attack, fd.as_fd(), &mut named);
    }
}

/// One connection. `named`: whether an answer named the cap.
fn leave_behind(attack: &mut Attack, fd: BorrowedFd<'_>, named: &mut bool) {
    let Some(mut conn) = Conn::welcome(&attack.socket, &mut attack.inbox) else { return };
    for message in 0..MESSAGES {
        if !conn.want_credits(&mut attack.inbox) {
            return;
        }
        let count = MAX_BATCH.min(conn.credits as usize);
        let items: Vec<_> =
            (0..count).map(|index| item(attack, message * MAX_BATCH + index)).collect();
        let bytes = conn.register(&items, MAX_BATCH as u32);
        if conn.push(&bytes, &vec![fd; count]) != Push::Sent {
            return;
        }
        attack.tally.tries += count as u64;
        let mut wrong = 0;
        let is_alive = conn.drain_some(&mut attack.inbox, |message| {
            wrong += judge(message, &items, named);
        });
        attack.tally.wrong += wrong;
        if !is_alive {
            return;
        }
    }
}

/// An item to be kept; one in four is invalid.
fn item(attack: &mut Attack, index: usize) -> RegisterItem {
    let shares = [Share::Uid, Share::Gid, Share::Any];
    let mut item = block(index);
    item.share = shares[attack.rng.below(shares.len())] as u8;
    item.flags = match attack.rng.below(8) {
        0 => item.flags | register_flags::KEEP | !register_flags::ALL,
        1..=3 => register_flags::KEEP,
        _ => register_flags::KEEP | register_flags::RECALLABLE,
    };
    if attack.rng.below(8) == 0 {
        item.share = 3 + attack.rng.below(250) as u8;
    }
    item
}

fn is_broken(item: &RegisterItem) -> bool {
    item.flags & !register_flags::ALL != 0 || Share::from_number(item.share).is_none()
}

/// How many answers are wrong. `named`: whether one of them named the cap.
fn judge(message: &Message<'_>, items: &[RegisterItem], named: &mut bool) -> u64 {
    let Ok((_, answers)) = message.head_and_items::<RegisterReplyHead, Registered>() else {
        return 0;
    };
    let mut is_wrong = |item: &RegisterItem, status: &Status| match status.result() {
        Ok(()) => is_broken(item),
        Err(ErrorCode::Protocol) => !is_broken(item),
        Err(ErrorCode::NoQuota) => {
            let is_it = Resource::from_number(status.resource) == Some(Resource::KeptAllocations);
            *named |= is_it;
            !is_it
        }
        Err(_) => true,
    };
    let pairs = items.iter().zip(answers);
    pairs.filter(|(item, answer)| is_wrong(item, &answer.status.get())).count() as u64
}
