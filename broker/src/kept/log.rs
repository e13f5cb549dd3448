//! The table of what is kept as a log in one memfd, which outlives a broker that is killed in the
//! middle of any write: two areas, of which one is in use, and a word in the head that says which,
//! and how much of it is written. That word is written last, so what was not finished does not
//! exist. The areas are large, and only what is written of them takes memory. Must never be
//! believed: each record has its checksum, and so have the words.

use crate::limits::KEPT_LOG_ALLOCATED_AHEAD;
use crate::node::names::KEPT_LOG_MEMFD;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use siphasher::sip::SipHasher13;
use std::fs::File;
use std::hash::Hasher;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// First eight bytes; another format is another magic.
const MAGIC: [u8; 8] = *b"FDBKEPT4";
/// Bytes of the head: a page, so that no write of a word crosses one.
const HEAD_BYTES: u64 = 4096;
/// Where in the head the words are, each with its checksum behind it.
const COMMIT_AT: u64 = 32;
const VERSIONS_AT: u64 = 64;
/// Before the bytes of a record: its length, and its checksum.
const FRAME_BYTES: usize = 12;

const SEALS: SealFlag =
    SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW).union(SealFlag::F_SEAL_SEAL);

/// Why a memfd is not the log of a broker before this one.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Read(#[from] io::Error),
    /// It is none, or of another format.
    #[error("it is no table, or one of another format")]
    Format,
    /// It has been changed by nobody who may.
    #[error("it is damaged at byte {0}")]
    Damaged(u64),
    /// A newer broker may have written it.
    #[error("a record of it is none")]
    Record,
}

/// The log that is written.
#[derive(Debug)]
pub struct Log {
    file: Space,
    area_bytes: u32,
    /// Counts the changes of the area; its lowest bit says which one is in use.
    generation: u32,
    /// Bytes in use, those that are not committed included.
    written: u32,
    committed: u32,
    /// Bytes of each area, from its begin on, that may have memory.
    allocated: [u32; 2],
    /// Bytes of the other area that are written, while it is being filled.
    next: Option<u32>,
    /// Versions up to this one may have been given.
    versions: u64,
}

/// Bytes that a record takes.
pub fn bytes_of(payload: usize) -> u64 {
    (FRAME_BYTES + payload) as u64
}

