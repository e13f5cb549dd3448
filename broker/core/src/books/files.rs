//! Files: what held fds really pin. All fds of one file (device and inode) pin it once, however many ranges of it are
//! registered. A domain is charged for it once: the client that held of it first pays, and when nothing of it is held for
//! that client any more, the next one does. Must never charge a domain twice for a file, nor refuse that one grows.

use std::collections::BTreeSet;

use crate::api::ids::{File, FileId};
use crate::books::Books;
use crate::books::allocation::{AllocationList, State};
use crate::books::ledger::ScopeId;
use crate::books::lists::{Link, List, Nodes};
use crate::books::slots::{NONE, Slots};
use crate::work::visit;
use rustc_hash::FxHashMap;

/// Unit of what an allocation remembers of its file while it is not held, bytes.
const PAGE_BYTES: u64 = 4096;

/// A file of which the broker holds fds, for one domain.
#[derive(Debug)]
pub(crate) struct Pinned {
    pub(crate) domain: u32,
    pub(crate) id: FileId,
    /// What the first of `stakes` pays for, bytes.
    pub(crate) bytes: u64,
    pub(crate) stakes: List,
    /// Allocations of which the broker holds an fd of this file.
    pub(crate) ranges: u32,
    /// How many of these are in the order of eviction.
    pub(crate) evictable: u32,
    /// How many of these are never evicted: while there is one, the memory cannot be had back.
    pub(crate) resident: u32,
}

impl Pinned {
    pub(crate) fn resident_bytes(&self) -> u64 {
        if self.resident > 0 { self.bytes } else { 0 }
    }
}

/// What of a file is held for one client, or for the domain alone ([`NONE`]).
#[derive(Debug)]
pub(crate) struct Stake {
    pub(crate) file: u32,
    pub(crate) owner: u32,
    /// Allocations; never 0.
    pub(crate) ranges: u32,
    pub(crate) link: Link,
}

struct StakeLinks<'a>(&'a mut Slots<Stake>);

impl Nodes for StakeLinks<'_> {
    fn link(&mut self, node: u32) -> &mut Link {
        &mut self.0[node].link
    }
}

/// What leases of ended allocations still pin of a file. Its fds are closed, so it is not looked at any more.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    /// What the file pinned when it was held last, bytes.
    pub(crate) most: u64,
    /// Sizes of the ranges, together: they may overlap.
    pub(crate) sizes: u128,
}

impl Ended {
    pub(crate) fn bytes(&self) -> u64 {
        u64::try_from(self.sizes).map_or(self.most, |sizes| sizes.min(self.most))
    }
}

/// See the module. At most one record of each kind for each fd held, or allocation ended and still leased.
#[derive(Debug, Default)]
pub(crate) struct Files {
    pub(crate) files: Slots<Pinned>,
    pub(crate) by_id: FxHashMap<(u32, FileId), u32>,
    pub(crate) stakes: Slots<Stake>,
    pub(crate) by_owner: FxHashMap<(u32, u32), u32>,
    /// The slots of what is held, by file.
    pub(crate) slots: BTreeSet<(u32, u32)>,
    pub(crate) ended: FxHashMap<FileId, Ended>,
    /// The files of ended allocations that are leased, where they are known, by slot.
    pub(crate) ended_of: FxHashMap<u32, FileId>,
}

impl Files {
    pub(crate) fn find(&self, domain: u32, id: FileId) -> Option<u32> {
        self.by_id.get(&(domain, id)).copied()
    }

    /// A file of which nothing is held yet, though so many bytes are charged for it.
    pub(crate) fn insert(&mut self, domain: u32, id: FileId, bytes: u64) -> u32 {
        let (stakes, ranges, evictable, resident) = (List::EMPTY, 0, 0, 0);
        let pinned = Pinned { domain, id, bytes, stakes, ranges, evictable, resident };
        let (file, _) = self.files.insert(pinned).expect("files are fewer than slots");
        self.by_id.insert((domain, id), file);
        file
    }

    /// A slot is a range of the file; gives what the file has that cannot be had back, before and now, in bytes.
    pub(crate) fn enter(&mut self, file: u32, slot: u32, is_resident: bool) -> [u64; 2] {
        self.slots.insert((file, slot));
        let file = &mut self.files[file];
        let former = file.resident_bytes();
        file.ranges += 1;
        file.resident += u32::from(is_resident);
        [former, file.resident_bytes()]
    }

    /// A slot is a range of the file no more; gives the same.
    pub(crate) fn leave(&mut self, file: u32, slot: u32, is_resident: bool) -> [u64; 2] {
        self.slots.remove(&(file, slot));
        let file = &mut self.files[file];
        let former = file.resident_bytes();
        file.ranges -= 1;
        file.resident -= u32::from(is_resident);
        [former, file.resident_bytes()]
    }

