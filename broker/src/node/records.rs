//! What the broker remembers of each slot for the next one, should it be killed: a file beside the
//! generation page that the broker alone can read, written before the page. Must never show a slot
//! as live before the rest of its record is written: the broker may be killed between any two
//! stores.

use crate::kernel;
use crate::node::shared_map::{SharedMap, create_whole, is_ours};
use fdbroker_core::{DomainKey, FileId, FormerLife, FormerSlot, OwnerKey, PodKey, Record};
use fdbroker_protocol::{AllocationId, ErrorCode, Gpu, GpuItem, MemoryKind, Share};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// First words of the file; another layout has another one.
const MAGIC: [u32; 2] = [u32::from_le_bytes(*b"FDBR"), 4];

/// Where the head says how many slots, from the first on, were ever used. The others are zeros: the
/// next broker does not read them, which takes longer than all else of a start.
const USED_AT: usize = 8;

/// Bytes of a record, and of the head before the first one.
const RECORD_BYTES: usize = 96;

/// The words of a record.
mod word {
    pub const GENERATION: usize = 0;
    pub const UID: usize = 1;
    pub const GID: usize = 2;
    pub const PID: usize = 3;
    pub const STARTED: usize = 4;
    /// Two words, the low one first.
    pub const RANDOM: usize = 5;
    /// Four words: the halves of the key, each with its low word first.
    pub const POD: usize = 8;
    /// Written last: a byte each of what is below, and one of nothing.
    pub const STANDING: usize = 7;
    /// Two words, the low one first. 0 = not known.
    pub const INODE: usize = 12;
    /// Major number in the high 12 bits, as the kernel has it in 32.
    pub const DEVICE: usize = 14;
    /// Two words, the low one first.
    pub const SIZE: usize = 15;
    pub const LISTENER: usize = 17;
    /// Six words: its bytes in their order.
    pub const GPU: usize = 18;
}

/// Words of a GPU.
const GPU_WORDS: usize = size_of::<GpuItem>() / 4;

/// Bits of a minor number, of a device in 32 bits (linux/kdev_t.h).
const MINOR_BITS: u32 = 20;

/// A live slot has no code.
const NO_CODE: u8 = 0;
/// Bit of the flags: its owner can give its fd again.
const RECALLABLE: u8 = 1;
/// Bit of the flags: it has ended, and has not been drained.
const LEASED: u8 = 2;
/// Bits of the flags from this one on: a memory kind.
const KIND_BIT: u32 = 2;

/// The file, mapped.
#[derive(Debug)]
pub struct Records {
    map: SharedMap,
    slots: u32,
}

impl Records {
    /// The file of a former broker, cut to `most` slots; `None`: there is none of this layout.
    pub fn open(path: &Path, most: u32) -> io::Result<Option<Self>> {
        let mut options = File::options();
        let options = options.read(true).write(true).custom_flags(libc::O_NOFOLLOW);
        let Ok(file) = options.open(path) else { return Ok(None) };
        let found = file.metadata()?;
        let Some(slots) = usize::try_from(found.len()).ok().and_then(slots_of) else {
            return Ok(None);
        };
        if !is_ours(&found) {
            return Ok(None);
        }
        let slots = slots.min(most);
        let records = Records { map: SharedMap::new(&file, bytes_of(slots))?, slots };
        let is_known =
            (0..2).all(|at| records.map.word(at * 4).load(Ordering::Relaxed) == MAGIC[at]);
        if is_known && found.len() > bytes_of(slots) as u64 {
            // In place: there may be no room for another file.
            file.set_len(bytes_of(slots) as u64)?;
        }
        Ok(is_known.then_some(records))
    }

    /// A new file with the records of `former` that fit; all its space is taken now.
    pub fn create(path: &Path, slots: u32, former: Option<&Records>) -> io::Result<Self> {
        let aside = path.with_extension("new");
        let file = create_whole(&aside, bytes_of(slots))?;
        let records = Records { map: SharedMap::new(&file, bytes_of(slots))?, slots };
        (0..2).for_each(|at| records.map.word(at * 4).store(MAGIC[at], Ordering::Relaxed));
        if let Some(former) = former {
            let used = slots.min(former.used());
            records.map.word(USED_AT).store(used, Ordering::Relaxed);
            for slot in 0..used {
                for at in 0..RECORD_BYTES / 4 {
                    let value = former.word(slot, at).load(Ordering::Relaxed);
                    records.word(slot, at).store(value, Ordering::Relaxed);
                }
            }
        }
        std::fs::rename(&aside, path)?;
        Ok(records)
    }

