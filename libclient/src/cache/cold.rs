//! What the cache keeps under its one lock: the memory, the leases, the list by use, the imports under way.
//! Must never be locked over a wait, an unmap, a message or an opener.

use crate::cache::cached::Opened;
use crate::cache::flight::{Flight, Key};
use crate::lease::Lease;
use crate::limits::CACHE_ENTRIES;
use fdbroker_protocol::AllocationId;
use std::collections::HashMap;
use std::sync::Arc;

/// Memory open, with its lease.
#[derive(Debug)]
pub(super) struct Held {
    // Field order is drop order: closed before the lease is given back.
    pub opened: Box<dyn Opened>,
    pub lease: Lease,
}

/// No entry.
const NONE: u32 = u32::MAX;

/// The cold part of an entry.
#[derive(Debug)]
struct Kept {
    held: Option<Held>,
    id: AllocationId,
    bytes: u64,
    /// Towards the most recent.
    newer: u32,
    /// Towards the least recent.
    older: u32,
}

/// See the file's head.
#[derive(Debug)]
pub(super) struct Cold {
    kept: Vec<Kept>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    by_lease: HashMap<u64, u32>,
    pub flights: HashMap<Key, Arc<Flight>>,
    /// Entries in the list: those found by handle.
    pub listed: usize,
    /// Entries with memory, listed or not.
    pub open: usize,
    pub bytes: u64,
    pub misses: u64,
    pub stale: u64,
    pub evicted: u64,
}

impl Cold {
    pub fn new() -> Self {
        Cold {
            kept: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            by_lease: HashMap::new(),
            flights: HashMap::new(),
            listed: 0,
            open: 0,
            bytes: 0,
            misses: 0,
            stale: 0,
            evicted: 0,
        }
    }

    /// A free entry number; `None`: all are in use.
    pub fn number(&mut self) -> Option<u32> {
        if let Some(number) = self.free.pop() {
            return Some(number);
        }
        let number = u32::try_from(self.kept.len()).ok().filter(|next| *next < CACHE_ENTRIES)?;
        let id = AllocationId { slot: 0, generation: 0 };
        self.kept.push(Kept { held: None, id, bytes: 0, newer: NONE, older: NONE });
        Some(number)
    }

    /// Entry numbers given out so far.
    pub fn numbers(&self) -> u32 {
        u32::try_from(self.kept.len()).expect("at most CACHE_ENTRIES")
    }

    /// Puts memory into an entry, as the most recent.
    pub fn keep(&mut self, number: u32, held: Held, bytes: u64) {
        self.open += 1;
        self.bytes += bytes;
        self.by_lease.insert(held.lease.number(), number);
        let kept = &mut self.kept[number as usize];
        (kept.id, kept.bytes) = (held.lease.id(), bytes);
        kept.held = Some(held);
        self.link(number);
    }

    /// Takes the memory out of an entry that is not listed; the number is free.
    pub fn take(&mut self, number: u32) -> Held {
        let kept = &mut self.kept[number as usize];
        let held = kept.held.take().expect("an open entry has memory");
        self.open -= 1;
        self.bytes -= kept.bytes;
        self.free.push(number);
        held
    }

    /// All memory there is; the cache ends.
    pub fn take_all(&mut self) -> Vec<Held> {
        self.kept.iter_mut().filter_map(|kept| kept.held.take()).collect()
    }

    pub fn id(&self, number: u32) -> AllocationId {
        self.kept[number as usize].id
    }

    pub fn lease(&self, number: u32) -> Option<&Lease> {
        self.kept[number as usize].held.as_ref().map(|held| &held.lease)
    }

    /// The listed entry that has this lease.
    pub fn of_lease(&self, lease: u64) -> Option<u32> {
        self.by_lease.get(&lease).copied()
    }

    /// The least recent of the list.
    pub fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Makes a listed entry the most recent.
    pub fn renew(&mut self, number: u32) {
        self.unlink(number);
        self.link(number);
    }

    /// Takes an entry out of the list; nobody reclaims it any more.
    pub fn unlist(&mut self, number: u32) {
        self.unlink(number);
        let lease = self.lease(number).expect("a listed entry has a lease").number();
        self.by_lease.remove(&lease);
    }

    fn link(&mut self, number: u32) {
        let older = std::mem::replace(&mut self.newest, number);
        match older {
            NONE => self.oldest = number,
            older => self.kept[older as usize].newer = number,
        }
        let kept = &mut self.kept[number as usize];
        (kept.newer, kept.older) = (NONE, older);
        self.listed += 1;
    }

    fn unlink(&mut self, number: u32) {
        let kept = &mut self.kept[number as usize];
        let (newer, older) = (kept.newer, kept.older);
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
