//! Fds that the driver keeps open as long as their event pool lives, and the virtual fds that stand
//! for them in handles. Must never call the driver.

use crate::allocation::{DriversFd, FileId};
use fdbroker_client::{ErrorCode, Recall, RecallAnswer, Registration};
use fdbroker_virtual_fds::VirtualFd;
use std::collections::HashMap;

/// The device number of these fds at the broker: they have no address, and no tile has this number.
pub const DEVICE: u32 = u16::MAX as u32;

/// One fd that is registered.
struct Kept {
    id: u64,
    fd: DriversFd,
    registration: Registration,
    /// The handles of its pools, as numbers: the one that was created, and those opened here.
    owners: Vec<usize>,
}

/// The registered fds by file.
#[derive(Default)]
pub struct KeptFds {
    by_file: HashMap<FileId, Kept>,
    last_id: u64,
}

impl KeptFds {
    /// A number for one more registration.
    pub fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// The virtual fd of a file that is registered, for one more owner. `is_good`: whether the
    /// broker still knows it.
    pub fn known(
        &mut self,
        file: FileId,
        owner: usize,
        is_good: impl FnOnce(&Registration) -> bool,
    ) -> Option<VirtualFd> {
        let kept = self.by_file.get_mut(&file)?;
        if !is_good(&kept.registration) {
            return None;
        }
        if !kept.owners.contains(&owner) {
            kept.owners.push(owner);
        }
        kept.registration.virtual_fd()
    }

    /// Keeps a registration. Answers the one that it replaces.
    pub fn add(
        &mut self,
        file: FileId,
        (id, fd): (u64, DriversFd),
        owner: usize,
        registration: Registration,
    ) -> Option<Registration> {
        let kept = Kept { id, fd, registration, owners: vec![owner] };
        let before = self.by_file.insert(file, kept)?;
        let now = self.by_file.get_mut(&file).expect("inserted just now");
        now.owners.extend(before.owners.into_iter().filter(|other| *other != owner));
        Some(before.registration)
    }

    /// The driver's fd behind a virtual fd of this process's.
    pub fn drivers_fd(&self, fd: VirtualFd) -> Option<i32> {
        let mut all = self.by_file.values();
        let kept = all.find(|kept| kept.registration.virtual_fd() == Some(fd))?;
        Some(kept.fd.number())
    }

    /// The registrations that end with an owner.
    pub fn end_of(&mut self, owner: usize) -> Vec<Registration> {
        self.take(|kept| {
            kept.owners.retain(|other| *other != owner);
            kept.owners.is_empty()
        })
    }

    /// The registration of a virtual fd that the program closes.
    pub fn close(&mut self, fd: VirtualFd) -> Option<Registration> {
        self.take(|kept| kept.registration.virtual_fd() == Some(fd)).pop()
    }

    fn take(&mut self, mut ends: impl FnMut(&mut Kept) -> bool) -> Vec<Registration> {
        let ended = self.by_file.extract_if(|_, kept| ends(kept));
        ended.map(|(_, kept)| kept.registration).collect()
    }

    /// A duplicate of an fd that the broker asks for.
    ///
    /// # Errors
    /// STALE: its owner has ended, or the driver has closed it. LOCAL_FD_LIMIT: no fd is free now.
    pub fn recall(&self, recall: &Recall) -> Result<RecallAnswer, ErrorCode> {
        let kept = self.by_file.values().find(|kept| kept.id == recall.facts.owner_allocation_id);
        let fd = kept.ok_or(ErrorCode::Stale)?.fd.duplicate()?;
        Ok(RecallAnswer::unchanged(recall, fd))
    }
}