    /// How many records there are.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// How many of them, from the first on, may have been used.
    pub fn used(&self) -> u32 {
        self.map.word(USED_AT).load(Ordering::Relaxed).min(self.slots)
    }

    /// Every slot that was ever used, in order. A generation above `high` is damage and counts as
    /// none.
    pub fn former(&self, high: u32) -> Vec<FormerSlot> {
        let mut lives: HashMap<(u32, u32), bool> = HashMap::new();
        let all = (0..self.used()).filter_map(|slot| {
            let id = self.last(slot);
            let life = (1..=high).contains(&id.generation).then(|| self.life(slot, &mut lives));
            Some(FormerSlot { id, life: life? })
        });
        all.collect()
    }

    /// `lives` remembers the processes that were looked for.
    fn life(&self, slot: u32, lives: &mut HashMap<(u32, u32), bool>) -> FormerLife {
        let [_, _, flags, code] = self.standing(slot);
        let ended = ErrorCode::from_number(code.into());
        let has_record = code == NO_CODE || flags & LEASED != 0;
        let Some(record) = self.record(slot).filter(|_| has_record) else {
            return FormerLife::Ended(ended.unwrap_or(ErrorCode::Stale));
        };
        let OwnerKey { pid, started, .. } = record.owner;
        // A process of another PID namespace cannot be looked for.
        let look = || {
            pid == 0
                || started == 0
                || kernel::Start::of(pid).is_some_and(|start| start.ticks == started)
        };
        let owner_lives = *lives.entry((pid, started)).or_insert_with(look);
        match code {
            NO_CODE => FormerLife::Live { record, owner_lives },
            _ => {
                FormerLife::Leased { record, owner_lives, code: ended.unwrap_or(ErrorCode::Stale) }
            }
        }
    }

    /// What was said of the last allocation of a slot, live or not; `None`: it is damaged.
    pub fn record(&self, slot: u32) -> Option<Record> {
        let load = |at: usize| self.word(slot, at).load(Ordering::Relaxed);
        let [_, share, flags, _] = self.standing(slot);
        let gpu: [u32; GPU_WORDS] = std::array::from_fn(|at| load(word::GPU + at));
        let (pid, started) = (load(word::PID), load(word::STARTED));
        let random = self.long(slot, word::RANDOM);
        let pod = PodKey([self.long(slot, word::POD), self.long(slot, word::POD + 2)]);
        Some(Record {
            domain: DomainKey { listener: load(word::LISTENER), uid: load(word::UID), pod },
            gid: load(word::GID),
            kind: MemoryKind::from_number(flags >> KIND_BIT)?,
            gpu: Some(Gpu::from_bytes(zerocopy::transmute!(gpu))).filter(Gpu::is_sound)?,
            size_bytes: self.long(slot, word::SIZE),
            share: Share::from_number(share)?,
            recallable: flags & RECALLABLE != 0,
            owner: OwnerKey { pid, started, random },
        })
    }

    /// The last allocation of a slot; generation 0: there was none.
    pub fn last(&self, slot: u32) -> AllocationId {
        let generation = self.word(slot, word::GENERATION).load(Ordering::Relaxed);
        AllocationId { slot, generation }
    }

    /// The allocation is live.
    pub fn live(&self, id: AllocationId, record: &Record) {
        let store = |at: usize, value: u32| self.word(id.slot, at).store(value, Ordering::Relaxed);
        let Record { domain, gid, kind, gpu, size_bytes, share, recallable, owner } = *record;
        self.begin(id);
        store(word::LISTENER, domain.listener);
        store(word::UID, domain.uid);
        store(word::GID, gid);
        store(word::PID, owner.pid);
        store(word::STARTED, owner.started);
        self.set_long(id.slot, word::RANDOM, owner.random);
        self.set_long(id.slot, word::SIZE, size_bytes);
        let gpu: [u32; GPU_WORDS] = zerocopy::transmute!(gpu.to_bytes());
        (word::GPU..).zip(gpu).for_each(|(at, value)| store(at, value));
        let PodKey(halves) = domain.pod;
        let halves = [word::POD, word::POD + 2].into_iter().zip(halves);
        halves.for_each(|(at, half)| self.set_long(id.slot, at, half));
        store(word::GENERATION, id.generation);
        let flags = if recallable { RECALLABLE } else { 0 } | (kind as u8) << KIND_BIT;
        self.stand(id.slot, [0, share as u8, flags, NO_CODE]);
    }

