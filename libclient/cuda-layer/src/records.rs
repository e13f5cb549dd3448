//! What the layer knows of the program's memory: handles counted, maps by address, exports by
//! number, and who needs the memory for a moment. Plain data: must never call the driver or the
//! broker, nor wait.
//!
//! A record **needs** its memory while it has an export or a use under way (a pin). Then the
//! program's last release of its handles is held back: the reference stays the layer's, and is
//! released when nothing needs the memory any more. So whoever has pinned a record has a handle
//! that the driver cannot give to other memory meanwhile. An export lasts until the program has
//! closed its number, whatever becomes of handles and maps: a driver's fd would keep the memory,
//! too.
//!
//! **Early.** A program that exports what is mapped side by side, one after the other, as PyTorch
//! does with the segments of a tensor, will most likely export the next one, too: its registration
//! may be sent before, and those of some after it. So it is with blocks of cuMemAlloc that are
//! shared in the order in which they were made. They keep no memory: each is given up with the
//! program's last reference, and all when the program goes on elsewhere.

mod shares;

pub use shares::Share;

use crate::limits::EARLY_MOST;
use crate::result::CuMemHandle;
use fdbroker_virtual_fds::VirtualFd;
use std::collections::{BTreeMap, HashMap};

/// A record's number, which is never used again in this process.
pub type Id = u64;

/// The number of an end that the broker may not have been told of: no count comes up to it.
const UNTOLD: u64 = u64::MAX;

/// The memory of one process. `R`: a registration at the broker; `E`: one whose answer is still to
/// be taken; `L`: a lease.
pub struct Records<R, E, L> {
    by_id: HashMap<Id, Record<R, L>>,
    by_handle: HashMap<CuMemHandle, Id>,
    by_number: HashMap<VirtualFd, Id>,
    maps: BTreeMap<u64, Map>,
    last_id: Id,
    /// Where the map ends whose memory was exported last: the next export may be what is mapped
    /// there.
    row_end: Option<u64>,
    /// The block that was shared last.
    row_block: Option<Id>,
    /// In the order of the row.
    early: Vec<(Id, E)>,
    /// How many may be registered early at the next time.
    early_most: usize,
    /// Ends of registrations that the broker was told of, and of these those whose fds it is known
    /// to have closed.
    ends: u64,
    settled: u64,
}

/// A range of addresses that shows a record's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Map {
    base: u64,
    size_bytes: u64,
    id: Id,
}

impl Map {
    fn end(self) -> u64 {
        self.base.saturating_add(self.size_bytes)
    }
}

struct Record<R, L> {
    /// 0: it was imported, and is not exported by the layer.
    size_bytes: u64,
    /// It is a block, for which the program has asked cuMemAlloc with so many bytes; 0: it is none.
    asked_bytes: u64,
    /// The values that the driver has given for it, and how often the program has each.
    handles: Vec<(CuMemHandle, u64)>,
    /// The value whose last reference is the layer's.
    held: Option<CuMemHandle>,
    maps: u64,
    /// Where it was mapped last; it may not be any more.
    base: u64,
    exports: Vec<Export<R>>,
    /// It is shared by a handle without a number.
    share: Option<R>,
    /// The last end of a registration of it, as [`Records::ends`] counts them: the broker may be
    /// closing its fd. 0: none has ended; [`UNTOLD`]: the broker may not have been told yet.
    ended: u64,
    /// Exports, recalls and ends under way.
    pins: u64,
    /// Releases under way in the driver.
    releases: u64,
    leases: Vec<L>,
}

/// One registration, and how often the program has its number open.
struct Export<R> {
    number: VirtualFd,
    opens: u64,
    registration: R,
}

/// What becomes of a release.
#[derive(Debug, PartialEq, Eq)]
pub enum Release {
    /// Nothing is known of the handle: the driver's matter alone.
    Drivers,
    /// The program has released it before.
    Refused,
    /// Done, as far as the program is to know.
    Held,
    /// To be done by the driver; [`Records::end_release`] follows.
    Real(Id),
}

/// What becomes of an export.
#[derive(Debug, PartialEq, Eq)]
pub enum Begun<E> {
    /// The driver's matter alone.
    Drivers,
    /// This number once more.
    Known(VirtualFd),
    /// To be exported and registered.
    New(Ahead<E>),
}

/// What is to be registered, unless its early registration is good.
#[derive(Debug, PartialEq, Eq)]
pub struct Ahead<E> {
    pub memory: Pinned,
    pub early: Option<E>,
    /// It comes right behind the last export: in addresses, or of blocks in the order of making.
    pub is_in_row: bool,
}

