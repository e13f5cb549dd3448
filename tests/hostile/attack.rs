//! The attacker's process: learns whom to attack, attacks until it is told to stop, and reports
//! what it did. Must never go on when the test is gone.

use crate::scenarios;
use crate::support::peer::Link;
use crate::wire::{Inbox, stop};
use fdbroker_protocol::Handle;
use std::path::PathBuf;

/// A seed is `round * ATTACKERS_PER_ROUND + number`.
pub const ATTACKERS_PER_ROUND: u64 = 100;

/// What an attack can use.
pub struct Attack {
    pub socket: PathBuf,
    /// Handles of the good client.
    pub victims: Vec<Handle>,
    /// Which of the scenario's attackers it is.
    pub number: u64,
    pub inbox: Inbox,
    pub rng: Rng,
    pub tally: Tally,
    /// Files of a hung server, by path; empty in other scenarios.
    pub hung_file: String,
    link: Link,
}

/// What an attack did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Messages, connections, or whatever else the attack counts.
    pub tries: u64,
    /// How often it got what it should not have, or did not get what it should have.
    pub wrong: u64,
}

impl Tally {
    pub fn parse(line: &str) -> Option<Tally> {
        let (tries, wrong) = line.split_once(' ')?;
        Some(Tally { tries: tries.parse().ok()?, wrong: wrong.parse().ok()? })
    }
}

impl Attack {
    /// Reports that the attack is under way, so that the measurement begins.
    pub fn begin(&mut self) {
        self.link.say("under way");
    }
}

pub fn play(mut link: Link) {
    let mut hear = || link.hear().expect("who, whom, with what");
    let (name, socket, seed, hung_file, victims) = (hear(), hear(), hear(), hear(), hear());
    let mut ear = link.try_clone();
    std::thread::spawn(move || {
        while ear.hear().is_some() {}
        stop();
    });
    let seed: u64 = seed.parse().expect("a number");
    let mut attack = Attack {
        socket: PathBuf::from(socket),
        victims: crate::wire::from_line(&victims),
        number: seed % ATTACKERS_PER_ROUND,
        inbox: Inbox::new(),
        rng: Rng(seed),
        tally: Tally::default(),
        hung_file,
        link,
    };
    match scenarios::attack_of(&name) {
        Some(play) => play(&mut attack),
        None => crate::attacks::burn(&mut attack),
    }
    let Tally { tries, wrong } = attack.tally;
    attack.link.say(&format!("{tries} {wrong}"));
}

/// Pseudo-random numbers from a seed: Sebastiano Vigna's splitmix64.
#[derive(Debug)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).expect("below end")
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}
