//! `fdbroker gpus`: what is shared of each GPU. Must never call a GPU proved: owners claim it.

use crate::admin::{Selection, viewing};
use crate::error::Result;
use crate::records::gpus::{Gpus, Shared};
use crate::table::{Column, Kind, List, ListArgs, Value};
use fdbroker_protocol::GpuApi;
use fdbroker_protocol::admin::AllocationRecord;

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
    let mut gpus = Gpus::default();
    admin.each_page(Selection::ALL, |page: &[AllocationRecord]| {
        page.iter().for_each(|record| gpus.count(record));
        Ok(())
    })?;
    let rows = gpus.into_rows();
    list.print(Some(admin.scope_name()), |take| take(&rows))
}
