//! What this process has opened through the broker. Must never hold an fd: the driver has imported
//! the memory.

use fdbroker_layer::SharedLease;
use std::collections::HashMap;

/// What keeps one opening counted at the broker: a share in the lease of the fd that it was opened
/// with. Dropping it gives it back.
pub type Hold = SharedLease;

/// The holds of each address or handle: as many as openings, and more where one opening took more
/// than one fd.
#[derive(Default)]
pub struct Opened {
    holds: HashMap<usize, Vec<Vec<Hold>>>,
}

impl Opened {
    /// Keeps the holds of one opening.
    pub fn add(&mut self, address: usize, holds: Vec<Hold>) {
        self.holds.entry(address).or_default().push(holds);
    }

    /// Takes the holds of one opening at this address; the others stay.
    pub fn take(&mut self, address: usize) -> Option<Vec<Hold>> {
        let openings = self.holds.get_mut(&address)?;
        let holds = openings.pop();
        if openings.is_empty() {
            self.holds.remove(&address);
        }
        holds
    }
}
