//! Whether the broker runs in a user namespace of its own, and which ids then stand for users
//! outside it. Must never change after the start.

use crate::kernel;
use crate::limits::PEER_GROUPS;
use fdbroker_core::NO_GROUP;
use fdbroker_scm::hidden_id;
use std::os::fd::BorrowedFd;

/// The ids that stand for users and groups which are unknown in this user namespace; `None` in the
/// first namespace, where all are known and these ids are like any other (user_namespaces(7)).
#[derive(Clone, Copy, Debug)]
pub struct Namespace {
    uid: Option<u32>,
    gid: Option<u32>,
}

impl Namespace {
    /// This process's.
    pub fn of_this_process() -> Self {
        Namespace { uid: hidden_id("uid"), gid: hidden_id("gid") }
    }

    /// Whether several users may have this uid.
    pub fn hides_user(self, uid: u32) -> bool {
        self.uid == Some(uid)
    }

    /// Whether several groups may have this gid.
    fn hides_group(self, gid: u32) -> bool {
        self.gid == Some(gid)
    }

    /// A group that allocations may be shared with; one that this namespace does not know is no
    /// group.
    pub fn known_group(self, gid: u32) -> u32 {
        if self.hides_group(gid) { NO_GROUP } else { gid }
    }

    /// The known ones of the further groups of the process at the other end of `socket`.
    pub fn other_groups(self, socket: BorrowedFd<'_>) -> Vec<u32> {
        let mut groups = kernel::peer_groups(socket, PEER_GROUPS).unwrap_or_else(|error| {
            log::warn!("a client's groups beside its first do not count: {error}");
            Vec::new()
        });
        groups.retain(|gid| !self.hides_group(*gid));
        groups
    }
}
