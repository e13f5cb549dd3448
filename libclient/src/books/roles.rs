//! The parties that the thread that serves calls: owners of memory, caches, tables of
//! registrations, waiting calls. Each must never block nor call the application's code, unless it
//! says otherwise.

use super::holdings::LostRegistration;
use super::one_way::OwnerKey;
use crate::notice::Recall;
use crate::own_fds::OwnFd;
use fdbroker_protocol::object::ObjectEvent;
use fdbroker_protocol::{AllocationId, ErrorCode, Facts};
use std::fmt::Debug;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// An fd for a recall, and what it is.
#[derive(Debug)]
pub struct Supply {
    pub(crate) fd: SupplyFd,
    /// Read after the export.
    pub facts: Facts,
}

impl Supply {
    /// The memory that was recalled: as long as it is now, and wherever it begins in this fd.
    pub(crate) fn of(recall: &Recall, fd: SupplyFd, fd_offset: u64, size_bytes: u64) -> Self {
        Supply { fd, facts: recall.facts.fd_offset(fd_offset).size_bytes(size_bytes) }
    }

    /// Whether it is the memory recalled, and no other at its address.
    pub fn is_of(&self, recall: &Recall) -> bool {
        self.facts.owner_allocation_id == recall.facts.owner_allocation_id
    }
}

/// Whether the fd is one more in this process.
#[derive(Debug)]
pub(crate) enum SupplyFd {
    /// A new export: in the window until closed.
    Fresh(OwnedFd),
    /// An fd the owner holds anyway.
    Shared(Arc<OwnFd>),
}

/// Memory that the library itself can export again: arenas, device memory.
pub(crate) trait MemoryOwner: Send + Sync + Debug {
    /// Whether an allocation at this address is its.
    fn covers(&self, base: u64) -> bool;
    /// Whether an export is a new fd in this process.
    fn exports_are_fresh(&self) -> bool {
        true
    }
    /// Whether it still can export: not when the program has closed what it exports from.
    fn can_export(&self) -> bool {
        true
    }
    /// Whether a buffer at `base` has registered itself as `id`.
    fn keeps(&self, base: u64, id: AllocationId) -> bool;
    /// Exports again. STALE when the memory is freed or reused.
    fn supply(&self, recall: &Recall) -> Result<Supply, ErrorCode>;
    /// The allocation has ended and its last lease is gone: its range may be used again.
    fn drained(&self, _key: OwnerKey) {}
    /// The connection is lost, and with it all knowledge of leases.
    fn disconnected(&self) {}
    /// The broker of the moment knows of an allocation that had ended around the loss of another
    /// one, and is going to say when it is drained.
    fn adopted(&self, _key: OwnerKey) {}
}

/// Leases that the library itself keeps beyond their use: caches.
pub(crate) trait LeaseWatcher: Send + Sync + Debug {
    /// The allocation has ended: give its lease back as soon as nobody uses the memory.
    fn revoked(&self, id: AllocationId);
    /// The broker would like these leases back if nobody uses them.
    fn reclaim(&self, leases: &[u64]);
    /// All leases have been declared to a new broker: they have new numbers, or were refused.
    /// Called before the page of that broker is shown.
    fn declared(&self);
}

/// Registrations that the library itself keeps: buffers, tables of exports.
pub(crate) trait Registrant: Send + Sync + Debug {
    /// It has ended with its broker. Called before the page of the next broker is shown.
    fn lost(&self, registration: &LostRegistration);
}

/// What the application is told of the names of objects: watches.
pub(crate) trait ObjectWatcher: Send + Sync + Debug {
    /// It is for names that begin so.
    fn prefix(&self) -> &str;
    /// They are names of the job.
    fn is_of_job(&self) -> bool;
    /// Something has happened to a name with its prefix.
    fn tell(&self, event: ObjectEvent, name: &str, version: u64);
    /// The connection is lost: no more events come over it.
    fn disconnected(&self);
}

/// Dispatch mode: serves on behalf of calls that wait.
pub(crate) trait Dispatcher: Send + Sync + Debug {
    /// Readable when there is something to serve.
    fn event_fd(&self) -> BorrowedFd<'_>;
    /// Serves what is there, without waiting; calls the application's callbacks. `None`: another
    /// thread does, or this one does further up the stack.
    fn serve(&self) -> Option<Served>;
}

/// How much was served in one go.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Served {
    pub count: usize,
    /// Something is left that another thread must do first: looking at once would be in vain.
    pub later: bool,
}
