//! What the cache keeps under its one lock: the memory, the leases, the list by use, the imports
//! under way. Must never be locked over a wait, an unmap, a message or an opener.

use crate::books::lease::Lease;
use crate::cache::flight::{Flight, Key};
use crate::cache::opened::Opened;
use crate::inherited::Inheritable;
use crate::limits::{CACHE_ENTRIES, PAGE_RESERVED_SLOTS};
use crate::map::Access;
use crate::zones::Gathering;
use fdbroker_protocol::{AllocationId, Handle};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Memory open, with its lease.
#[derive(Debug)]
pub(super) struct Held {
    // Field order is drop order: closed before the lease is given back.
    pub inheritable: Option<Inheritable>,
    pub opened: Box<dyn Opened>,
    pub lease: Lease,
}

impl Held {
    /// Closes the memory of all; the leases are to be given back now.
    pub fn close_each(all: Vec<Held>) -> Vec<Lease> {
        let _gathering = (all.len() > 1).then(Gathering::begin);
        let close = |Held { inheritable, opened, lease }| {
            drop((inheritable, opened));
            lease
        };
        all.into_iter().map(close).collect()
    }
}

/// Memory that was closed for a suspend, to be imported anew.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closed {
    pub handle: Handle,
    pub access: Access,
    /// Whether the library had mapped it itself.
    pub is_host: bool,
}

/// The end of a list of entries.
const NONE: u32 = u32::MAX;

/// The cold part of an entry, at its place.
#[derive(Debug)]
struct Kept {
    held: Option<Held>,
    number: u32,
    is_listed: bool,
    bytes: u64,
    /// Addresses that this library has mapped for it; 0: it is not mapped here.
    mapped: u64,
    /// Towards the most recent.
    newer: u32,
    /// Towards the least recent.
    older: u32,
}

/// See the file's head.
#[derive(Debug, Default)]
pub(super) struct Cold {
    kept: Vec<Kept>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    by_lease: HashMap<u64, u32>,
    spare: Vec<u32>,
    next_spare: u32,
    pub flights: HashMap<Key, Arc<Flight>>,
    /// While suspended: what was closed.
    pub suspended: Option<Vec<Closed>>,
    /// Entries in the list: those found by handle.
    pub listed: usize,
    /// Entries with memory, listed or not.
    pub open: usize,
    pub bytes: u64,
    /// Of these, mapped by this library.
    pub maps: usize,
    /// The addresses of these, in bytes.
    pub mapped: u64,
    pub misses: u64,
    pub stale: u64,
    pub evicted: u64,
}

impl Cold {
    pub fn new() -> Self {
        let (newest, oldest, next_spare) = (NONE, NONE, PAGE_RESERVED_SLOTS);
        Cold { newest, oldest, next_spare, ..Cold::default() }
    }

    /// An entry number that is no slot's; `None`: all are in use.
    pub fn spare(&mut self) -> Option<u32> {
        if let Some(number) = self.spare.pop() {
            return Some(number);
        }
        let number = self.next_spare;
        (number < CACHE_ENTRIES).then(|| {
            self.next_spare += 1;
            number
        })
    }

    /// Keeps the memory of an entry, as the most recent; the place.
    pub fn keep(&mut self, number: u32, held: Held, bytes: u64, mapped: u64) -> u32 {
        self.open += 1;
        self.bytes += bytes;
        self.maps += usize::from(mapped > 0);
        self.mapped += mapped;
        let lease = held.lease.number();
        let (newer, older) = (NONE, NONE);
        let kept = Kept { held: Some(held), number, is_listed: false, bytes, mapped, newer, older };
        let place = match self.free.pop() {
            Some(place) => {
                self.kept[place as usize] = kept;
                place
            }
            None => {
                self.kept.push(kept);
                u32::try_from(self.kept.len() - 1).expect("at most CACHE_ENTRIES")
            }
        };
        self.by_lease.insert(lease, place);
        self.link(place);
        place
    }

