//! Which uids are one user's: those of its subordinate ranges (subuid(5)), under which processes of
//! its user namespaces run. Shares count them as one domain. A range of an engine is a pool: each
//! container that it maps is a user of its own. Must never decide what a uid may have or see.

use crate::api::ids::{DomainKey, PodKey, UserKey};

/// Uids that an engine maps for a container, from a multiple of so many on: the kubelet's for a pod
/// (`idsPerPod`), and those of podman for images with a user `nobody`.
const UIDS_PER_CONTAINER: u32 = 1 << 16;

/// Uids that a user may give to its processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubordinateRange {
    /// The first of them.
    pub first: u32,
    /// How many they are.
    pub count: u32,
    /// The user's own uid; `None`: an engine's, of which each container is a user.
    pub user: Option<u32>,
}

impl SubordinateRange {
    fn contains(&self, uid: u32) -> bool {
        uid.checked_sub(self.first).is_some_and(|above| above < self.count)
    }

    /// The user of a uid in it: of a container by the first uid that is mapped for it.
    fn user_of(&self, uid: u32) -> u32 {
        self.user.unwrap_or(uid - (uid - self.first) % UIDS_PER_CONTAINER)
    }
}

/// All ranges of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubordinateUids {
    /// By their first uid. None contains another's first one.
    ranges: Vec<SubordinateRange>,
    /// Users that have one, in order.
    users: Vec<u32>,
}

impl SubordinateUids {
    /// Where two ranges overlap, the one that begins first has all its uids, and the other one
    /// counts as not given.
    pub fn new(mut ranges: Vec<SubordinateRange>) -> Self {
        ranges.sort_unstable_by_key(|range| range.first);
        ranges.dedup_by(|next, kept| kept.contains(next.first));
        let mut users: Vec<u32> = ranges.iter().filter_map(|range| range.user).collect();
        users.sort_unstable();
        users.dedup();
        SubordinateUids { ranges, users }
    }

    /// The user whose uids make several domains, this one among them; `None`: the domain is a
    /// user's by itself. A uid in a pod says nothing of the node's users, and whoever is root there
    /// has all uids: they are the pod's.
    pub fn user_of_domain(&self, key: DomainKey) -> Option<UserKey> {
        match key.pod {
            PodKey::NONE => self.user_of(key.uid).map(|uid| (uid, PodKey::NONE)),
            pod => Some((u32::MAX, pod)),
        }
    }

    /// The user that a uid is one of several uids of; `None`: it is a user by itself.
    pub fn user_of(&self, uid: u32) -> Option<u32> {
        let after = self.ranges.partition_point(|range| range.first <= uid);
        let range = self.ranges[..after].last().filter(|range| range.contains(uid));
        match range {
            Some(range) => Some(range.user_of(uid)),
            None => self.users.binary_search(&uid).is_ok().then_some(uid),
        }
    }
}

#[cfg(test)]
#[path = "../../tests/unit/subordinate.rs"]
mod tests;
