//! The users: as root the test makes the daemon, the good client and the attackers users of their
//! own; otherwise all run as the test's own user. Must never run a part as root that does not need
//! it.

use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};

/// A user of the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    Daemon,
    Good,
    /// Comes while an attack is under way.
    Newcomer(u32),
    Attacker(u32),
    /// Root, for mounting only: the process gives root up afterwards.
    Root,
}

/// The daemon's uid. The uids of the others follow: a range that no system assigns by itself.
const FIRST_UID: u32 = 61_700;

/// More than there are newcomers.
const NEWCOMERS: u32 = 32;

/// Whether there are several users.
pub fn are_many() -> bool {
    Uid::effective().is_root()
}

impl User {
    pub fn uid(self) -> u32 {
        if !are_many() {
            return Uid::effective().as_raw();
        }
        match self {
            User::Daemon => FIRST_UID,
            User::Good => FIRST_UID + 1,
            User::Newcomer(number) => FIRST_UID + 2 + number,
            User::Attacker(number) => FIRST_UID + 2 + NEWCOMERS + number,
            User::Root => 0,
        }
    }
}

/// Gives up root for good; does nothing if the process is that user already.
pub fn become_user(uid: u32) {
    if Uid::effective().as_raw() != uid {
        setgroups(&[]).expect("setgroups");
        setgid(Gid::from_raw(uid)).expect("setgid");
        setuid(Uid::from_raw(uid)).expect("setuid");
    }
}
