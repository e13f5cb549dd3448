//! What the library thread tells the application, and what it asks of it: notices and recalls.
//! Plain data; must never hold a lock or reach the connection.

use crate::error::Error;
use fdbroker_protocol::{AllocationId, ErrorCode, Facts};
use std::os::fd::OwnedFd;

/// News from the broker, told on the library thread. See [`crate::ClientBuilder::on_notice`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// An allocation of which this client has a lease has ended. The lease stays on the ledger
    /// until it is released; the memory stays mapped until then.
    #[non_exhaustive]
    Revoked {
        /// Slot and generation, as in the handle.
        id: AllocationId,
        /// The number of the lease, [`crate::Lease::number`].
        lease: u64,
        /// STALE (released, address reused, revoked), OWNER_GONE or, after a broker that was
        /// killed, LOST; NO_QUOTA too when the broker came back and did not take the lease again.
        code: ErrorCode,
    },
    /// An allocation of this client has ended and its last lease is gone: its memory may be used
    /// anew.
    #[non_exhaustive]
    Drained {
        /// Slot and generation, as in the handle.
        id: AllocationId,
        /// The id it was registered with.
        owner_allocation_id: u64,
        /// The address it was registered with.
        base: u64,
    },
    /// The broker would like these leases back if they are not in use.
    #[non_exhaustive]
    Reclaim {
        /// Their numbers, [`crate::Lease::number`].
        leases: Vec<u64>,
    },
    /// The broker is about to end.
    #[non_exhaustive]
    GoingAway {
        /// 1 = it ends, 2 = it restarts and keeps all state.
        reason: u32,
    },
    /// The broker has refused the fd that answered a recall: it is not the memory that the handle
    /// names, or cannot be shared. The allocation stays as it was, and its holders keep what they
    /// have.
    #[non_exhaustive]
    SupplyRefused {
        /// Slot and generation, as in the handle.
        id: AllocationId,
        /// Why: UNSUPPORTED_FD, with what the fd is.
        error: Error,
    },
    /// The connection is lost. Nothing counts as current until [`Notice::Reconnected`]; keep
    /// handles, registrations and leases: they go on then, but for those that are told of one by
    /// one before.
    Disconnected,
    /// A registration has ended with the broker that was lost: it can neither be exported again nor
    /// was it kept, or the next broker did not take it. Its handle is void: register anew, and pass
    /// on the new handle. Told before [`Notice::Reconnected`].
    #[non_exhaustive]
    RegistrationLost {
        /// Slot and generation, as in the handle.
        id: AllocationId,
        /// The id it was registered with.
        owner_allocation_id: u64,
        /// The address it was registered with.
        base: u64,
        /// Why: LOST (nothing to export it from, or named too late), STALE, NO_QUOTA,
        /// NOT_PERMITTED.
        code: ErrorCode,
    },
    /// Connected again. Handles, registrations and leases of before are good, but for those told of
    /// before this.
    #[non_exhaustive]
    Reconnected {
        /// Of the broker: another value than before means that it is another start of it.
        incarnation: u64,
    },
}

/// The broker asks for the fd of an allocation again. See [`crate::ClientBuilder::on_recall`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recall {
    /// Slot and generation, as in the handle.
    pub id: AllocationId,
    /// As it was registered, with the offset in the fd that the broker had last.
    pub facts: Facts,
    /// The address it was registered with.
    pub base: u64,
}

/// The owner's answer to a [`Recall`]: the fd exported again.
#[derive(Debug)]
#[non_exhaustive]
pub struct RecallAnswer {
    /// The new export; closed by the library when sent.
    pub fd: OwnedFd,
    /// As recalled, but for the offset in the new fd, and with the id of the memory at that address
    /// read again *after* the export. Whatever else has changed ends the allocation.
    pub facts: Facts,
}

impl RecallAnswer {
    /// The fd with these facts: those of the recall, changed as [`RecallAnswer::facts`] says.
    pub fn new(fd: OwnedFd, facts: Facts) -> Self {
        RecallAnswer { fd, facts }
    }

    /// An fd for the very allocation recalled, offset and size as before. Only for memory whose id
    /// cannot have changed: otherwise read it again after the export.
    pub fn unchanged(recall: &Recall, fd: OwnedFd) -> Self {
        RecallAnswer { fd, facts: recall.facts }
    }
}

/// Of [`crate::ClientBuilder::on_notice`].
pub(crate) type NoticeCallback = Box<dyn Fn(Notice) + Send + Sync>;
/// Of [`crate::ClientBuilder::on_recall`].
pub(crate) type RecallCallback =
    Box<dyn Fn(&Recall) -> Result<RecallAnswer, ErrorCode> + Send + Sync>;
