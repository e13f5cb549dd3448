//! `fdbroker gpus`: what is shared of each GPU, added up from the list of allocations. Must never
//! call a GPU proved: owners claim it.

use crate::admin::{Selection, viewing};
use crate::error::Result;
use crate::table::{Column, Kind, List, ListArgs, Value};
use fdbroker_protocol::admin::{AllocationRecord, AllocationState};
use fdbroker_protocol::gpu::NO_PCI;
use fdbroker_protocol::{Gpu, GpuApi};
use std::collections::{BTreeMap, BTreeSet};

pub const EXAMPLES: &str = "\
Examples:
  fdbroker gpus                                    what is shared of each GPU, and by how many
  fdbroker gpus --sort SIZE:desc
  fdbroker gpus --json | jq -r '.gpus[] | [.gpu, .size_bytes] | @tsv'
  fdbroker ls -o +GPU --filter 'GPU == GPU-5a0f3c1e-0000-0000-0000-000000000000'
                                                   the allocations of one of them

A GPU is named by its UUID, as `nvidia-smi -L` and CUDA_VISIBLE_DEVICES name it, because each process counts the GPUs that it sees from 0.
A MIG instance is a GPU of its own (MIG-...), and so is a tile of Level Zero. The names are what the owners of the memory say. Memory of the
host, and of owners that did not say, is in no row; memory that has ended is not counted.";

/// What is shared of one.
#[derive(Clone)]
struct Shared {
    gpu: Gpu,
    allocations: u64,
    size_bytes: u64,
    leases: u64,
    owners: BTreeSet<u32>,
}

const COLUMNS: &[Column<Shared>] = &[
    Column::new(Kind::Text, "GPU", "gpu", "its UUID, as owners of memory on it say", |it| {
        Value::Text(it.gpu.to_string().into())
    }),
    Column::new(Kind::Text, "PCI", "pci", "its PCI address", |it| {
        it.gpu.pci_address().map_or(Value::None("-"), |address| Value::Text(address.into()))
    }),
    Column::new(
        Kind::Word(GpuApi::NAMES),
        "API",
        "api",
        "who names it: cuda or level-zero",
        |it| Value::word(GpuApi::from_number(it.gpu.api).map_or("unknown", GpuApi::name)),
    ),
    Column::new(Kind::Size, "SIZE", "size_bytes", "bytes of it that are shared", |it| {
        Value::Size(it.size_bytes)
    }),
    Column::new(Kind::Number, "ALLOCATIONS", "allocations", "allocations on it", |it| {
        Value::Number(it.allocations)
    }),
    Column::new(Kind::Number, "LEASES", "leases", "leases of these", |it| Value::Number(it.leases)),
    Column::new(Kind::Number, "OWNERS", "owners", "processes that own some of these", |it| {
        Value::Number(it.owners.len() as u64)
    }),
];

pub fn run(args: &ListArgs) -> Result<()> {
    let Some(list) = List::new("gpus", COLUMNS, args)? else { return Ok(()) };
    let mut admin = viewing::connect()?;
    let mut gpus = BTreeMap::new();
    admin.each_page(Selection::ALL, &mut |page: &[AllocationRecord]| {
        page.iter().for_each(|record| count(&mut gpus, record));
        Ok(())
    })?;
    let rows: Vec<Shared> = gpus.into_values().collect();
    list.print(Some(admin.scope_name()), |take| take(&rows))
}

/// What is the same of two names of one GPU: see [`Gpu::is_same`].
fn key(gpu: &Gpu) -> Gpu {
    match GpuApi::from_number(gpu.api) {
        Some(GpuApi::Cuda) => Gpu::cuda(gpu.uuid, NO_PCI, false),
        _ if gpu.pci == NO_PCI => *gpu,
        _ => Gpu { uuid: [0; 16], ..*gpu },
    }
}

fn count(gpus: &mut BTreeMap<Gpu, Shared>, record: &AllocationRecord) {
    let gpu = record.facts.gpu;
    let state = AllocationState::from_number(record.state.get());
    if gpu.is_none() || state == Some(AllocationState::Ended) {
        return;
    }
    let new = || Shared { gpu, allocations: 0, size_bytes: 0, leases: 0, owners: BTreeSet::new() };
    let shared = gpus.entry(key(&gpu)).or_insert_with(new);
    shared.allocations += 1;
    shared.size_bytes = shared.size_bytes.saturating_add(record.facts.size_bytes.get());
    shared.leases += u64::from(record.open_leases.get()) + u64::from(record.mapped_leases.get());
    shared.owners.extend(Some(record.owner_pid.get()).filter(|_| record.owner_gone == 0));
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    fn record(gpu: Gpu, size_bytes: u64, owner: u32) -> AllocationRecord {
        let mut record = AllocationRecord::new_zeroed();
        record.facts.gpu = gpu;
        record.facts.size_bytes = size_bytes.into();
        record.owner_pid = owner.into();
        record.open_leases = 2.into();
        record.state = (AllocationState::Held as u32).into();
        record
    }

    fn rows(records: &[AllocationRecord]) -> Vec<(Gpu, u64, u64, u64, usize)> {
        let mut gpus = BTreeMap::new();
        records.iter().for_each(|it| count(&mut gpus, it));
        let row = |it: &Shared| (it.gpu, it.allocations, it.size_bytes, it.leases, it.owners.len());
        gpus.values().map(row).collect()
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
