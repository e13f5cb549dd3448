//! Files in the model: what several ranges, owners and domains have of one memfd, that grows. Each
//! domain is charged for a file once: with what the file has, or with the sum of its held ranges
//! where that is more, up to its size. Must never say which of its owners pays: the core's own
//! assertions do.

use crate::action::Action;
use crate::model::{Allocation, Check, Model};
use crate::sums::Ledger;
use crate::world::World;
use fdbroker_core::{DomainKey, File, FileId};
use fdbroker_protocol::AllocationId;
use std::collections::{BTreeMap, BTreeSet};

/// So many files, that clients of all users deposit again and again.
const FILES: u64 = 6;
const PAGE_BYTES: u64 = 4096;
/// Size of each: ranges are often more together.
const FILE_BYTES: u64 = 12 * PAGE_BYTES;

/// What is known of files and is not in an allocation.
#[derive(Debug, Default)]
pub struct Files {
    /// What each has now. It only grows.
    bytes: BTreeMap<FileId, u64>,
    /// The files of ended allocations that were held to the end.
    ended: BTreeMap<AllocationId, FileId>,
    /// The most that these pinned at an end, since the first one that is leased still.
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

    /// What a domain is charged for a file, with so many bytes of its ranges.
    fn charged(file: File, ranges: u64) -> u64 {
        file.pinned_bytes.max(ranges.min(file.size_bytes))
    }

    /// It ends while the broker has its fd; only its leases pin it then.
    pub fn ends_with_file(&mut self, id: AllocationId) {
        let still_leased = self.still_leased.contains(&id);
        let is_leased = |known: &&Allocation| still_leased || !known.leases.is_empty();
        let known = self.allocations.get(&id).filter(is_leased);
        let Some((domain, file)) = known.and_then(|it| Some((it.domain, self.file_now(it)?)))
        else {
            return;
        };
        let ranges = self.allocations.iter().filter(|(other, it)| {
            // Those that end with it, but after it, are held yet.
            let is_held = **other == id || self.is_held(**other);
            let of_file = it.deposit.file.is_some_and(|of| of.id == file.id);
            is_held && of_file && it.domain == domain
        });
        let pinned = Model::charged(file, ranges.map(|(_, it)| it.deposit.facts.size_bytes).sum());
        let is_leased = |id: &AllocationId| {
            let known = self.allocations.get(id);
            known.is_some_and(|it| it.ended.is_some() && !it.leases.is_empty())
        };
        let others = self.files.ended.iter().any(|(id, of)| *of == file.id && is_leased(id));
        let most = self.files.most.entry(file.id).or_default();
        *most = if others { pinned.max(*most) } else { pinned };
        self.files.ended.insert(id, file.id);
    }

    /// Charges each domain once for each file of which the broker has an fd for it.
    pub fn charge_files(&self, ledger: &mut Ledger) {
        let mut held: BTreeMap<(DomainKey, FileId), (File, u64, bool)> = BTreeMap::new();
        let mut owners = BTreeSet::new();
        for (id, allocation) in &self.allocations {
            let file = self.file_now(allocation).filter(|_| self.is_held(*id));
            let Some(file) = file.filter(|_| allocation.ended.is_none()) else { continue };
            let of = (allocation.domain, file.id);
            let (_, ranges, is_resident) = held.entry(of).or_insert((file, 0, false));
            *ranges += allocation.deposit.facts.size_bytes;
            *is_resident |= !allocation.deposit.is_evictable();
            if self.owner_here(allocation) {
                owners.insert((allocation.owner, of));
            }
        }
        for (owner, of) in owners {
            let (file, ranges, _) = held[&of];
            ledger.may_pay(owner, of.0, Model::charged(file, ranges).into());
        }
        for ((domain, _), (file, ranges, is_resident)) in held {
            let bytes = Model::charged(file, ranges);
            ledger.charge(None, domain, |sums| {
                sums.held_bytes += u128::from(bytes);
                sums.resident_bytes += if is_resident { u128::from(bytes) } else { 0 };
            });
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
        Some(File { id, pinned_bytes, size_bytes: FILE_BYTES })
    }

    /// A file grows, and the daemon looks at it: in each domain that it is held for.
    pub fn grow_file(&mut self) -> Check {
        let Some(File { id, pinned_bytes, .. }) = self.draw_file() else { return Ok(()) };
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
