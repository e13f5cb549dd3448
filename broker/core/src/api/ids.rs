//! What the core knows things by: numbers, keys and points in time. Must never mean more than the
//! name of one thing.

use serde::{Deserialize, Serialize};

/// A point in time, in microseconds from an origin of the daemon's choice. Never goes back.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Now(pub u64);

impl Now {
    /// So many us later.
    #[must_use]
    pub fn after(self, us: u64) -> Self {
        Now(self.0.saturating_add(us))
    }
}

/// A client's number: chosen by the daemon (its connection slot), free for another client after
/// [`Effect::Forget`](crate::Effect::Forget).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u32);

/// The client's number for a request. Unique among those of the client that are under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

impl RequestId {
    /// Of a message that is not answered.
    pub const ONE_WAY: RequestId = RequestId(0);
}

/// A lease's number: slot in the low half, generation in the high half. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(pub u64);

/// An fd on its way through a closer thread. Charged until [`Input::Closed`](crate::Input::Closed).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u32);

/// Which pod of Kubernetes a client is of: the daemon's key of the pod's UID.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct PodKey(pub [u64; 2]);

impl PodKey {
    /// Of no pod.
    pub const NONE: PodKey = PodKey([0; 2]);
}

/// Whose several domains are that share as one: a user's uid, or a pod, which has no uid here.
pub type UserKey = (u32, PodKey);

/// Which isolation domain a client is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DomainKey {
    /// The listener it came by.
    pub listener: u32,
    /// Its uid (SO_PEERCRED).
    pub uid: u32,
    /// Its pod, on a listener that tells pods apart.
    pub pod: PodKey,
}

impl DomainKey {
    /// Of no domain that there can be: uid -1 is nobody's (chown(2)).
    pub const NOBODYS: DomainKey = DomainKey::new(u32::MAX, u32::MAX);

    /// Outside pods, or where they are not told apart.
    pub const fn new(listener: u32, uid: u32) -> Self {
        DomainKey { listener, uid, pod: PodKey::NONE }
    }
}

impl Default for DomainKey {
    fn default() -> Self {
        DomainKey::NOBODYS
    }
}

/// Which job a client is of, within its domain: the daemon's hash of the cgroup's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct JobKey(pub u64);

/// Stands for a group that no two clients share: gid -1 is nobody's (chown(2)).
pub const NO_GROUP: u32 = u32::MAX;

/// Which of its user's closing lanes takes an fd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Classified: its close may take milliseconds, and ends.
    Accepted,
    /// Not recognised: its close may hang for ever. Bounded per domain.
    Refused,
}

/// A file as the kernel names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileId {
    /// Of its file system: the major number in the high half.
    pub device: u64,
    /// Its inode there.
    pub inode: u64,
}

/// The file behind an fd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Its device and inode.
    pub id: FileId,
    /// Memory that it has now, and keeps as long as an fd of it is open, bytes.
    pub pinned_bytes: u64,
    /// Its size, bytes: what its ranges pin together at most.
    pub size_bytes: u64,
}

impl File {
    /// What it pins with a range of so many bytes, which will be written to.
    pub(crate) fn bytes_with(&self, range: u64) -> u64 {
        self.pinned_bytes.max(range.min(self.size_bytes))
    }
}

/// What a client is known by over connections and brokers. All zero: it is not known.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct OwnerKey {
    /// Its process; 0: in another PID namespace.
    pub pid: u32,
    /// When that was started, in clock ticks since boot, the low 32 bits; 0: not known.
    pub started: u32,
    /// Chosen by the client, so that a process can have several.
    pub random: u64,
}

/// Which reply a list of statuses is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusReply {
    /// To unregister; an OK status with value 1 = drained already.
    Unregister,
    /// To mapped or release.
    Lease,
    /// To add, abort or delete of objects.
    Objects,
}

/// A group's number: slot in the low half, generation in the high half. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub u64);

/// No slot: stands for nothing in whatever has slots.
pub(crate) const NONE: u32 = u32::MAX;
