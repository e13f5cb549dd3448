//! The lease: the broker's record that this client holds an allocation. Given back once, on drop at the latest.
//! Must never wait or panic in drop, and never name to a broker what is another's: `holdings` knows whose it is.

use super::common::Common;
use super::holdings::{LeaseKey, Mark};
use super::one_way::{Line, OneWay};
use super::page::Verdict;
use crate::error::Error;
use crate::limits::PAGE_RESERVED_SLOTS;
use fdbroker_protocol::{AllocationId, ErrorCode, HandlePrefix};
use std::sync::Arc;

/// A lease of one allocation: open while the client has the fd, mapped once the memory is imported
/// and the fd closed. Dropping it gives it back, by one message without an answer.
///
/// It goes on over a loss of the broker: the library declares it to the next one, under which it has another number. If
/// that does not take it, [`crate::Notice::Revoked`] says so, and the memory is to be given up.
#[derive(Debug)]
#[must_use = "dropping a lease gives it back"]
pub struct Lease {
    common: Arc<Common>,
    mark: Arc<Mark>,
    key: LeaseKey,
    id: AllocationId,
    is_mapped: bool,
    is_given_back: bool,
}

/// The connection to the broker that knows the lease, and its number there.
type Known = Option<(Arc<dyn Line>, u64)>;

impl Lease {
    /// Of what was granted for a handle over connection `epoch`, its fd open.
    pub(crate) fn new(
        common: &Arc<Common>,
        epoch: u64,
        number: u64,
        id: AllocationId,
        handle: HandlePrefix,
    ) -> Self {
        let (key, mark) = common.holdings.enter_lease(epoch, number, handle);
        let common = Arc::clone(common);
        Lease { common, mark, key, id, is_mapped: false, is_given_back: false }
    }

    /// The broker's number of it, as in [`crate::Notice::Revoked`] and `fdbroker holders`. Another one after
    /// [`crate::Notice::Reconnected`].
    pub fn number(&self) -> u64 {
        self.mark.number()
    }

    /// The allocation.
    pub fn id(&self) -> AllocationId {
        self.id
    }

    /// Tells the broker that the memory is imported and the fd closed: close it first. The second time nothing
    /// happens. [`crate::Grant::import`] does this by itself.
    pub fn mapped(&mut self) {
        if let Some((line, number)) = self.note_mapped() {
            line.post(OneWay::Mapped(number));
        }
    }

    /// The same, to go with the next message to the broker or `Connection::flush_queued_now`.
    pub(crate) fn mapped_later(&mut self) {
        if let Some((line, number)) = self.note_mapped() {
            line.queue(OneWay::Mapped(number));
        }
    }

    /// Gives it back with the next message to the broker or `Connection::flush_queued_now`.
    pub(crate) fn release_later(mut self) {
        if let Some((line, number)) = self.give_back() {
            line.queue(OneWay::Released(number));
        }
    }

    /// The error of one that is not current.
    pub(crate) fn why_not_current(&self) -> Error {
        let id = self.id;
        let is_unknown = self.common.page.verdict(id) == Verdict::Unknown;
        if id.slot < PAGE_RESERVED_SLOTS && (is_unknown || !self.mark.is_known()) {
            return Error::not_connected(format!("import {id}: the broker was lost meanwhile"));
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

    /// Whether the allocation still lives, the broker lives, and knows this lease. No syscall, no lock.
    pub fn is_current(&self) -> bool {
        self.common.process.is_current()
            // The page first: `Mark::is_known` says why that order is enough.
            && self.common.page.is_current(self.id)
            && self.mark.is_known()
    }

    /// How often leases of this client have got other numbers, or were refused: a table by number is to be made anew then. For
    /// the C library.
    #[doc(hidden)]
    pub fn numberings(&self) -> u64 {
        self.common.holdings.numberings()
    }

    /// Whether a broker that came back has refused it. Its number is that of the broker before. For the C library.
    #[doc(hidden)]
    pub fn was_refused(&self) -> bool {
        self.mark.is_refused()
    }

    /// Whether no broker counts it. Only after all were declared: until then it may wait for that.
    pub(crate) fn is_refused(&self) -> bool {
        !self.mark.is_known()
    }

    /// Gives it back, like drop. Later requests of this client find it gone.
    ///
    /// # Errors
    /// NOT_CONNECTED when there is no broker that knows it: it is not declared to the next one then.
    pub fn release(mut self) -> Result<(), Error> {
        match self.give_back() {
            Some((line, number)) => {
                line.post(OneWay::Released(number));
                Ok(())
            }
            None => Err(Error::not_connected("release: no broker knows of this lease")),
        }
    }

    /// Gives many back, by one message per 253. Those that no broker knows are not declared to the next.
    pub fn release_many(leases: impl IntoIterator<Item = Lease>) {
        let mut line: Option<Arc<dyn Line>> = None;
        let mut released = Vec::new();
        for mut lease in leases {
            let Some((of, number)) = lease.give_back() else { continue };
            let before = line.take_if(|line| !Arc::ptr_eq(line, &of));
            if let Some(before) = before {
                before.post_all(&mut released.drain(..));
            }
            line.get_or_insert(of);
            released.push(OneWay::Released(number));
        }
        if let Some(line) = line {
            line.post_all(&mut released.into_iter());
        }
    }

    fn note_mapped(&mut self) -> Known {
        // In a forked child the lock may be held by a thread that it does not have.
        if self.is_mapped || !self.common.process.is_current() {
            return None;
        }
        self.is_mapped = true;
        self.common.holdings.lease_mapped(self.key)
    }

    /// Takes it out of what is held; once.
    fn give_back(&mut self) -> Known {
        if self.is_given_back || !self.common.process.is_current() {
            return None;
        }
        self.is_given_back = true;
        self.common.holdings.lease_released(self.key)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some((line, number)) = self.give_back() {
            line.post(OneWay::Released(number));
        }
    }
}
