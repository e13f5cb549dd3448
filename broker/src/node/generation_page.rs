//! The generation page, which clients map read-only, its head on file, and the node key beside
//! that. Must never let a generation be given out twice, show a slot as live before the rest of the
//! page is true, nor need room on file for what clients keep.

use crate::kernel::{self, RobustListHead};
use crate::limits::THREAD_STACK_BYTES;
use crate::node::lock::Shown;
use crate::node::names::{KEY_NAME, PAGE_MEMFD, PAGE_NAME, RECORDS_NAME};
use crate::node::records::Records;
use crate::node::shared_map::{
    SharedMap, allocate, create_aside, create_whole, is_ours, open_own, remove,
};
use fdbroker_core::{Allocation, Core, FileId, FormerLife, FormerSlot, Record, State};
use fdbroker_protocol::page::{
    FUTEX_OWNER_DIED, LAST_GENERATION, LIVENESS_OFFSET, PAGE_HEADER_BYTES, PAGE_MAGIC,
    PAGE_VERSION, PageHeader, UNCONFIRMED, generation_offset, page_bytes,
};
use fdbroker_protocol::{AllocationId, ErrorCode, NodeKey};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use zerocopy::FromBytes;

/// A file of the administrator's directory cannot be made or read.
#[derive(Debug, thiserror::Error)]
#[error("cannot prepare {path}: {source}; {}", remedy(source))]
pub struct PageError {
    /// Of the file.
    pub path: PathBuf,
    /// What the system call says.
    pub source: io::Error,
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "make room on the file system of its directory, or lower limits.max_slots: each slot takes 96 bytes there"
        }
        _ => "check the owner and the modes of its directory",
    }
}

/// The page, mapped for writing; the only way to write it.
#[derive(Debug)]
pub struct GenerationPage {
    map: SharedMap,
    /// What the next broker goes on from: a header like the page's, in a file that no client has.
    head: SharedMap,
    slots: u32,
    records: Records,
    reader: OwnedFd,
    incarnation: u64,
    first_generation: u32,
    liveness: Option<LivenessThread>,
}

/// What stands in the administrator's directory when a broker starts.
#[derive(Debug)]
pub struct Opened {
    /// Of the node.
    pub key: NodeKey,
    /// The page of this start.
    pub page: GenerationPage,
    /// What the broker before this one knew of its slots; generations are below
    /// [`GenerationPage::first_generation`]. The page shows none of them, until
    /// [`GenerationPage::take_up`].
    pub former: Vec<FormerSlot>,
}

/// Opens key and head in `directory`, or makes both anew when either is missing or of another
/// layout. No other broker uses them: the caller holds the directory's lock.
///
/// The page is a new one: a client that still maps the former one sees its broker dead for ever,
/// whatever the new one finds out about its slots. It is memory without a file system: that of the
/// directory may be full, and a former page has its space for as long as any process keeps it.
///
/// # Errors
/// See [`PageError`].
pub fn open(directory: &Path, max_slots: u32) -> Result<Opened, PageError> {
    let key_path = directory.join(KEY_NAME);
    let (page_path, records_path) = (directory.join(PAGE_NAME), directory.join(RECORDS_NAME));
    let mut former = FormerPage::open(&page_path);
    let (key, high) = match read_key(&key_path).zip(former.as_ref()) {
        Some((key, page)) if page.high() < LAST_GENERATION => (key, page.high()),
        _ => {
            // The records go before the new key comes: its generations begin anew, and former
            // records would count again.
            remove(&records_path).map_err(failed(&records_path))?;
            (make_key(&key_path).map_err(failed(&key_path))?, 0)
        }
    };
    let records = match Records::open(&records_path, max_slots).map_err(failed(&records_path))? {
        Some(records) if records.slots() == max_slots => Ok(records),
        former => Records::create(&records_path, max_slots, former.as_ref()),
    };
    let records = records.map_err(failed(&records_path))?;
    let slots = records.former(high);
    let head = match former.take_if(|page| page.is_head) {
        Some(page) => Ok(page.file),
        None => make_head(&page_path),
    };
    let page = head.and_then(|head| GenerationPage::create(&head, max_slots, high, records));
    Ok(Opened { key, page: page.map_err(failed(&page_path))?, former: slots })
}