/// Memory whose record is pinned: its handle is not other memory's meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinned {
    pub id: Id,
    pub handle: CuMemHandle,
    pub size_bytes: u64,
    /// 0: it is no block.
    pub asked_bytes: u64,
}

/// What becomes of the close of a number.
#[derive(Debug, PartialEq, Eq)]
pub enum Close<R> {
    /// This process has none of it.
    Unknown,
    Counted,
    /// It was the last one: to be ended. The record is pinned; [`Records::end_close`] follows.
    Last(Id, R),
}

/// What is to be done once the lock is let go, in this order.
#[derive(Debug, PartialEq, Eq)]
pub struct Done<R, E, L> {
    /// To be ended at the broker: their memory is gone.
    pub registrations: Vec<R>,
    /// The same of those whose answers are still to be taken.
    pub early: Vec<E>,
    /// The program has no more of memory that the broker may have an fd of still, which keeps it
    /// from the device.
    pub is_closing: bool,
    /// References of the layer, to be released by the driver.
    pub handles: Vec<CuMemHandle>,
    /// To be given back.
    pub leases: Vec<L>,
}

impl<R, E, L> Default for Done<R, E, L> {
    fn default() -> Self {
        Done {
            registrations: Vec::new(),
            early: Vec::new(),
            is_closing: false,
            handles: Vec::new(),
            leases: Vec::new(),
        }
    }
}

impl<R, E, L> Done<R, E, L> {
    fn and(mut self, more: Done<R, E, L>) -> Self {
        self.registrations.extend(more.registrations);
        self.early.extend(more.early);
        self.is_closing |= more.is_closing;
        self.handles.extend(more.handles);
        self.leases.extend(more.leases);
        self
    }
}

impl<R, E, L> Default for Records<R, E, L> {
    fn default() -> Self {
        Records {
            by_id: HashMap::new(),
            by_handle: HashMap::new(),
            by_number: HashMap::new(),
            maps: BTreeMap::new(),
            last_id: 0,
            row_end: None,
            row_block: None,
            early: Vec::new(),
            early_most: 1,
            ends: 0,
            settled: 0,
        }
    }
}

impl<R, L> Default for Record<R, L> {
    fn default() -> Self {
        Record {
            size_bytes: 0,
            asked_bytes: 0,
            handles: Vec::new(),
            held: None,
            maps: 0,
            base: 0,
            exports: Vec::new(),
            share: None,
            ended: 0,
            pins: 0,
            releases: 0,
            leases: Vec::new(),
        }
    }
}

impl<R, L> Record<R, L> {
    fn needs_memory(&self) -> bool {
        self.pins > 0 || !self.exports.is_empty()
    }

    fn count(&self) -> u64 {
        self.handles.iter().map(|(_, count)| count).sum()
    }

    /// A value that the driver knows for as long as the record is pinned.
    fn live_handle(&self) -> Option<CuMemHandle> {
        let counted = || self.handles.iter().find(|(_, count)| *count > 0);
        self.held.or_else(|| counted().map(|(handle, _)| *handle))
    }
}

impl<R, E, L> Records<R, E, L> {
    /// Enters memory that was just made. Other memory whose handle this was is gone: it was
    /// released in a way that nobody saw.
    pub fn create(&mut self, handle: CuMemHandle, size_bytes: u64) -> Done<R, E, L> {
        let gone = self.forget(handle);
        let record = Record { size_bytes, handles: vec![(handle, 1)], ..Record::default() };
        let id = self.insert(record);
        self.by_handle.insert(handle, id);
        gone
    }

    /// Memory that was just entered is a block.
    pub fn note_block(&mut self, handle: CuMemHandle, asked_bytes: u64) {
        if let Some(id) = self.by_handle.get(&handle).copied() {
            self.record(id).asked_bytes = asked_bytes;
        }
    }

    /// Forgets a handle that the driver has just given to memory which is not to be known.
    pub fn forget(&mut self, handle: CuMemHandle) -> Done<R, E, L> {
        let Some(id) = self.by_handle.remove(&handle) else { return Done::default() };
        let record = self.by_id.get_mut(&id).expect("of each handle there is the record");
        record.handles.retain(|(value, _)| *value != handle);
        record.held.take_if(|held| *held == handle);
        if record.live_handle().is_some() {
            return Done::default();
        }
        let exports = std::mem::take(&mut record.exports);
        let share = record.share.take();
        for export in &exports {
            self.by_number.remove(&export.number);
        }
        // Its maps find it still.
        let registrations =
            exports.into_iter().map(|export| export.registration).chain(share).collect();
        Done { registrations, ..self.settle(id) }
    }

