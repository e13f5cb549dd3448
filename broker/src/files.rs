//! Which files the fd of each slot is, or was: their inodes, by which an administrator finds copies of them in /proc, also
//! when the broker holds no fd. Must never hold an fd, nor ask the kernel.

use fdbroker_core::Now;
use fdbroker_protocol::limits::FORMER_FILES;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// A file that was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Former {
    /// 0 = none.
    pub inode: u64,
    /// When another one came in its place, on CLOCK_MONOTONIC.
    pub until_us: u64,
}

/// What is known of the files of one slot since its allocation was deposited; part of what is handed to a successor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Files {
    /// Inode of the fd held, or of the last one; 0 = not known.
    pub inode: u64,
    /// Those of files before it, newest first.
    pub former: [Former; FORMER_FILES],
    /// Since then it had no others; 0 = since it was deposited, [`NOT_KNOWN_SINCE`] = it may have had any.
    pub since_us: u64,
}

/// [`Files::since_us`] of what an owner has named again after a crash: clients have leases of files of before it.
pub const NOT_KNOWN_SINCE: u64 = u64::MAX;

impl Files {
    /// One file, and none before.
    pub fn of(inode: u64) -> Self {
        Files { inode, ..Files::default() }
    }

    /// The owner has given its memory as another fd: of the same file, or of one that is made anew for each export.
    fn add(&mut self, inode: u64, now: Now) {
        let last = std::mem::replace(&mut self.inode, inode);
        if last == 0 {
            self.since_us = NOT_KNOWN_SINCE;
            return;
        }
        // Moves the files between the new one's old place, or the end, and the front.
        let place = self.former.iter().position(|it| it.inode == inode || it.inode == 0);
        let place = place.unwrap_or_else(|| {
            self.since_us = self.since_us.max(self.former[FORMER_FILES - 1].until_us);
            FORMER_FILES - 1
        });
        self.former.copy_within(..place, 1);
        self.former[0] = Former { inode: last, until_us: now.0 };
    }
}

/// See the module. Memory: 8 bytes per slot up to the highest in use, and 80 more of each whose file has changed.
#[derive(Debug, Default)]
pub struct FilesBySlot {
    inodes: Vec<u64>,
    /// Of those alone whose file has changed: memory that is exported as a new file each time is rare.
    changed: HashMap<u32, Files>,
}

impl FilesBySlot {
    /// Room for slots below `max_slots`.
    pub fn with_capacity(max_slots: usize) -> Self {
        FilesBySlot { inodes: Vec::with_capacity(max_slots), changed: HashMap::new() }
    }

    /// Those of `slot`.
    pub fn get(&self, slot: u32) -> Files {
        let inode = self.inodes.get(slot as usize).copied().unwrap_or(0);
        self.changed.get(&slot).copied().unwrap_or(Files::of(inode))
    }

    /// What is known of `slot` from now on.
    pub fn set(&mut self, slot: u32, files: Files) {
        let index = slot as usize;
        if self.inodes.len() <= index {
            self.inodes.resize(index + 1, 0);
        }
        self.inodes[index] = files.inode;
        if files == Files::of(files.inode) {
            self.changed.remove(&slot);
        } else {
            self.changed.insert(slot, files);
        }
    }

    /// The owner of the allocation in `slot` has given an fd of it again.
    pub fn add(&mut self, slot: u32, inode: u64, now: Now) {
        let mut files = self.get(slot);
        if files.inode != inode {
            files.add(inode, now);
            self.set(slot, files);
        }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.inodes.clear();
        self.changed.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first one deposited, the others given at 1 us, 2 us, ...
    fn after(inodes: &[u64]) -> Files {
        let mut files = FilesBySlot::default();
        files.set(3, Files::of(inodes[0]));
        for (at, inode) in (0..).zip(inodes).skip(1) {
            files.add(3, *inode, Now(at));
        }
        files.get(3)
    }

    #[test]
    fn add_when_the_same_file_then_nothing_before_it() {
        assert_eq!(after(&[7, 7, 7]), Files::of(7));
    }

    #[test]
    fn add_when_other_files_then_newest_first_and_each_once() {
        let of = |inode, former: [(u64, u64); 3], since_us| {
            let former = former.map(|(inode, until_us)| Former { inode, until_us });
            Files { inode, former, since_us }
        };
        assert_eq!(after(&[1, 2]), of(2, [(1, 1), (0, 0), (0, 0)], 0));
        assert_eq!(after(&[1, 2, 3, 4]), of(4, [(3, 3), (2, 2), (1, 1)], 0));
        assert_eq!(after(&[1, 2, 1]), of(1, [(2, 2), (0, 0), (0, 0)], 0));
        assert_eq!(after(&[1, 2, 3, 4, 2]), of(2, [(4, 4), (3, 3), (1, 1)], 0));
        assert_eq!(after(&[1, 2, 3, 4, 5]), of(5, [(4, 4), (3, 3), (2, 2)], 1));
        assert_eq!(after(&[1, 2, 3, 4, 5, 4]), of(4, [(5, 5), (3, 3), (2, 2)], 1));
        assert_eq!(after(&[1, 2, 3, 4, 5, 6]), of(6, [(5, 5), (4, 4), (3, 3)], 2));
    }

    #[test]
    fn add_when_nothing_was_known_before_then_never_since_when() {
        let of = |former: [(u64, u64); 3]| {
            let former = former.map(|(inode, until_us)| Former { inode, until_us });
            Files { inode: 9, former, since_us: NOT_KNOWN_SINCE }
        };
        assert_eq!(after(&[0, 9]), of([(0, 0); 3]));
        assert_eq!(after(&[0, 1, 9]), of([(1, 2), (0, 0), (0, 0)]));
        assert_eq!(after(&[0, 1, 2, 3, 4, 9]), of([(4, 5), (3, 4), (2, 3)]));
    }

    #[test]
    fn set_when_another_allocation_then_nothing_of_the_one_before() {
        let mut files = FilesBySlot::default();
        files.set(0, Files::of(1));
        files.add(0, 2, Now(1));
        files.set(0, Files::of(3));
        assert_eq!((files.get(0), files.changed.len()), (Files::of(3), 0));
        assert_eq!(files.get(9), Files::default());
    }
}