impl Log {
    /// An empty one of two areas of this size, which take no memory yet.
    ///
    /// # Errors
    /// When there is no memory or no fd for it.
    pub fn create(area_bytes: u32) -> io::Result<Self> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = File::from(memfd_create(KEPT_LOG_MEMFD, flags)?);
        file.set_len(bytes_in_all(area_bytes))?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS))?;
        let mut log = Log {
            file: Space::new(file),
            area_bytes,
            generation: 0,
            written: 0,
            committed: 0,
            allocated: [0; 2],
            next: None,
            versions: 0,
        };
        log.write_word(COMMIT_AT, 0)?;
        log.write_word(VERSIONS_AT, 0)?;
        log.file.write(&head(area_bytes), 0)?;
        Ok(log)
    }

    /// Whether it is a memfd, sealed as a log is: closing it takes no time.
    pub fn can_be(fd: BorrowedFd<'_>) -> bool {
        let seals = fcntl(fd, FcntlArg::F_GET_SEALS);
        seals.is_ok_and(|seals| SealFlag::from_bits_retain(seals).contains(SEALS))
    }

    /// The log of a broker before, and the bytes of its records: see [`payloads`].
    ///
    /// # Errors
    /// See [`LogError`]; nothing of it can be used then.
    pub fn adopt(fd: OwnedFd) -> Result<(Self, Vec<u8>), LogError> {
        if !Self::can_be(fd.as_fd()) {
            return Err(LogError::Format);
        }
        let file = File::from(fd);
        let mut found = [0; 24];
        file.read_exact_at(&mut found, 0)?;
        let area_bytes = u64::from_le_bytes(found[8..16].try_into().expect("8 bytes"));
        let area_bytes = u32::try_from(area_bytes).map_err(|_| LogError::Format)?;
        let is_whole = file.metadata()?.len() == bytes_in_all(area_bytes);
        if found != head(area_bytes) || !is_whole {
            return Err(LogError::Format);
        }
        let (commit, versions) = (read_word(&file, COMMIT_AT)?, read_word(&file, VERSIONS_AT)?);
        let (generation, length) = ((commit >> 32) as u32, (commit & 0xffff_ffff) as u32);
        if length > area_bytes {
            return Err(LogError::Damaged(COMMIT_AT));
        }
        let mut bytes = vec![0; length as usize];
        let begin = begin_of(generation, area_bytes);
        file.read_exact_at(&mut bytes, begin)?;
        let log = Log {
            file: Space::new(file),
            area_bytes,
            generation,
            written: length,
            committed: length,
            // Nobody knows how much of the areas was written.
            allocated: [area_bytes; 2],
            next: None,
            versions,
        };
        check(&bytes, generation).map_err(|at| LogError::Damaged(begin + at as u64))?;
        Ok((log, bytes))
    }

    /// Bytes of an area.
    pub fn area_bytes(&self) -> u64 {
        self.area_bytes.into()
    }

    /// Bytes of the area in use that are written.
    pub fn written(&self) -> u64 {
        self.written.into()
    }

    /// Bytes of the other area that are to be [given back](Self::give_back).
    pub fn stale(&self) -> u64 {
        if self.has_next() {
            0
        } else {
            self.allocated[area_of(self.generation.wrapping_add(1))].into()
        }
    }

    /// Makes sure that so many bytes more can be written: the memory for them is there.
    ///
    /// # Errors
    /// `StorageFull`: the area has no room for them; or when there is no memory for them.
    pub fn allocate(&mut self, bytes: u64) -> io::Result<()> {
        let end = self.written() + bytes;
        if end > self.area_bytes() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let area = area_of(self.generation);
        let allocated = u64::from(self.allocated[area]);
        if end > allocated {
            let end = (end + KEPT_LOG_ALLOCATED_AHEAD).min(self.area_bytes());
            let begin = begin_of(self.generation, self.area_bytes) + allocated;
            self.file.change(FallocateFlags::FALLOC_FL_KEEP_SIZE, begin, end - allocated)?;
            self.allocated[area] = u32::try_from(end).unwrap_or(self.area_bytes);
        }
        Ok(())
    }

    /// Gives the memory of the other area back, so many bytes of it at most. Not while it is being
    /// filled.
    ///
    /// # Errors
    /// When it cannot be given back.
    pub fn give_back(&mut self, most: u64) -> io::Result<()> {
        let left = self.stale().saturating_sub(most);
        let other = self.generation.wrapping_add(1);
        let begin = begin_of(other, self.area_bytes) + left;
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        // To its end: a page is only given back whole.
        self.file.change(hole, begin, self.area_bytes() - left)?;
        self.allocated[area_of(other)] = u32::try_from(left).unwrap_or(self.area_bytes);
        Ok(())
    }

    /// Appends a record, which exists once it is [committed](Self::commit).
    ///
    /// # Errors
    /// `StorageFull`: there is no room for it.
    pub fn append(&mut self, payload: &[u8]) -> io::Result<()> {
        self.written = self.put(payload, self.generation, self.written)?;
        Ok(())
    }

    /// All records that were appended exist from now on.
    ///
    /// # Errors
    /// When it cannot be written: none of them exists.
    pub fn commit(&mut self) -> io::Result<()> {
        if self.written == self.committed {
            return Ok(());
        }
        self.write_word(COMMIT_AT, word_of(self.generation, self.written))?;
        self.committed = self.written;
        Ok(())
    }

    /// Begins to fill the other area.
    pub fn begin_next(&mut self) {
        self.next = Some(0);
    }

    /// Whether the other area is being filled.
    pub fn has_next(&self) -> bool {
        self.next.is_some()
    }

    /// Appends a record to the other area.
    ///
    /// # Errors
    /// `StorageFull`: there is no room for it.
    pub fn append_next(&mut self, payload: &[u8]) -> io::Result<()> {
        let at = self.next.unwrap_or(0);
        self.next = Some(self.put(payload, self.generation.wrapping_add(1), at)?);
        Ok(())
    }

    /// The other area alone is in use from now on.
    ///
    /// # Errors
    /// When it cannot be written: the former one stays in use.
    pub fn flip(&mut self) -> io::Result<()> {
        let (generation, length) = (self.generation.wrapping_add(1), self.next.unwrap_or(0));
        self.write_word(COMMIT_AT, word_of(generation, length))?;
        (self.generation, self.written, self.committed) = (generation, length, length);
        self.next = None;
        Ok(())
    }

    /// What is in the other area is of no use.
    pub fn give_up_next(&mut self) {
        self.next = None;
    }

    /// Versions up to this one may have been given.
    pub fn versions(&self) -> u64 {
        self.versions
    }

    /// Versions up to this one may be given from now on.
    ///
    /// # Errors
    /// When it cannot be written: they may not.
    pub fn reserve_versions(&mut self, up_to: u64) -> io::Result<()> {
        self.write_word(VERSIONS_AT, up_to)?;
        self.versions = up_to;
        Ok(())
    }

    /// Writes a record into the area of a generation; where it ends.
    fn put(&mut self, payload: &[u8], generation: u32, at: u32) -> io::Result<u32> {
        let end = u64::from(at) + bytes_of(payload.len());
        let end = u32::try_from(end).ok().filter(|end| *end <= self.area_bytes);
        let end = end.ok_or(io::ErrorKind::StorageFull)?;
        let mut record = Vec::with_capacity(FRAME_BYTES + payload.len());
        record.extend(u32::try_from(payload.len()).map_err(io::Error::other)?.to_le_bytes());
        record.extend(checksum(generation, at, payload).to_le_bytes());
        record.extend(payload);
        let allocated = &mut self.allocated[area_of(generation)];
        *allocated = end.max(*allocated);
        self.file.write(&record, begin_of(generation, self.area_bytes) + u64::from(at))?;
        Ok(end)
    }

    /// Writes a word of the head with its checksum. Both lie within a page, so that a kill comes
    /// before or after the write.
    fn write_word(&mut self, at: u64, word: u64) -> io::Result<()> {
        self.file.write(&with_sum(word), at)
    }
}

