//! Bounds of the core's own loops and tables, each with its reason. What an administrator may change
//! is in [`crate::Config`].

/// Fds a connection takes in the broker's table: its socket, the broker's end of its event socket, the
/// pidfd, and the client's end until hello's reply has been sent.
pub const FDS_PER_CONNECTION: u64 = 4;

/// Places in the table kept free for one inbound message: the kernel's most fds per message.
pub const TABLE_RESERVE: u64 = 253;

/// Most leases and allocations of gone clients torn down in one step: some 100 us, so that the death of a
/// client with 100,000 leases stalls nobody.
pub const TEARDOWN_PER_STEP: usize = 1024;

/// Most parked requests looked at in one step when room appears; the rest is looked at in the next
/// poll, which is then due at once.
pub const PARKED_SCAN_PER_STEP: usize = 256;

/// Most parked requests of one domain looked at in its turn: those that cannot be served, as many as they may
/// be, then hold up the other domains no longer than a quarter of a step.
pub const LOOKS_PER_TURN: usize = 64;

/// Most evictions in one step: those that a full batch (253 grants with their recalls) can need, doubled.
pub const EVICTIONS_PER_STEP: usize = 512;

/// Most deadlines dealt with in one poll; further ones are due at once in the next.
pub const TIMERS_PER_STEP: usize = 1024;

/// Most old allocations that one deposit may end by overlapping them; with more it answers AGAIN, and the
/// next try goes on.
pub const OVERLAPS_PER_DEPOSIT: usize = 1024;
