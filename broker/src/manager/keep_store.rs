//! Where fds of kept allocations outlive a broker that is killed: the service manager's store, one
//! by one, and beside them the keep book, a memfd that says what each is and is kept up in place.
//! Must never block, nor keep an fd that the core has given up, nor store the same open file twice:
//! systemd drops the second one without a word, whatever its name. A planned restart needs none of
//! it.

use crate::fds::table::FdTable;
use crate::kernel::{self, KernelFeatures};
use crate::limits::MANAGER_PATIENCE;
use crate::manager::inherited::names;
use crate::manager::keep_book::{Book, Entry};
use crate::manager::notify::{Manager, StoreError};
use fdbroker_core::Kept;
use fdbroker_protocol::AllocationId;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// The fds stored outside this process. Without a service manager there are none: kept allocations
/// then outlive their owner, not the broker.
#[derive(Debug)]
pub struct KeepStore {
    manager: Manager,
    features: KernelFeatures,
    /// `None`: there is no store.
    book: Option<Book>,
    /// By slot.
    stored: BTreeMap<u32, Stored>,
    /// By whose name they are stored under.
    files: BTreeMap<AllocationId, StoredFile>,
    /// The files of one inode number: a new fd is compared with these. Most files have a number of
    /// their own; all fds of a GPU driver's device share one, and then there are as many as may be
    /// kept.
    by_inode: HashMap<u64, Vec<AllocationId>>,
    /// What the service manager had no room for. Bounded: one for each allocation that may be kept,
    /// and one for each that was and is in the store still.
    pending: VecDeque<Pending>,
}

#[derive(Debug)]
struct Stored {
    file: AllocationId,
    record: u64,
}

/// One open file in the store, for all allocations whose fds are duplicates of each other (ranges
/// of one memfd).
#[derive(Debug)]
struct StoredFile {
    inode: u64,
    /// Entries of the book that name it; at 0 it leaves the store.
    users: usize,
    /// The slots of this broker among them: the fd of each is the file.
    slots: Vec<u32>,
}

#[derive(Debug)]
enum Pending {
    Store { file: AllocationId },
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
    file: AllocationId,
}

impl KeepStore {
    /// Goes on with `book`, or begins one; `fds` are what the store had, by name. Unknown ones
    /// leave the store, and are given back last, to be closed.
    pub fn open(
        manager: Manager,
        features: KernelFeatures,
        book: Option<OwnedFd>,
        fds: Vec<(String, OwnedFd)>,
    ) -> (Self, Vec<Found>, Vec<OwnedFd>) {
        let mut this = Self::new(manager, features);
        if !this.manager.has_store() {
            return (this, Vec::new(), fds.into_iter().map(|(_, fd)| fd).collect());
        }
        let former = book.and_then(Book::adopt);
        let is_new = former.is_none();
        let mut book = match former.map_or_else(Book::create, Ok) {
            Ok(book) => Some(book),
            Err(error) => {
                log::error!("kept allocations will not outlive a crash: {error}");
                None
            }
        };
        let mut fds: BTreeMap<String, OwnedFd> = fds.into_iter().collect();
        let mut found = Vec::new();
        if let Some(book) = &mut book {
            if is_new {
                // A book that was refused must not come back.
                let _ = this.manager.remove(names::KEEP_BOOK, MANAGER_PATIENCE);
                let fd = book.as_fd();
                if let Err(error) = this.manager.store(names::KEEP_BOOK, fd, MANAGER_PATIENCE) {
                    log::error!("kept allocations will not outlive a crash: {error}");
                }
            }
            found = this.find(book, &mut fds);
        }
        this.book = book;
        let unknown = fds.into_iter();
        let unknown = unknown.map(|(name, fd)| {
            this.pending.push_back(Pending::Remove { name });
            fd
        });
        let unknown = unknown.collect();
        (this, found, unknown)
    }

    fn new(manager: Manager, features: KernelFeatures) -> Self {
        KeepStore {
            manager,
            features,
            book: None,
            stored: BTreeMap::new(),
            files: BTreeMap::new(),
            by_inode: HashMap::new(),
            pending: VecDeque::new(),
        }
    }

