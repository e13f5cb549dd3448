//! What is shared of each GPU, added up from the list of allocations. Must never call a GPU proved:
//! owners claim it.

use fdbroker_protocol::admin::{AllocationRecord, AllocationState};
use fdbroker_protocol::gpu::NO_PCI;
use fdbroker_protocol::{Gpu, GpuApi};
use std::collections::{BTreeMap, BTreeSet};

/// What is shared of one.
#[derive(Clone, Debug)]
pub struct Shared {
    pub gpu: Gpu,
    pub allocations: u64,
    pub size_bytes: u64,
    pub leases: u64,
    pub owners: BTreeSet<u32>,
}

/// What is shared of all of them.
#[derive(Debug, Default)]
pub struct Gpus(BTreeMap<Gpu, Shared>);

impl Gpus {
    /// One by one, in a fixed order.
    pub fn into_rows(self) -> Vec<Shared> {
        self.0.into_values().collect()
    }

    /// One allocation more.
    pub fn count(&mut self, record: &AllocationRecord) {
        let gpu = record.facts.gpu.get();
        let state = AllocationState::from_number(record.state.get());
        if gpu.is_none() || state == Some(AllocationState::Ended) {
            return;
        }
        let new =
            || Shared { gpu, allocations: 0, size_bytes: 0, leases: 0, owners: BTreeSet::new() };
        let shared = self.0.entry(key(&gpu)).or_insert_with(new);
        shared.allocations += 1;
        shared.size_bytes = shared.size_bytes.saturating_add(record.facts.size_bytes.get());
        shared.leases +=
            u64::from(record.open_leases.get()) + u64::from(record.mapped_leases.get());
        shared.owners.extend(Some(record.owner_pid.get()).filter(|_| record.owner_gone == 0));
    }
}

/// What is the same of two names of one GPU: see [`Gpu::is_same`].
fn key(gpu: &Gpu) -> Gpu {
    match GpuApi::from_number(gpu.api) {
        Some(GpuApi::Cuda) => Gpu::cuda(gpu.uuid, NO_PCI, false),
        _ if gpu.pci == NO_PCI => *gpu,
        _ => {
            let mut key = *gpu;
            key.uuid = [0; 16];
            key
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    fn record(gpu: Gpu, size_bytes: u64, owner: u32) -> AllocationRecord {
        let mut record = AllocationRecord::new_zeroed();
        record.facts.gpu = gpu.into();
        record.facts.size_bytes = size_bytes.into();
        record.owner_pid = owner.into();
        record.open_leases = 2.into();
        record.state = (AllocationState::Held as u32).into();
        record
    }

    fn rows(records: &[AllocationRecord]) -> Vec<(Gpu, u64, u64, u64, usize)> {
        let mut gpus = Gpus::default();
        records.iter().for_each(|it| gpus.count(it));
        let row = |it: &Shared| (it.gpu, it.allocations, it.size_bytes, it.leases, it.owners.len());
        gpus.into_rows().iter().map(row).collect()
    }

    #[test]
    fn gpus_when_named_by_several_owners_then_a_row_each_with_its_sums() {
        let (one, other) = (Gpu::cuda([1; 16], 5, false), Gpu::cuda([2; 16], 6, false));
        let mut ended = record(one, 1 << 40, 9);
        ended.state = (AllocationState::Ended as u32).into();
        let found = rows(&[
            record(one, 100, 7),
            record(other, 1, 7),
            record(Gpu::cuda([1; 16], NO_PCI, false), 50, 8),
            record(Gpu::NONE, 1000, 7),
            ended,
        ]);
        assert_eq!(found, [(one, 2, 150, 4, 2), (other, 1, 1, 2, 1)]);
    }

    #[test]
    fn gpus_when_of_level_zero_then_by_address_and_tile_whatever_the_uuid() {
        let (whole, tile) = (Gpu::level_zero([1; 16], 5, 0xff), Gpu::level_zero([1; 16], 5, 0));
        let renamed = Gpu::level_zero([3; 16], 5, 0);
        let found = rows(&[record(whole, 1, 1), record(tile, 2, 1), record(renamed, 4, 1)]);
        assert_eq!(found, [(tile, 2, 6, 4, 1), (whole, 1, 1, 2, 1)]);
    }
}
