//! The allocations that this process exports, and the keys and virtual fds that name them. Must
//! never name memory that was freed, nor call the driver where the table is locked.

use crate::allocation::{Allocation, Held};
use crate::key::{Key, Prefix};
use fdbroker_client::{ErrorCode, Recall};
use fdbroker_virtual_fds::VirtualFd;
use level_zero_sys::ze_context_handle_t;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::os::fd::{OwnedFd, RawFd};

/// Where an export stands: its allocation's first address, and the number of its handle among the
/// allocation's, which has one for each tile of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub base: usize,
    pub tile: u32,
}

struct Entry {
    allocation: Allocation,
    exports: BTreeMap<u32, Export>,
    /// Exports for the broker or for a message that are under way, and their ends: the memory must
    /// not be freed meanwhile.
    recalls: u32,
}

/// What one handle of an allocation stands for.
#[derive(Default)]
struct Export {
    /// Handles given out by Get and neither Put nor closed.
    gets: u64,
    /// The driver's handle, while it is not Put.
    held: Option<Held>,
    /// All that the broker has given it, the last one in force: a reconnect may add one.
    keys: Vec<Key>,
}

/// What a recall needs, to be carried out without a lock.
#[derive(Clone, Copy)]
pub struct Recalled {
    pub place: Place,
    pub allocation: Allocation,
    /// The driver's handle with the open fd; `None`: it has to be exported anew.
    pub held: Option<Held>,
}

/// What a Put or close leaves to do.
#[derive(Clone, Copy)]
pub struct Given {
    pub place: Place,
    pub allocation: Allocation,
    /// The driver's handle, which nobody needs any more.
    pub held: Option<Held>,
    /// Whether no handle is out now.
    pub is_last: bool,
}

impl Recalled {
    /// A duplicate of the allocation's fd: another process wants the memory.
    ///
    /// # Errors
    /// STALE: the memory is gone, or the program has closed the driver's fd. LOCAL_FD_LIMIT: no fd
    /// is free now.
    pub fn fd(&self) -> Result<OwnedFd, ErrorCode> {
        let fd = match &self.held {
            Some(held) => held.fd.duplicate()?,
            None => self.allocation.export_anew(self.place.tile)?,
        };
        // Read again after the export: the address may be other memory's by now.
        if self.allocation.is_there() { Ok(fd) } else { Err(ErrorCode::Stale) }
    }
}

impl Given {
    /// Puts the driver's handle that is not needed any more.
    pub fn put_held(&self) {
        if let Some(held) = &self.held {
            self.allocation.put(&held.driver);
        }
    }
}

/// The allocations that this process exports, by address, by key and by virtual fd. They do not
/// overlap.
#[derive(Default)]
pub struct Produced {
    by_base: BTreeMap<usize, Entry>,
    by_prefix: HashMap<Prefix, Place>,
    by_number: HashMap<VirtualFd, Place>,
    has_ended: bool,
    /// The program has sent a number of its own as an fd.
    sends: bool,
    /// The last export whose driver's handle was to wait until the program sends it: one at a time,
    /// so that a process holds one fd more at most.
    waiting: Option<Place>,
}

impl Produced {
    /// From now on every recall is refused.
    pub fn end(&mut self) {
        self.has_ended = true;
    }

    /// The key of memory that is exported already, counted. `is_good` says whether the broker still
    /// knows it. `None`: the driver has to export the memory.
    pub fn again(
        &mut self,
        pointer: usize,
        id: u64,
        is_good: impl FnOnce(&Key) -> bool,
    ) -> Option<Key> {
        let base = self.containing(pointer)?;
        let entry = self.by_base.get_mut(&base)?;
        let export = entry.exports.get_mut(&0).filter(|_| entry.allocation.id == id)?;
        let key = *export.keys.last()?;
        let has_fd = key.virtual_fd().is_some() || export.held.is_some();
        (has_fd && is_good(&key)).then(|| {
            export.gets += 1;
            key
        })
    }

    /// The key of an fd that the program has of an export, virtual or the driver's, counted.
    pub fn of_fd(&mut self, number: RawFd) -> Option<Key> {
        let export = match VirtualFd::new(number) {
            Some(fd) => {
                let place = *self.by_number.get(&fd)?;
                self.by_base.get_mut(&place.base)?.exports.get_mut(&place.tile)?
            }
            None => {
                let all = self.by_base.values_mut().flat_map(|entry| entry.exports.values_mut());
                let is_it = |held: Held| held.fd.number() == number && !held.waits;
                all.into_iter().find(|export| export.held.is_some_and(is_it))?
            }
        };
        let key = export.keys.last().copied()?;
        export.gets += 1;
        Some(key)
    }

