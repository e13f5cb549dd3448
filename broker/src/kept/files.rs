//! The files of kept allocations, as the service manager stores them: an open file under a name.
//! Not in carriers, where they would be in flight; nor many under a name, by which alone a store
//! drops fds: when one ends, the others would be nowhere for a moment. Must never store an open
//! file twice, since systemd drops the second one without a word, nor let the loop wait.

use crate::fds::table::FdTable;
use crate::kernel::{KernelFeatures, is_same_file, stat};
use crate::manager::inherited::names;
use crate::manager::notify::{Manager, StoreError};
use fdbroker_protocol::AllocationId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// An open file in the store, for all allocations whose fds are duplicates of each other (ranges of
/// one memfd).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileKey {
    /// Most files have one of their own; all fds of a GPU driver's device share one.
    pub inode: u64,
    /// The first allocation of it, of which it has its name.
    pub slot: u32,
    /// Of that allocation.
    pub generation: u32,
}

impl FileKey {
    /// In the store: short, without colons, never used twice.
    pub fn name(self) -> String {
        format!("{}{}.{}", names::KEPT_PREFIX, self.slot, self.generation)
    }
}

/// See the module.
#[derive(Debug)]
pub struct KeptFiles {
    features: KernelFeatures,
    /// The slots of each file, whose fds are duplicates of it.
    files: BTreeMap<FileKey, Vec<u32>>,
    /// Those that the store has not heard of yet.
    unsent: VecDeque<FileKey>,
    /// Names that are to leave the store. No file is sent before: it may be one of these.
    to_remove: VecDeque<String>,
    /// Files for which the store has room.
    most: usize,
    is_full_said: bool,
    is_failure_said: bool,
}

impl KeptFiles {
    /// A store with room for `most`, where `found` are, and names that are to leave it. A file
    /// under such a name, beside which there is another one, is sent again after that.
    pub fn new(
        features: KernelFeatures,
        most: usize,
        found: impl IntoIterator<Item = FileKey>,
        to_remove: BTreeSet<String>,
    ) -> Self {
        let files: BTreeMap<_, _> = found.into_iter().map(|file| (file, Vec::new())).collect();
        let is_removed = |file: &FileKey| to_remove.contains(&file.name());
        let unsent = files.keys().copied().filter(is_removed).collect();
        let to_remove = to_remove.into_iter().collect();
        let [is_full_said, is_failure_said] = [false; 2];
        KeptFiles { features, files, unsent, to_remove, most, is_full_said, is_failure_said }
    }

    /// What the fd of the allocation in a slot is: a file that is here, or a new one. Of the files
    /// of one inode the kernel says which it is, or none.
    pub fn of(&self, id: AllocationId, fds: &FdTable) -> Option<FileKey> {
        let fd = fds.held(id.slot)?;
        let inode = stat(fd).ok()?.inode;
        let [first, last] = [0, u32::MAX].map(|it| FileKey { inode, slot: it, generation: it });
        let is_it = |slots: &[u32]| {
            let stored = fd_of(slots, fds);
            stored.is_some_and(|it| is_same_file(fd, it, self.features) == Some(true))
        };
        let known = self.files.range(first..=last).find(|(_, slots)| is_it(slots));
        let new = FileKey { inode, slot: id.slot, generation: id.generation };
        Some(known.map_or(new, |(file, _)| *file))
    }

    /// The fd of a slot is this file.
    pub fn add(&mut self, file: FileKey, slot: u32) {
        let slots = self.files.entry(file).or_insert_with(|| {
            self.unsent.push_back(file);
            Vec::new()
        });
        if !slots.contains(&slot) {
            slots.push(slot);
        }
    }

    /// It is not any more. With its last slot a file leaves the store.
    pub fn leave(&mut self, file: FileKey, slot: u32) {
        if let Some(slots) = self.files.get_mut(&file) {
            slots.retain(|its| *its != slot);
            self.drop_if_unused(file);
        }
    }

    /// Files that were found and are of no slot leave the store.
    pub fn drop_unused(&mut self) {
        let all: Vec<FileKey> = self.files.keys().copied().collect();
        all.into_iter().for_each(|file| self.drop_if_unused(file));
    }

    fn drop_if_unused(&mut self, file: FileKey) {
        if self.files.get(&file).is_some_and(Vec::is_empty) {
            self.files.remove(&file);
            match self.unsent.iter().position(|it| *it == file) {
                Some(at) => drop(self.unsent.remove(at)),
                None => self.to_remove.push_back(file.name()),
            }
        }
    }

    /// Whether the service manager is to be told something.
    pub fn has_news(&self) -> bool {
        !self.to_remove.is_empty() || self.next_file().is_some()
    }

    /// The next file to be sent, if there is room for it.
    fn next_file(&self) -> Option<FileKey> {
        let sent = self.files.len() - self.unsent.len();
        self.unsent.front().copied().filter(|_| sent < self.most)
    }

    /// Sends at most so many messages. `false`: the service manager has no room for the next one.
    pub fn tell(&mut self, manager: &Manager, fds: &FdTable, most: usize) -> bool {
        for _ in 0..most {
            let told = match (self.to_remove.front(), self.next_file()) {
                (Some(name), _) => manager.remove(name, Duration::ZERO),
                (None, Some(file)) => match fd_of(&self.files[&file], fds) {
                    Some(fd) => manager.store(&file.name(), fd, Duration::ZERO),
                    None => Ok(()),
                },
                (None, None) => break,
            };
            match told {
                Ok(()) => {}
                Err(StoreError::Busy) => return false,
                Err(error) if !self.is_failure_said => {
                    self.is_failure_said = true;
                    log::error!("kept allocations may not outlive a crash: {error}");
                }
                Err(_) => {}
            }
            if self.to_remove.pop_front().is_none() {
                self.unsent.pop_front();
            }
        }
        if !self.unsent.is_empty() && !self.has_news() && !self.is_full_said {
            self.is_full_said = true;
            log::warn!(
                "no more than {} kept allocations outlive a crash: raise FileDescriptorStoreMax",
                self.most
            );
        }
        true
    }
}

/// A file, by an fd of one of its slots.
fn fd_of<'a>(slots: &[u32], fds: &'a FdTable) -> Option<BorrowedFd<'a>> {
    slots.iter().find_map(|slot| fds.held(*slot))
}