impl AsFd for Log {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.file.as_fd()
    }
}

/// The payloads of records, which have been checked.
pub fn payloads(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut left = bytes;
    std::iter::from_fn(move || {
        let (length, _, rest) = split(left)?;
        let (payload, rest) = rest.split_at_checked(length)?;
        left = rest;
        Some(payload)
    })
}

/// Length, checksum, and what follows them.
fn split(bytes: &[u8]) -> Option<(usize, u64, &[u8])> {
    let (frame, rest) = bytes.split_at_checked(FRAME_BYTES)?;
    let length = u32::from_le_bytes(frame[..4].try_into().ok()?) as usize;
    Some((length, u64::from_le_bytes(frame[4..].try_into().ok()?), rest))
}

/// Checks that these bytes are whole records of this generation; where they are not.
fn check(bytes: &[u8], generation: u32) -> Result<(), usize> {
    let mut at = 0;
    while at < bytes.len() {
        let record = split(&bytes[at..]).and_then(|(length, sum, rest)| {
            let payload = rest.get(..length)?;
            (checksum(generation, u32::try_from(at).ok()?, payload) == sum).then_some(length)
        });
        at += FRAME_BYTES + record.ok_or(at)?;
    }
    Ok(())
}

/// Also of where the record lies, so that one of an earlier use of the area is none.
fn checksum(generation: u32, at: u32, payload: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(generation.into(), at.into());
    hasher.write(payload);
    hasher.finish()
}

fn with_sum(word: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&word.to_le_bytes());
    bytes[8..].copy_from_slice(&checksum(0, 0, &word.to_le_bytes()).to_le_bytes());
    bytes
}

fn read_word(file: &File, at: u64) -> Result<u64, LogError> {
    let mut bytes = [0; 16];
    file.read_exact_at(&mut bytes, at)?;
    let word = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
    if bytes == with_sum(word) { Ok(word) } else { Err(LogError::Damaged(at)) }
}

