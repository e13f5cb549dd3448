//! Connections alone are the attack. Must never have more of them open than the process may have
//! fds.

use crate::attack::Attack;
use crate::support::raw::hello;
use crate::wire::{Conn, connect_now, nap, stopped};

const CONNECTS: usize = 10_000;

/// Connections that say nothing; those that are refused are kept, too.
pub fn silent(attack: &mut Attack) {
    let mut sockets = Vec::new();
    attack.begin();
    while !stopped() || attack.tally.tries < CONNECTS as u64 {
        match connect_now(&attack.socket) {
            Some(socket) => {
                attack.tally.tries += 1;
                sockets.push(socket);
            }
            None => nap(),
        }
        if sockets.len() >= CONNECTS {
            sockets.clear();
        }
    }
}

/// Connect, hello, end; with and without reading the answer.
pub fn storm(attack: &mut Attack) {
    attack.begin();
    while !stopped() {
        let Some(mut conn) = Conn::silent(&attack.socket) else { return };
        attack.tally.tries += 1;
        conn.push_hello(&hello());
        if attack.rng.below(2) == 0 {
            conn.await_welcome(&mut attack.inbox);
        }
    }
}

/// As many idle connections as the user may have, each with all the credits that it gets.
pub fn idle(attack: &mut Attack) {
    hoard(attack, 0);
}

/// Hellos that claim thousands of fds, as many as are let in; the others must cost nobody anything.
pub fn claims(attack: &mut Attack) {
    hoard(attack, 2000);
}

/// The attack is under way once a connection with so many fds of its own is refused. It goes on
/// trying.
fn hoard(attack: &mut Attack, own_fds: u32) {
    let mut conns = Vec::new();
    let mut is_under_way = false;
    while !stopped() {
        attack.tally.tries += 1;
        let Some(mut conn) = Conn::silent(&attack.socket) else { return };
        let mut claims = hello();
        claims.own_fds = own_fds.into();
        conn.push_hello(&claims);
        if conn.await_welcome(&mut attack.inbox) {
            let bytes = conn.register(&[], 16);
            conn.push(&bytes, &[]);
            conns.push(conn);
            continue;
        }
        if !is_under_way {
            attack.begin();
            is_under_way = true;
        }
        nap();
    }
}

/// Hellos that declare more fds than there are.
pub fn absurd(attack: &mut Attack) {
    attack.begin();
    while !stopped() {
        let Some(mut conn) = Conn::silent(&attack.socket) else { return };
        attack.tally.tries += 1;
        let mut absurd = hello();
        absurd.own_fds = match attack.rng.below(4) {
            0 => u32::MAX.into(),
            1 => 5000.into(),
            _ => (attack.rng.next() as u32).into(),
        };
        conn.push_hello(&absurd);
        conn.await_welcome(&mut attack.inbox);
    }
}
