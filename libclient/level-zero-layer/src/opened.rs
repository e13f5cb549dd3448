//! The memory that this process has opened through the broker. Must never hold an fd: the driver has imported the memory.

use fdbroker_client::Lease;
use std::collections::HashMap;

/// The leases of each address, one for each time that it was opened.
#[derive(Default)]
pub struct Opened {
    leases: HashMap<usize, Vec<Lease>>,
}

impl Opened {
    /// Keeps the lease of one opening.
    pub fn add(&mut self, address: usize, lease: Lease) {
        self.leases.entry(address).or_default().push(lease);
    }

    /// Takes one lease of this address; the others stay.
    pub fn take(&mut self, address: usize) -> Option<Lease> {
        let leases = self.leases.get_mut(&address)?;
        let lease = leases.pop();
        if leases.is_empty() {
            self.leases.remove(&address);
        }
        lease
    }
}
