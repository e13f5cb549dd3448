//! What the broker remembers of allocations that have ended, by the file that can be found in
//! /proc. Must never judge.

use super::ledger::MemoryKey;
use crate::admin::{Admin, Selection};
use crate::error::Result;
use crate::records::job_label;
use fdbroker_protocol::admin::TombstoneRecord;
use fdbroker_protocol::{AllocationId, ErrorCode, MemoryKind};
use fdbrokerd::schedulers::is_job_name;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The ended allocations that had one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedFile {
    /// The one that ended last.
    pub id: AllocationId,
    /// Of all of them.
    pub size_bytes: u64,
    /// Time since the last end.
    pub age_ms: u64,
    /// Processes that owned some of them, with their users.
    pub owners: BTreeSet<(u32, u32)>,
    /// The job of the last owner.
    pub job: String,
    /// Why the last one ended.
    pub reason: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tombstones {
    pub files: BTreeMap<MemoryKey, EndedFile>,
    /// Time since the end of each allocation, in ms.
    pub ages_ms: HashMap<AllocationId, u64>,
    /// How many the broker has dropped for newer ones.
    pub dropped: u64,
}

impl Tombstones {
    pub fn read(admin: &mut Admin) -> Result<Self> {
        let mut tombstones = Tombstones::default();
        admin.each_page(Selection::ALL, |page: &[TombstoneRecord]| {
            page.iter().for_each(|record| tombstones.add(record));
            Ok(())
        })?;
        if !admin.is_own_part() {
            tombstones.dropped = admin.metrics()?.tombstones_dropped.get();
        }
        Ok(tombstones)
    }

    fn add(&mut self, record: &TombstoneRecord) {
        let id = AllocationId { slot: record.slot.get(), generation: record.generation.get() };
        let (age_ms, number) = (record.age_ms.get(), record.inode.get());
        self.ages_ms.insert(id, age_ms);
        // Kinds of a newer broker cannot be compared.
        let Some(kind) = MemoryKind::from_number(record.kind).filter(|_| number != 0) else {
            return;
        };
        let file = self.files.entry(MemoryKey { kind, number }).or_insert_with(|| EndedFile {
            id,
            size_bytes: 0,
            age_ms: u64::MAX,
            owners: BTreeSet::new(),
            job: String::new(),
            reason: String::new(),
        });
        file.size_bytes = file.size_bytes.saturating_add(record.size_bytes.get());
        file.owners.insert((record.owner_pid.get(), record.owner_uid.get()));
        if age_ms < file.age_ms {
            let reason = ErrorCode::from_number(record.code.get());
            file.reason = reason.map_or_else(String::new, |code| code.name().to_owned());
            // A key names nothing to people.
            file.job = job_label(record.job, &record.job_name)
                .filter(|label| is_job_name(label))
                .unwrap_or_default();
            (file.id, file.age_ms) = (id, age_ms);
        }
    }
}