    /// Enters an import, which keeps `lease`; or one more reference to what is known already.
    /// Without a lease an import of other memory is nobody's matter.
    pub fn import(&mut self, handle: CuMemHandle, lease: Option<L>) {
        let known = self.by_handle.get(&handle).copied();
        if known.is_none() && lease.is_none() {
            return;
        }
        let id = known.unwrap_or_else(|| self.insert(Record::default()));
        self.add(id, handle);
        self.record(id).leases.extend(lease);
    }

    /// Counts a handle that the driver has given for an address.
    pub fn retain(&mut self, handle: CuMemHandle, address: u64) {
        let by_handle = self.by_handle.get(&handle).copied();
        if let Some(id) = by_handle.or_else(|| self.mapped_at(address)) {
            self.add(id, handle);
        }
    }

    /// Begins to release one reference.
    pub fn begin_release(&mut self, handle: CuMemHandle) -> Release {
        let Some(id) = self.by_handle.get(&handle).copied() else { return Release::Drivers };
        let record = self.record(id);
        let is_last = record.count() == 1;
        let place = record.handles.iter().position(|(value, _)| *value == handle);
        let place = place.expect("a record has each value that leads to it");
        if record.handles[place].1 == 0 {
            return Release::Refused;
        }
        record.handles[place].1 -= 1;
        if is_last && record.needs_memory() && record.held.is_none() {
            record.held = Some(handle);
            return Release::Held;
        }
        record.releases += 1;
        if record.handles[place].1 == 0 && record.held != Some(handle) {
            // Before the driver releases it: right after, the value may be another allocation's.
            record.handles.remove(place);
            self.by_handle.remove(&handle);
        }
        Release::Real(id)
    }

    /// After the driver's answer; a reference that it did not release is the program's still.
    pub fn end_release(&mut self, id: Id, handle: CuMemHandle, is_released: bool) -> Done<R, E, L> {
        self.record(id).releases -= 1;
        if !is_released && self.by_handle.get(&handle).is_none_or(|other| *other == id) {
            self.add(id, handle);
        }
        self.settle(id)
    }

    fn insert(&mut self, record: Record<R, L>) -> Id {
        self.last_id += 1;
        self.by_id.insert(self.last_id, record);
        self.last_id
    }

    fn add(&mut self, id: Id, handle: CuMemHandle) {
        self.by_handle.insert(handle, id);
        let handles = &mut self.record(id).handles;
        match handles.iter_mut().find(|(value, _)| *value == handle) {
            Some((_, count)) => *count += 1,
            None => handles.push((handle, 1)),
        }
    }

    /// A record that something leads to, or that a use under way keeps.
    fn record(&mut self, id: Id) -> &mut Record<R, L> {
        self.by_id.get_mut(&id).expect("what leads to a record goes before it")
    }

    /// Lets go what nothing needs any more.
    fn settle(&mut self, id: Id) -> Done<R, E, L> {
        let mut done = Done::default();
        let record = self.record(id);
        if record.count() > 0 || record.needs_memory() {
            return done;
        }
        if let Some(early) = self.take_early(id) {
            done.early.push(early);
            self.record(id).ended = UNTOLD;
        }
        let record = self.record(id);
        if let Some(held) = record.held.take() {
            record.handles.retain(|(value, _)| *value != held);
            self.by_handle.remove(&held);
            done.handles.push(held);
        }
        let record = self.record(id);
        if record.maps == 0 && record.releases == 0 {
            let ended = record.ended;
            done.leases = std::mem::take(&mut record.leases);
            self.by_id.remove(&id);
            done.is_closing = ended > self.settled;
        }
        done
    }
}

impl<R, E, L> Records<R, E, L> {
    /// Enters a range that the driver has just mapped. What stood there was unmapped in a way that
    /// nobody saw.
    pub fn map(&mut self, base: u64, size_bytes: u64, handle: CuMemHandle) -> Done<R, E, L> {
        let gone = self.take_maps(base, size_bytes);
        let id = self.by_handle.get(&handle).copied();
        if let Some(id) = id {
            let record = self.record(id);
            record.maps += 1;
            record.base = base;
            self.maps.insert(base, Map { base, size_bytes, id });
        }
        self.end_maps(&gone)
    }

