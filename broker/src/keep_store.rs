//! Where fds of kept allocations outlive a broker that is killed: the service manager's store, one by
//! one, and beside them the keep book, a memfd that says what each is and is kept up in place. Must
//! never block, nor keep an fd that the core has given up. A planned restart needs none of it.

use crate::fd_table::FdTable;
use crate::inherited::names;
use crate::limits::MANAGER_PATIENCE;
use crate::notify::{Manager, StoreError};
use fdbroker_core::{Deposit, DomainKey, Kept, Lane};
use fdbroker_protocol::{AllocationId, MemoryKind, Share};
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::hash::Hasher;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Bytes of one entry of the book: length, checksum, and a [`Saved`] of at most 130 bytes.
const RECORD_BYTES: usize = 256;
/// Before the data of an entry: length (0 = none) and checksum.
const RECORD_HEAD_BYTES: usize = 12;
/// First entry of the book; another format of it is another magic.
const MAGIC: [u8; 8] = *b"FDBKEEP1";

/// The fds stored outside this process, by slot. Without a service manager there are none: kept
/// allocations then outlive their owner, not the broker.
#[derive(Debug, Default)]
pub struct KeepStore {
    manager: Manager,
    /// `None`: there is no store.
    book: Option<Book>,
    stored: BTreeMap<u32, Stored>,
    /// What the service manager had no room for. Bounded: one for each allocation that may be kept,
    /// and one for each that was and is in the store still.
    pending: VecDeque<Pending>,
}

#[derive(Debug)]
struct Stored {
    name: String,
    record: u64,
}

#[derive(Debug)]
enum Pending {
    Store { slot: u32, name: String },
    Remove { name: String },
}

/// A kept allocation of a broker before this one, with its fd.
#[derive(Debug)]
pub struct Found {
    /// What it is.
    pub kept: Kept,
    /// Its fd, from the store.
    pub fd: OwnedFd,
    record: u64,
    name: String,
}

impl KeepStore {
    /// Goes on with `book`, or begins one; `fds` are what the store had, by name. What of them nothing
    /// is known of leaves the store, and comes back second, to be closed.
    pub fn open(
        manager: Manager,
        book: Option<OwnedFd>,
        fds: Vec<(String, OwnedFd)>,
    ) -> (Self, Vec<Found>, Vec<OwnedFd>) {
        let mut this = KeepStore { manager, ..Self::default() };
        if !this.manager.has_store() {
            return (this, Vec::new(), fds.into_iter().map(|(_, fd)| fd).collect());
        }
        let former = book.and_then(Book::adopt);
        let is_new = former.is_none();
        this.book = match former.map_or_else(Book::create, Ok) {
            Ok(book) => Some(book),
            Err(error) => {
                log::error!("kept allocations will not outlive a crash: {error}");
                None
            }
        };
        let mut fds: BTreeMap<String, OwnedFd> = fds.into_iter().collect();
        let mut found = Vec::new();
        if let Some(book) = &mut this.book {
            if is_new {
                // One that was refused must not come back.
                let _ = this.manager.remove(names::KEEP_BOOK, MANAGER_PATIENCE);
                let fd = book.file.as_fd();
                if let Err(error) = this.manager.store(names::KEEP_BOOK, fd, MANAGER_PATIENCE) {
                    log::error!("kept allocations will not outlive a crash: {error}");
                }
            }
            for (record, kept) in book.read() {
                let name = name_of(kept.id);
                match fds.remove(&name) {
                    Some(fd) => found.push(Found { kept, fd, record, name }),
                    None => book.clear(record),
                }
            }
        }
        let unknown = fds.into_iter();
        let unknown = unknown.map(|(name, fd)| {
            this.pending.push_back(Pending::Remove { name });
            fd
        });
        let unknown = unknown.collect();
        (this, found, unknown)
    }

    /// What was found is this broker's from now on: it is in the store already.
    pub fn adopt(&mut self, found: &Found) {
        let stored = Stored { name: found.name.clone(), record: found.record };
        self.stored.insert(found.kept.id.slot, stored);
    }

    /// What was found is of no use: it leaves the store.
    pub fn give_up(&mut self, found: &Found) {
        if let Some(book) = &mut self.book {
            book.clear(found.record);
        }
        self.pending.push_back(Pending::Remove { name: found.name.clone() });
    }

    /// Whether the fd of `slot` is stored, or on its way there.
    pub fn has(&self, slot: u32) -> bool {
        self.stored.contains_key(&slot)
    }

    /// Stores a duplicate of the fd of a slot, with what to remember of it.
    pub fn keep(&mut self, slot: u32, kept: &Kept, fd: BorrowedFd<'_>) {
        let Some(book) = &mut self.book else { return };
        let record = match book.write(kept) {
            Ok(record) => record,
            Err(error) => {
                return log::error!(
                    "kept allocation {} will not outlive a crash: {error}",
                    kept.id
                );
            }
        };
        let name = name_of(kept.id);
        self.stored.insert(slot, Stored { name: name.clone(), record });
        // In their order: a removal before it may be of the same name.
        match self.pending.is_empty() {
            true => self.store(slot, name, fd),
            false => self.pending.push_back(Pending::Store { slot, name }),
        }
    }

