//! Virtual fds: fd numbers that no process has open, each of which names one allocation of this
//! broker, for programs that pass fd numbers by value. Must never say that an allocation lives: the
//! broker looks at the slot that a number leads to.

use crate::handle::{AllocationId, Handle, NodeKey};

/// Bits of a slot's number in a virtual fd: slots from 2^20 on have none.
const SLOT_BITS: u32 = 20;
/// Bits of its generation: the slot gives the same number again after 1,024 allocations, each of
/// which waits until many other slots were used.
const GENERATION_BITS: u32 = 10;
/// Bits of one half of the number without its offset.
const HALF_BITS: u32 = (SLOT_BITS + GENERATION_BITS) / 2;
const HALF: u32 = (1 << HALF_BITS) - 1;
/// Rounds of the permutation: with four the outcome of a good round function looks random (Luby and
/// Rackoff, 1988).
const ROUNDS: u8 = 4;

/// An fd number from 2^30 to 2^31 - 1. No process has one open: the kernel gives the lowest free
/// number, and a table that reaches so far would take 8 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VirtualFd(u32);

impl VirtualFd {
    /// The least of them.
    pub const FIRST: i32 = 1 << 30;

    /// The virtual fd of this number; `None`: an fd as the kernel gives them, or no fd.
    pub const fn new(number: i32) -> Option<Self> {
        if number >= Self::FIRST { Some(VirtualFd(number.cast_unsigned())) } else { None }
    }

    /// What the program sees as an fd.
    pub const fn number(self) -> i32 {
        self.0.cast_signed()
    }
}

impl std::fmt::Display for VirtualFd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl Handle {
    /// The fd number that names the allocation in its owner's domain; `None`: it was registered
    /// without.
    pub fn virtual_fd(&self) -> Option<VirtualFd> {
        i32::try_from(self.virtual_fd).ok().and_then(VirtualFd::new)
    }
}

impl NodeKey {
    /// The virtual fd of an allocation; `None` where its slot has none. A permutation under this
    /// broker's key: a number of another broker leads to a live allocation as seldom as a random
    /// one.
    pub fn virtual_fd(&self, id: AllocationId) -> Option<VirtualFd> {
        if id.slot >> SLOT_BITS != 0 {
            return None;
        }
        let generation = id.generation & ((1 << GENERATION_BITS) - 1);
        let plain = id.slot << GENERATION_BITS | generation;
        let (mut left, mut right) = (plain >> HALF_BITS, plain & HALF);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ self.round(round, right));
        }
        Some(VirtualFd(VirtualFd::FIRST as u32 | left << HALF_BITS | right))
    }

    /// The slot that a virtual fd leads to. It names the allocation there if that has this virtual
    /// fd.
    pub fn slot_of(&self, fd: VirtualFd) -> u32 {
        let (mut left, mut right) = (fd.0 >> HALF_BITS & HALF, fd.0 & HALF);
        for round in (0..ROUNDS).rev() {
            (left, right) = (right ^ self.round(round, left), left);
        }
        (left << HALF_BITS | right) >> GENERATION_BITS
    }

    fn round(&self, round: u8, half: u32) -> u32 {
        let [low, high, ..] = half.to_le_bytes();
        // Three bytes are never a handle's, which are more: the key is used for both.
        let [a, b, ..] = self.hash(&[round, low, high]).to_le_bytes();
        u32::from_le_bytes([a, b, 0, 0]) & HALF
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> NodeKey {
        NodeKey::from_bytes([byte; NodeKey::BYTES])
    }

    #[test]
    fn slot_of_when_any_allocation_then_its_own_and_numbers_differ() {
        let key = key(7);
        let mut seen = std::collections::HashSet::new();
        for slot in (0..1 << SLOT_BITS).step_by(997) {
            for generation in [1, 2, 1023] {
                let fd = key.virtual_fd(AllocationId { slot, generation }).expect("a low slot");
                assert!(fd.number() >= VirtualFd::FIRST);
                assert_eq!(key.slot_of(fd), slot);
                assert!(seen.insert(fd), "{fd} is two allocations'");
            }
        }
    }

    #[test]
    fn virtual_fd_when_the_slot_is_too_high_then_none() {
        assert_eq!(key(7).virtual_fd(AllocationId { slot: 1 << SLOT_BITS, generation: 1 }), None);
    }

    #[test]
    fn virtual_fd_when_neighbours_or_keys_differ_then_the_numbers_tell_nothing() {
        let id = |slot| AllocationId { slot, generation: 1 };
        let numbers: Vec<i32> =
            (0..64).filter_map(|slot| key(7).virtual_fd(id(slot))).map(VirtualFd::number).collect();
        assert!(numbers.windows(2).all(|two| two[0].abs_diff(two[1]) > 1));
        let same =
            (0..1000).filter(|slot| key(7).virtual_fd(id(*slot)) == key(8).virtual_fd(id(*slot)));
        assert!(same.count() < 2);
    }

    #[test]
    fn slot_of_when_a_number_is_of_another_broker_then_its_allocation_there_is_seldom_live() {
        let (ours, theirs) = (key(7), key(8));
        let live = |slot| AllocationId { slot, generation: 1 };
        let hits = (0..100_000).filter(|slot| {
            let fd = theirs.virtual_fd(live(*slot)).expect("a low slot");
            let at = ours.slot_of(fd);
            at < 100_000 && ours.virtual_fd(live(at)) == Some(fd)
        });
        // Some 9 of 100,000 by chance, when 100,000 of 2^30 numbers are live.
        assert!(hits.count() < 60);
    }

    #[test]
    fn new_when_the_kernel_could_give_it_or_it_is_no_fd_then_none() {
        assert_eq!([-1, 0, VirtualFd::FIRST - 1].map(VirtualFd::new), [None; 3]);
        assert_eq!(VirtualFd::new(i32::MAX).map(VirtualFd::number), Some(i32::MAX));
    }
}
