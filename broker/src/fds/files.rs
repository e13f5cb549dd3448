//! The files that the fd of each slot is, or was. By their inodes an administrator finds copies of
//! the fd in /proc, and the broker knows the memory of a handle again, also when it holds no fd.
//! Must never hold an fd, nor ask the kernel.

use fdbroker_core::{FileId, Now};
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
    /// Device of that inode, as in [`FileId::device`].
    pub device: u64,
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
    pub fn of(FileId { device, inode }: FileId) -> Self {
        Files { inode, device, ..Files::default() }
    }

    /// The fd held, or the last one; `None`: not known.
    pub fn last(&self) -> Option<FileId> {
        let Files { inode, device, .. } = *self;
        (inode != 0).then_some(FileId { device, inode })
    }

    /// The owner has given its memory as another fd: of the same file, or of one that is made anew
    /// for each export.
    fn add(&mut self, FileId { device, inode }: FileId, now: Now) {
        self.device = device;
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
    device: u64,
    former: [u64; FORMER_FILES],
    until: [u32; FORMER_FILES],
    since: u32,
}

/// There may be one for each allocation.
const _: () = assert!(size_of::<Packed>() == 56);

impl From<Files> for Packed {
    fn from(files: Files) -> Self {
        Packed {
            inode: files.inode,
            device: files.device,
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
            device: packed.device,
            former: std::array::from_fn(former),
            since_us: us(packed.since),
        }
    }
}

/// Set in the word of a slot: the rest is a place in the table of those whose file has changed.
const HAS_CHANGED: u64 = 1 << 63;

/// Bits of an inode in a word, and of a device in the bits above them: memfds have inodes of 32
/// bits, and file systems without a disk have devices of 20.
const INODE_BITS: u32 = 40;
const DEVICE_BITS: u32 = 20;

/// The word of a file that needs no place in the table; `None`: it does not fit.
fn word(file: FileId) -> Option<u64> {
    let fits = file.inode >> INODE_BITS == 0 && file.device >> DEVICE_BITS == 0;
    fits.then_some(file.device << INODE_BITS | file.inode)
}

/// See the module. Memory: 8 bytes per slot up to the highest in use, and 64 more of each whose
/// file has changed; the heap is measured by tests/memory.rs. Times are kept to 65 ms, later rather
/// than earlier.
#[derive(Debug, Default)]
pub struct FilesBySlot {
    /// See [`word`], 0 = not known, or [`HAS_CHANGED`] and a place in `changed`.
    words: Vec<u64>,
    /// Only for slots whose file has changed, which is rare, or does not fit a word.
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
        let inode = word & ((1 << INODE_BITS) - 1);
        match place(word) {
            None => Files::of(FileId { device: word >> INODE_BITS, inode }),
            Some(place) => self.changed.get(place).map(Files::from).unwrap_or_default(),
        }
    }

    /// What is known of `slot` from now on.
    pub fn set(&mut self, slot: u32, files: Files) {
        let index = slot as usize;
        if self.words.len() <= index {
            self.words.resize(index + 1, 0);
        }
        let file = FileId { device: files.device, inode: files.inode };
        let plain = word(file).filter(|_| files == Files::of(file));
        if let Some(place) = place(self.words[index]) {
            self.changed.try_remove(place);
        }
        // A place that has become free is the next to be taken.
        self.words[index] =
            plain.unwrap_or_else(|| HAS_CHANGED | self.changed.insert(files.into()) as u64);
    }

    /// The owner of the allocation in `slot` has given an fd of it again.
    pub fn add(&mut self, slot: u32, file: FileId, now: Now) {
        let mut files = self.get(slot);
        if files.last() != Some(file) {
            files.add(file, now);
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

    fn of(inode: u64) -> Files {
        Files::of(id(inode))
    }

    fn id(inode: u64) -> FileId {
        FileId { device: 0, inode }
    }

    /// The first one deposited, the others given at 1 tick, 2 ticks, ...
    fn after(inodes: &[u64]) -> Files {
        let mut files = FilesBySlot::default();
        files.set(3, of(inodes[0]));
        for (at, inode) in (0..).zip(inodes).skip(1) {
            files.add(3, id(*inode), Now(at * TICK_US));
        }
        files.get(3)
    }

    #[test]
    fn add_when_the_same_file_then_nothing_before_it() {
        assert_eq!(after(&[7, 7, 7]), of(7));
    }

    #[test]
    fn add_when_other_files_then_newest_first_and_each_once() {
        let with = |inode, former: [(u64, u64); 3], since| {
            let former = former.map(|(inode, until)| Former { inode, until_us: until * TICK_US });
            Files { inode, former, since_us: since * TICK_US, device: 0 }
        };
        assert_eq!(after(&[1, 2]), with(2, [(1, 1), (0, 0), (0, 0)], 0));
        assert_eq!(after(&[1, 2, 3, 4]), with(4, [(3, 3), (2, 2), (1, 1)], 0));
        assert_eq!(after(&[1, 2, 1]), with(1, [(2, 2), (0, 0), (0, 0)], 0));
        assert_eq!(after(&[1, 2, 3, 4, 2]), with(2, [(4, 4), (3, 3), (1, 1)], 0));
        assert_eq!(after(&[1, 2, 3, 4, 5]), with(5, [(4, 4), (3, 3), (2, 2)], 1));
        assert_eq!(after(&[1, 2, 3, 4, 5, 4]), with(4, [(5, 5), (3, 3), (2, 2)], 1));
        assert_eq!(after(&[1, 2, 3, 4, 5, 6]), with(6, [(5, 5), (4, 4), (3, 3)], 2));
    }

    #[test]
    fn add_when_nothing_was_known_before_then_never_since_when() {
        let with = |former: [(u64, u64); 3]| {
            let former = former.map(|(inode, until)| Former { inode, until_us: until * TICK_US });
            Files { inode: 9, former, since_us: NOT_KNOWN_SINCE, device: 0 }
        };
        assert_eq!(after(&[0, 9]), with([(0, 0); 3]));
        assert_eq!(after(&[0, 1, 9]), with([(1, 2), (0, 0), (0, 0)]));
        assert_eq!(after(&[0, 1, 2, 3, 4, 9]), with([(4, 5), (3, 4), (2, 3)]));
    }

    #[test]
    fn set_when_another_allocation_then_nothing_of_the_one_before() {
        let mut files = FilesBySlot::default();
        files.set(0, of(1));
        files.add(0, id(2), Now(1));
        files.set(0, of(3));
        assert_eq!((files.get(0), files.changed.len()), (of(3), 0));
        assert_eq!(files.get(9), Files::default());
    }

    #[test]
    fn add_when_between_two_ticks_then_never_known_for_longer_than_it_is() {
        let mut files = FilesBySlot::default();
        files.set(0, of(1));
        for (inode, at) in (2..).zip([1, TICK_US + 1, 5 * TICK_US, 9 * TICK_US]) {
            files.add(0, id(inode), Now(at));
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
        for inode in [HAS_CHANGED, HAS_CHANGED | 1, 1 << INODE_BITS, u64::MAX, 5] {
            for device in [1 << DEVICE_BITS, u64::MAX, 0, (1 << DEVICE_BITS) - 1] {
                let one = Files::of(FileId { device, inode });
                files.set(1, one);
                assert_eq!((files.get(1), files.get(0)), (one, Files::default()));
            }
        }
        files.set(1, of(5));
        assert!(files.changed.is_empty());
    }
}
