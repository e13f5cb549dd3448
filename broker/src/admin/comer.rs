//! Whose a connection of an administrator or of a user that looks is, and how many like it there
//! may be. Must never change while the connection is open.

use crate::admin::rights::{Rights, Sight};
use crate::limits::{
    MAX_ADMIN_CONNECTIONS, MAX_ADMIN_WATCHES, MAX_MONITOR_WATCHES, MAX_MONITORS,
    MAX_VIEWER_WATCHES, MAX_VIEWERS, MAX_VIEWERS_PER_USER, MAX_WATCHES_PER_USER,
};
use fdbroker_core::{DomainKey, UserKey};

/// Whose a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Comer {
    pub rights: Rights,
    pub uid: u32,
    pub pid: u32,
    /// Who is charged for its messages.
    pub payer: DomainKey,
}

/// Who shares places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Administrators,
    Monitors,
    Users,
}

impl Class {
    /// How many places they have; and how many of these a user may have.
    pub fn places(self) -> (usize, usize) {
        match self {
            Class::Administrators => (MAX_ADMIN_CONNECTIONS, MAX_ADMIN_CONNECTIONS),
            Class::Monitors => (MAX_MONITORS, MAX_VIEWERS_PER_USER),
            Class::Users => (MAX_VIEWERS, MAX_VIEWERS_PER_USER),
        }
    }

    /// The same of connections that watch.
    pub fn watches(self) -> (usize, usize) {
        match self {
            Class::Administrators => (MAX_ADMIN_WATCHES, MAX_ADMIN_WATCHES),
            Class::Monitors => (MAX_MONITOR_WATCHES, MAX_WATCHES_PER_USER),
            Class::Users => (MAX_VIEWER_WATCHES, MAX_WATCHES_PER_USER),
        }
    }
}

impl Comer {
    /// Whose places it takes: its user's, in a pod its pod's. Administrators share theirs.
    pub fn user(self) -> UserKey {
        if self.rights.may_act { Default::default() } else { (self.payer.uid, self.payer.pod) }
    }

    /// With whom it shares places.
    pub fn class(self) -> Class {
        match (self.rights.may_act, self.rights.sight) {
            (true, _) => Class::Administrators,
            (false, Sight::Node) => Class::Monitors,
            (false, Sight::Domain(_)) => Class::Users,
        }
    }
}