    /// Takes out the maps that begin in a range, before the driver unmaps it: another thread may
    /// map there right after. [`Records::end_maps`] or [`Records::put_maps`] follows.
    pub fn take_maps(&mut self, base: u64, size_bytes: u64) -> Vec<Map> {
        let range = base..base.saturating_add(size_bytes);
        let taken: Vec<Map> = self.maps.range(range).map(|(_, map)| *map).collect();
        for map in &taken {
            self.maps.remove(&map.base);
        }
        taken
    }

    /// Puts maps back that the driver did not end.
    pub fn put_maps(&mut self, maps: Vec<Map>) {
        self.maps.extend(maps.into_iter().map(|map| (map.base, map)));
    }

    /// After the driver has ended them.
    pub fn end_maps(&mut self, maps: &[Map]) -> Done<R, E, L> {
        maps.iter().fold(Done::default(), |done, map| {
            self.record(map.id).maps -= 1;
            done.and(self.settle(map.id))
        })
    }

    fn mapped_at(&self, address: u64) -> Option<Id> {
        let (_, map) = self.maps.range(..=address).next_back()?;
        (address - map.base < map.size_bytes).then_some(map.id)
    }
}

/// Exports, recalls, and the ends of numbers.
impl<R, E, L> Records<R, E, L> {
    /// Whether the layer exports the memory of this handle.
    pub fn is_exportable(&self, handle: CuMemHandle) -> bool {
        let record = self.by_handle.get(&handle).map(|id| &self.by_id[id]);
        record.is_some_and(|record| {
            let is_programs = record.handles.contains(&(handle, 0));
            record.size_bytes > 0 && !is_programs
        })
    }

    /// Whether the program has released its last reference of this value, which the layer holds
    /// back.
    pub fn is_released(&self, handle: CuMemHandle) -> bool {
        let record = self.by_handle.get(&handle).map(|id| &self.by_id[id]);
        record.is_some_and(|record| record.handles.contains(&(handle, 0)))
    }

    /// The numbers that the program has open.
    pub fn numbers(&self) -> Vec<VirtualFd> {
        self.by_number.keys().copied().collect()
    }

    /// Begins an export. `is_current`: whether the broker still knows a registration.
    pub fn begin_export(
        &mut self,
        handle: CuMemHandle,
        is_current: impl Fn(&R) -> bool,
    ) -> Begun<E> {
        if !self.is_exportable(handle) {
            return Begun::Drivers;
        }
        let id = self.by_handle[&handle];
        let is_in_row = self.go_on_from(id);
        let mut exports = self.record(id).exports.iter_mut();
        if let Some(export) = exports.find(|export| is_current(&export.registration)) {
            export.opens += 1;
            return Begun::Known(export.number);
        }
        Begun::New(self.begin_new(id, handle, is_in_row))
    }

    fn begin_new(&mut self, id: Id, handle: CuMemHandle, is_in_row: bool) -> Ahead<E> {
        Ahead { memory: self.pin(id, handle), early: self.take_early(id), is_in_row }
    }

    fn pin(&mut self, id: Id, handle: CuMemHandle) -> Pinned {
        let record = self.record(id);
        record.pins += 1;
        let Record { size_bytes, asked_bytes, .. } = *record;
        Pinned { id, handle, size_bytes, asked_bytes }
    }

    fn take_early(&mut self, id: Id) -> Option<E> {
        let place = self.early.iter().position(|(of, _)| *of == id)?;
        Some(self.early.remove(place).1)
    }

    /// What to register early after an export in a row, once less is than one message has: what
    /// comes behind it and what was registered early before, piece after piece, as far as the
    /// program could export it next. So a message is on its way while the answer to the one before
    /// is used up. It is pinned; [`Records::end_early`] follows.
    pub fn begin_early(&mut self, after: Id) -> Vec<Pinned> {
        let mut next: Vec<Pinned> = Vec::new();
        let most = if self.early.len() < self.early_most { self.early_most } else { 0 };
        let mut last = self.early.last().map_or(after, |(id, _)| *id);
        while next.len() < most
            && let Some(pinned) = self.pin_behind(last)
        {
            last = pinned.id;
            next.push(pinned);
        }
        next
    }

    fn pin_behind(&mut self, id: Id) -> Option<Pinned> {
        let is_block = self.is_block(id);
        let id = if is_block { id + 1 } else { self.maps.get(&self.map_of(id)?.end())?.id };
        let record = self.by_id.get(&id)?;
        let handle = record.handles.iter().find(|(_, count)| *count > 0)?.0;
        let is_free = record.exports.is_empty() && record.share.is_none() && record.pins == 0;
        let is_alike = record.size_bytes > 0 && self.is_block(id) == is_block;
        (is_alike && is_free).then(|| self.pin(id, handle))
    }

