//! The lease: the broker's record that this client holds an allocation. Given back once, on drop at the latest.
//! Must never wait or panic in drop, and never speak to another broker than the one it is from.

use crate::connection::Connection;
use crate::error::Error;
use crate::limits::PAGE_RESERVED_SLOTS;
use crate::outbox::OneWay;
use fdbroker_protocol::{AllocationId, ErrorCode};
use std::sync::Arc;

/// A lease of one allocation: open while the client has the fd, mapped once the memory is imported
/// and the fd closed. Dropping it gives it back, by one message without an answer.
#[derive(Debug)]
#[must_use = "dropping a lease gives it back"]
pub struct Lease {
    connection: Arc<Connection>,
    number: u64,
    id: AllocationId,
    mapped: bool,
}

impl Lease {
    pub(crate) fn new(connection: Arc<Connection>, number: u64, id: AllocationId) -> Self {
        Lease { connection, number, id, mapped: false }
    }

    /// The broker's number of it, as in [`crate::Notice::Revoked`] and `fdbroker holders`.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The allocation.
    pub fn id(&self) -> AllocationId {
        self.id
    }

    /// Tells the broker that the memory is imported and the fd closed: close it first. The second time nothing
    /// happens. [`crate::Grant::import`] does this by itself.
    pub fn mapped(&mut self) {
        if !self.mapped {
            self.mapped = true;
            self.connection.post(OneWay::Mapped(self.number));
        }
    }

    /// The same, to go with the next message to the broker or [`Connection::flush_queued_now`].
    pub(crate) fn mapped_later(&mut self) {
        if !self.mapped {
            self.mapped = true;
            self.connection.queue(OneWay::Mapped(self.number));
        }
    }

    /// Gives it back with the next message to the broker or [`Connection::flush_queued_now`].
    pub(crate) fn release_later(self) {
        let connection = Arc::clone(&self.connection);
        connection.queue(OneWay::Released(self.disarm()));
    }

    /// The error of one that is not current.
    pub(crate) fn why_not_current(&self) -> Error {
        let id = self.id;
        if !self.connection.is_usable() {
            return self.connection.lost("import");
        }
        match id.slot < PAGE_RESERVED_SLOTS {
            true => Error::new(ErrorCode::Stale, format!("import {id}: it ended meanwhile")),
            false => {
                let context = format!(
                    "import {id}: this library watches {PAGE_RESERVED_SLOTS} slots, set the broker's \
                     limits.max_slots no higher"
                );
                Error::new(ErrorCode::NotSupported, context)
            }
        }
    }

    /// Whether the allocation still lives, the broker lives, and this client is connected to it. No syscall.
    pub fn is_current(&self) -> bool {
        self.connection.is_usable() && self.connection.common.page.is_current(self.id)
    }

    /// Gives it back, like drop. Later requests of this client find it gone.
    ///
    /// # Errors
    /// NOT_CONNECTED when its connection was lost before: the broker has taken it back then.
    pub fn release(self) -> Result<(), Error> {
        match self.connection.is_usable() {
            true => Ok(()),
            false => Err(self.connection.lost("release")),
        }
    }

    /// Gives many back, by one message per 253. Those of a lost connection are skipped.
    pub fn release_many(leases: impl IntoIterator<Item = Lease>) {
        let mut leases: Vec<Lease> = leases.into_iter().collect();
        while let Some(last) = leases.last() {
            let connection = Arc::clone(&last.connection);
            let (these, others) = leases
                .into_iter()
                .partition::<Vec<_>, _>(|lease| Arc::ptr_eq(&lease.connection, &connection));
            leases = others;
            let numbers: Vec<u64> = these.into_iter().map(Lease::disarm).collect();
            connection.post_all(numbers.into_iter().map(OneWay::Released));
        }
    }

    /// Takes the number out without giving the lease back.
    fn disarm(mut self) -> u64 {
        std::mem::replace(&mut self.number, NOT_A_LEASE)
    }
}

/// Stands for "given back already" and is never sent; no broker counts so far.
const NOT_A_LEASE: u64 = u64::MAX;

impl Drop for Lease {
    fn drop(&mut self) {
        if self.number != NOT_A_LEASE {
            self.connection.post(OneWay::Released(self.number));
        }
    }
}
