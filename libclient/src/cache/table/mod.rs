//! The cache's table: finds, pins, releases, evicts. The index and the entries are read without a
//! lock. Must never validate before it has pinned, nor close what is pinned.

pub(super) mod claims;

use crate::books::common::Common;
use crate::books::lease::Lease;
use crate::cache::cold::{Closed, Cold, Held};
use crate::cache::entry::{Entry, Word, tag_of};
use crate::cache::pin::Pin;
use crate::cache::room::Room;
use crate::cache::segments::{Row, Segments, Unpinnable, my_seat, my_stripe};
use crate::cache::settings::CacheSettings;
use crate::cache::stats::{CacheStats, Hits};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::fork::Process;
use crate::limits::{CLOSE_CHUNK, EVICTION_LOOKS, PAGE_RESERVED_SLOTS, PIN_STRIPES};
use crate::map::Access;
use crate::sync::lock;
use crate::zones;
use fdbroker_protocol::{AllocationId, ErrorCode, Handle};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// Memory pinned: where it is, and what gives it back.
#[derive(Clone, Copy, Debug)]
pub(in crate::cache) struct Pinned<'a> {
    pub row: Row<'a>,
    pub pin: Pin,
    pub ptr: *mut u8,
    pub len: usize,
}

/// Closes what is unused at its release.
const CLOSE_UNUSED: u32 = 1;
/// The cache is over its limits, all it has looked at being in use.
const OVER: u32 = 2;
/// Closes what is unused at its release, until it is resumed.
const SUSPENDED: u32 = 4;

/// The entries that may be closed for a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victims {
    All,
    /// Those that this library has mapped.
    Mapped,
}

impl Victims {
    fn include(self, word: Word) -> bool {
        self == Victims::All || word.is_host()
    }
}

/// A limit of the settings that a new entry would exceed.
#[derive(Clone, Copy, Debug)]
pub(in crate::cache) enum Limit {
    Entries(usize),
    Bytes(u64),
}

impl Limit {
    /// Why a strict cache refuses an import.
    #[cold]
    fn is_full(self, id: AllocationId) -> Error {
        let (limit, setting) = match self {
            Limit::Entries(most) => (format!("{most} entries"), "FDBROKER_CACHE_MAX_ENTRIES"),
            Limit::Bytes(most) => (format!("{most} bytes"), "FDBROKER_CACHE_MAX_BYTES"),
        };
        let context = format!(
            "import {id}: it would pass the strict import cache's limit of {limit}, and all that is open is in use"
        );
        let remedy = format!(
            "release imports, raise {setting}, or let the cache go over its limits (FDBROKER_CACHE_STRICT=0)"
        );
        Error::new(ErrorCode::NoQuota, context).because(remedy)
    }
}

/// A word on a cache line of its own: read at every release, written hardly ever.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Flags(AtomicU32);

/// See the file's head.
#[derive(Debug)]
pub(in crate::cache) struct Table {
    common: Arc<Common>,
    /// The one of `common`, without a look there.
    process: Process,
    settings: CacheSettings,
    room: Room,
    segments: Segments,
    flags: Flags,
    hits: Hits,
    cold: Mutex<Cold>,
}

impl Table {
    pub fn new(common: &Arc<Common>, settings: CacheSettings) -> Self {
        let flags = if settings.leave_pinned { 0 } else { CLOSE_UNUSED };
        Table {
            common: Arc::clone(common),
            process: common.process,
            settings,
            room: Room::of_process(),
            segments: Segments::new(),
            flags: Flags(flags.into()),
            hits: Hits::default(),
            cold: Mutex::new(Cold::new()),
        }
    }

    /// Whether the caller is the process that made it, not a child.
    #[inline]
    pub fn is_own_process(&self) -> bool {
        self.process.is_current()
    }

    pub fn settings(&self) -> &CacheSettings {
        &self.settings
    }