    /// What the book names and the store has: out of `fds`, with one fd for each entry.
    fn find(&mut self, book: &mut Book, fds: &mut BTreeMap<String, OwnedFd>) -> Vec<Found> {
        let mut by_file: BTreeMap<AllocationId, Vec<(u64, Kept)>> = BTreeMap::new();
        for (record, Entry { kept, file }) in book.read() {
            by_file.entry(file).or_default().push((record, kept));
        }
        let mut found = Vec::new();
        for (file, entries) in by_file {
            let Some(fd) = fds.remove(&name_of(file)) else {
                entries.iter().for_each(|(record, _)| book.clear(*record));
                continue;
            };
            let inode = kernel::stat(fd.as_fd()).map_or(0, |stat| stat.inode);
            self.add_file(file, inode, entries.len());
            let mut original = Some(fd);
            for (left, (record, kept)) in (0..entries.len()).rev().zip(entries) {
                // The last one has the fd itself.
                let fd = match (left, &original) {
                    (1.., Some(fd)) => fd.try_clone(),
                    _ => Ok(original.take().expect("it is taken once")),
                };
                match fd {
                    Ok(fd) => found.push(Found { kept, fd, record, file }),
                    Err(error) => {
                        log::error!("kept allocation {} is lost: {error}", kept.id);
                        book.clear(record);
                        self.drop_user(file, None);
                    }
                }
            }
        }
        found
    }

    /// A found allocation is this broker's from now on: its fd is in the store already.
    pub fn adopt(&mut self, found: &Found) {
        let Found { kept, record, file, .. } = *found;
        let slot = kept.id.slot;
        if let Some(stored) = self.files.get_mut(&file) {
            stored.slots.push(slot);
        }
        if let Some(double) = self.stored.insert(slot, Stored { file, record }) {
            self.leave(slot, &double);
        }
    }

    /// A found allocation is of no use: its fd leaves the store.
    pub fn give_up(&mut self, found: &Found) {
        if let Some(book) = &mut self.book {
            book.clear(found.record);
        }
        self.drop_user(found.file, None);
    }

    /// Whether the fd of `slot` is stored, or on its way there.
    pub fn has(&self, slot: u32) -> bool {
        self.stored.contains_key(&slot)
    }

    /// Stores a duplicate of the fd of a slot, with what to remember of it.
    pub fn keep(&mut self, slot: u32, kept: &Kept, fds: &FdTable) {
        let Some(fd) = fds.held(slot) else { return };
        let inode = fds.files(slot).inode;
        let known = self.same_file(fd, inode, fds);
        let file = known.unwrap_or(kept.id);
        let Some(book) = &mut self.book else { return };
        let record = match book.write(&Entry { kept: *kept, file }) {
            Ok(record) => record,
            Err(error) => {
                return log::error!(
                    "kept allocation {} will not outlive a crash: {error}",
                    kept.id
                );
            }
        };
        self.stored.insert(slot, Stored { file, record });
        if known.is_none() {
            self.add_file(file, inode, 0);
        }
        if let Some(stored) = self.files.get_mut(&file) {
            stored.users += 1;
            stored.slots.push(slot);
        }
        // In their order: a removal before it may be of the same open file.
        match (known, self.pending.is_empty()) {
            (Some(_), _) => {}
            (None, true) => self.store(file, fd),
            (None, false) => self.pending.push_back(Pending::Store { file }),
        }
    }

    /// Remembers something else of a stored fd. While that cannot be written, the former is
    /// remembered.
    pub fn change(&mut self, slot: u32, kept: &Kept) {
        let (Some(Stored { file, record }), Some(book)) = (self.stored.get(&slot), &mut self.book)
        else {
            return;
        };
        if let Err(error) = book.rewrite(*record, &Entry { kept: *kept, file: *file }) {
            log::error!("who has adopted kept allocation {} is not remembered: {error}", kept.id);
        }
    }

    /// The stored file that `fd` is a duplicate of. Where neither the kernel nor kcmp(2) says so
    /// there is none.
    fn same_file(&self, fd: BorrowedFd<'_>, inode: u64, fds: &FdTable) -> Option<AllocationId> {
        let is_it = |file: &&AllocationId| {
            let stored = self.fd_of(**file, fds);
            stored.and_then(|stored| kernel::is_same_file(fd, stored, self.features)) == Some(true)
        };
        self.by_inode.get(&inode)?.iter().find(is_it).copied()
    }

