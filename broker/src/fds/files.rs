//! The files that the fd of each slot is, or was. By their inodes an administrator finds copies of
//! the fd in /proc, also when the broker holds none. Must never hold an fd, nor ask the kernel.

use fdbroker_core::Now;
use fdbroker_protocol::limits::FORMER_FILES;
use serde::{Deserialize, Serialize};
use slab::Slab;

/// A former file of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Former {
    /// 0 = none.
    pub inode: u64,
    /// When another one came in its place, on CLOCK_MONOTONIC.
    pub until_us: u64,
}

/// What is known of the files of one slot since its allocation was deposited; part of what is
/// handed to a successor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Files {
    /// Inode of the fd held, or of the last one; 0 = not known.
    pub inode: u64,
    /// Files before it, newest first.
    pub former: [Former; FORMER_FILES],
    /// The slot has had no other files since then; 0 = since the deposit, [`NOT_KNOWN_SINCE`] = it
    /// may have had any.
    pub since_us: u64,
}

/// [`Files::since_us`] of an allocation that its owner has named again after a crash: clients have
/// leases of earlier files.
pub const NOT_KNOWN_SINCE: u64 = u64::MAX;

impl Files {
    /// One file, and none before.
    pub fn of(inode: u64) -> Self {
        Files { inode, ..Files::default() }
    }

    /// The owner has given its memory as another fd: of the same file, or of one that is made anew
    /// for each export.
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

/// Unit of the times kept, 65.5 ms: a u32 of them lasts for 8.9 years of uptime.
const TICK_US: u64 = 1 << 16;

/// Its end or later: a file is never said to be known for longer than it is.
fn ticks(us: u64) -> u32 {
    match us {
        NOT_KNOWN_SINCE => u32::MAX,
        us => u32::try_from(us.div_ceil(TICK_US)).unwrap_or(u32::MAX),
    }
}

fn us(ticks: u32) -> u64 {
    match ticks {
        u32::MAX => NOT_KNOWN_SINCE,
        ticks => u64::from(ticks) * TICK_US,
    }
}

/// [`Files`] in less memory.
#[derive(Debug)]
struct Packed {
    inode: u64,
    former: [u64; FORMER_FILES],
    until: [u32; FORMER_FILES],
    since: u32,
}

/// There may be one for each allocation.
const _: () = assert!(size_of::<Packed>() == 48);

impl From<Files> for Packed {
    fn from(files: Files) -> Self {
        Packed {
            inode: files.inode,
            former: files.former.map(|it| it.inode),
            until: files.former.map(|it| ticks(it.until_us)),
            since: ticks(files.since_us),
        }
    }
}

impl From<&Packed> for Files {
    fn from(packed: &Packed) -> Self {
        let former =
            |at: usize| Former { inode: packed.former[at], until_us: us(packed.until[at]) };
        Files {
            inode: packed.inode,
            former: std::array::from_fn(former),
            since_us: us(packed.since),
        }
    }
}

/// Set in the word of a slot: the rest is a place in the table of those whose file has changed.
const HAS_CHANGED: u64 = 1 << 63;

/// See the module. Memory: 8 bytes per slot up to the highest in use, and 56 more of each whose
/// file has changed; the heap is measured by tests/memory.rs. Times are kept to 65 ms, later rather
/// than earlier.
#[derive(Debug, Default)]
pub struct FilesBySlot {
    /// An inode, 0 = not known, or [`HAS_CHANGED`] and a place in `changed`.
    words: Vec<u64>,
    /// Only for slots whose file has changed, which is rare, or whose inode does not fit a word.
    changed: Slab<Packed>,
}

impl FilesBySlot {
    /// Room for slots below `max_slots`.
    pub fn with_capacity(max_slots: usize) -> Self {
        FilesBySlot { words: Vec::with_capacity(max_slots), changed: Slab::new() }
    }

    /// The files of `slot`.
    pub fn get(&self, slot: u32) -> Files {
        let word = self.words.get(slot as usize).copied().unwrap_or(0);
        match place(word) {
            None => Files::of(word),
            Some(place) => self.changed.get(place).map(Files::from).unwrap_or_default(),
        }
    }

    /// What is known of `slot` from now on.
    pub fn set(&mut self, slot: u32, files: Files) {
        let index = slot as usize;
        if self.words.len() <= index {
            self.words.resize(index + 1, 0);
        }
        let is_plain = files == Files::of(files.inode) && files.inode & HAS_CHANGED == 0;
        if let Some(place) = place(self.words[index]) {
            self.changed.try_remove(place);
        }
        // A place that has become free is the next to be taken.
        self.words[index] = if is_plain {
            files.inode
        } else {
            HAS_CHANGED | self.changed.insert(files.into()) as u64
        };
    }

    /// The owner of the allocation in `slot` has given an fd of it again.
    pub fn add(&mut self, slot: u32, inode: u64, now: Now) {
        let mut files = self.get(slot);
        if files.inode != inode {
            files.add(inode, now);
            self.set(slot, files);
        }
    }

    pub fn clear(&mut self) {
        self.words.clear();
        self.changed.clear();
    }
}

/// Where in the table of changed ones a slot with this word is.
fn place(word: u64) -> Option<usize> {
    usize::try_from(word.checked_sub(HAS_CHANGED)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first one deposited, the others given at 1 tick, 2 ticks, ...
    fn after(inodes: &[u64]) -> Files {
        let mut files = FilesBySlot::default();
        files.set(3, Files::of(inodes[0]));
        for (at, inode) in (0..).zip(inodes).skip(1) {
            files.add(3, *inode, Now(at * TICK_US));
        }
        files.get(3)
    }

    #[test]
    fn add_when_the_same_file_then_nothing_before_it() {
        assert_eq!(after(&[7, 7, 7]), Files::of(7));
    }

    #[test]
    fn add_when_other_files_then_newest_first_and_each_once() {
        let of = |inode, former: [(u64, u64); 3], since| {
            let former = former.map(|(inode, until)| Former { inode, until_us: until * TICK_US });
            Files { inode, former, since_us: since * TICK_US }
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
            let former = former.map(|(inode, until)| Former { inode, until_us: until * TICK_US });
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

    #[test]
    fn add_when_between_two_ticks_then_never_known_for_longer_than_it_is() {
        let mut files = FilesBySlot::default();
        files.set(0, Files::of(1));
        for (inode, at) in (2..).zip([1, TICK_US + 1, 5 * TICK_US, 9 * TICK_US]) {
            files.add(0, inode, Now(at));
        }
        let Files { former, since_us, .. } = files.get(0);
        assert_eq!(since_us, TICK_US, "the first one was there until 1 us");
        assert_eq!(former.map(|it| it.until_us), [9, 5, 2].map(|it| it * TICK_US));
        files.set(0, files.get(0));
        assert_eq!(files.get(0).since_us, TICK_US, "what is handed to a successor stays so");
    }

    #[test]
    fn set_when_an_inode_fits_no_word_then_it_is_known_all_the_same() {
        let mut files = FilesBySlot::default();
        for inode in [HAS_CHANGED, HAS_CHANGED | 1, u64::MAX, 5] {
            files.set(1, Files::of(inode));
            assert_eq!((files.get(1), files.get(0)), (Files::of(inode), Files::default()));
        }
        assert!(files.changed.is_empty());
    }
}