    /// The allocation has ended, for this reason. `leased`: it is not drained. One that was never
    /// live here was never leased.
    pub fn end(&self, id: AllocationId, code: ErrorCode, leased: bool) {
        let [_, share, flags, before] = self.standing(id.slot);
        let was_leased = before == NO_CODE || flags & LEASED != 0;
        let is_known = self.last(id.slot) == id && was_leased;
        let flags = flags & !LEASED | if leased && is_known { LEASED } else { 0 };
        self.begin(id);
        // Before the generation: a new one must never be live by the word of an older one.
        self.stand(id.slot, [0, share, flags, code as u8]);
        self.word(id.slot, word::GENERATION).store(id.generation, Ordering::Release);
    }

    /// The file that the fd of the last allocation of a slot is, or was; `None`: not known.
    pub fn file(&self, slot: u32) -> Option<FileId> {
        let inode = self.long(slot, word::INODE);
        let device = u64::from(self.word(slot, word::DEVICE).load(Ordering::Relaxed));
        let device = device >> MINOR_BITS << 32 | device & ((1 << MINOR_BITS) - 1);
        (inode != 0).then_some(FileId { device, inode })
    }

    /// The fd of the last allocation of a slot is of this file.
    pub fn note_file(&self, slot: u32, file: Option<FileId>) {
        // Here, for this is the first that is ever written of a slot.
        if slot >= self.used() {
            self.map.word(USED_AT).store(slot + 1, Ordering::Release);
        }
        let FileId { device, inode } = file.unwrap_or(FileId { device: 0, inode: 0 });
        // A number as the kernel has it fits; what does not is never taken for it.
        let device = u32::try_from(device >> 32 << MINOR_BITS | device & 0xffff_ffff);
        self.word(slot, word::DEVICE).store(device.unwrap_or(u32::MAX), Ordering::Relaxed);
        self.set_long(slot, word::INODE, inode);
    }

    /// What was there before is not of this allocation.
    fn begin(&self, id: AllocationId) {
        if self.last(id.slot) != id {
            self.note_file(id.slot, None);
        }
    }

    fn long(&self, slot: u32, at: usize) -> u64 {
        let half = |at| u64::from(self.word(slot, at).load(Ordering::Relaxed));
        half(at) | half(at + 1) << 32
    }

    fn set_long(&self, slot: u32, at: usize, value: u64) {
        let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
        for (at, half) in (at..).zip([[a, b, c, d], [e, f, g, h]]) {
            self.word(slot, at).store(u32::from_le_bytes(half), Ordering::Relaxed);
        }
    }

    fn standing(&self, slot: u32) -> [u8; 4] {
        self.word(slot, word::STANDING).load(Ordering::Relaxed).to_le_bytes()
    }

    fn stand(&self, slot: u32, standing: [u8; 4]) {
        self.word(slot, word::STANDING).store(u32::from_le_bytes(standing), Ordering::Release);
    }

    fn word(&self, slot: u32, at: usize) -> &AtomicU32 {
        self.map.word(RECORD_BYTES * (slot as usize + 1) + at * 4)
    }
}

fn bytes_of(slots: u32) -> usize {
    RECORD_BYTES * (slots as usize + 1)
}