    /// The hit: pins, then validates. No lock, no syscall (but once per thread and 65,536 entries
    /// the lock, to make room for the thread's pins). An offset outside is no hit.
    #[inline(always)]
    pub fn hit(&self, handle: &Handle, access: Access) -> Option<Pinned<'_>> {
        if !self.is_own_process() {
            return None;
        }
        let number = handle.id().slot;
        if number >= PAGE_RESERVED_SLOTS {
            return None;
        }
        let row = self.segments.get(number)?;
        let tag = tag_of(&handle.prefix);
        // What is another allocation's is not pinned.
        if row.entry().tag.load(Ordering::Relaxed) == tag {
            let pinned = self.pin_and_validate(row, number, tag, handle, access);
            if pinned.is_some() {
                return pinned;
            }
        }
        self.hit_elsewhere(row, tag, handle, access)
    }

    #[cold]
    fn hit_elsewhere<'a>(
        &'a self,
        own: Row<'a>,
        tag: u64,
        handle: &Handle,
        access: Access,
    ) -> Option<Pinned<'a>> {
        let number = own.elsewhere()?;
        let row = self.segments.get(number)?;
        self.pin_and_validate(row, number, tag, handle, access)
    }

    #[inline(always)]
    fn pin_and_validate<'a>(
        &'a self,
        row: Row<'a>,
        number: u32,
        tag: u64,
        handle: &Handle,
        access: Access,
    ) -> Option<Pinned<'a>> {
        let seat = my_seat();
        let stripe = seat % PIN_STRIPES;
        match row.pin(stripe) {
            Ok(()) => {}
            Err(Unpinnable::TooMany) => return None,
            Err(Unpinnable::NoCounts) => self.pin_first(row, stripe)?,
        }
        if let Some(word) = self.validate(row.entry(), tag, handle.id(), access) {
            // Only now: what was read before the state could be of an incarnation before this one.
            let found = pinned(row, Pin::new(number, stripe, word.incarnation()));
            if handle.offset_bytes < found.len as u64 {
                row.entry().refer(word);
                self.hits.add(seat);
                return Some(found);
            }
        }
        self.unpin(row, stripe);
        None
    }

    /// The state of a pinned entry if it is LIVE, what the handle says, and current. The page is
    /// read before the state.
    ///
    /// Over a loss of the broker entries stay as they are, while the page shows nothing: all hits
    /// are misses. Before the next broker's page is shown, every lease is declared to it or
    /// refused, and what was refused is detached (`note_declared`). So who reads the next page as
    /// current reads a state after that: LIVE means declared. Who has read the page before the loss
    /// and the state after it gets memory that was current when it asked, pinned, so that it stays
    /// open; its lease is declared or refused like that of any import in use. An allocation of
    /// another generation matches neither: generations grow over all brokers of a directory, and
    /// the entry's is compared. Of another directory's broker, whose generations may repeat, every
    /// lease is refused, as its key is another.
    #[inline]
    fn validate(&self, entry: &Entry, tag: u64, id: AllocationId, access: Access) -> Option<Word> {
        let is_current = self.common.page.is_current(id);
        let word = entry.word();
        let is_it = entry.tag.load(Ordering::Relaxed) == tag
            && entry.generation.load(Ordering::Relaxed) == id.generation;
        (is_current && word.is_live() && is_it && word.serves(access)).then_some(word)
    }

    #[cold]
    fn pin_first(&self, row: Row<'_>, stripe: usize) -> Option<()> {
        {
            // `segments` says why under the lock.
            let _cold = lock(&self.cold);
            row.make_count(stripe);
        }
        row.pin(stripe).ok()
    }

    /// Gives back a pin that the caller says to have; `false`: there is none.
    #[inline]
    pub fn release(&self, pin: Pin) -> bool {
        let Some(row) = self.segments.get(pin.number()) else { return false };
        let word = row.entry().word();
        if !word.is_open() || word.incarnation() != pin.incarnation() {
            return false;
        }
        let is_pinned = row.try_unpin(pin.stripe());
        self.after_unpin(row);
        is_pinned
    }

    /// Gives back a pin that the caller has.
    pub fn release_held(&self, pin: Pin) {
        if let Some(row) = self.segments.get(pin.number()) {
            self.unpin(row, pin.stripe());
        }
    }

    /// The same, of an entry whose row is known.
    #[inline]
    pub fn unpin(&self, row: Row<'_>, stripe: usize) {
        row.unpin(stripe);
        self.after_unpin(row);
    }

    #[inline]
    fn after_unpin(&self, row: Row<'_>) {
        let word = row.entry().word();
        if word.is_detached() || word.is_passing() || self.flags.0.load(Ordering::SeqCst) != 0 {
            self.settle(row);
        }
    }

    /// Closes an entry just released, if it is unused and its state or the flags say so.
    #[cold]
    fn settle(&self, row: Row<'_>) {
        // In a child of fork(2) the lock may be held by a thread that it does not have.
        if !self.is_own_process() || row.pins() != 0 {
            return;
        }
        let mut closed = Vec::new();
        let mut cold = lock(&self.cold);
        let word = row.entry().word();
        if word.is_detached() {
            closed.extend(close_detached(&mut cold, row));
        } else if word.is_live() {
            let is_over = self.victims(&cold).is_some_and(|victims| victims.include(word));
            let is_suspended = cold.suspended.is_some();
            if is_over || word.is_passing() || is_suspended || !self.settings.leave_pinned {
                let one = self.try_close(&mut cold, place(row));
                cold.evicted += u64::from(is_over && one.is_some());
                closed.extend(one);
            }
            self.make_room(&mut cold, &mut closed);
        }
        drop(cold);
        close_all(closed);
    }

    /// Closes all that is unused, the cache being at its limit.
    fn empty_when_full(&self) {
        self.evict_unused(usize::MAX);
        let mut closed = Vec::new();
        let mut cold = lock(&self.cold);
        self.make_room(&mut cold, &mut closed);
        drop(cold);
        close_all(closed);
    }

    /// The memory behind a pin that another thread made for the caller, if it is current; else the
    /// pin is given back.
    pub fn adopt(&self, pin: Pin, id: AllocationId) -> Option<Pinned<'_>> {
        if !self.is_current(pin, id) {
            self.release_held(pin);
            return None;
        }
        Some(pinned(self.row(pin.number()), pin))
    }

    /// One more pin on an entry that the caller has pinned.
    pub fn pin_again(&self, pin: Pin) -> Pinned<'_> {
        let (row, stripe) = (self.row(pin.number()), my_stripe());
        if row.pin(stripe).is_err() {
            let _cold = lock(&self.cold);
            row.make_count(stripe).fetch_add(1, Ordering::SeqCst);
        }
        pinned(row, Pin::new(pin.number(), stripe, pin.incarnation()))
    }

    /// Whether a pin's entry is the one it was, and its allocation lives.
    pub fn is_current(&self, pin: Pin, id: AllocationId) -> bool {
        let Some(row) = self.segments.get(pin.number()) else { return false };
        let entry = row.entry();
        let is_its = pin.number() == id.slot || self.elsewhere(id.slot) == Some(pin.number());
        // As in `validate`.
        let is_current = self.is_own_process() && self.common.page.is_current(id);
        let word = entry.word();
        is_its
            && is_current
            && word.is_kept()
            && word.incarnation() == pin.incarnation()
            && entry.generation.load(Ordering::Relaxed) == id.generation
    }

    /// How the library mapped the memory of a pin that the caller has; `None`: it did not.
    pub fn host_access(&self, pin: Pin) -> Option<Access> {
        let word = self.segments.get(pin.number())?.entry().word();
        word.is_host().then(|| word.access())
    }

    /// Whether the memory of a pin can be used here: in a child of fork(2) only what nobody can
    /// change any more.
    pub fn is_here(&self, pin: Pin) -> bool {
        self.is_own_process() || self.is_final(pin)
    }

    /// Whether nobody can change the memory of a pin any more. No lock.
    pub fn is_final(&self, pin: Pin) -> bool {
        let word = self.segments.get(pin.number()).map(|row| row.entry().word());
        word.is_some_and(|it| {
            it.is_open() && it.is_final() && it.incarnation() == pin.incarnation()
        })
    }

    /// Whether anything is kept that could be closed to make room elsewhere.
    pub fn has_listed(&self) -> bool {
        lock(&self.cold).listed > 0
    }

    /// Closes up to `most` unused entries, the least recent first; how many.
    pub fn close_unused(&self, most: usize) -> usize {
        let mut left = lock(&self.cold).listed;
        let mut count = 0;
        while left > 0 && count < most {
            let mut closed = Vec::new();
            let mut cold = lock(&self.cold);
            for _ in 0..left.min(CLOSE_CHUNK).min(most - count) {
                let Some(oldest) = cold.oldest() else { break };
                match self.try_close(&mut cold, oldest) {
                    Some(held) => closed.push(held),
                    None => cold.renew(oldest),
                }
                left -= 1;
            }
            left = left.min(cold.listed);
            drop(cold);
            count += closed.len();
            close_all(closed);
        }
        count
    }

    /// The same for the sake of a limit.
    pub fn evict_unused(&self, most: usize) -> usize {
        let count = self.close_unused(most);
        lock(&self.cold).evicted += count as u64;
        count
    }

    /// Closes all that is unused, and until `resume` all that gets unused; nothing is opened. Waits
    /// for what other threads are opening.
    ///
    /// # Errors
    /// TIMED_OUT: they have not ended by the deadline. It is suspended all the same.
    pub fn suspend(&self, deadline: Deadline) -> Result<(), Error> {
        {
            let mut cold = lock(&self.cold);
            cold.suspended.get_or_insert_default();
            self.flags.0.fetch_or(SUSPENDED, Ordering::SeqCst);
        }
        self.close_unused(usize::MAX);
        loop {
            let flight = lock(&self.cold).flights.values().next().cloned();
            let Some(flight) = flight else { return Ok(()) };
            if flight.wait(deadline).is_none() {
                return Err(Error::timed_out("suspend: another thread imports"));
            }
        }
    }

    /// Opens again; what was closed for the suspend, the least recent first.
    pub fn resume(&self) -> Vec<Closed> {
        let mut cold = lock(&self.cold);
        self.flags.0.fetch_and(!SUSPENDED, Ordering::SeqCst);
        cold.suspended.take().unwrap_or_default()
    }

    /// The allocation has ended.
    pub fn revoke(&self, id: AllocationId) {
        let mut cold = lock(&self.cold);
        let is_it = |number: &u32| cold.id(place(self.row(*number))) == id;
        let listed = self.listed(id.slot).filter(is_it);
        let closed = listed.and_then(|number| self.detach(&mut cold, number));
        drop(cold);
        drop(closed);
    }

    /// The broker would like these leases back.
    pub fn reclaim(&self, leases: &[u64]) {
        for chunk in leases.chunks(CLOSE_CHUNK) {
            let mut cold = lock(&self.cold);
            let mut close = |lease: &u64| {
                let place = cold.of_lease(*lease)?;
                self.try_close(&mut cold, place)
            };
            let closed = chunk.iter().filter_map(&mut close).collect();
            drop(cold);
            close_all(closed);
        }
    }

    /// All leases have been declared to a new broker. What it has refused is found no more; the
    /// rest has new numbers. No page is shown meanwhile, so nothing is a hit. In pieces, as a miss
    /// of another thread may wait for the lock.
    pub fn note_declared(&self) {
        let mut from = 0;
        loop {
            let mut closed = Vec::new();
            let mut cold = lock(&self.cold);
            if from == 0 {
                cold.forget_numbers();
            }
            let Some(places) = cold.places(from, CLOSE_CHUNK) else { return };
            from = places.end;
            for place in places {
                if let Some(number) = cold.renumber(place) {
                    closed.extend(self.detach(&mut cold, number));
                }
            }
            drop(cold);
            close_all(closed);
        }
    }

    /// All memory there is. The cache ends: nobody has a borrow of it.
    pub fn take_all(&mut self) -> Vec<Held> {
        let cold = self.cold.get_mut();
        cold.unwrap_or_else(std::sync::PoisonError::into_inner).take_all()
    }

    pub fn stats(&self) -> CacheStats {
        let (mut stats, numbers) = {
            let cold = lock(&self.cold);
            let stats = CacheStats {
                hits: self.hits.sum(),
                misses: cold.misses,
                stale: cold.stale,
                evicted: cold.evicted,
                entries: cold.open as u64,
                pinned: 0,
                bytes: cold.bytes,
                max_entries: self.settings.max_entries as u64,
                max_bytes: self.settings.max_bytes,
            };
            (stats, cold.numbers())
        };
        // Without the lock: there may be a million.
        let is_pinned = |number: &&u32| {
            let row = self.row(**number);
            row.entry().word().is_open() && row.pins() > 0
        };
        stats.pinned = numbers.iter().filter(is_pinned).count() as u64;
        stats
    }

    /// The entry that is found for a slot. The caller holds the lock, so it stays.
    fn listed(&self, slot: u32) -> Option<u32> {
        let row = self.segments.get(slot).filter(|_| slot < PAGE_RESERVED_SLOTS)?;
        if row.entry().word().is_live() { Some(slot) } else { row.elsewhere() }
    }

    fn elsewhere(&self, slot: u32) -> Option<u32> {
        self.segments.get(slot)?.elsewhere()
    }

    /// The number for a new entry: the slot's own unless something ended is in use there.
    fn free_number(&self, cold: &mut Cold, slot: u32) -> Option<u32> {
        let own = self.segments.get(slot);
        if own.is_some_and(|row| row.entry().word().is_open()) { cold.spare() } else { Some(slot) }
    }

    fn row(&self, number: u32) -> Row<'_> {
        self.segments.get(number).expect("an entry that was open has its segment")
    }

    /// What has to go while the cache is over its limits; `None`: it is not.
    fn victims(&self, cold: &Cold) -> Option<Victims> {
        if self.limit_below(cold.open, cold.bytes).is_some() {
            return Some(Victims::All);
        }
        self.room.is_passed_by(cold.maps + zones::holes(), cold.mapped).then_some(Victims::Mapped)
    }

    /// The limit that so much would pass.
    fn limit_below(&self, entries: usize, bytes: u64) -> Option<Limit> {
        let CacheSettings { max_entries, max_bytes, .. } = self.settings;
        if max_entries > 0 && entries > max_entries {
            return Some(Limit::Entries(max_entries));
        }
        (max_bytes > 0 && bytes > max_bytes).then_some(Limit::Bytes(max_bytes))
    }

    /// In strict mode: the limit that one entry more, of so many bytes, would pass.
    fn strict_limit(&self, cold: &Cold, bytes: u64) -> Option<Limit> {
        let limit = self.limit_below(cold.open + 1, cold.bytes.saturating_add(bytes));
        limit.filter(|_| self.settings.strict)
    }

    /// In strict mode: closes what is unused until an entry of so many bytes fits.
    ///
    /// # Errors
    /// NO_QUOTA: all that is open is in use.
    pub fn make_room_for(&self, id: AllocationId, bytes: u64) -> Result<(), Error> {
        let CacheSettings { strict, empty_cache, .. } = self.settings;
        if !strict {
            return Ok(());
        }
        loop {
            let mut cold = lock(&self.cold);
            let Some(limit) = self.strict_limit(&cold, bytes) else { return Ok(()) };
            let evicted = (!empty_cache).then(|| self.evict(&mut cold, Victims::All)).flatten();
            drop(cold);
            let is_closed = evicted.is_some();
            close_all(evicted.into_iter().collect());
            // What `evict` looks at may all be in use, and something behind it not.
            let most = if empty_cache { usize::MAX } else { 1 };
            if !is_closed && self.evict_unused(most) == 0 {
                return Err(limit.is_full(id));
            }
        }
    }

    /// Takes out one that is unused, if another entry of so many bytes would have one go; not one
    /// that has an older entry of its slot go.
    pub fn evict_early(&self, id: AllocationId, bytes: u64) -> Option<Held> {
        let mut cold = lock(&self.cold);
        let limit = self.limit_below(cold.open + 1, cold.bytes.saturating_add(bytes));
        let evicts =
            limit.is_some() && !self.settings.empty_cache && self.listed(id.slot).is_none();
        evicts.then(|| self.evict(&mut cold, Victims::All)).flatten()
    }

    /// Evicts until the cache is within its limits, or nothing unused is found: then releases will.
    fn make_room(&self, cold: &mut Cold, closed: &mut Vec<Held>) {
        for _ in 0..2 {
            while let Some(victims) = self.victims(cold) {
                let Some(held) = self.evict(cold, victims) else { break };
                closed.push(held);
            }
            if self.victims(cold).is_none() {
                self.flags.0.fetch_and(!OVER, Ordering::SeqCst);
                return;
            }
            // Once more after the flag is set: a release that did not see it was before, and is
            // seen now.
            self.flags.0.fetch_or(OVER, Ordering::SeqCst);
        }
    }

    /// Takes out the least recent entry that is unused and, within reason, not lately used.
    fn evict(&self, cold: &mut Cold, victims: Victims) -> Option<Held> {
        for look in 0..2 * EVICTION_LOOKS {
            let oldest = cold.oldest()?;
            let entry = self.row(cold.number(oldest)).entry();
            if look < EVICTION_LOOKS && entry.word().is_referenced() {
                entry.forget_uses();
            } else if victims.include(entry.word())
                && let Some(held) = self.try_close(cold, oldest)
            {
                cold.evicted += 1;
                return Some(held);
            }
            cold.renew(oldest);
        }
        None
    }

    /// Takes out a listed entry, named by its place, unless it is in use.
    fn try_close(&self, cold: &mut Cold, place: u32) -> Option<Held> {
        let row = self.row(cold.number(place));
        // Looked at first: the mark turns hits into misses for a moment.
        if row.pins() != 0 {
            return None;
        }
        row.entry().toggle_closing();
        if row.pins() != 0 {
            row.entry().toggle_closing();
            return None;
        }
        let word = row.entry().word();
        if self.settings.leave_pinned && !word.is_passing() {
            cold.note_closed(place, word.access(), word.is_host());
        }
        self.unlist(cold, place);
        Some(take(cold, row, place))
    }

    /// Takes an entry out of what is found, and out altogether unless it is in use: then the last
    /// release does.
    fn detach(&self, cold: &mut Cold, number: u32) -> Option<Held> {
        let row = self.row(number);
        self.unlist(cold, place(row));
        row.entry().detach();
        close_detached(cold, row)
    }

    fn unlist(&self, cold: &mut Cold, place: u32) {
        let slot = cold.id(place).slot;
        if cold.number(place) != slot {
            self.row(slot).set_elsewhere(None);
        }
        cold.unlist(place);
    }
}

/// The place of an open entry's cold part. The caller holds the lock.
fn place(row: Row<'_>) -> u32 {
    row.place().expect("an open entry has its cold part")
}

fn close_detached(cold: &mut Cold, row: Row<'_>) -> Option<Held> {
    (row.pins() == 0).then(|| take(cold, row, place(row)))
}

/// Frees an entry that is marked, unused and not listed.
fn take(cold: &mut Cold, row: Row<'_>, place: u32) -> Held {
    row.entry().free();
    // So that a hit does not even pin it.
    row.entry().tag.store(0, Ordering::Relaxed);
    row.set_place(None);
    cold.take(place)
}

/// What is behind a pin that somebody has.
#[inline]
fn pinned(row: Row<'_>, pin: Pin) -> Pinned<'_> {
    let entry = row.entry();
    let (ptr, len) = (entry.ptr.load(Ordering::Relaxed), entry.len.load(Ordering::Relaxed));
    Pinned { row, pin, ptr, len }
}

/// Closes, then gives the leases back by one message per 253.
pub(in crate::cache) fn close_all(closed: Vec<Held>) {
    if !closed.is_empty() {
        Lease::release_many(Held::close_each(closed));
    }
}
