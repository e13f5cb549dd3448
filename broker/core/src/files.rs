//! Files: what held fds really pin. All fds of one file (device and inode) pin it once, however many ranges of it are
//! registered. A domain is charged for it once: the client that held of it first pays, and when nothing of it is held for
//! that client any more, the next one does. Must never charge a domain twice for a file, nor refuse that one grows.

use rustc_hash::FxHashMap;

use crate::Core;
use crate::api::{File, FileId};
use crate::ledger::{Blocked, Charge};
use crate::lists::{Link, List, Nodes};
use crate::slots::{NONE, Slots};
use crate::state::State;
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

/// See the module. At most one record of each kind for each fd held.
#[derive(Debug)]
pub(crate) struct Files {
    files: Slots<Pinned>,
    by_id: FxHashMap<(u32, FileId), u32>,
    stakes: Slots<Stake>,
    by_owner: FxHashMap<(u32, u32), u32>,
}

impl Default for Files {
    fn default() -> Self {
        Files {
            files: Slots::new(NONE, 1, 0),
            by_id: FxHashMap::default(),
            stakes: Slots::new(NONE, 1, 0),
            by_owner: FxHashMap::default(),
        }
    }
}

impl Files {
    fn find(&self, domain: u32, id: FileId) -> Option<u32> {
        self.by_id.get(&(domain, id)).copied()
    }

    /// A file that pins nothing yet.
    fn insert(&mut self, domain: u32, id: FileId) -> u32 {
        let pinned = Pinned { domain, id, bytes: 0, stakes: List::EMPTY };
        let (file, _) = self.files.insert(pinned).expect("files are fewer than slots");
        self.by_id.insert((domain, id), file);
        file
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
    fn leave(&mut self, stake: u32) {
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
        self.allocations[slot].file = file.map_or(NONE, |file| pages(file.pinned_bytes));
    }

    /// The account of a client that is above its cap of held bytes: a file of it has grown.
    pub(crate) fn above_held_bytes(&mut self, owner: u32) -> Option<Blocked> {
        self.ledger.above(self.scope_of(owner), Resource::HeldBytes)
    }

    /// The fd of an allocation is held from now on. `charged`: bytes that its owner was charged with for it already.
    pub(crate) fn pin(&mut self, slot: u32, file: Option<File>, charged: u64) {
        let allocation = &self.allocations[slot];
        let (owner, domain, size) = (allocation.owner, allocation.domain, allocation.size_bytes);
        let Some(File { id, pinned_bytes }) = file else {
            self.allocations[slot].file = NONE;
            return self.charge_difference(owner, domain, charged, size);
        };
        let known = self.files.find(domain, id);
        let file = known.unwrap_or_else(|| self.files.insert(domain, id));
        self.allocations[slot].file = self.files.join(file, owner);
        match known {
            Some(_) => {
                self.charge_difference(owner, domain, charged, 0);
                self.measure_file(file, pinned_bytes);
            }
            None => {
                self.files.files[file].bytes = pinned_bytes;
                self.charge_difference(owner, domain, charged, pinned_bytes);
            }
        }
    }

    /// The fd of an allocation is held no more.
    pub(crate) fn let_go(&mut self, slot: u32) {
        let (stake, size) = (self.allocations[slot].file, self.allocations[slot].size_bytes);
        if stake == NONE {
            return self.release_allocation_charge(slot, Charge(Resource::HeldBytes, size));
        }
        let file = self.files.stakes[stake].file;
        self.allocations[slot].file = pages(self.files.files[file].bytes);
        self.leave_file(stake);
    }

    /// The held allocation in a slot is another owner's from now on ([`NONE`]: its domain's alone).
    pub(crate) fn move_pin(&mut self, slot: u32, owner: u32) {
        let stake = self.allocations[slot].file;
        if stake != NONE {
            let file = self.files.stakes[stake].file;
            self.allocations[slot].file = self.files.join(file, owner);
            self.leave_file(stake);
        }
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

    /// What files pin now, by the slot of any allocation of each. Their payers may be above their caps then.
    pub(crate) fn measure(&mut self, measured: &[(u32, u64)]) {
        for (slot, bytes) in measured {
            if self.allocations.is_full(*slot) && self.has_file(*slot) {
                self.measure_file(self.files.stakes[self.allocations[*slot].file].file, *bytes);
            }
        }
    }

    fn measure_file(&mut self, file: u32, bytes: u64) {
        let former = std::mem::replace(&mut self.files.files[file].bytes, bytes);
        let payer = self.files.first_owner(file).expect("a file has stakes");
        self.charge_difference(payer, self.files.files[file].domain, former, bytes);
    }

    /// Changes what a client, or a domain alone, is charged with from `former` to `now` bytes, whatever the caps.
    fn charge_difference(&mut self, owner: u32, domain: u32, former: u64, now: u64) {
        let scope = self.payer(owner, domain);
        if former > now {
            self.ledger.take(scope, Charge(Resource::HeldBytes, former - now));
            self.room_appeared |= !self.rooms.is_empty();
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
        self.files.leave(stake);
        let charge = Charge(Resource::HeldBytes, bytes);
        match self.files.first_owner(file) {
            None => {
                self.files.remove(file);
                match former {
                    NONE => self.release_domain_charge(domain, charge),
                    former => self.release_charge(former, charge),
                }
            }
            Some(next) if next != former => {
                let [former, next] = [former, next].map(|owner| self.payer(owner, domain));
                self.ledger.take_below(Scope::Domain, former, charge);
                let is_above = self.ledger.grow(next, Some(Scope::Domain), charge);
                self.drain_soon(is_above);
                self.room_appeared |= !self.rooms.is_empty();
            }
            Some(_) => {}
        }
    }

    /// Asserts that the stakes are those of what is held; and gives who pays how much: client or [`NONE`], domain, bytes.
    pub(crate) fn checked_files(&self) -> Vec<(u32, u32, u64)> {
        let mut ranges: FxHashMap<u32, u32> = FxHashMap::default();
        for (slot, allocation) in self.allocations.iter_from(0) {
            if self.has_file(slot) {
                let stake = &self.files.stakes[allocation.file];
                let is_its = stake.owner == allocation.owner
                    && self.files.files[stake.file].domain == allocation.domain;
                assert!(is_its, "the file of slot {slot} is charged to a stranger");
                *ranges.entry(allocation.file).or_default() += 1;
            }
        }
        for (number, stake) in self.files.stakes.iter_from(0) {
            assert_eq!(ranges.get(&number), Some(&stake.ranges), "ranges of stake {number}");
            assert_eq!(self.files.by_owner.get(&(stake.file, stake.owner)), Some(&number));
        }
        assert_eq!(self.files.by_owner.len(), self.files.stakes.len());
        assert_eq!(self.files.by_id.len(), self.files.files.len(), "files are found by their ids");
        let all = self.files.files.iter_from(0).map(|(number, file)| {
            let payer = self.files.first_owner(number).expect("a file has stakes");
            (payer, file.domain, file.bytes)
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
