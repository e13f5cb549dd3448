//! The attacks, by what they abuse, and the harmless load that replaces them in the quiet phase.
//! Each counts what it did, and ends when it is told to. Must never wait for the daemon.

pub mod bytes;
pub mod collector;
pub mod connects;
pub mod faults;
pub mod file_lease;
pub mod filters;
pub mod floods;
pub mod forged;
pub mod heirs;
pub mod hoards;
pub mod hung;
pub mod kept;
pub mod places;
pub mod ranks;
pub mod readers;
pub mod shared_end;
pub mod slow;
pub mod sockets;
pub mod stopped;
pub mod timers;
pub mod traced;
pub mod views;
pub mod waits;

use crate::attack::Attack;
use crate::wire::stopped;
use std::os::fd::AsFd;

/// As many system calls as possible, without the daemon.
pub fn burn(attack: &mut Attack) {
    let (one, other) = fdbroker_scm::seqpacket_pair().expect("a socket pair");
    attack.begin();
    while !stopped() {
        let _ = fdbroker_scm::send(one.as_fd(), &[0; 64], &[]);
        let _ = attack.inbox.read(other.as_fd());
        attack.tally.tries += 1;
    }
}
