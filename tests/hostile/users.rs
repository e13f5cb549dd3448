//! Who is who: the daemon, the good client and the attacker are users of their own when the test runs as root; else
//! all are the user that runs it. Must never run a part as root that needs no root.

use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};

/// A user of the test. The numbers are from the range that no system hands out by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    Daemon,
    Good,
    Attacker,
    /// For what must be mounted; drops it as soon as that is done.
    Root,
}

/// Of the daemon; the next ones are the good client's and the attacker's.
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

/// Gives up root for good; nothing for who is that user already.
pub fn become_user(uid: u32) {
    if Uid::effective().as_raw() != uid {
        setgroups(&[]).expect("setgroups");
        setgid(Gid::from_raw(uid)).expect("setgid");
        setuid(Uid::from_raw(uid)).expect("setuid");
    }
}
