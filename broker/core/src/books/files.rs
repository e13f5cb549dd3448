//! Files: what held fds really pin. All fds of one file (device and inode) pin it once, however
//! many ranges of it are registered. A domain is charged for it once: the client that held of it
//! first pays, and when nothing of it is held for that client any more, the next one does. Must
//! never charge a domain twice for a file, nor refuse that one grows.
//!
//! A file is charged what it has, or the sum of its held ranges where that is more, up to its size:
//! memory is counted before it is written.
//!
//! An example: rank A registers 100 ranges of 2 MiB of an arena of 1 GiB, of which 300 MiB have
//! pages, and rank B of the same domain another 25. A is charged 300 MiB, B nothing. The arena
//! grows to 400 MiB: A is charged 400 at the next look, above its cap if it must be, and can
//! deposit no more until something of it is gone. A ends: B has the first stake now, and is charged
//! the 400 MiB. To evict one range may free an fd and no byte; so when bytes are short all ranges
//! of a file go together, or none.

use std::collections::BTreeSet;

use crate::api::{File, FileId};
use crate::books::lists::{Link, List, Nodes};
use crate::books::slots::Slots;
use rustc_hash::FxHashMap;

/// A file of which the broker holds fds, for one domain.
#[derive(Debug)]
pub(crate) struct Pinned {
    pub(crate) domain: u32,
    /// What it has and what it could have, at the last look.
    pub(crate) file: File,
    pub(crate) stakes: List,
    /// Allocations of which the broker holds an fd of this file.
    pub(crate) ranges: u32,
    /// Their sizes, together: they may overlap.
    pub(crate) sizes: u128,
    /// How many of these are in the order of eviction.
    pub(crate) evictable: u32,
    /// How many of these are never evicted: while there is one, the memory cannot be had back.
    pub(crate) resident: u32,
}

impl Pinned {
    /// What the first of `stakes` pays for.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes_with(0)
    }

    /// The same with one more range of so many bytes.
    pub(crate) fn bytes_with(&self, range: u64) -> u64 {
        self.file.bytes_with(u64::try_from(self.sizes + u128::from(range)).unwrap_or(u64::MAX))
    }

    pub(crate) fn resident_bytes(&self) -> u64 {
        if self.resident > 0 { self.bytes() } else { 0 }
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

pub(crate) struct StakeLinks<'a>(pub(crate) &'a mut Slots<Stake>);

impl Nodes for StakeLinks<'_> {
    fn link(&mut self, node: u32) -> &mut Link {
        &mut self.0[node].link
    }
}

/// What leases of ended allocations still pin of a file. Its fds are closed, so it is not looked at
/// any more.
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

/// See the module. At most one record of each kind for each fd held, or allocation ended and still
/// leased.
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

    /// A file of which nothing is held yet.
    pub(crate) fn insert(&mut self, domain: u32, file: File) -> u32 {
        let (stakes, sizes, [ranges, evictable, resident]) = (List::EMPTY, 0, [0; 3]);
        let id = file.id;
        let pinned = Pinned { domain, file, stakes, ranges, sizes, evictable, resident };
        let (number, _) = self.files.insert(pinned).expect("files are fewer than slots");
        self.by_id.insert((domain, id), number);
        number
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

    /// A range of this stake is held no more. The file may be left without any: see
    /// [`Files::first_owner`].
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

    /// An allocation of this file has ended, and is leased; gives the bytes that this adds to what
    /// is pinned.
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
        let Pinned { domain, file, .. } = self.files.remove(file);
        self.by_id.remove(&(domain, file.id));
    }
}