fn slots_of(bytes: usize) -> Option<u32> {
    let slots = u32::try_from((bytes / RECORD_BYTES).checked_sub(1)?).ok()?;
    (bytes_of(slots) == bytes).then_some(slots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::names::RECORDS_NAME;

    fn id(slot: u32, generation: u32) -> AllocationId {
        AllocationId { slot, generation }
    }

    fn record(pid: u32, started: u32) -> Record {
        Record {
            domain: DomainKey {
                pod: PodKey([u64::MAX - 3, 7 << 40]),
                ..DomainKey::new(u32::MAX - 4, u32::MAX - 2)
            },
            gid: 7,
            kind: MemoryKind::CudaVmm,
            gpu: Gpu::cuda([0xa7; 16], u32::MAX - 1, true),
            size_bytes: u64::MAX - 9,
            share: Share::Gid,
            recallable: true,
            owner: OwnerKey { pid, started, random: u64::MAX - 1 },
        }
    }

    #[test]
    fn records_when_opened_again_then_all_that_was_written_and_whose_owner_lives() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(RECORDS_NAME);
        let records = Records::create(&path, 8, None).unwrap();
        let pid = std::process::id();
        let ours = record(pid, kernel::Start::of(pid).unwrap().ticks);
        let dead = record(pid, ours.owner.started + 1);
        records.live(id(1, 3), &ours);
        records.live(id(2, 4), &dead);
        records.live(id(3, 5), &record(0, 0));
        let file = FileId { device: 7 << 32 | 0xf_fffe, inode: u64::MAX - 5 };
        [1, 2, 4, 6, 7].into_iter().for_each(|slot| records.note_file(slot, Some(file)));
        records.live(id(4, 6), &ours);
        records.end(id(4, 6), ErrorCode::OwnerGone, false);
        records.live(id(5, 9), &ours);
        records.live(id(6, 5), &ours);
        records.end(id(6, 5), ErrorCode::Stale, true);
        records.live(id(7, 5), &ours);
        records.end(id(7, 5), ErrorCode::Stale, true);
        records.end(id(7, 6), ErrorCode::Stale, true);
        drop(records);
        let records = Records::open(&path, 8).unwrap().unwrap();
        let live = |id, record, owner_lives| FormerSlot {
            id,
            life: FormerLife::Live { record, owner_lives },
        };
        let ended = FormerSlot { id: id(4, 6), life: FormerLife::Ended(ErrorCode::OwnerGone) };
        let code = ErrorCode::Stale;
        let life = FormerLife::Leased { record: ours, owner_lives: true, code };
        let leased = FormerSlot { id: id(6, 5), life };
        let all = [
            live(id(1, 3), ours, true),
            live(id(2, 4), dead, false),
            live(id(3, 5), record(0, 0), true),
            ended,
            leased,
            FormerSlot { id: id(7, 6), life: FormerLife::Ended(ErrorCode::Stale) },
        ];
        assert_eq!(records.former(8), all, "and nothing above the highest generation");
        let files: Vec<_> = (0..8).filter(|slot| records.file(*slot) == Some(file)).collect();
        assert_eq!(files, [1, 2], "and none of what stood in a slot before");
        let larger = Records::create(&path, 9, Some(&records)).unwrap();
        assert_eq!((larger.former(8), larger.used()), (all.to_vec(), 8));
        let smaller = Records::open(&path, 3).unwrap().unwrap();
        assert_eq!((smaller.slots(), smaller.former(8)), (3, all[..2].to_vec()));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), bytes_of(3) as u64);
    }

    #[test]
    fn used_when_a_slot_was_written_then_it_and_those_before_it_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(RECORDS_NAME);
        let records = Records::create(&path, 8, None).unwrap();
        assert_eq!((records.used(), records.former(8)), (0, vec![]));
        records.live(id(4, 1), &record(0, 0));
        records.live(id(2, 1), &record(0, 0));
        records.end(id(5, 1), ErrorCode::Stale, false);
        let records = Records::open(&path, 8).unwrap().unwrap();
        let slots: Vec<_> = records.former(8).iter().map(|former| former.id.slot).collect();
        assert_eq!((records.used(), slots), (6, vec![2, 4, 5]));
    }

    #[test]
    fn open_when_it_is_no_file_of_records_then_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(RECORDS_NAME);
        assert!(Records::open(&path, 8).unwrap().is_none());
        for length in [0, RECORD_BYTES - 1, RECORD_BYTES, 2 * RECORD_BYTES] {
            std::fs::write(&path, vec![0; length]).unwrap();
            assert!(Records::open(&path, 8).unwrap().is_none(), "{length}");
        }
    }
}