    fn is_block(&self, id: Id) -> bool {
        self.by_id.get(&id).is_some_and(|record| record.asked_bytes > 0)
    }

    /// Enters what has become of the first of them. What is too much comes back: that of another
    /// row, by another thread.
    pub fn end_early(&mut self, pinned: &[Pinned], early: Vec<E>) -> Done<R, E, L> {
        if !early.is_empty() {
            self.early_most = (2 * self.early_most).min(EARLY_MOST);
        }
        self.early.extend(pinned.iter().map(|it| it.id).zip(early));
        let surplus = self.early.len().saturating_sub(2 * EARLY_MOST);
        let former = self.early.drain(..surplus).collect();
        let done = self.give_up(former);
        pinned.iter().fold(done, |done, it| done.and(self.unpin(it.id)))
    }

    /// The program goes on elsewhere: what was registered early is given up.
    pub fn leave_row(&mut self) -> Done<R, E, L> {
        self.early_most = 1;
        let former = std::mem::take(&mut self.early);
        self.give_up(former)
    }

    fn give_up(&mut self, former: Vec<(Id, E)>) -> Done<R, E, L> {
        let mut done = Done::default();
        for (id, early) in former {
            // It has the program's references still: else it would have gone with them.
            self.record(id).ended = UNTOLD;
            done.early.push(early);
        }
        done
    }

    /// Notes where an export's map ends, or which block it is. Whether the row goes on with it.
    fn go_on_from(&mut self, id: Id) -> bool {
        if self.is_block(id) {
            return self.row_block.replace(id).is_some_and(|last| last + 1 == id);
        }
        let map = self.map_of(id);
        let is_in_row = map.is_some_and(|map| self.row_end == Some(map.base));
        self.row_end = map.map(|map| map.end());
        is_in_row
    }

    fn map_of(&self, id: Id) -> Option<Map> {
        let map = self.maps.get(&self.by_id.get(&id)?.base)?;
        (map.id == id).then_some(*map)
    }

    /// Enters the registration of an export that was begun. When another thread was faster, its
    /// number counts, and the registration comes back, to be ended. The record stays pinned.
    pub fn enter_export(
        &mut self,
        id: Id,
        number: VirtualFd,
        registration: R,
        is_current: impl Fn(&R) -> bool,
    ) -> (VirtualFd, Option<R>) {
        let exports = &mut self.record(id).exports;
        let faster = exports.iter_mut().find(|export| is_current(&export.registration));
        if let Some(faster) = faster {
            faster.opens += 1;
            let number = faster.number;
            self.record(id).ended = UNTOLD;
            return (number, Some(registration));
        }
        exports.push(Export { number, opens: 1, registration });
        self.by_number.insert(number, id);
        (number, None)
    }

    /// Closes a number once.
    pub fn begin_close(&mut self, number: VirtualFd) -> Close<R> {
        let Some(id) = self.by_number.get(&number).copied() else { return Close::Unknown };
        let record = self.record(id);
        let place = record.exports.iter().position(|export| export.number == number);
        let place = place.expect("a record has each number that leads to it");
        record.exports[place].opens -= 1;
        if record.exports[place].opens > 0 {
            return Close::Counted;
        }
        record.pins += 1;
        let export = record.exports.remove(place);
        self.by_number.remove(&number);
        Close::Last(id, export.registration)
    }

    /// The broker was told of the close of a last number.
    pub fn end_close(&mut self, id: Id) -> Done<R, E, L> {
        self.ends += 1;
        let ends = self.ends;
        let record = self.record(id);
        record.ended = record.ended.max(ends);
        self.unpin(id)
    }

    /// How many ends the broker was told of.
    pub fn ends(&self) -> u64 {
        self.ends
    }

    /// It has closed its fds of the first so many.
    pub fn note_settled(&mut self, ends: u64) {
        self.settled = self.settled.max(ends);
    }

    /// Pins a record for a recall, and answers a handle to export. `None`: the memory is gone.
    pub fn begin_recall(&mut self, id: Id) -> Option<CuMemHandle> {
        let record = self.by_id.get_mut(&id)?;
        let handle = record.live_handle()?;
        record.pins += 1;
        Some(handle)
    }

    /// Ends a use of a pinned record.
    pub fn unpin(&mut self, id: Id) -> Done<R, E, L> {
        self.record(id).pins -= 1;
        self.settle(id)
    }
}

#[cfg(test)]
mod tests;