    /// The fd of a key of this process's: the driver's, where the program has that, else the
    /// virtual one. `None`: it was made with the driver's, or is another process's.
    pub fn fd_of(&self, key: &Key) -> Option<RawFd> {
        let number = key.virtual_fd()?.number();
        let place = self.by_prefix.get(&key.prefix())?;
        let export = self.by_base.get(&place.base)?.exports.get(&place.tile)?;
        let shown = export.held.filter(|held| !held.waits);
        Some(shown.map_or(number, |held| held.fd.number()))
    }

    /// Whether an allocation is exported, and no handle of the driver's is open for it. One that is
    /// stays open from now on.
    pub fn has_no_fd(&mut self, allocation: &Allocation) -> bool {
        let Some(export) = self.export(allocation, 0) else { return false };
        export.held.as_mut().map(|held| held.waits = false).is_none()
    }

    /// Keeps a driver's handle open until the program's last Put. Answers whether it was taken.
    pub fn hold(&mut self, allocation: &Allocation, held: Held) -> bool {
        let export = self.export(allocation, 0).filter(|export| export.held.is_none());
        export.map(|export| export.held = Some(held)).is_some()
    }

    /// Counts one more handle. An entry of other memory in this range goes: that memory was freed.
    pub fn count(&mut self, allocation: Allocation, tile: u32) {
        let is_same = |entry: &Entry| entry.allocation.id == allocation.id;
        if !self.by_base.get(&allocation.base).is_some_and(is_same) {
            for base in self.overlapping(&allocation.range()) {
                self.take(base);
            }
            let entry = Entry { allocation, exports: BTreeMap::new(), recalls: 0 };
            self.by_base.insert(allocation.base, entry);
        }
        let entry = self.by_base.get_mut(&allocation.base).expect("there or just inserted");
        entry.allocation.get_all = allocation.get_all.or(entry.allocation.get_all);
        entry.exports.entry(tile).or_default().gets += 1;
    }

    /// Takes back one `count`: this Get got no key. The program has the driver's own handle, and
    /// the driver counts it.
    pub fn uncount(&mut self, allocation: &Allocation, tile: u32) {
        let Some(export) = self.export(allocation, tile) else { return };
        export.gets = export.gets.saturating_sub(1);
        if export.gets == 0 && export.keys.is_empty() {
            self.take(allocation.base);
        }
    }

    /// Adds the key of a handle that the broker gave this allocation. `held`: the driver's handle,
    /// if it stays open. Answers whether it was taken: one open handle is enough.
    pub fn know_as(
        &mut self,
        allocation: &Allocation,
        tile: u32,
        key: Key,
        held: Option<Held>,
    ) -> bool {
        let place = Place { base: allocation.base, tile };
        let Some(export) = self.export(allocation, tile) else { return false };
        let is_taken = export.held.is_none() && held.is_some();
        if is_taken {
            export.held = held;
        }
        export.keys.retain(|other| other.prefix() != key.prefix());
        export.keys.push(key);
        self.by_prefix.insert(key.prefix(), place);
        if let Some(fd) = key.virtual_fd() {
            self.by_number.insert(fd, place);
        }
        is_taken
    }

    fn export(&mut self, allocation: &Allocation, tile: u32) -> Option<&mut Export> {
        let entry = self.by_base.get_mut(&allocation.base)?;
        let is_same = entry.allocation.id == allocation.id;
        entry.exports.get_mut(&tile).filter(|_| is_same)
    }

    /// Counts one Put of a key. A key that is finished, or another process's, is no error, as with
    /// the driver.
    pub fn put(&mut self, key: &Key) -> Option<Given> {
        self.give_back(*self.by_prefix.get(&key.prefix())?)
    }

    /// Counts one Put or close of a virtual fd; `None`: no handle with it is out.
    pub fn put_number(&mut self, fd: VirtualFd) -> Option<Given> {
        self.give_back(*self.by_number.get(&fd)?)
    }

    fn give_back(&mut self, place: Place) -> Option<Given> {
        let entry = self.by_base.get_mut(&place.base)?;
        let export = entry.exports.get_mut(&place.tile)?;
        export.gets = export.gets.checked_sub(1)?;
        let is_last = export.gets == 0;
        let held = if is_last { export.held.take() } else { None };
        Some(Given { place, allocation: entry.allocation, held, is_last })
    }