    fn store(&mut self, slot: u32, name: String, fd: BorrowedFd<'_>) {
        match self.manager.store(&name, fd, Duration::ZERO) {
            Ok(()) => {}
            Err(StoreError::Busy) => self.pending.push_front(Pending::Store { slot, name }),
            Err(error) => log::error!("`{name}` will not outlive a crash: {error}"),
        }
    }

    /// Forgets the fd of a slot, if it is stored: its allocation has ended.
    pub fn unkeep(&mut self, slot: u32) {
        let Some(Stored { name, record }) = self.stored.remove(&slot) else { return };
        if let Some(book) = &mut self.book {
            book.clear(record);
        }
        let is_it = |one: &Pending| matches!(one, Pending::Store { name: its, .. } if *its == name);
        match self.pending.iter().position(is_it) {
            Some(place) => drop(self.pending.remove(place)),
            None => self.pending.push_back(Pending::Remove { name }),
        }
    }

    /// Tries again what the service manager had no room for. `true`: some of it is left.
    pub fn flush(&mut self, fds: &FdTable) -> bool {
        let before = self.pending.len();
        while let Some(next) = self.pending.pop_front() {
            match next {
                Pending::Store { slot, name } => {
                    if let Some(fd) = fds.held(slot) {
                        self.store(slot, name, fd);
                    }
                }
                Pending::Remove { name } => match self.manager.remove(&name, Duration::ZERO) {
                    Err(StoreError::Busy) => {
                        self.pending.push_front(Pending::Remove { name });
                    }
                    Ok(()) => {}
                    Err(error) => log::error!("the store keeps `{name}`: {error}"),
                },
            }
            if self.pending.len() >= before {
                break;
            }
        }
        !self.pending.is_empty()
    }
}

/// Short, without colons, never used twice.
fn name_of(id: AllocationId) -> String {
    format!("{}{}.{}", names::KEPT_PREFIX, id.slot, id.generation)
}

/// The memfd, shared with the service manager's store.
#[derive(Debug)]
struct Book {
    file: File,
    /// Entries that are free, lowest last, below `length`.
    free: Vec<u64>,
    length: u64,
}

impl Book {
    fn create() -> io::Result<Self> {
        let file = File::from(memfd_create("fdbroker-keep-book", MFdFlags::MFD_CLOEXEC)?);
        let mut head = [0; RECORD_BYTES];
        head[..8].copy_from_slice(&MAGIC);
        file.write_all_at(&head, 0)?;
        Ok(Book { file, free: Vec::new(), length: 1 })
    }

    /// One that another process has kept, if it is one.
    fn adopt(fd: OwnedFd) -> Option<Self> {
        let file = File::from(fd);
        let bytes = file.metadata().ok()?.len();
        let mut magic = [0; 8];
        file.read_exact_at(&mut magic, 0).ok()?;
        let length = bytes / RECORD_BYTES as u64;
        (magic == MAGIC).then_some(Book { file, free: Vec::new(), length })
    }

    /// Every entry; those that are none, or damaged, become free.
    fn read(&mut self) -> Vec<(u64, Kept)> {
        let mut found = Vec::new();
        self.free.clear();
        for record in (1..self.length).rev() {
            let mut bytes = [0; RECORD_BYTES];
            let read = self.file.read_exact_at(&mut bytes, record * RECORD_BYTES as u64);
            match read.ok().and_then(|()| decode(&bytes)) {
                Some(kept) => found.push((record, kept)),
                None => self.free.push(record),
            }
        }
        found
    }

    fn write(&mut self, kept: &Kept) -> io::Result<u64> {
        let record = self.free.last().copied().unwrap_or(self.length);
        self.file.write_all_at(&encode(kept)?, record * RECORD_BYTES as u64)?;
        match self.free.pop() {
            Some(_) => {}
            None => self.length += 1,
        }
        Ok(record)
    }

    fn clear(&mut self, record: u64) {
        match self.file.write_all_at(&[0; RECORD_BYTES], record * RECORD_BYTES as u64) {
            Ok(()) => self.free.push(record),
            // Its fd leaves the store, so it counts for nothing.
            Err(error) => log::error!("an entry of the keep book stays: {error}"),
        }
    }
}

fn encode(kept: &Kept) -> io::Result<[u8; RECORD_BYTES]> {
    let mut bytes = [0; RECORD_BYTES];
    let body = postcard::to_slice(&Saved::from(kept), &mut bytes[RECORD_HEAD_BYTES..]);
    let body = body.map_err(io::Error::other)?;
    let (length, sum) = (body.len() as u32, checksum(body));
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes[4..RECORD_HEAD_BYTES].copy_from_slice(&sum.to_le_bytes());
    Ok(bytes)
}

fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<Kept> {
    let (head, rest) = bytes.split_at(RECORD_HEAD_BYTES);
    let length = u32::from_le_bytes(head[..4].try_into().ok()?) as usize;
    let sum = u64::from_le_bytes(head[4..].try_into().ok()?);
    let body = rest.get(..length).filter(|body| !body.is_empty() && checksum(body) == sum)?;
    postcard::from_bytes::<Saved>(body).ok()?.to_kept()
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(bytes);
    hasher.finish()
}

/// A [`Kept`] as it is written.
#[derive(Serialize, Deserialize)]
struct Saved {
    slot: u32,
    generation: u32,
    listener: u32,
    uid: u32,
    gid: u32,
    kind: u8,
    share: u8,
    recallable: bool,
    device: u32,
    size_bytes: u64,
    fd_offset: u64,
    owner_allocation_id: u64,
    base: u64,
    driver_data: Vec<u8>,
}

impl From<&Kept> for Saved {
    fn from(kept: &Kept) -> Self {
        let Kept { id, domain, gid, deposit } = kept;
        let data = deposit.driver_data.as_ref();
        Saved {
            slot: id.slot,
            generation: id.generation,
            listener: domain.listener,
            uid: domain.uid,
            gid: *gid,
            kind: deposit.kind as u8,
            share: deposit.share as u8,
            recallable: deposit.recallable,
            device: deposit.device,
            size_bytes: deposit.size_bytes,
            fd_offset: deposit.fd_offset,
            owner_allocation_id: deposit.owner_allocation_id,
            base: deposit.base,
            driver_data: data.map_or(Vec::new(), |(length, it)| it[..usize::from(*length)].into()),
        }
    }
}

impl Saved {
    fn to_kept(&self) -> Option<Kept> {
        let driver_data = match self.driver_data.len() {
            0 => None,
            length => {
                let mut data = [0; fdbroker_protocol::limits::DRIVER_DATA_BYTES];
                data.get_mut(..length)?.copy_from_slice(&self.driver_data);
                Some((u8::try_from(length).ok()?, data))
            }
        };
        Some(Kept {
            id: AllocationId { slot: self.slot, generation: self.generation },
            domain: DomainKey { listener: self.listener, uid: self.uid },
            gid: self.gid,
            deposit: Deposit {
                checked: Ok(()),
                lane: Lane::Accepted,
                kind: MemoryKind::from_number(self.kind)?,
                share: Share::from_number(self.share)?,
                recallable: self.recallable,
                keep: true,
                device: self.device,
                size_bytes: self.size_bytes,
                fd_offset: self.fd_offset,
                owner_allocation_id: self.owner_allocation_id,
                base: self.base,
                driver_data,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(slot: u32, data: usize) -> Kept {
        Saved {
            slot,
            generation: u32::MAX,
            listener: 15,
            uid: u32::MAX - 2,
            gid: u32::MAX - 2,
            kind: MemoryKind::Memfd as u8,
            share: Share::Any as u8,
            recallable: true,
            device: u32::MAX,
            size_bytes: u64::MAX,
            fd_offset: u64::MAX,
            owner_allocation_id: u64::MAX,
            base: u64::MAX,
            driver_data: vec![7; data],
        }
        .to_kept()
        .unwrap()
    }

    #[test]
    fn book_when_read_again_then_what_was_written_and_not_cleared() {
        let mut book = Book::create().unwrap();
        let records: Vec<u64> = (0..5).map(|n| book.write(&kept(n, 64)).unwrap()).collect();
        book.clear(records[1]);
        book.clear(records[3]);
        let again = book.write(&kept(9, 0)).unwrap();
        assert!(again == records[1] || again == records[3], "free entries are used again");
        let mut book = Book::adopt(book.file.try_clone().unwrap().into()).unwrap();
        let mut slots: Vec<u32> = book.read().iter().map(|(_, kept)| kept.id.slot).collect();
        slots.sort_unstable();
        assert_eq!(slots, [0, 2, 4, 9]);
        assert_eq!(book.free.len(), 1);
        assert_eq!(book.read()[3].1, kept(0, 64));
    }

    #[test]
    fn decode_when_any_byte_is_changed_then_none() {
        let good = encode(&kept(3, 64)).unwrap();
        let used = RECORD_HEAD_BYTES + u32::from_le_bytes(good[..4].try_into().unwrap()) as usize;
        for index in 0..used {
            let mut bad = good;
            bad[index] ^= 1;
            assert!(decode(&bad).is_none(), "byte {index}");
        }
        assert_eq!(decode(&good), Some(kept(3, 64)));
    }

    #[test]
    fn adopt_when_it_is_no_book_then_none() {
        let other = memfd_create("test", MFdFlags::MFD_CLOEXEC).unwrap();
        assert!(Book::adopt(other).is_none());
    }
}