    /// A stored file, by an fd of one of its slots.
    fn fd_of<'a>(&self, file: AllocationId, fds: &'a FdTable) -> Option<BorrowedFd<'a>> {
        self.files.get(&file)?.slots.iter().find_map(|slot| fds.held(*slot))
    }

    fn add_file(&mut self, file: AllocationId, inode: u64, users: usize) {
        self.files.insert(file, StoredFile { inode, users, slots: Vec::new() });
        self.by_inode.entry(inode).or_default().push(file);
    }

    fn store(&mut self, file: AllocationId, fd: BorrowedFd<'_>) {
        let name = name_of(file);
        match self.manager.store(&name, fd, Duration::ZERO) {
            Ok(()) => {}
            Err(StoreError::Busy) => self.pending.push_front(Pending::Store { file }),
            Err(error) => log::error!("`{name}` will not outlive a crash: {error}"),
        }
    }

    /// Forgets the fd of a slot, if it is stored: its allocation has ended.
    pub fn unkeep(&mut self, slot: u32) {
        if let Some(stored) = self.stored.remove(&slot) {
            self.leave(slot, &stored);
        }
    }

    fn leave(&mut self, slot: u32, stored: &Stored) {
        if let Some(book) = &mut self.book {
            book.clear(stored.record);
        }
        self.drop_user(stored.file, Some(slot));
    }

    /// One user of a file less: `slot`, or one that was only found. With the last one it leaves the
    /// store.
    fn drop_user(&mut self, file: AllocationId, slot: Option<u32>) {
        let Some(stored) = self.files.get_mut(&file) else { return };
        stored.users -= 1;
        if let Some(place) = stored.slots.iter().position(|its| Some(*its) == slot) {
            stored.slots.swap_remove(place);
        }
        if stored.users > 0 {
            return;
        }
        if let Some(StoredFile { inode, .. }) = self.files.remove(&file)
            && let Some(all) = self.by_inode.get_mut(&inode)
        {
            all.retain(|other| *other != file);
            if all.is_empty() {
                self.by_inode.remove(&inode);
            }
        }
        let is_it = |one: &Pending| matches!(one, Pending::Store { file: its } if *its == file);
        match self.pending.iter().position(is_it) {
            Some(place) => drop(self.pending.remove(place)),
            None => self.pending.push_back(Pending::Remove { name: name_of(file) }),
        }
    }

    /// Tries again what the service manager had no room for. `true`: some of it is left.
    pub fn flush(&mut self, fds: &FdTable) -> bool {
        while let Some(next) = self.pending.pop_front() {
            let left = self.pending.len();
            match next {
                Pending::Store { file } => {
                    if let Some(fd) = self.fd_of(file, fds) {
                        self.store(file, fd);
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
            // It was put back: no other goes before it.
            if self.pending.len() > left {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fds::closers::Closers;
    use crate::fds::files::Files;
    use crate::fds::jobs::{Calls, Process};
    use fdbroker_core::{Deposit, DomainKey, Lane};
    use fdbroker_protocol::{Facts, MemoryKind, Share};
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixDatagram;

    /// A store with room for one message at a time: what is read here makes room.
    fn full_manager() -> (Manager, UnixDatagram) {
        let (manager, its) = Manager::pair();
        while manager.remove("x", Duration::ZERO).is_ok() {}
        (manager, its)
    }

    #[test]
    fn flush_when_there_is_room_for_one_message_then_it_goes_and_the_rest_waits_without_a_spin() {
        let (manager, its) = full_manager();
        let names = ["k1.1", "k2.1", "k3.1"].map(str::to_owned);
        let pending = names.map(|name| Pending::Remove { name }).into();
        let mut store = KeepStore::new(manager, KernelFeatures::ALL);
        store.pending = pending;
        let fds = no_fds();
        its.recv(&mut [0; 256]).unwrap();
        let (done, end) = std::sync::mpsc::channel();
        let is_left = std::thread::scope(|scope| {
            scope.spawn(|| done.send(store.flush(&fds)));
            let is_left = end.recv_timeout(Duration::from_secs(20));
            // One that spins ends with the socket that it sends to.
            drop(its);
            is_left
        });
        assert_eq!(is_left, Ok(true));
        assert_eq!(store.pending.len(), 2);
    }

    fn memfd() -> OwnedFd {
        memfd_create("test", MFdFlags::MFD_CLOEXEC).unwrap()
    }

    fn kept(slot: u32) -> Kept {
        let deposit = Deposit {
            checked: Ok(()),
            lane: Lane::Accepted,
            file: None,
            facts: Facts::new(MemoryKind::Memfd, 4096),
            share: Share::Uid,
            recallable: false,
            keep: true,
            base: 0,
            driver_data: None,
            virtual_fd: false,
        };
        let domain = DomainKey { listener: 0, uid: 0 };
        Kept { id: AllocationId { slot, generation: 7 }, domain, gid: 0, job: None, deposit }
    }

    /// What has been said of the store since, each by verb and name.
    fn said(its: &UnixDatagram) -> Vec<String> {
        its.set_nonblocking(true).unwrap();
        let mut bytes = [0; 256];
        let next = || its.recv(&mut bytes).ok().map(|length| bytes[..length].to_vec());
        let text = std::iter::from_fn(next).map(|said| String::from_utf8(said).unwrap());
        let short = |text: String| {
            let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap();
            format!("{}{name}", if text.contains("REMOVE") { "-" } else { "+" })
        };
        text.map(short).collect()
    }

    /// A store, and slots whose fds are given.
    fn store_of(fds: Vec<OwnedFd>) -> (KeepStore, FdTable, UnixDatagram) {
        let (manager, its) = Manager::pair();
        let (store, ..) = KeepStore::open(manager, KernelFeatures::ALL, None, Vec::new());
        assert_eq!(said(&its), ["-book", "+book"]);
        let mut table = no_fds();
        for (slot, fd) in (0..).zip(fds) {
            assert!(table.put(slot, MemoryKind::Memfd, Files::default(), Some(fd)).is_none());
        }
        (store, table, its)
    }

    #[test]
    fn keep_when_fds_are_duplicates_then_stored_once_and_removed_with_the_last() {
        let fd = memfd();
        let (mut store, table, its) = store_of(vec![fd.try_clone().unwrap(), memfd(), fd]);
        (0..3).for_each(|slot| store.keep(slot, &kept(slot), &table));
        assert_eq!(said(&its), ["+k0.7", "+k1.7"]);
        store.unkeep(0);
        assert!(!store.flush(&table) && said(&its).is_empty());
        store.keep(0, &kept(0), &table);
        assert_eq!(said(&its), [""; 0], "by the name that it has");
        store.unkeep(2);
        store.unkeep(1);
        store.unkeep(0);
        assert!(!store.flush(&table));
        assert_eq!(said(&its), ["-k1.7", "-k0.7"]);
        assert!(store.files.is_empty() && store.by_inode.is_empty());
        store.keep(2, &kept(2), &table);
        assert_eq!(said(&its), ["+k2.7"], "nothing is known of the former one");
    }

    #[test]
    fn keep_when_an_inode_is_opened_twice_then_two_files_are_stored() {
        let fd = memfd();
        let again = std::fs::File::open(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
        let (mut store, table, its) = store_of(vec![fd, again.into()]);
        (0..2).for_each(|slot| store.keep(slot, &kept(slot), &table));
        assert_eq!(said(&its), ["+k0.7", "+k1.7"]);
    }

    #[test]
    fn open_when_several_have_one_file_then_each_has_an_fd_and_the_last_given_up_removes_it() {
        let fd = memfd();
        let (mut store, table, _its) = store_of(vec![fd.try_clone().unwrap(), fd]);
        (0..2).for_each(|slot| store.keep(slot, &kept(slot), &table));
        let book = store.book.take().unwrap().as_fd().try_clone_to_owned().unwrap();
        let stored = table.held(0).unwrap().try_clone_to_owned().unwrap();
        let stored = vec![("k0.7".to_owned(), stored), ("k9.9".to_owned(), memfd())];
        let (manager, its) = Manager::pair();
        let (mut store, found, unknown) =
            KeepStore::open(manager, KernelFeatures::ALL, Some(book), stored);
        assert_eq!((found.len(), unknown.len()), (2, 1));
        store.adopt(&found[0]);
        store.give_up(&found[1]);
        store.flush(&table);
        assert_eq!(said(&its), ["-k9.9"]);
        store.unkeep(found[0].kept.id.slot);
        store.flush(&table);
        assert_eq!(said(&its), ["-k0.7"]);
    }

    fn no_fds() -> FdTable {
        let calls = Calls::real(|_, _| Process::default());
        FdTable::new(16, 1024, fdbroker_protocol::NO_CAP, Closers::new(calls).unwrap())
    }
}
