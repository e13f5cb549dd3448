//! The keep book: a memfd that says what each fd of kept allocations in the service manager's store
//! is, kept up in place. It outlives a broker that is killed, in the middle of a write as well:
//! must never be believed, so each entry has its checksum.

use fdbroker_core::{Deposit, DomainKey, JobKey, JobName, Kept, Lane};
use fdbroker_protocol::{AllocationId, Facts, MemoryKind, Share};
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;
use std::fs::File;
use std::hash::Hasher;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Bytes of one entry of the book: length, checksum, and a [`Saved`] of at most 208 bytes.
const RECORD_BYTES: usize = 256;
/// Before the data of an entry: length (0 = none) and checksum.
const RECORD_HEAD_BYTES: usize = 12;
/// First entry of the book; another format of it is another magic.
const MAGIC: [u8; 8] = *b"FDBKEEP3";

/// What the book says of one kept allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it is.
    pub kept: Kept,
    /// The name under which its fd is stored: its own, or the name of the first allocation with the
    /// same open file.
    pub file: AllocationId,
}

/// The memfd, shared with the service manager's store.
#[derive(Debug)]
pub struct Book {
    file: File,
    /// Entries that are free, lowest last, below `length`.
    free: Vec<u64>,
    length: u64,
}

impl Book {
    /// An empty one.
    ///
    /// # Errors
    /// When there is no memory or no fd for it.
    pub fn create() -> io::Result<Self> {
        let file = File::from(memfd_create("fdbroker-keep-book", MFdFlags::MFD_CLOEXEC)?);
        let mut head = [0; RECORD_BYTES];
        head[..8].copy_from_slice(&MAGIC);
        file.write_all_at(&head, 0)?;
        Ok(Book { file, free: Vec::new(), length: 1 })
    }

    /// The book of a process before this one; `None`: the memfd is no book.
    pub fn adopt(fd: OwnedFd) -> Option<Self> {
        let file = File::from(fd);
        let bytes = file.metadata().ok()?.len();
        let mut magic = [0; 8];
        file.read_exact_at(&mut magic, 0).ok()?;
        let length = bytes / RECORD_BYTES as u64;
        (magic == MAGIC).then_some(Book { file, free: Vec::new(), length })
    }

    /// Every entry with its number. Entries that are empty or damaged become free.
    pub fn read(&mut self) -> Vec<(u64, Entry)> {
        let mut found = Vec::new();
        self.free.clear();
        for record in (1..self.length).rev() {
            let mut bytes = [0; RECORD_BYTES];
            let read = self.file.read_exact_at(&mut bytes, record * RECORD_BYTES as u64);
            match read.ok().and_then(|()| decode(&bytes)) {
                Some(entry) => found.push((record, entry)),
                None => self.free.push(record),
            }
        }
        found
    }

    /// Adds an entry; its number.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn write(&mut self, entry: &Entry) -> io::Result<u64> {
        let record = self.free.last().copied().unwrap_or(self.length);
        self.file.write_all_at(&encode(entry)?, record * RECORD_BYTES as u64)?;
        match self.free.pop() {
            Some(_) => {}
            None => self.length += 1,
        }
        Ok(record)
    }

    /// Replaces an entry. It lies within a page, so that a kill comes before or after the write,
    /// not in it.
    ///
    /// # Errors
    /// When it cannot be written: the former one stays.
    pub fn rewrite(&self, record: u64, entry: &Entry) -> io::Result<()> {
        self.file.write_all_at(&encode(entry)?, record * RECORD_BYTES as u64)
    }

    /// Removes an entry.
    pub fn clear(&mut self, record: u64) {
        match self.file.write_all_at(&[0; RECORD_BYTES], record * RECORD_BYTES as u64) {
            Ok(()) => self.free.push(record),
            // Its fd leaves the store, so it counts for nothing.
            Err(error) => log::error!("an entry of the keep book stays: {error}"),
        }
    }
}

impl AsFd for Book {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn encode(entry: &Entry) -> io::Result<[u8; RECORD_BYTES]> {
    let mut bytes = [0; RECORD_BYTES];
    let body = postcard::to_slice(&Saved::from(entry), &mut bytes[RECORD_HEAD_BYTES..]);
    let body = body.map_err(io::Error::other)?;
    let (length, sum) = (body.len() as u32, checksum(body));
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes[4..RECORD_HEAD_BYTES].copy_from_slice(&sum.to_le_bytes());
    Ok(bytes)
}

fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<Entry> {
    let (head, rest) = bytes.split_at(RECORD_HEAD_BYTES);
    let length = u32::from_le_bytes(head[..4].try_into().ok()?) as usize;
    let sum = u64::from_le_bytes(head[4..].try_into().ok()?);
    let body = rest.get(..length).filter(|body| !body.is_empty() && checksum(body) == sum)?;
    postcard::from_bytes::<Saved>(body).ok()?.to_entry()
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(bytes);
    hasher.finish()
}

/// An [`Entry`] as it is written.
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
    virtual_fd: bool,
    file_slot: u32,
    file_generation: u32,
    /// Key and name.
    job: Option<(u64, String)>,
}

