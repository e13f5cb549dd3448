//! Files: what held fds really pin. All fds of one file (device and inode) pin it once, however many ranges of it are
//! registered. A domain is charged for it once: the client that held of it first pays, and when nothing of it is held for
//! that client any more, the next one does. Must never charge a domain twice for a file, nor refuse that one grows.

use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

use crate::Core;
use crate::allocation::{Allocation, AllocationList, State};
use crate::api::{File, FileId};
use crate::ledger::{Blocked, Charge, ScopeId};
use crate::lists::{Link, List, Nodes};
use crate::slots::{NONE, Slots};
use crate::work::visit;
use fdbroker_protocol::{Resource, Scope};

/// Unit of what an allocation remembers of its file while it is not held, bytes.
const PAGE_BYTES: u64 = 4096;

/// A file of which the broker holds fds, for one domain.
#[derive(Debug)]
struct Pinned {
    domain: u32,
    id: FileId,
    /// What the first of `stakes` pays for, bytes.
    bytes: u64,
    stakes: List,
    /// Allocations of which the broker holds an fd of this file.
    ranges: u32,
    /// How many of these are in the order of eviction.
    evictable: u32,
    /// How many of these are never evicted: while there is one, the memory cannot be had back.
    resident: u32,
}

impl Pinned {
    fn resident_bytes(&self) -> u64 {
        if self.resident > 0 { self.bytes } else { 0 }
    }
}

/// What of a file is held for one client, or for the domain alone ([`NONE`]).
#[derive(Debug)]
struct Stake {
    file: u32,
    owner: u32,
    /// Allocations; never 0.
    ranges: u32,
    link: Link,
}

struct StakeLinks<'a>(&'a mut Slots<Stake>);

impl Nodes for StakeLinks<'_> {
    fn link(&mut self, node: u32) -> &mut Link {
        &mut self.0[node].link
    }
}

/// What leases of ended allocations still pin of a file. Its fds are closed, so it is not looked at any more.
#[derive(Debug, Default)]
struct Ended {
    /// What the file pinned when it was held last, bytes.
    most: u64,
    /// Sizes of the ranges, together: they may overlap.
    sizes: u128,
}

impl Ended {
    fn bytes(&self) -> u64 {
        u64::try_from(self.sizes).map_or(self.most, |sizes| sizes.min(self.most))
    }
}

/// See the module. At most one record of each kind for each fd held, or allocation ended and still leased.
#[derive(Debug, Default)]
pub(crate) struct Files {
    files: Slots<Pinned>,
    by_id: FxHashMap<(u32, FileId), u32>,
    stakes: Slots<Stake>,
    by_owner: FxHashMap<(u32, u32), u32>,
    /// The slots of what is held, by file.
    slots: BTreeSet<(u32, u32)>,
    ended: FxHashMap<FileId, Ended>,
    /// The files of ended allocations that are leased, where they are known, by slot.
    ended_of: FxHashMap<u32, FileId>,
}

impl Files {
    fn find(&self, domain: u32, id: FileId) -> Option<u32> {
        self.by_id.get(&(domain, id)).copied()
    }

    /// A file of which nothing is held yet, though so many bytes are charged for it.
    fn insert(&mut self, domain: u32, id: FileId, bytes: u64) -> u32 {
        let (stakes, ranges, evictable, resident) = (List::EMPTY, 0, 0, 0);
        let pinned = Pinned { domain, id, bytes, stakes, ranges, evictable, resident };
        let (file, _) = self.files.insert(pinned).expect("files are fewer than slots");
        self.by_id.insert((domain, id), file);
        file
    }

    /// A slot is a range of the file; gives what the file has that cannot be had back, before and now, in bytes.
    fn enter(&mut self, file: u32, slot: u32, is_resident: bool) -> [u64; 2] {
        self.slots.insert((file, slot));
        let file = &mut self.files[file];
        let former = file.resident_bytes();
        file.ranges += 1;
        file.resident += u32::from(is_resident);
        [former, file.resident_bytes()]
    }

