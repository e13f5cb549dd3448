//! Fds that the driver keeps open as long as their event pool lives, and the virtual fds that stand
//! for them in handles. Must never call the driver.

use crate::allocation::DriversFd;
use fdbroker_client::{ErrorCode, Recall, RecallAnswer, Registration};
use fdbroker_virtual_fds::VirtualFd;
use std::collections::HashMap;

/// The device number of these fds at the broker: they have no address, and no tile has this number.
pub const DEVICE: u32 = u16::MAX as u32;

/// A pool's fd, and its registration.
pub struct Kept {
    /// The number of this registration.
    pub id: u64,
    pub fd: DriversFd,
    pub registration: Registration,
}

/// The registered fds by the handles of their pools, as numbers.
#[derive(Default)]
pub struct KeptFds {
    by_pool: HashMap<usize, Kept>,
    last_id: u64,
}

impl KeptFds {
    /// A number for one more registration.
    pub fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    pub fn of_pool(&self, pool: usize) -> Option<&Kept> {
        self.by_pool.get(&pool)
    }

    /// Answers what it replaces.
    pub fn add(&mut self, pool: usize, kept: Kept) -> Option<Registration> {
        self.by_pool.insert(pool, kept).map(|before| before.registration)
    }

    pub fn end_of(&mut self, pool: usize) -> Option<Registration> {
        self.by_pool.remove(&pool).map(|kept| kept.registration)
    }

    /// The driver's fd behind a virtual fd of this process's.
    pub fn drivers_fd(&self, fd: VirtualFd) -> Option<i32> {
        self.find(|kept| kept.registration.virtual_fd() == Some(fd))
            .map(|(_, kept)| kept.fd.number())
    }

    /// The registration of a virtual fd that the program closes.
    pub fn close(&mut self, fd: VirtualFd) -> Option<Registration> {
        let (pool, _) = self.find(|kept| kept.registration.virtual_fd() == Some(fd))?;
        self.end_of(pool)
    }

    /// A duplicate of an fd that the broker asks for.
    ///
    /// # Errors
    /// STALE: its pool has ended, or the driver has closed it. LOCAL_FD_LIMIT: no fd is free now.
    pub fn recall(&self, recall: &Recall) -> Result<RecallAnswer, ErrorCode> {
        let (_, kept) = self
            .find(|kept| kept.id == recall.facts.owner_allocation_id)
            .ok_or(ErrorCode::Stale)?;
        Ok(RecallAnswer::unchanged(recall, kept.fd.duplicate()?))
    }

    fn find(&self, is_it: impl Fn(&Kept) -> bool) -> Option<(usize, &Kept)> {
        self.by_pool.iter().find(|(_, kept)| is_it(kept)).map(|(pool, kept)| (*pool, kept))
    }
}