    /// Another range of the file is held for this owner: its stake.
    pub(crate) fn join(&mut self, file: u32, owner: u32) -> u32 {
        if let Some(stake) = self.by_owner.get(&(file, owner)) {
            self.stakes[*stake].ranges += 1;
            return *stake;
        }
        let new = Stake { file, owner, ranges: 1, link: Link::OUT };
        let (stake, _) = self.stakes.insert(new).expect("stakes are fewer than slots");
        self.by_owner.insert((file, owner), stake);
        self.files[file].stakes.push(&mut StakeLinks(&mut self.stakes), stake);
        stake
    }

    /// A range of this stake is held no more. The file may be left without any: see [`Files::first_owner`].
    pub(crate) fn leave_stake(&mut self, stake: u32) {
        let Stake { file, owner, ref mut ranges, .. } = self.stakes[stake];
        *ranges -= 1;
        if *ranges == 0 {
            self.files[file].stakes.remove(&mut StakeLinks(&mut self.stakes), stake);
            self.by_owner.remove(&(file, owner));
            self.stakes.remove(stake);
        }
    }

    /// Who pays for the file; `None`: nobody holds any of it.
    pub(crate) fn first_owner(&self, file: u32) -> Option<u32> {
        self.files[file].stakes.first().map(|stake| self.stakes[stake].owner)
    }

    /// An allocation of this file has ended, and is leased; gives the bytes that this adds to what is pinned.
    pub(crate) fn end(&mut self, slot: u32, size: u64, file: File) -> u64 {
        self.ended_of.insert(slot, file.id);
        let ended = self.ended.entry(file.id).or_default();
        let former = ended.bytes();
        ended.sizes += u128::from(size);
        ended.most = ended.most.max(file.pinned_bytes);
        ended.bytes() - former
    }

    /// The last lease of it is gone; gives the bytes that are pinned no more.
    pub(crate) fn end_is_over(&mut self, slot: u32, size: u64) -> u64 {
        let Some(id) = self.ended_of.remove(&slot) else { return size };
        let ended = self.ended.get_mut(&id).expect("the file of an ended allocation is known");
        let former = ended.bytes();
        ended.sizes -= u128::from(size);
        let left = ended.bytes();
        if ended.sizes == 0 {
            self.ended.remove(&id);
        }
        former - left
    }

    pub(crate) fn remove(&mut self, file: u32) {
        let Pinned { domain, id, .. } = self.files.remove(file);
        self.by_id.remove(&(domain, id));
    }
}

impl Books {
    /// Bytes more that the domain pins when it holds an fd of this file, or one of which only the size is known.
    pub(crate) fn more_pinned(&self, domain: u32, file: Option<File>, size_bytes: u64) -> u64 {
        match file {
            None => size_bytes,
            Some(file) if self.files.find(domain, file.id).is_some() => 0,
            Some(file) => file.pinned_bytes,
        }
    }

    /// Bytes more of the domain that cannot be had back when it holds an fd of this file that is never evicted.
    pub(crate) fn more_resident(&self, domain: u32, file: Option<File>, size_bytes: u64) -> u64 {
        let Some(file) = file else { return size_bytes };
        let known = self.files.find(domain, file.id).map(|known| &self.files.files[known]);
        file.pinned_bytes.saturating_sub(known.map_or(0, Pinned::resident_bytes))
    }

    /// Bytes reserved when an allocation is recalled: what its file pinned when it was held last, at most its size.
    pub(crate) fn bytes_to_recall(&self, slot: u32) -> u64 {
        let allocation = &self.allocations[slot];
        match allocation.file {
            NONE => allocation.size_bytes,
            pages => allocation.size_bytes.min(u64::from(pages) * PAGE_BYTES),
        }
    }

    /// What has to be evicted with an evictable allocation so that a scope pins less: it alone, or all ranges of its file,
    /// or the first `most`. `None`: one of them stays, or the file is not charged to the scope.
    pub(crate) fn evicted_with(&self, slot: u32, scope: ScopeId, most: usize) -> Option<Vec<u32>> {
        let stake = self.allocations[slot].file;
        if stake == NONE {
            return Some(vec![slot]);
        }
        let file = self.files.stakes[stake].file;
        let Pinned { domain, ranges, evictable, .. } = self.files.files[file];
        let payer = self.payer(self.files.first_owner(file)?, domain);
        if evictable < ranges || self.ledger.path(payer).all(|of| of != scope) {
            return None;
        }
        let slots = self.files.slots.range((file, 0)..=(file, NONE)).take(most);
        let slots: Vec<u32> = slots.map(|(_, slot)| *slot).collect();
        visit(slots.len() as u64);
        Some(slots)
    }

    /// Whether the fd of an allocation that is held pins a file, and not just the size it was said to have.
    pub(crate) fn has_file(&self, slot: u32) -> bool {
        self.allocations[slot].is_held() && self.allocations[slot].file != NONE
    }

    /// The file of a held allocation.
    pub(crate) fn file_of(&self, slot: u32) -> Option<File> {
        let stake = self.has_file(slot).then(|| &self.files.stakes[self.allocations[slot].file])?;
        let Pinned { id, bytes: pinned_bytes, .. } = self.files.files[stake.file];
        Some(File { id, pinned_bytes })
    }

