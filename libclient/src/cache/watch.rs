//! What the cache does when the broker says something of its leases, on the library thread.
//! Must never wait, nor call application code but the drop of what is closed.

use crate::books::common::LeaseWatcher;
use crate::cache::Cache;
use fdbroker_protocol::AllocationId;

impl LeaseWatcher for Cache {
    fn revoked(&self, id: AllocationId) {
        self.table.revoke(id);
    }

    fn reclaim(&self, leases: &[u64]) {
        self.table.reclaim(leases);
    }

    fn declared(&self) {
        self.table.note_declared();
    }
}
