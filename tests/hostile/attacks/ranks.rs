//! Ranks of a job that start together. They do nothing wrong: each must be let in. Must never stay
//! after its turn.

use crate::attack::Attack;
use crate::wire::{nap, stopped};
use fdbroker_client::{Client, Error};
use std::path::Path;
use std::sync::Barrier;

/// Ranks of one process. Each is a client of its own.
const RANKS: usize = 8;

/// Connects them all at once, and again.
pub fn start(attack: &mut Attack) {
    attack.begin();
    while !stopped() {
        attack.tally.tries += RANKS as u64;
        attack.tally.wrong += refused(&attack.socket);
        // All of them have come and gone once: what they had is free for the good client.
        nap();
    }
}

/// How many of them are not let in. They stay until the last one is.
fn refused(socket: &Path) -> u64 {
    let all_here = Barrier::new(RANKS);
    let rank = || -> Result<Client, Error> {
        let client = Client::builder().socket(socket).name("rank").own_fds(2).connect();
        all_here.wait();
        client
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..RANKS).map(|_| scope.spawn(rank)).collect();
        let is_refused = |outcome: Result<Client, Error>| match outcome {
            Ok(_) => 0,
            Err(error) => {
                eprintln!("a rank: {error}");
                1
            }
        };
        ranks.into_iter().map(|rank| is_refused(rank.join().expect("no panic"))).sum()
    })
}
