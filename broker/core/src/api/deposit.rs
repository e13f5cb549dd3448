//! What owners and consumers say of allocations. Plain data: must never hold an fd, only its place
//! in a message.

use std::ops::Deref;

use crate::api::ids::{File, Lane};
use fdbroker_protocol::limits::DRIVER_DATA_BYTES;
use fdbroker_protocol::{AllocationId, ErrorCode, Facts, Share, Status};

/// What an owner says of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deposit {
    /// What it is.
    pub facts: Facts,
    /// Who may acquire it.
    pub share: Share,
    /// The broker may evict it, unless it is kept.
    pub recallable: bool,
    /// It outlives its owner, for [`Config::keep_ttl_us`](crate::Config::keep_ttl_us).
    pub keep: bool,
    /// Address in the owner, 0 = none.
    pub base: u64,
    /// Driver data, if any: length 1..=64 and the bytes.
    pub driver_data: Option<(u8, [u8; DRIVER_DATA_BYTES])>,
    /// Its handle has a virtual fd.
    pub virtual_fd: bool,
}

/// A deposit whose fd is what its owner says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    /// What its owner says.
    pub claimed: Deposit,
    /// Its file, which the daemon finds; `None` where the kernel does not tell: then it pins the
    /// size that the owner claims.
    pub file: Option<File>,
}

impl Deref for Judged {
    type Target = Deposit;

    fn deref(&self) -> &Deposit {
        &self.claimed
    }
}

/// Of whose file nothing is known.
impl From<Deposit> for Judged {
    fn from(claimed: Deposit) -> Self {
        Judged { claimed, file: None }
    }
}

/// A deposit that has come with its fd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// The deposit, if its fd is what the owner says. `Err`: it was refused before the core saw it
    /// (UNSUPPORTED_FD and its kind).
    pub judged: Result<Judged, Status>,
    /// Where the fd goes when it is not kept.
    pub lane: Lane,
}

/// One answer of a supply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Supply {
    /// The allocation recalled.
    pub id: AllocationId,
    /// `Ok`: index of the fd among the message's fds, after the daemon classified it. `Err`: the
    /// owner's refusal, or the daemon's (the fd, if any, is listed as `refused_fd`).
    pub fd: Result<u16, ErrorCode>,
    /// An fd that came with the item and did not pass the daemon's check, and where it goes.
    pub refused_fd: Option<(u16, Lane)>,
    /// The file of `fd`, as in [`Judged::file`].
    pub file: Option<File>,
    /// Read again after the export: but for the offset in the fd they must be as before.
    pub facts: Facts,
}

/// An allocation that its owner names again after a crash; no fd comes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redeposit {
    /// `Err`: what the daemon found wrong with handle, token or item.
    pub id: Result<AllocationId, ErrorCode>,
    /// As at its registration.
    pub deposit: Deposit,
    /// Its owner has ended it meanwhile, and wants to hear when it is drained.
    pub ended: bool,
}

/// A lease of before a crash, as its holder says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declared {
    /// Its allocation.
    pub wanted: Wanted,
    /// The holder has the fd still.
    pub open: bool,
}

/// One handle of an acquire, after the daemon verified its MAC.
pub type Wanted = Result<AllocationId, ErrorCode>;

/// Memory of which nothing else is said: its uid may have it, and nobody else.
impl From<Facts> for Deposit {
    fn from(facts: Facts) -> Self {
        Deposit {
            facts,
            share: Share::Uid,
            recallable: false,
            keep: false,
            base: 0,
            driver_data: None,
            virtual_fd: false,
        }
    }
}

impl Deposit {
    /// Its owner's number of the device, which [`Deposit::has_sound_range`] has found to fit.
    pub(crate) fn device(&self) -> u16 {
        u16::try_from(self.facts.device).unwrap_or(u16::MAX)
    }

    /// Device, address and bytes.
    pub(crate) fn range(&self) -> (u32, u64, u64) {
        (self.facts.device, self.base, self.facts.size_bytes)
    }

    /// Whether the broker may close its fd to make room for others.
    pub fn is_evictable(&self) -> bool {
        self.recallable && !self.keep
    }

    /// Whether it has a size, and ends where a number can say, on a device of 16 bits.
    pub(crate) fn has_sound_range(&self) -> bool {
        let Facts { fd_offset, size_bytes, device, .. } = self.facts;
        let ends = [self.base, fd_offset].map(|at| at.checked_add(size_bytes));
        size_bytes > 0 && !ends.contains(&None) && u16::try_from(device).is_ok()
    }
}

/// What one item of an acquire comes to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Item {
    /// An error that waiting does not mend.
    Final(ErrorCode),
    /// The broker holds the fd.
    Ready(u32),
    /// The owner must be asked.
    Evicted(u32),
    /// The owner is being asked.
    Recalling(u32),
    /// Of before a crash: its owner may still name it again.
    Reserved(u32),
}
