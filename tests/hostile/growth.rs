//! Memory that the daemon grows to and keeps by right, by its parts: what any client that registers
//! for long enough brings about once. Must never allow for more than was deposited: else it would
//! hide a leak.

use fdbroker_core::limits::SLOTS_BEFORE_REUSE;
use fdbrokerd::limits::{EVENTS_KEPT, TOMBSTONES_PER_DOMAIN};

/// A slot that was used stays: its record in the core (an allocation of 104 bytes and its
/// generation), and its row of the fd table (13 bytes).
const SLOT_BYTES: u64 = 112 + 13;

/// An ended allocation that is remembered for audit.
const TOMBSTONE_BYTES: u64 = 64;

/// An event that is remembered for administrators.
const EVENT_BYTES: u64 = 128;

/// The most that so many deposits, of so many users, leave behind, in KiB: 9.6 MiB for one user
/// that deposits without an end. No slot is used again before [`SLOTS_BEFORE_REUSE`] of them were
/// used, so it comes slowly: with the 65,536th allocation.
pub fn by_right_kib(deposits: u64, users: u64) -> i64 {
    let slots = deposits.min(SLOTS_BEFORE_REUSE.into());
    let tombstones = deposits.min(users * TOMBSTONES_PER_DOMAIN as u64);
    // An allocation that begins and one that ends are an event each.
    let events = (2 * deposits).min(EVENTS_KEPT as u64);
    let bytes = slots * SLOT_BYTES + tombstones * TOMBSTONE_BYTES + events * EVENT_BYTES;
    i64::try_from(bytes / 1024).expect("some MiB")
}
