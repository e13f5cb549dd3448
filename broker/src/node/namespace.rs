//! Whether the broker runs in a user namespace of its own, and which ids then stand for users
//! outside it. Must never change after the start.

use fdbroker_scm::hidden_id;

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
    pub fn hides_group(self, gid: u32) -> bool {
        self.gid == Some(gid)
    }
}
