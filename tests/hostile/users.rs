//! The users: as root the test makes the daemon, the good client and the attacker three users; otherwise all run as the
//! test's own user. Must never run a part as root that does not need it.

use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};

/// A user of the test. The numbers come from a range that no system assigns by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    Daemon,
    Good,
    Attacker,
    /// Root, for mounting only: the process gives root up afterwards.
    Root,
}

/// The daemon's uid; the good client and the attacker have the next two.
const FIRST_UID: u32 = 61_700;

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
            User::Attacker => FIRST_UID + 2,
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