/// Opens key and head to go on with them and with the page `reader` as they are, on behalf of a
/// broker that has handed over. `None`: another broker made them.
///
/// # Errors
/// See [`PageError`].
pub fn resume(
    directory: &Path,
    reader: OwnedFd,
    slots: u32,
    incarnation: u64,
) -> Result<Option<(NodeKey, GenerationPage)>, PageError> {
    let page_path = directory.join(PAGE_NAME);
    let Some(key) = read_key(&directory.join(KEY_NAME)) else { return Ok(None) };
    let Some(former) = FormerPage::open(&page_path) else { return Ok(None) };
    let (high, header) = (former.high(), &former.header);
    if (header.slots, header.incarnation) != (slots, incarnation) || high == LAST_GENERATION {
        return Ok(None);
    }
    let records =
        Records::open(&directory.join(RECORDS_NAME), slots).map_err(failed(&page_path))?;
    let Some(records) = records.filter(|records| records.slots() == slots) else {
        return Ok(None);
    };
    let go_on = || -> io::Result<Option<GenerationPage>> {
        let reader = File::from(reader);
        let found = reader.metadata()?;
        if !found.is_file() || !is_ours(&found) || found.len() != page_bytes(slots) as u64 {
            return Ok(None);
        }
        let map = SharedMap::new(&open_own(&reader, true)?, page_bytes(slots))?;
        let head = SharedMap::new(&former.file, PAGE_HEADER_BYTES)?;
        Ok(Some(GenerationPage::new(map, head, reader.into(), (incarnation, high), records)))
    };
    Ok(go_on().map_err(failed(&page_path))?.map(|page| (key, page)))
}

