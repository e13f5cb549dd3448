//! Files in the model: what several ranges, owners and domains have of one memfd, that grows. Each
//! domain is charged for a file once, with what the file pins. Must never say which of its owners
//! pays: the core's own assertions do.

use crate::action::Action;
use crate::model::{Allocation, Check, Model};
use crate::sums::Ledger;
use crate::world::World;
use fdbroker_core::{DomainKey, File, FileId};
use fdbroker_protocol::AllocationId;
use std::collections::{BTreeMap, BTreeSet};

/// So many files, that clients of all users deposit again and again.
const FILES: u64 = 6;
/// What an allocation remembers of its file is in pages of so many bytes.
const PAGE_BYTES: u64 = 4096;

/// What is known of files and is not in an allocation.
#[derive(Debug, Default)]
pub struct Files {
    /// What each pins now. It only grows.
    bytes: BTreeMap<FileId, u64>,
    /// What the files of allocations pinned when the broker closed their fds.
    left: BTreeMap<AllocationId, u64>,
    /// The files of ended allocations that were held to the end.
    ended: BTreeMap<AllocationId, FileId>,
    /// What these pinned at the last end.
    most: BTreeMap<FileId, u64>,
}

impl Files {
    /// The daemon looks at the files when their fds arrive: they may have grown since they were
    /// sent.
    pub fn look(&self, action: &mut Action) {
        let files: Vec<&mut Option<File>> = match action {
            Action::Register { deposits, .. } => {
                let judged = deposits.iter_mut().filter_map(|it| it.judged.as_mut().ok());
                judged.map(|it| &mut it.file).collect()
            }
            Action::Supply { supplies, .. } => supplies.iter_mut().map(|it| &mut it.file).collect(),
            _ => return,
        };
        files.into_iter().flatten().for_each(|file| *file = self.now(*file));
    }

    fn now(&self, file: File) -> File {
        File { pinned_bytes: self.bytes.get(&file.id).copied().unwrap_or(0), ..file }
    }
}

impl Model {
    /// What is pinned now by the file of an allocation.
    pub fn file_now(&self, allocation: &Allocation) -> Option<File> {
        allocation.deposit.file.map(|file| self.files.now(file))
    }

    /// The broker has closed its fd, or never kept it.
    pub fn left_file(&mut self, id: AllocationId) {
        let file = self.allocations.get(&id).and_then(|allocation| self.file_now(allocation));
        self.files.left.extend(file.map(|file| (id, file.pinned_bytes)));
    }

    /// It ends while the broker has its fd; only its leases pin it then.
    pub fn ends_with_file(&mut self, id: AllocationId) {
        let still_leased = self.still_leased.contains(&id);
        let is_leased = |known: &&Allocation| still_leased || !known.leases.is_empty();
        let known = self.allocations.get(&id).filter(is_leased);
        let file = known.and_then(|known| self.file_now(known));
        if let Some(File { id: file, pinned_bytes }) = file {
            self.files.ended.insert(id, file);
            self.files.most.insert(file, pinned_bytes);
        }
    }

    /// The bytes that a recall of it reserves.
    pub fn bytes_to_recall(&self, id: AllocationId, allocation: &Allocation) -> u64 {
        let size = allocation.deposit.facts.size_bytes;
        let left = allocation.deposit.file.and_then(|_| self.files.left.get(&id));
        left.map_or(size, |bytes| size.min(bytes.next_multiple_of(PAGE_BYTES)))
    }

    /// Charges each domain once for each file of which the broker has an fd for it.
    pub fn charge_files(&self, ledger: &mut Ledger) {
        let mut held: BTreeMap<(DomainKey, FileId), (u64, bool)> = BTreeMap::new();
        let mut owners = BTreeSet::new();
        for (id, allocation) in &self.allocations {
            let file = self.file_now(allocation).filter(|_| self.is_held(*id));
            let Some(file) = file.filter(|_| allocation.ended.is_none()) else { continue };
            let (bytes, is_resident) = held.entry((allocation.domain, file.id)).or_default();
            *bytes = file.pinned_bytes;
            *is_resident |= !allocation.deposit.is_evictable();
            if self.owner_here(allocation) {
                owners.insert((allocation.owner, allocation.domain, file.id, file.pinned_bytes));
            }
        }
        for ((domain, _), (bytes, is_resident)) in held {
            ledger.charge(None, domain, |sums| {
                sums.held_bytes += u128::from(bytes);
                sums.resident_bytes += if is_resident { u128::from(bytes) } else { 0 };
            });
        }
        for (owner, domain, _, bytes) in owners {
            ledger.may_pay(owner, domain, bytes.into());
        }
    }

    /// What leases of ended allocations pin on the node.
    pub fn pinned_on_node(&self) -> u128 {
        let ended = self.allocations.iter();
        let ended = ended.filter(|(_, it)| it.ended.is_some() && !it.leases.is_empty());
        let mut sizes: BTreeMap<FileId, u128> = BTreeMap::new();
        let mut sum = 0;
        for (id, allocation) in ended {
            let size = u128::from(allocation.deposit.facts.size_bytes);
            match self.files.ended.get(id) {
                Some(file) => *sizes.entry(*file).or_default() += size,
                None => sum += size,
            }
        }
        let of_file = |(file, size): (FileId, u128)| size.min(self.files.most[&file].into());
        sum + sizes.into_iter().map(of_file).sum::<u128>()
    }

    /// Each file has grown to so many bytes.
    pub fn grow_files(&mut self, measured: &[(u32, u64)]) {
        for (slot, bytes) in measured {
            let found = self
                .allocations
                .iter()
                .find(|(id, it)| id.slot == *slot && it.ended.is_none() && self.is_held(**id));
            if let Some(file) = found.and_then(|(_, allocation)| allocation.deposit.file) {
                self.files.bytes.insert(file.id, *bytes);
            }
        }
    }
}

impl World {
    /// One of a few files, for a deposit; none in most setups.
    pub fn draw_file(&mut self) -> Option<File> {
        if self.setup.files == 0 || !self.rng.chance(self.setup.files) {
            return None;
        }
        let id = FileId { device: 1, inode: 1 + self.rng.below(FILES) };
        let new = self.rng.between(0, 8) * PAGE_BYTES;
        let pinned_bytes = *self.model.files.bytes.entry(id).or_insert(new);
        Some(File { id, pinned_bytes })
    }

    /// A file grows, and the daemon looks at it: in each domain that it is held for.
    pub fn grow_file(&mut self) -> Check {
        let Some(File { id, pinned_bytes }) = self.draw_file() else { return Ok(()) };
        let grown = pinned_bytes + self.rng.below(2) * PAGE_BYTES + self.rng.below(2);
        let model = &self.model;
        let held = model
            .allocations
            .iter()
            .filter(|(slot, allocation)| allocation.ended.is_none() && model.is_held(**slot));
        let of_file = held.filter(|(_, it)| it.deposit.file.is_some_and(|file| file.id == id));
        let slots: BTreeMap<DomainKey, u32> =
            of_file.map(|(slot, it)| (it.domain, slot.slot)).collect();
        if slots.is_empty() {
            return Ok(());
        }
        let files = slots.into_values().map(|slot| (slot, grown)).collect();
        self.feed(Action::Measured { files })
    }
}