fn head(area_bytes: u32) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..16].copy_from_slice(&u64::from(area_bytes).to_le_bytes());
    let sum = checksum(0, 0, &bytes[..16]);
    bytes[16..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn word_of(generation: u32, length: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(length)
}

fn area_of(generation: u32) -> usize {
    (generation & 1) as usize
}

fn begin_of(generation: u32, area_bytes: u32) -> u64 {
    HEAD_BYTES + area_of(generation) as u64 * u64::from(area_bytes)
}

fn bytes_in_all(area_bytes: u32) -> u64 {
    HEAD_BYTES + 2 * u64::from(area_bytes)
}

/// The file; tests see each write of it.
#[derive(Debug)]
struct Space {
    file: File,
    #[cfg(test)]
    writes: Vec<(u64, Vec<u8>)>,
}

impl Space {
    fn new(file: File) -> Self {
        Space {
            file,
            #[cfg(test)]
            writes: Vec::new(),
        }
    }

    fn write(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
        #[cfg(test)]
        self.writes.push((at, bytes.to_vec()));
        self.file.write_all_at(bytes, at)
    }

    /// Allocates these bytes, or gives their memory back.
    fn change(&self, how: FallocateFlags, at: u64, bytes: u64) -> io::Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let [at, bytes] = [at, bytes].map(i64::try_from);
        let (at, bytes) = (at.map_err(io::Error::other)?, bytes.map_err(io::Error::other)?);
        Ok(fallocate(&self.file, how, at, bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::KEPT_LOG_AREA_BYTES;

    const AREA: u32 = 4096;

    fn read(fd: BorrowedFd<'_>) -> Result<(Vec<Vec<u8>>, u64), LogError> {
        let (log, bytes) = Log::adopt(fd.try_clone_to_owned().unwrap())?;
        Ok((payloads(&bytes).map(<[u8]>::to_vec).collect(), log.versions()))
    }

    fn log_of(payloads: &[&[u8]]) -> Log {
        let mut log = Log::create(AREA).unwrap();
        payloads.iter().for_each(|payload| log.append(payload).unwrap());
        log.commit().unwrap();
        log
    }

    /// Another memfd with the same bytes.
    fn copy(log: &Log) -> File {
        let new = Log::create(AREA).unwrap();
        let mut bytes = vec![0; bytes_in_all(AREA) as usize];
        log.file.file.read_exact_at(&mut bytes, 0).unwrap();
        new.file.file.write_all_at(&bytes, 0).unwrap();
        new.file.file
    }

    #[test]
    fn adopt_when_committed_then_all_of_it_and_the_rest_does_not_exist() {
        let mut log = log_of(&[b"one", b"", b"three"]);
        log.reserve_versions(77).unwrap();
        log.append(b"not yet").unwrap();
        let expected: Vec<Vec<u8>> = vec![b"one".into(), b"".into(), b"three".into()];
        assert_eq!(read(log.as_fd()).unwrap(), (expected, 77));
        log.commit().unwrap();
        assert_eq!(read(log.as_fd()).unwrap().0.last().unwrap(), b"not yet");
    }

    #[test]
    fn append_when_there_is_no_room_then_storage_full_and_what_was_there_stays() {
        let mut log = log_of(&[&[7; 4000]]);
        let error = log.append(&[7; 100]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(log.append(&[7; 4096 - 4012 - 12]).is_ok(), "to the last byte");
        log.commit().unwrap();
        assert_eq!(read(log.as_fd()).unwrap().0.len(), 2);
    }

    /// Each state in which a kill can leave the log: a write to the head happens or does not, and
    /// any other can be cut.
    #[test]
    fn adopt_when_any_write_is_cut_anywhere_then_the_state_of_the_last_commit() {
        let mut log = log_of(&[b"first"]);
        let before = copy(&log);
        log.file.writes.clear();
        let mut states = vec![(read(log.as_fd()).unwrap(), 0)];
        let note = |log: &Log, states: &mut Vec<_>| {
            states.push((read(log.as_fd()).unwrap(), log.file.writes.len()));
        };
        log.append(b"second").unwrap();
        log.append(b"third").unwrap();
        log.commit().unwrap();
        note(&log, &mut states);
        log.begin_next();
        log.append_next(b"first").unwrap();
        log.append(b"fourth").unwrap();
        log.commit().unwrap();
        note(&log, &mut states);
        log.append_next(b"fourth").unwrap();
        log.flip().unwrap();
        note(&log, &mut states);
        log.reserve_versions(9).unwrap();
        note(&log, &mut states);
        // The first area again, over what lies there.
        log.begin_next();
        log.append_next(b"later").unwrap();
        log.flip().unwrap();
        note(&log, &mut states);
        log.append(b"last").unwrap();
        log.commit().unwrap();
        note(&log, &mut states);
        assert!(log.file.writes.len() > 10);
        for (done, (at, bytes)) in log.file.writes.iter().enumerate() {
            let (expected, _) = states.iter().rev().find(|(_, writes)| *writes <= done).unwrap();
            if *at >= HEAD_BYTES {
                for length in 0..bytes.len() {
                    before.write_all_at(&bytes[..length], *at).unwrap();
                    assert_eq!(read(before.as_fd()).unwrap(), *expected, "{done}, {length} bytes");
                }
            }
            before.write_all_at(bytes, *at).unwrap();
        }
        assert_eq!(read(before.as_fd()).unwrap(), states.last().unwrap().0);
    }

    #[test]
    fn adopt_when_any_byte_in_use_is_changed_then_refused_and_any_other_changes_nothing() {
        let mut log = log_of(&[b"one", b"second"]);
        log.append(b"not committed").unwrap();
        let good = read(log.as_fd()).unwrap();
        let in_use = |at: u64| {
            let is_word = |word: u64| (word..word + 16).contains(&at);
            let area = HEAD_BYTES..HEAD_BYTES + u64::from(log.committed);
            at < 24 || is_word(COMMIT_AT) || is_word(VERSIONS_AT) || area.contains(&at)
        };
        let file = copy(&log);
        for at in (0..200).chain(HEAD_BYTES..HEAD_BYTES + 200) {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            for bit in 0..8 {
                file.write_all_at(&[byte[0] ^ 1 << bit], at).unwrap();
                match read(file.as_fd()) {
                    Ok(found) => assert!(!in_use(at) && found == good, "byte {at}"),
                    Err(_) => assert!(in_use(at), "byte {at}"),
                }
            }
            file.write_all_at(&byte, at).unwrap();
        }
        assert_eq!(read(file.as_fd()).unwrap(), good);
    }

    fn memory_of(log: &Log) -> u64 {
        std::os::unix::fs::MetadataExt::blocks(&log.file.file.metadata().unwrap()) * 512
    }

    #[test]
    fn log_when_its_areas_are_large_then_memory_for_what_is_written_alone_and_back_after_a_flip() {
        let mut log = Log::create(KEPT_LOG_AREA_BYTES).unwrap();
        assert_eq!(memory_of(&log), HEAD_BYTES);
        let record = vec![7; 1 << 20];
        for _ in 0..8 {
            log.allocate(bytes_of(record.len())).unwrap();
            let allocated = memory_of(&log);
            log.append(&record).unwrap();
            assert_eq!(memory_of(&log), allocated, "nothing is missing when it is written");
        }
        log.commit().unwrap();
        log.begin_next();
        log.append_next(b"what lives").unwrap();
        log.flip().unwrap();
        assert!(log.stale() >= 8 << 20);
        while log.stale() > 0 {
            log.give_back(3 << 20).unwrap();
        }
        assert_eq!(memory_of(&log), HEAD_BYTES + 4096);
        assert_eq!(read(log.as_fd()).unwrap().0, [b"what lives"]);
        let error = log.allocate(KEPT_LOG_AREA_BYTES.into()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn give_back_when_adopted_or_given_up_then_all_of_the_other_area() {
        let mut log = log_of(&[b"one"]);
        log.begin_next();
        log.append_next(&[7; 3000]).unwrap();
        log.give_up_next();
        assert_eq!(memory_of(&log), HEAD_BYTES + 2 * 4096);
        let (mut adopted, _) = Log::adopt(log.as_fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(adopted.stale(), AREA.into());
        log.give_back(u64::MAX).unwrap();
        assert_eq!((memory_of(&log), log.stale()), (HEAD_BYTES + 4096, 0));
        adopted.give_back(u64::MAX).unwrap();
        assert_eq!(read(log.as_fd()).unwrap().0, [b"one"]);
    }

    #[test]
    fn adopt_when_it_is_no_log_then_refused() {
        let other = memfd_create("test", MFdFlags::MFD_CLOEXEC).unwrap();
        assert!(matches!(Log::adopt(other), Err(LogError::Format)));
        let pipe = nix::unistd::pipe().unwrap().0;
        assert!(matches!(Log::adopt(pipe), Err(LogError::Format)));
    }
}
