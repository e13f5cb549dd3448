//! Handles, tokens and leases that belong to another client, or to none. Counts what it gets for
//! them: it must be nothing. Must never use a handle that it may use.

use crate::attack::Attack;
use crate::support::memory::{all_seals, memfd};
use crate::users::{User, are_many};
use crate::wire::{Conn, Push, block, stopped};
use fdbroker_protocol::handle::HandlePrefix;
use fdbroker_protocol::message::{
    DeclareItem, RedepositItem, RegisterReplyHead, Registered, register_flags,
};
use fdbroker_protocol::{Handle, MAX_BATCH, Message};
use nix::unistd::Uid;
use std::os::fd::{AsFd, BorrowedFd};
use zerocopy::{FromZeros, IntoBytes};

/// Tries of each attacker and round, whatever the time: a million in all, with the five rounds of a
/// run and the one before.
const LEAST_TRIES: u64 = 200_000;

fn gained(message: &Message<'_>) -> u64 {
    let grants = message
        .grants()
        .map_or(0, |(items, _)| items.iter().filter(|it| it.status.get().is_ok()).count());
    grants as u64
}

/// Random handles, its own with changed bits and, where the good client is another user, stolen
/// ones.
pub fn handles(attack: &mut Attack) {
    let fd = memfd(c"forged", 4096, all_seals());
    let Some(mut conn) = Conn::welcome(&attack.socket, &mut attack.inbox) else { return };
    let shared = conn.share(&mut attack.inbox, fd.as_fd(), &[block(1)]);
    let Some(own) = shared.first().map(|it| it.handle) else { return };
    let is_stealing = are_many() && Uid::effective().as_raw() == User::Attacker(0).uid();
    attack.begin();
    while !stopped() || attack.tally.tries < LEAST_TRIES {
        let forged: Vec<Handle> = (0..MAX_BATCH)
            .map(|_| match attack.rng.below(5) {
                0 if is_stealing => attack.victims[attack.rng.below(attack.victims.len())],
                1 => {
                    let mut handle = own;
                    attack.rng.fill(handle.prefix.as_mut_bytes());
                    handle.get()
                }
                kind => forge(own.get(), kind, &mut attack.rng),
            })
            .collect();
        let bytes = conn.acquire(&forged, 0);
        if conn.push(&bytes, &[]) == Push::Sent {
            attack.tally.tries += MAX_BATCH as u64;
        }
        let mut got = 0;
        assert!(conn.drain_some_until_told(&mut attack.inbox, |message| got += gained(message)));
        attack.tally.wrong += got;
    }
}

/// The attacker's own handle with one field changed.
fn forge(own: Handle, kind: usize, rng: &mut crate::attack::Rng) -> Handle {
    let mut handle = own;
    let prefix: &mut HandlePrefix = &mut handle.prefix;
    match kind {
        0 | 2 => prefix.slot = (own.prefix.slot.wrapping_add(1 + rng.below(64) as u32)).into(),
        3 => prefix.generation = (own.prefix.generation + 1 + rng.below(8) as u32).into(),
        _ => prefix.mac = (own.prefix.mac ^ (1 << rng.below(64))).into(),
    }
    handle
}

/// Redeposits with wrong tokens, and declares of leases that it never had. Some are for kept memory
/// whose owner has gone: whoever has its token gets it, and no other client, so that the token
/// alone decides.
pub fn tokens(attack: &mut Attack) {
    let fd = memfd(c"orphan", 4096, all_seals());
    let Some(mut orphan) = Orphan::leave(attack, fd.as_fd()) else { return };
    let Some(mut conn) = Conn::welcome(&attack.socket, &mut attack.inbox) else { return };
    attack.begin();
    let mut rounds = 0;
    while !stopped() {
        let victim = attack.victims[attack.rng.below(attack.victims.len())];
        let bytes = match attack.rng.below(3) {
            0 => {
                let mut item = RedepositItem::new_zeroed();
                (item.item, item.handle) = (block(1), victim.into());
                attack.rng.fill(&mut item.token);
                conn.redeposit(&vec![item; MAX_BATCH])
            }
            1 => {
                let mut item = orphan.0;
                let byte = attack.rng.below(item.token.len());
                item.token[byte] ^= 1 << attack.rng.below(8);
                conn.redeposit(&vec![item; MAX_BATCH])
            }
            _ => {
                let item = DeclareItem {
                    handle: victim.prefix.into(),
                    flags: 1.into(),
                    reserved: 0.into(),
                };
                conn.declare(&vec![item; MAX_BATCH])
            }
        };
        attack.tally.tries += 1;
        let mut got = 0;
        let is_alive = conn.push(&bytes, &[]) != Push::Gone
            && conn.drain_some(&mut attack.inbox, |message| {
                got += registered(message) + gained(message)
            });
        attack.tally.wrong += got;
        if !is_alive {
            match Conn::welcome(&attack.socket, &mut attack.inbox) {
                Some(next) => conn = next,
                None => return,
            }
        }
        rounds += 1;
        if rounds % ROUNDS_PER_ORPHAN == 0 {
            if !orphan.is_adopted(attack) {
                return;
            }
            match Orphan::leave(attack, fd.as_fd()) {
                Some(next) => orphan = next,
                None => return,
            }
        }
    }
}

/// Attacks on one orphan, before its heir shows that the token was what stood in their way.
const ROUNDS_PER_ORPHAN: usize = 32;

fn registered(message: &Message<'_>) -> u64 {
    let registered = message.head_and_items::<RegisterReplyHead, Registered>();
    registered
        .map_or(0, |(_, items)| items.iter().filter(|it| it.status.get().is_ok()).count() as u64)
}

/// A kept allocation whose owner has gone, as its heir names it.
struct Orphan(RedepositItem);

impl Orphan {
    /// `None`: it is time to end.
    fn leave(attack: &mut Attack, fd: BorrowedFd<'_>) -> Option<Orphan> {
        let mut conn = Conn::welcome(&attack.socket, &mut attack.inbox)?;
        let mut item = RedepositItem::new_zeroed();
        item.item = block(1);
        item.item.flags |= register_flags::KEEP;
        let shared = conn.share(&mut attack.inbox, fd, &[item.item]);
        let shared = shared.first()?;
        (item.handle, item.token) = (shared.handle, shared.token);
        Some(Orphan(item))
    }

    /// Has the heir adopt it and end it; `false`: it is time to end. Its time to live of three
    /// seconds is not over: the attacks on it take milliseconds.
    fn is_adopted(&self, attack: &mut Attack) -> bool {
        let Some(mut heir) = Conn::welcome(&attack.socket, &mut attack.inbox) else { return false };
        let bytes = heir.redeposit(&[self.0]);
        let mut got = 0;
        let is_alive = heir.push(&bytes, &[]) == Push::Sent
            && heir.drain_some(&mut attack.inbox, |message| got += registered(message));
        if stopped() {
            return false;
        }
        // If the heir is refused as well, the refusals of the attacks show nothing.
        attack.tally.wrong += u64::from(!is_alive || got != 1);
        let bytes = heir.unregister(&[self.0.handle.get().id()]);
        heir.push(&bytes, &[]);
        heir.drain_some(&mut attack.inbox, |_| {})
    }
}
