//! What a step may still do of what there may be much more of: the rest is for the next one
//! (invariant 9).

use crate::limits::{
    FILE_LOOKS_PER_STEP, LEASES_SWEPT_PER_STEP, LOOKS_PER_STEP, OBJECT_LOOKS_PER_STEP,
};
use fdbroker_protocol::limits::ENDS_PER_MESSAGE;

/// So many are left.
#[derive(Debug, Default)]
pub struct Left(usize);

impl Left {
    /// Takes one; `false`: none is left.
    pub fn take(&mut self) -> bool {
        let is_left = self.0 > 0;
        self.0 -= usize::from(is_left);
        is_left
    }

    /// Whether none is left.
    pub fn is_used_up(&self) -> bool {
        self.0 == 0
    }
}

/// What is left of each.
#[derive(Debug, Default)]
pub struct Allowances {
    /// Allocations that the message at hand may end.
    pub ends: Left,
    /// Leases of ended allocations whose holders are charged and told.
    pub sweeps: Left,
    /// Allocations that were used, and are not evicted when they are the oldest.
    pub second_chances: Left,
    /// Ranges of files that are passed by when bytes are short, because their file would stay.
    pub file_looks: Left,
    /// Groups of objects that are looked at to find one to evict.
    pub object_looks: Left,
}

impl Allowances {
    /// All of them.
    pub fn of_a_step() -> Self {
        Allowances {
            ends: Left(ENDS_PER_MESSAGE),
            sweeps: Left(LEASES_SWEPT_PER_STEP),
            second_chances: Left(LOOKS_PER_STEP),
            file_looks: Left(FILE_LOOKS_PER_STEP),
            object_looks: Left(OBJECT_LOOKS_PER_STEP),
        }
    }
}
