//! What a hit is measured beside: a plain hash map, and an LRU behind a mutex. Must never validate
//! anything: neither can.

use fdbroker_client::Handle;
use rustc_hash::FxHashMap;
use std::sync::Mutex;

fn key(handle: &Handle) -> u64 {
    let id = handle.id();
    u64::from(id.slot) << 32 | u64::from(id.generation)
}

/// Addresses by allocation.
pub struct PlainMap(FxHashMap<u64, usize>);

impl PlainMap {
    pub fn of(handles: &[Handle]) -> Self {
        PlainMap(handles.iter().enumerate().map(|(index, handle)| (key(handle), index)).collect())
    }

    #[inline]
    pub fn hit(&self, handle: &Handle) -> usize {
        self.0[&key(handle)]
    }
}

/// The same with a count of users and a list by use, all behind one lock.
pub struct LockedLru(Mutex<Lru>);

struct Lru {
    places: FxHashMap<u64, u32>,
    nodes: Vec<Node>,
    newest: u32,
}

/// Of a ring: the oldest is newer than the newest.
#[derive(Clone, Copy)]
struct Node {
    newer: u32,
    older: u32,
    users: u32,
}

impl LockedLru {
    pub fn of(handles: &[Handle]) -> Self {
        let count = u32::try_from(handles.len()).expect("a million");
        let places = handles.iter().map(key).zip(0..).collect();
        let node =
            |at: u32| Node { newer: (at + 1) % count, older: (at + count - 1) % count, users: 0 };
        LockedLru(Mutex::new(Lru {
            places,
            nodes: (0..count).map(node).collect(),
            newest: count - 1,
        }))
    }

    /// Found, made the newest and used; then released.
    #[inline]
    pub fn hit_and_release(&self, handle: &Handle) {
        let at = self.0.lock().expect("no panic").hit(key(handle));
        self.0.lock().expect("no panic").nodes[at as usize].users -= 1;
    }
}

impl Lru {
    fn hit(&mut self, key: u64) -> u32 {
        let at = self.places[&key];
        self.nodes[at as usize].users += 1;
        if at != self.newest {
            let Node { newer, older, .. } = self.nodes[at as usize];
            self.nodes[newer as usize].older = older;
            self.nodes[older as usize].newer = newer;
            let (newest, oldest) = (self.newest, self.nodes[self.newest as usize].newer);
            self.nodes[newest as usize].newer = at;
            self.nodes[oldest as usize].older = at;
            (self.nodes[at as usize].older, self.nodes[at as usize].newer) = (newest, oldest);
            self.newest = at;
        }
        at
    }
}