/// What the liveness word of the head says; where its owner was killed, the kernel has marked it.
pub fn shown(directory: &Path) -> Shown {
    match FormerPage::open(&directory.join(PAGE_NAME))
        .map_or(0, |page| page.header.liveness.into_inner())
    {
        0 => Shown::Nobody,
        word if word & FUTEX_OWNER_DIED != 0 => Shown::Killed,
        _ => Shown::Alive,
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> PageError {
    let path = path.to_owned();
    move |source| PageError { path, source }
}

impl GenerationPage {
    fn create(head: &File, slots: u32, high: u32, records: Records) -> io::Result<Self> {
        let file = File::from(memfd_create(PAGE_MEMFD, MFdFlags::MFD_CLOEXEC)?);
        // Before anybody has it: who may write what a memfd has is up to its mode alone.
        file.set_permissions(Permissions::from_mode(0o600))?;
        allocate(&file, page_bytes(slots))?;
        let map = SharedMap::new(&file, page_bytes(slots))?;
        let head = SharedMap::new(head, PAGE_HEADER_BYTES)?;
        let incarnation = u64::from_ne_bytes(kernel::random()?) | 1;
        let high_at = offset_of!(PageHeader, generation_high);
        for map in [&map, &head] {
            // The one word of the head that a start after this one must find, if this broker is
            // killed here.
            map.word(high_at).store(high, Ordering::Relaxed);
            let header: *mut PageHeader = map.start().as_ptr().cast();
            // SAFETY: the header lies within the map, which nobody else has yet, or which this
            // broker alone writes: it has the directory's lock.
            unsafe {
                (&raw mut (*header).magic).write(PAGE_MAGIC);
                (&raw mut (*header).version).write(PAGE_VERSION);
                (&raw mut (*header).slots).write(slots);
                (&raw mut (*header).incarnation).write(incarnation);
            }
        }
        let reader = open_own(&file, false)?.into();
        Ok(Self::new(map, head, reader, (incarnation, high), records))
    }

    fn new(
        map: SharedMap,
        head: SharedMap,
        reader: OwnedFd,
        (incarnation, high): (u64, u32),
        records: Records,
    ) -> Self {
        map.lock();
        let (slots, first_generation) = (records.slots(), high + 1);
        let liveness = None;
        GenerationPage {
            map,
            head,
            slots,
            records,
            reader,
            incarnation,
            first_generation,
            liveness,
        }
    }

    /// Shows what a core has made of the slots of a former broker.
    pub fn take_up(&self, former: &[FormerSlot], core: &Core) {
        for FormerSlot { id, life } in former {
            let is_reserved = |it: &Allocation| it.state == State::Reserved;
            let shown = match core.end_of(*id) {
                None if core.allocation(*id).is_some_and(is_reserved) => UNCONFIRMED,
                None => id.generation,
                Some(code) => {
                    if !matches!(life, FormerLife::Ended(_)) {
                        self.records.end(*id, code, core.is_ended_here(*id));
                    }
                    0
                }
            };
            self.map.word(generation_offset(id.slot)).store(shown, Ordering::Release);
        }
    }

    /// Shows the broker as alive, from now until this process ends, however it ends. Starts a
    /// thread.
    ///
    /// # Errors
    /// Those of starting a thread and of set_robust_list(2).
    pub fn show_alive(&mut self) -> io::Result<()> {
        self.liveness = Some(LivenessThread::start([&self.map, &self.head])?);
        Ok(())
    }

    /// Remembers what the core knows of a slot's last allocation, then writes its live generation,
    /// 0 = none. `false`: there is no such slot.
    #[must_use]
    pub fn publish(&self, slot: u32, generation: u32, core: &Core) -> bool {
        if slot >= self.slots {
            return false;
        }
        let last = self.records.last(slot);
        let id = if generation == 0 { last } else { AllocationId { slot, generation } };
        match core.record(slot).filter(|(known, _)| *known == id && generation != 0) {
            Some((_, record)) => self.records.live(id, &record),
            // It has ended, maybe in the same step.
            None => self.note_end(id, core),
        }
        let high = self.head.word(offset_of!(PageHeader, generation_high));
        // One writer: no need for a read-modify-write. Before the slot, so that a crash between the
        // two forgets nothing.
        if generation > high.load(Ordering::Relaxed) {
            high.store(generation, Ordering::Release);
        }
        self.map.word(generation_offset(slot)).store(generation, Ordering::Release);
        true
    }

    /// Remembers the file of the fd of a slot's last allocation.
    pub fn note_file(&self, slot: u32, file: Option<FileId>) {
        if slot < self.slots {
            self.records.note_file(slot, file);
        }
    }

    /// What a former broker knew of the last allocation of each slot with a file: that file, too.
    pub fn former(&self) -> impl Iterator<Item = (AllocationId, Record, FileId)> {
        (0..self.records.used()).filter_map(|slot| {
            let (file, record) = (self.records.file(slot)?, self.records.record(slot)?);
            Some((self.records.last(slot), record, file))
        })
    }

    /// Remembers that the owner of an ended allocation has been told of its drain.
    pub fn note_drained(&self, id: AllocationId, core: &Core) {
        if self.records.last(id.slot) == id {
            self.note_end(id, core);
        }
    }

    fn note_end(&self, id: AllocationId, core: &Core) {
        let code = core.end_of(id).unwrap_or(ErrorCode::Stale);
        self.records.end(id, code, core.is_ended_here(id));
    }

    /// The page as clients get it: an fd that can only be read.
    pub fn reader(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }

    /// Random per start; a broker that goes on for another one keeps it.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Above every generation given out on this page before this start.
    pub fn first_generation(&self) -> u32 {
        self.first_generation
    }

    /// Number of slots.
    pub fn slots(&self) -> u32 {
        self.slots
    }
}

impl Drop for GenerationPage {
    fn drop(&mut self) {
        // Before the maps go.
        self.liveness.take();
    }
}

/// The head that an earlier broker left, checked.
struct FormerPage {
    file: File,
    header: PageHeader,
    /// No client has it. Older brokers had the whole page there.
    is_head: bool,
}

impl FormerPage {
    fn open(path: &Path) -> Option<Self> {
        let mut file = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path)
            .ok()?;
        let mut bytes = [0; size_of::<PageHeader>()];
        file.read_exact(&mut bytes).ok()?;
        let header = PageHeader::read_from_bytes(&bytes).ok()?;
        let found = file.metadata().ok()?;
        let is_head = found.len() == PAGE_HEADER_BYTES as u64;
        let is_page = (header.magic, header.version) == (PAGE_MAGIC, PAGE_VERSION)
            && (is_head || found.len() == page_bytes(header.slots) as u64);
        (is_ours(&found) && is_page).then_some(FormerPage { file, header, is_head })
    }

    /// The highest generation that it knows.
    fn high(&self) -> u32 {
        self.header.generation_high.load(Ordering::Relaxed)
    }
}

fn read_key(path: &Path) -> Option<NodeKey> {
    let mut file = File::options().read(true).custom_flags(libc::O_NOFOLLOW).open(path).ok()?;
    let found = file.metadata().ok()?;
    let mut bytes = [0; NodeKey::BYTES];
    (is_ours(&found) && found.len() == NodeKey::BYTES as u64).then_some(())?;
    file.read_exact(&mut bytes).ok()?;
    Some(NodeKey::from_bytes(bytes))
}

/// A new file for the head, in the place of what is there.
fn make_head(path: &Path) -> io::Result<File> {
    let aside = path.with_extension("new");
    let file = create_whole(&aside, PAGE_HEADER_BYTES)?;
    std::fs::rename(&aside, path)?;
    Ok(file)
}

fn make_key(path: &Path) -> io::Result<NodeKey> {
    let bytes = kernel::random::<{ NodeKey::BYTES }>()?;
    let aside = path.with_extension("new");
    create_aside(&aside)?.write_all(&bytes)?;
    std::fs::rename(&aside, path)?;
    Ok(NodeKey::from_bytes(bytes))
}

/// The owner of the liveness words, of page and head: a thread that sleeps until the daemon ends.
/// The kernel marks them when the thread dies, and on SIGKILL all threads die.
#[derive(Debug)]
struct LivenessThread {
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl LivenessThread {
    fn start(maps: [&SharedMap; 2]) -> io::Result<Self> {
        let starts = maps.map(|map| map.start().as_ptr() as usize);
        let (end, ended) = mpsc::channel::<()>();
        let (report, started) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("liveness".into())
            .stack_size(THREAD_STACK_BYTES)
            .spawn(move || {
                kernel::leave_fd_table(false);
                // SAFETY: page and head stay mapped until this thread has been joined:
                // `GenerationPage` drops it first.
                let liveness = unsafe { own_liveness(starts) };
                let started = liveness.as_ref().map(|_| ()).map_err(io::Error::raw_os_error);
                let _ = report.send(started);
                if let Ok(liveness) = liveness {
                    // Returns when the sender is dropped.
                    let _ = ended.recv();
                    liveness.give_up();
                }
            })?;
        let this = LivenessThread { end: Some(end), thread: Some(thread) };
        match started.recv() {
            Ok(Ok(())) => Ok(this),
            Ok(Err(errno)) => Err(io::Error::from_raw_os_error(errno.unwrap_or(libc::EINVAL))),
            Err(_) => Err(io::Error::other("the liveness thread has died")),
        }
    }
}

impl Drop for LivenessThread {
    fn drop(&mut self) {
        self.end.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The liveness words as their owner has them.
struct Liveness {
    words: [&'static AtomicU32; 2],
    head: &'static RobustListHead,
}

impl Liveness {
    /// Ends the ownership, unless a successor has taken the words over already: then they stay as
    /// the successor wants them.
    fn give_up(self) {
        // The entries in the page may be the successor's by now: the kernel must not follow them
        // here.
        self.head.first.store(std::ptr::from_ref(self.head) as u64, Ordering::Release);
        let ours = kernel::thread_id();
        for word in self.words {
            let _ = word.compare_exchange(ours, 0, Ordering::Release, Ordering::Relaxed);
        }
    }
}

/// Makes the calling thread the owner of the liveness words of the headers mapped at `starts`.
///
/// # Safety
/// Whole page headers are mapped there for writing, longer than the calling thread lives.
unsafe fn own_liveness(starts: [usize; 2]) -> io::Result<Liveness> {
    let entries = starts.map(|start| start + offset_of!(PageHeader, robust_list_entry));
    let futex_offset = LIVENESS_OFFSET as i64 - offset_of!(PageHeader, robust_list_entry) as i64;
    // Never freed: the kernel reads it when the thread has ended, after all its destructors.
    let first = AtomicU64::new(entries[0] as u64);
    let head: &'static RobustListHead =
        Box::leak(Box::new(RobustListHead { first, futex_offset, pending: 0 }));
    let head_address = &raw const *head as u64;
    for (entry, next) in entries.into_iter().zip([entries[1] as u64, head_address]) {
        // SAFETY: by this function's contract. The entries are read by the kernel alone, in this
        // process: the last one closes the circle.
        unsafe { (entry as *mut u64).write_volatile(next) };
    }
    // SAFETY: by this function's contract; the words are only ever accessed atomically.
    let words: [&'static AtomicU32; 2] =
        starts.map(|start| unsafe { AtomicU32::from_ptr((start + LIVENESS_OFFSET) as *mut u32) });
    // SAFETY: the head is never freed, the entries are mapped for as long as the thread lives, and
    // the thread locks nothing but what the standard library's channel needs, which is no robust
    // mutex.
    unsafe { kernel::set_robust_list(head) }?;
    words.iter().for_each(|word| word.store(kernel::thread_id(), Ordering::Release));
    Ok(Liveness { words, head })
}