    /// The file of an ended allocation that is leased, where it is known.
    pub(crate) fn ended_file_of(&self, slot: u32) -> Option<File> {
        let id = *self.files.ended_of.get(&slot)?;
        Some(File { id, pinned_bytes: self.files.ended[&id].most })
    }

    /// What leases of ended allocations pin, counted anew.
    pub(crate) fn checked_ended(&self) -> Vec<u64> {
        let mut sizes: FxHashMap<FileId, u128> = FxHashMap::default();
        let (mut all, mut known) = (Vec::new(), 0);
        for (slot, allocation) in self.allocations.iter_from(0) {
            if allocation.is_live() || allocation.leases.is_empty() {
                continue;
            }
            let Some(id) = self.files.ended_of.get(&slot) else {
                all.push(allocation.size_bytes);
                continue;
            };
            *sizes.entry(*id).or_default() += u128::from(allocation.size_bytes);
            known += 1;
        }
        assert_eq!(known, self.files.ended_of.len(), "files of what has not ended");
        assert_eq!(sizes.len(), self.files.ended.len(), "files of ended allocations");
        for (id, ended) in &self.files.ended {
            assert_eq!(sizes.get(id), Some(&ended.sizes), "ended ranges of {id:?}");
            all.push(ended.bytes());
        }
        all
    }

    /// The payer of each file that several clients share: domain, file, client or [`NONE`].
    pub(crate) fn payers(&self) -> Vec<(u32, FileId, u32)> {
        let shared = self.files.files.iter_from(0).filter(|(_, file)| file.stakes.len() > 1);
        let payer = |number| self.files.first_owner(number).expect("a file has stakes");
        let mut all: Vec<_> =
            shared.map(|(number, file)| (file.domain, file.id, payer(number))).collect();
        all.sort_unstable();
        all
    }

    /// Lets the client pay for the file of its domain, before anything is charged. `false`: it has nothing of it.
    #[must_use]
    pub(crate) fn set_payer(&mut self, (domain, id, owner): (u32, FileId, u32)) -> bool {
        let Some(file) = self.files.find(domain, id) else { return false };
        if !self.files.by_owner.contains_key(&(file, owner)) {
            return false;
        }
        while self.files.first_owner(file) != Some(owner) {
            let Files { files, stakes, .. } = &mut self.files;
            let (list, links) = (&mut files[file].stakes, &mut StakeLinks(stakes));
            let first = list.pop(links).expect("the owner is in it");
            list.push(links, first);
        }
        true
    }

    /// Asserts that each held range has a stake in its file, and nothing else has. Gives for each file the client that pays, or
    /// [`NONE`], its domain, the bytes, and how many of these cannot be had back.
    pub(crate) fn checked_files(&self) -> Vec<(u32, u32, u64, u64)> {
        let mut ranges: FxHashMap<u32, u32> = FxHashMap::default();
        let mut of_file: FxHashMap<u32, [u32; 3]> = FxHashMap::default();
        for (slot, allocation) in self.allocations.iter_from(0) {
            if self.has_file(slot) {
                let stake = &self.files.stakes[allocation.file];
                let is_its = stake.owner == allocation.owner
                    && self.files.files[stake.file].domain == allocation.domain;
                assert!(is_its, "the file of slot {slot} is charged to a stranger");
                *ranges.entry(allocation.file).or_default() += 1;
                assert!(self.files.slots.contains(&(stake.file, slot)), "slot {slot} in its file");
                let [all, evictable, resident] = of_file.entry(stake.file).or_default();
                *all += 1;
                *evictable += u32::from(allocation.is_in(AllocationList::Lru));
                *resident += u32::from(allocation.state == State::Resident);
            }
        }
        for (number, stake) in self.files.stakes.iter_from(0) {
            assert_eq!(ranges.get(&number), Some(&stake.ranges), "ranges of stake {number}");
            assert_eq!(self.files.by_owner.get(&(stake.file, stake.owner)), Some(&number));
        }
        for (number, file) in self.files.files.iter_from(0) {
            let counted = [file.ranges, file.evictable, file.resident];
            assert_eq!(of_file.get(&number), Some(&counted), "ranges of file {number}");
        }
        assert_eq!(self.files.by_owner.len(), self.files.stakes.len());
        assert_eq!(self.files.by_id.len(), self.files.files.len(), "files are found by their ids");
        let all = self.files.files.iter_from(0).map(|(number, file)| {
            let payer = self.files.first_owner(number).expect("a file has stakes");
            (payer, file.domain, file.bytes, file.resident_bytes())
        });
        all.collect()
    }

    /// Whether an allocation is charged for its size, held or about to be, and how much; files are charged by themselves.
    pub(crate) fn charged_by_size(&self, slot: u32) -> Option<u64> {
        let allocation = &self.allocations[slot];
        match allocation.state {
            State::Recalling => Some(self.bytes_to_recall(slot)),
            _ if allocation.is_held() && allocation.file == NONE => Some(allocation.size_bytes),
            _ => None,
        }
    }
}

/// As many as fit what an allocation has for them.
pub(crate) fn pages(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(PAGE_BYTES)).unwrap_or(NONE).min(NONE - 1)
}