    /// Forgets the allocation at `base`, and answers which tiles had exports.
    pub fn take(&mut self, base: usize) -> Vec<u32> {
        let Some(entry) = self.by_base.remove(&base) else { return Vec::new() };
        for key in entry.exports.values().flat_map(|export| &export.keys) {
            self.by_prefix.remove(&key.prefix());
            if let Some(fd) = key.virtual_fd() {
                self.by_number.remove(&fd);
            }
        }
        entry.exports.into_keys().collect()
    }

    /// The bases of the allocations that have an address in this range.
    pub fn overlapping(&self, range: &Range<usize>) -> Vec<usize> {
        let below_its_end = self.by_base.range(..range.end).rev();
        let overlapping =
            below_its_end.take_while(|(_, entry)| entry.allocation.range().end > range.start);
        overlapping.map(|(base, _)| *base).collect()
    }

    /// The base of the allocation that holds an address.
    pub fn containing(&self, address: usize) -> Option<usize> {
        let (base, entry) = self.by_base.range(..=address).next_back()?;
        (address - base < entry.allocation.size_bytes).then_some(*base)
    }

    /// The bases of all allocations of a context.
    pub fn bases_of(&self, context: ze_context_handle_t) -> Vec<usize> {
        let is_of_it = |entry: &&Entry| entry.allocation.is_of(context);
        self.by_base.values().filter(is_of_it).map(|entry| entry.allocation.base).collect()
    }

    /// Whether no export of these is under way for the broker; without any, of all.
    pub fn is_quiet(&self, bases: &[usize]) -> bool {
        bases.iter().all(|base| self.by_base.get(base).is_none_or(|entry| entry.recalls == 0))
    }

    /// Whether no export at all is under way for the broker.
    pub fn is_all_quiet(&self) -> bool {
        self.by_base.values().all(|entry| entry.recalls == 0)
    }

    /// Begins an export that the broker asks for, until [`Produced::recall_done`].
    ///
    /// # Errors
    /// STALE: the memory is gone. SHUTTING_DOWN: this process is about to end.
    pub fn recall(&mut self, recall: &Recall) -> Result<Recalled, ErrorCode> {
        if self.has_ended {
            return Err(ErrorCode::ShuttingDown);
        }
        let base = usize::try_from(recall.base).map_err(|_| ErrorCode::Stale)?;
        let (tile, id) = (recall.facts.device, recall.facts.owner_allocation_id);
        self.begin(Place { base, tile }, |allocation| allocation.id == id).ok_or(ErrorCode::Stale)
    }

    /// Begins the same for a number that the program sends as an fd. `None`: no handle of the
    /// driver's is open for it.
    pub fn send(&mut self, fd: VirtualFd) -> Option<Recalled> {
        let place = *self.by_number.get(&fd).filter(|_| !self.has_ended)?;
        self.sends = true;
        self.by_base.get(&place.base)?.exports.get(&place.tile)?.held?;
        self.begin(place, |_| true)
    }

    /// Whether the program sends its numbers as fds: most likely the next one, too.
    pub fn sends(&self) -> bool {
        self.sends
    }

    /// The driver's handle of this export waits to be sent, and no other one does any more: begins
    /// to put that one.
    pub fn wait(&mut self, place: Place) -> Option<Recalled> {
        let before = self.waiting.replace(place).filter(|before| *before != place)?;
        self.end_wait(before)
    }

    /// Begins to put the driver's handle of an export, if it waited to be sent.
    pub fn end_wait(&mut self, place: Place) -> Option<Recalled> {
        let export = self.by_base.get_mut(&place.base)?.exports.get_mut(&place.tile)?;
        let held = export.held.take_if(|held| held.waits)?;
        Some(Recalled { held: Some(held), ..self.begin(place, |_| true)? })
    }

    fn begin(&mut self, place: Place, is_it: impl Fn(&Allocation) -> bool) -> Option<Recalled> {
        let entry = self.by_base.get_mut(&place.base).filter(|entry| is_it(&entry.allocation))?;
        let held = entry.exports.get(&place.tile)?.held;
        entry.recalls += 1;
        Some(Recalled { place, allocation: entry.allocation, held })
    }

    /// The export is done.
    pub fn recall_done(&mut self, recalled: &Recalled) {
        if let Some(entry) = self.by_base.get_mut(&recalled.place.base)
            && entry.allocation.id == recalled.allocation.id
        {
            entry.recalls -= 1;
        }
    }
}
