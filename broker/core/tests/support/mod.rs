//! A configuration, a deposit and an answer to a recall that tests begin with. Must never have a
//! number that a test depends on and does not set.

use fdbroker_core::{Arrived, Caps, Config, Deposit, Judged, Lane, SubordinateUids, Supply};
use fdbroker_protocol::{AllocationId, ErrorCode, Facts, MAX_BATCH, MemoryKind};

/// Room for millions, and no caps.
pub fn roomy() -> Config {
    Config {
        node: Caps::NONE,
        domain: Caps::NONE,
        job: Caps::NONE,
        client: Caps::NONE,
        table_fds: 4_000_000,
        max_clients: 5000,
        max_domains: 64,
        max_parked_per_client: 4096,
        max_refused_per_domain: 8,
        max_slots: 1 << 20,
        first_generation: 1,
        base_credits: 16,
        max_credits: MAX_BATCH as u32,
        recall_timeout_us: 100_000,
        keep_ttl_us: 1_000_000,
        object_ttl_us: 1_000_000,
        grace_us: 1_000_000,
        share_factor: u64::MAX,
        subordinate_uids: SubordinateUids::default(),
    }
}

/// A recallable page at an address of its own.
pub fn deposit(base: u64) -> Deposit {
    let facts = Facts::new(MemoryKind::Memfd, 4096).owner_allocation_id(base);
    Deposit { recallable: true, base: base * 0x1_0000, ..facts.into() }
}

/// The fd of a page that its owner knows by this id, or why there is none.
pub fn supply(id: AllocationId, fd: Result<u16, ErrorCode>, owner_allocation_id: u64) -> Supply {
    let (refused_fd, file) = (None, None);
    let facts = Facts::new(MemoryKind::Memfd, 4096).owner_allocation_id(owner_allocation_id);
    Supply { id, fd, refused_fd, file, facts }
}

/// A deposit whose fd is what its owner says.
pub fn arrived(deposit: impl Into<Judged>) -> Arrived {
    Arrived { judged: Ok(deposit.into()), lane: Lane::Accepted }
}