    /// Takes the memory of an entry that is not listed; place and number are free.
    pub fn take(&mut self, place: u32) -> Held {
        let kept = &mut self.kept[place as usize];
        let held = kept.held.take().expect("an open entry has memory");
        self.open -= 1;
        self.bytes -= kept.bytes;
        self.maps -= usize::from(kept.mapped > 0);
        self.mapped -= kept.mapped;
        self.free.push(place);
        if kept.number >= PAGE_RESERVED_SLOTS {
            self.spare.push(kept.number);
        }
        held
    }

    /// All memory there is; the cache ends.
    pub fn take_all(&mut self) -> Vec<Held> {
        self.kept.iter_mut().filter_map(|kept| kept.held.take()).collect()
    }

    /// The numbers of all open entries.
    pub fn numbers(&self) -> Vec<u32> {
        let open = self.kept.iter().filter(|kept| kept.held.is_some());
        open.map(|kept| kept.number).collect()
    }

    /// The entry at a place.
    pub fn number(&self, place: u32) -> u32 {
        self.kept[place as usize].number
    }

    /// The allocation at a place that is taken.
    pub fn id(&self, place: u32) -> AllocationId {
        self.lease(place).id()
    }

    /// While suspended: notes what is about to be closed.
    pub fn note_closed(&mut self, place: u32, access: Access, is_host: bool) {
        if self.suspended.is_some() {
            // The cache has imports of handles alone.
            let Some(handle) = self.lease(place).handle() else { return };
            let handle = handle.into();
            self.suspended.get_or_insert_default().push(Closed { handle, access, is_host });
        }
    }

    fn lease(&self, place: u32) -> &Lease {
        let held = self.kept[place as usize].held.as_ref();
        &held.expect("an open entry has a lease").lease
    }

    /// The listed entry that has this lease, by its place.
    pub fn of_lease(&self, lease: u64) -> Option<u32> {
        self.by_lease.get(&lease).copied()
    }

    /// All leases have new numbers: the old ones are nobody's.
    pub fn forget_numbers(&mut self) {
        self.by_lease.clear();
    }

    /// Up to `most` places from `from` on; `None`: there are no more.
    pub fn places(&self, from: u32, most: usize) -> Option<Range<u32>> {
        let left = self.kept.len().checked_sub(from as usize).filter(|left| *left > 0)?;
        let most = u32::try_from(left.min(most)).expect("at most CACHE_ENTRIES");
        Some(from..from + most)
    }

    /// Notes the lease's number of now, if the entry at this place is listed. Its entry's number
    /// when its lease was refused.
    pub fn renumber(&mut self, place: u32) -> Option<u32> {
        let kept = &self.kept[place as usize];
        let lease = &kept.held.as_ref().filter(|_| kept.is_listed)?.lease;
        if lease.is_refused() {
            return Some(kept.number);
        }
        self.by_lease.insert(lease.number(), place);
        None
    }

    /// The place of the least recent of the list.
    pub fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Makes a listed entry the most recent.
    pub fn renew(&mut self, place: u32) {
        self.unlink(place);
        self.link(place);
    }

    /// Takes an entry out of the list; nobody reclaims it any more.
    pub fn unlist(&mut self, place: u32) {
        self.unlink(place);
        let lease = self.lease(place).number();
        self.by_lease.remove(&lease);
    }

    fn link(&mut self, place: u32) {
        let older = std::mem::replace(&mut self.newest, place);
        match older {
            NONE => self.oldest = place,
            older => self.kept[older as usize].newer = place,
        }
        let kept = &mut self.kept[place as usize];
        (kept.newer, kept.older) = (NONE, older);
        kept.is_listed = true;
        self.listed += 1;
    }

    fn unlink(&mut self, place: u32) {
        let kept = &mut self.kept[place as usize];
        let (newer, older) = (kept.newer, kept.older);
        kept.is_listed = false;
        match newer {
            NONE => self.newest = older,
            newer => self.kept[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.kept[older as usize].newer = newer,
        }
        self.listed -= 1;
    }
}