    /// A slot is a range of the file no more; gives the same.
    fn leave(&mut self, file: u32, slot: u32, is_resident: bool) -> [u64; 2] {
        self.slots.remove(&(file, slot));
        let file = &mut self.files[file];
        let former = file.resident_bytes();
        file.ranges -= 1;
        file.resident -= u32::from(is_resident);
        [former, file.resident_bytes()]
    }

    /// Another range of the file is held for this owner: its stake.
    fn join(&mut self, file: u32, owner: u32) -> u32 {
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
    fn leave_stake(&mut self, stake: u32) {
        let Stake { file, owner, ref mut ranges, .. } = self.stakes[stake];
        *ranges -= 1;
        if *ranges == 0 {
            self.files[file].stakes.remove(&mut StakeLinks(&mut self.stakes), stake);
            self.by_owner.remove(&(file, owner));
            self.stakes.remove(stake);
        }
    }

    /// Who pays for the file; `None`: nobody holds any of it.
    fn first_owner(&self, file: u32) -> Option<u32> {
        self.files[file].stakes.first().map(|stake| self.stakes[stake].owner)
    }

    /// An allocation of this file has ended, and is leased; gives the bytes that this adds to what is pinned.
    fn end(&mut self, slot: u32, size: u64, file: File) -> u64 {
        self.ended_of.insert(slot, file.id);
        let ended = self.ended.entry(file.id).or_default();
        let former = ended.bytes();
        ended.sizes += u128::from(size);
        ended.most = ended.most.max(file.pinned_bytes);
        ended.bytes() - former
    }

    /// The last lease of it is gone; gives the bytes that are pinned no more.
    fn end_is_over(&mut self, slot: u32, size: u64) -> u64 {
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

    fn remove(&mut self, file: u32) {
        let Pinned { domain, id, .. } = self.files.remove(file);
        self.by_id.remove(&(domain, id));
    }
}

impl Core {
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

    /// Remembers, for an allocation that is not held, what its file would pin.
    pub(crate) fn remember_file(&mut self, slot: u32, file: Option<File>) {
        self.allocations.set_file(slot, file.map_or(NONE, |file| pages(file.pinned_bytes)));
    }

    /// The account of a client that is above its cap of held bytes: a file of it has grown.
    pub(crate) fn above_held_bytes(&mut self, owner: u32) -> Option<Blocked> {
        self.ledger.above(self.scope_of(owner), Resource::HeldBytes)
    }

    /// The fd of an allocation is held from now on. `charged`: bytes that its owner was charged with for it already.
    pub(crate) fn pin(&mut self, slot: u32, file: Option<File>, charged: u64) {
        let allocation = &self.allocations[slot];
        let (owner, domain, size) = (allocation.owner, allocation.domain, allocation.size_bytes);
        let is_resident = !allocation.traits.is_evictable();
        let Some(File { id, pinned_bytes }) = file else {
            self.allocations.set_file(slot, NONE);
            self.change_resident(domain, [0, if is_resident { size } else { 0 }]);
            return self.charge_difference(owner, domain, charged, size);
        };
        let known = self.files.find(domain, id);
        let file = known.unwrap_or_else(|| self.files.insert(domain, id, charged));
        self.allocations.set_file(slot, self.files.join(file, owner));
        let resident = self.files.enter(file, slot, is_resident);
        self.change_resident(domain, resident);
        if known.is_some() {
            self.charge_difference(owner, domain, charged, 0);
        }
        self.measure_file(file, pinned_bytes);
    }

    fn change_resident(&mut self, domain: u32, [former, now]: [u64; 2]) {
        if former != now {
            self.ledger.change_resident(self.clients.scope_of_domain(domain), former, now);
        }
    }

    /// The fd of an allocation is held no more.
    pub(crate) fn let_go(&mut self, slot: u32) {
        let Allocation { owner, domain, file: stake, size_bytes, traits, .. } =
            self.allocations[slot];
        let is_resident = !traits.is_evictable();
        if stake == NONE {
            self.change_resident(domain, [if is_resident { size_bytes } else { 0 }, 0]);
            return self.release_from(owner, domain, Charge(Resource::HeldBytes, size_bytes));
        }
        let file = self.files.stakes[stake].file;
        self.allocations.set_file(slot, pages(self.files.files[file].bytes));
        let resident = self.files.leave(file, slot, is_resident);
        self.change_resident(domain, resident);
        self.leave_file(stake);
    }

    /// The held allocation in a slot is another owner's from now on ([`NONE`]: its domain's alone).
    pub(crate) fn move_pin(&mut self, slot: u32, owner: u32) {
        let stake = self.allocations[slot].file;
        if stake != NONE {
            let file = self.files.stakes[stake].file;
            self.allocations.set_file(slot, self.files.join(file, owner));
            self.leave_file(stake);
        }
    }

    /// A held allocation is in the order of eviction now, or no more.
    pub(crate) fn set_evictable(&mut self, slot: u32, is_evictable: bool) {
        let stake = self.allocations[slot].file;
        if stake != NONE {
            let file = self.files.stakes[stake].file;
            let evictable = &mut self.files.files[file].evictable;
            *evictable = if is_evictable { *evictable + 1 } else { *evictable - 1 };
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

    /// An allocation has ended and is leased. The node counts what it pins, each byte of a file that is known only once.
    pub(crate) fn pin_ended(&mut self, slot: u32, file: Option<File>) {
        let size = self.allocations[slot].size_bytes;
        let bytes = file.map_or(size, |file| self.files.end(slot, size, file));
        self.ledger.add(ScopeId::NODE, Charge(Resource::PinnedBytes, bytes));
    }

    /// The last lease of an ended allocation is gone.
    pub(crate) fn unpin_ended(&mut self, slot: u32) {
        let bytes = self.files.end_is_over(slot, self.allocations[slot].size_bytes);
        self.ledger.take(ScopeId::NODE, Charge(Resource::PinnedBytes, bytes));
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

    /// What files pin now, by the slot of any allocation of each. Their payers may be above their caps then.
    pub(crate) fn measure(&mut self, measured: &[(u32, u64)]) {
        for (slot, bytes) in measured {
            if self.allocations.is_full(*slot) && self.has_file(*slot) {
                self.measure_file(self.files.stakes[self.allocations[*slot].file].file, *bytes);
            }
        }
    }

    fn measure_file(&mut self, file: u32, bytes: u64) {
        let pinned = &mut self.files.files[file];
        let (domain, was_resident) = (pinned.domain, pinned.resident_bytes());
        let former = std::mem::replace(&mut pinned.bytes, bytes);
        let resident = [was_resident, pinned.resident_bytes()];
        let payer = self.files.first_owner(file).expect("a file has stakes");
        self.charge_difference(payer, domain, former, bytes);
        self.change_resident(domain, resident);
    }

    /// Changes what a client, or a domain alone, is charged with from `former` to `now` bytes, whatever the caps.
    fn charge_difference(&mut self, owner: u32, domain: u32, former: u64, now: u64) {
        let scope = self.payer(owner, domain);
        if former > now {
            self.ledger.release(scope, Charge(Resource::HeldBytes, former - now));
        } else if now > former {
            let charge = Charge(Resource::HeldBytes, now - former);
            let is_above = self.ledger.grow(scope, None, charge);
            self.drain_soon(is_above);
        }
    }

    fn leave_file(&mut self, stake: u32) {
        let file = self.files.stakes[stake].file;
        let Pinned { domain, bytes, .. } = self.files.files[file];
        let former = self.files.first_owner(file).expect("a file has stakes");
        self.files.leave_stake(stake);
        let charge = Charge(Resource::HeldBytes, bytes);
        match self.files.first_owner(file) {
            None => {
                self.files.remove(file);
                self.release_from(former, domain, charge);
            }
            Some(next) if next != former => {
                let [former, next] = [former, next].map(|owner| self.payer(owner, domain));
                self.ledger.release_below(Scope::Domain, former, charge);
                let is_above = self.ledger.grow(next, Some(Scope::Domain), charge);
                self.drain_soon(is_above);
            }
            Some(_) => {}
        }
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
fn pages(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(PAGE_BYTES)).unwrap_or(NONE).min(NONE - 1)
}