impl From<&Entry> for Saved {
    fn from(entry: &Entry) -> Self {
        let Entry { kept: Kept { id, domain, gid, job, deposit }, file } = entry;
        let (facts, data) = (deposit.facts, deposit.driver_data.as_ref());
        Saved {
            slot: id.slot,
            generation: id.generation,
            listener: domain.listener,
            uid: domain.uid,
            gid: *gid,
            kind: facts.kind as u8,
            share: deposit.share as u8,
            recallable: deposit.recallable,
            device: facts.device,
            size_bytes: facts.size_bytes,
            fd_offset: facts.fd_offset,
            owner_allocation_id: facts.owner_allocation_id,
            base: deposit.base,
            driver_data: data.map_or(Vec::new(), |(length, it)| it[..usize::from(*length)].into()),
            virtual_fd: deposit.virtual_fd,
            file_slot: file.slot,
            file_generation: file.generation,
            job: job.map(|(key, name)| (key.0, name.as_str().to_owned())),
        }
    }
}

impl Saved {
    fn to_entry(&self) -> Option<Entry> {
        let driver_data = match self.driver_data.len() {
            0 => None,
            length => {
                let mut data = [0; fdbroker_protocol::limits::DRIVER_DATA_BYTES];
                data.get_mut(..length)?.copy_from_slice(&self.driver_data);
                Some((u8::try_from(length).ok()?, data))
            }
        };
        let kept = Kept {
            id: AllocationId { slot: self.slot, generation: self.generation },
            domain: DomainKey { listener: self.listener, uid: self.uid },
            gid: self.gid,
            job: self.job.as_ref().map(|(key, name)| (JobKey(*key), JobName::new(name))),
            deposit: Deposit {
                checked: Ok(()),
                lane: Lane::Accepted,
                file: None,
                facts: Facts {
                    kind: MemoryKind::from_number(self.kind)?,
                    device: self.device,
                    size_bytes: self.size_bytes,
                    fd_offset: self.fd_offset,
                    owner_allocation_id: self.owner_allocation_id,
                },
                share: Share::from_number(self.share)?,
                recallable: self.recallable,
                keep: true,
                base: self.base,
                driver_data,
                virtual_fd: self.virtual_fd,
            },
        };
        let file = AllocationId { slot: self.file_slot, generation: self.file_generation };
        Some(Entry { kept, file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fdbroker_protocol::limits::JOB_NAME_BYTES;

    fn entry(slot: u32, data: usize) -> Entry {
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
            virtual_fd: true,
            file_slot: u32::MAX,
            file_generation: u32::MAX,
            job: Some((u64::MAX, "j".repeat(JOB_NAME_BYTES))),
        }
        .to_entry()
        .unwrap()
    }

    #[test]
    fn book_when_read_again_then_what_was_written_and_not_cleared() {
        let mut book = Book::create().unwrap();
        let records: Vec<u64> = (0..5).map(|n| book.write(&entry(n, 64)).unwrap()).collect();
        book.clear(records[1]);
        book.clear(records[3]);
        let again = book.write(&entry(9, 0)).unwrap();
        assert!(again == records[1] || again == records[3], "free entries are used again");
        let mut book = Book::adopt(book.file.try_clone().unwrap().into()).unwrap();
        let mut slots: Vec<u32> = book.read().iter().map(|(_, entry)| entry.kept.id.slot).collect();
        slots.sort_unstable();
        assert_eq!(slots, [0, 2, 4, 9]);
        assert_eq!(book.free.len(), 1);
        assert_eq!(book.read()[3].1, entry(0, 64));
    }

    #[test]
    fn rewrite_when_read_again_then_the_new_one_in_its_place_alone() {
        let mut book = Book::create().unwrap();
        let records: Vec<u64> = (0..3).map(|n| book.write(&entry(n, 64)).unwrap()).collect();
        let mut other = entry(1, 0);
        other.kept.job = None;
        book.rewrite(records[1], &other).unwrap();
        let found: Vec<Entry> = book.read().into_iter().rev().map(|(_, entry)| entry).collect();
        assert_eq!(found, [entry(0, 64), other, entry(2, 64)]);
    }

    #[test]
    fn decode_when_any_byte_is_changed_then_none() {
        let good = encode(&entry(3, 64)).unwrap();
        let used = RECORD_HEAD_BYTES + u32::from_le_bytes(good[..4].try_into().unwrap()) as usize;
        for index in 0..used {
            let mut bad = good;
            bad[index] ^= 1;
            assert!(decode(&bad).is_none(), "byte {index}");
        }
        assert_eq!(decode(&good), Some(entry(3, 64)));
    }

    #[test]
    fn adopt_when_it_is_no_book_then_none() {
        let other = memfd_create("test", MFdFlags::MFD_CLOEXEC).unwrap();
        assert!(Book::adopt(other).is_none());
    }
}
