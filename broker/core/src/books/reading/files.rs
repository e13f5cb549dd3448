//! What files pin, for whoever asks. Must never change what is charged.

use crate::api::{File, FileId, NONE};
use crate::books::Books;
use crate::books::allocation::{AllocationList, State};
use crate::books::files::{Files, Pinned, StakeLinks};
use crate::books::ledger::ScopeId;

use crate::work::visit;
use rustc_hash::FxHashMap;

impl Books {
    /// Bytes more that the domain pins when it holds an fd of this file, or one of which only the
    /// size is known.
    pub(crate) fn more_pinned(&self, domain: u32, file: Option<File>, size_bytes: u64) -> u64 {
        let Some(file) = file else { return size_bytes };
        match self.files.find(domain, file.id).map(|known| &self.files.files[known]) {
            None => file.bytes_with(size_bytes),
            Some(known) => known.bytes_with(size_bytes) - known.bytes(),
        }
    }

    /// Bytes more of the domain that cannot be had back when it holds an fd of this file that is
    /// never evicted.
    pub(crate) fn more_resident(&self, domain: u32, file: Option<File>, size_bytes: u64) -> u64 {
        let Some(file) = file else { return size_bytes };
        let known = self.files.find(domain, file.id).map(|known| &self.files.files[known]);
        let with = known.map_or(0, |known| known.bytes_with(size_bytes));
        let former = known.map_or(0, Pinned::resident_bytes);
        with.max(file.bytes_with(size_bytes)).saturating_sub(former)
    }

    /// What has to be evicted with an evictable allocation so that a scope pins less: it alone, or
    /// all ranges of its file, or the first `most`. `None`: one of them stays, or the file is not
    /// charged to the scope.
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

    /// Whether the fd of an allocation that is held pins a file, and not just the size it was said
    /// to have.
    pub(crate) fn has_file(&self, slot: u32) -> bool {
        self.allocations[slot].file != NONE
    }

    /// The file of a held allocation.
    pub(crate) fn file_of(&self, slot: u32) -> Option<File> {
        let stake = self.has_file(slot).then(|| &self.files.stakes[self.allocations[slot].file])?;
        Some(self.files.files[stake.file].file)
    }

    /// The same, with what is charged for it as what it pins: for leases of it, when it ends.
    pub(crate) fn pinned_file_of(&self, slot: u32) -> Option<File> {
        let File { id, .. } = self.file_of(slot)?;
        let pinned = &self.files.files[self.files.find(self.allocations[slot].domain, id)?];
        Some(File { pinned_bytes: pinned.bytes(), ..pinned.file })
    }

    /// The file of an ended allocation that is leased, where it is known.
    pub(crate) fn ended_file_of(&self, slot: u32) -> Option<File> {
        let id = *self.files.ended_of.get(&slot)?;
        let most = self.files.ended[&id].most;
        Some(File { id, pinned_bytes: most, size_bytes: most })
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
            shared.map(|(number, it)| (it.domain, it.file.id, payer(number))).collect();
        all.sort_unstable();
        all
    }

    /// Lets the client pay for the file of its domain, before anything is charged. `false`: it has
    /// nothing of it.
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

    /// Asserts that each held range has a stake in its file, and nothing else has. Gives for each
    /// file the client that pays, or [`NONE`], its domain, the bytes, and how many of these cannot
    /// be had back.
    pub(crate) fn checked_files(&self) -> Vec<(u32, u32, u64, u64)> {
        let mut ranges: FxHashMap<u32, u32> = FxHashMap::default();
        let mut of_file: FxHashMap<u32, ([u32; 3], u128)> = FxHashMap::default();
        for (slot, allocation) in self.allocations.iter_from(0) {
            if self.has_file(slot) {
                let stake = &self.files.stakes[allocation.file];
                let is_its = stake.owner == allocation.owner
                    && self.files.files[stake.file].domain == allocation.domain;
                assert!(is_its, "the file of slot {slot} is charged to a stranger");
                *ranges.entry(allocation.file).or_default() += 1;
                assert!(self.files.slots.contains(&(stake.file, slot)), "slot {slot} in its file");
                let ([all, evictable, resident], sizes) = of_file.entry(stake.file).or_default();
                *all += 1;
                *sizes += u128::from(allocation.size_bytes);
                *evictable += u32::from(allocation.is_in(AllocationList::Lru));
                *resident += u32::from(allocation.state == State::Resident);
            }
        }
        for (number, stake) in self.files.stakes.iter_from(0) {
            assert_eq!(ranges.get(&number), Some(&stake.ranges), "ranges of stake {number}");
            assert_eq!(self.files.by_owner.get(&(stake.file, stake.owner)), Some(&number));
        }
        for (number, file) in self.files.files.iter_from(0) {
            let counted = ([file.ranges, file.evictable, file.resident], file.sizes);
            assert_eq!(of_file.get(&number), Some(&counted), "ranges of file {number}");
        }
        assert_eq!(self.files.by_owner.len(), self.files.stakes.len());
        assert_eq!(self.files.by_id.len(), self.files.files.len(), "files are found by their ids");
        let all = self.files.files.iter_from(0).map(|(number, file)| {
            let payer = self.files.first_owner(number).expect("a file has stakes");
            (payer, file.domain, file.bytes(), file.resident_bytes())
        });
        all.collect()
    }

    /// What an allocation is charged for its size, held or about to be; files are charged by
    /// themselves.
    pub(crate) fn charged_by_size(&self, slot: u32) -> u64 {
        let allocation = &self.allocations[slot];
        let is_charged =
            allocation.state == State::Recalling || allocation.is_held() && allocation.file == NONE;
        if is_charged { allocation.size_bytes } else { 0 }
    }
}
