//! The lease: the broker's record that this client holds an allocation. Given back once, on drop at
//! the latest. Must never wait or panic in drop, and never name to a broker what is another's:
//! `holdings` knows whose it is.

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
/// It goes on over a loss of the broker: the library declares it to the next one, under which it
/// has another number. If that does not take it, [`crate::Notice::Revoked`] says so, and the memory
/// is to be given up.
#[derive(Debug)]
#[must_use = "dropping a lease gives it back"]
pub struct Lease {
    common: Arc<Common>,
    mark: Arc<Mark>,
    key: LeaseKey,
    id: AllocationId,
    room: u64,
    is_mapped: bool,
    is_given_back: bool,
}

/// What to tell the broker that knows the lease, and over which connection.
type Word = Option<(Arc<dyn Line>, OneWay)>;

impl Lease {
    /// Of what was granted for a handle, or for the name of an object, over connection `epoch`, its
    /// fd open.
    pub(crate) fn new(
        common: &Arc<Common>,
        epoch: u64,
        number: u64,
        id: AllocationId,
        handle: Option<HandlePrefix>,
    ) -> Self {
        let (key, mark) = common.holdings.enter_lease(epoch, number, id, handle);
        let common = Arc::clone(common);
        Lease { common, mark, key, id, room: 0, is_mapped: false, is_given_back: false }
    }

    pub(crate) fn with_room(mut self, room: u64) -> Self {
        self.room = room;
        self
    }

    /// How many leases this client might have that it does not use, this one among them, when it
    /// was granted: the fd of a lease that is open may be kept for a moment to be used again. 0:
    /// the broker does not say.
    pub fn room(&self) -> u64 {
        self.room
    }

    /// The broker's number of it, as in [`crate::Notice::Revoked`] and `fdbroker holders`. Another
    /// one after [`crate::Notice::Reconnected`].
    pub fn number(&self) -> u64 {
        self.mark.number()
    }

    /// Slot and generation of the allocation that it holds.
    pub fn id(&self) -> AllocationId {
        self.id
    }

    /// What it was granted for; `None`: for the name of an object.
    pub(crate) fn handle(&self) -> Option<HandlePrefix> {
        self.common.holdings.handle_of(self.key)
    }

    /// Tells the broker that the memory is imported and the fd closed: close it first. The second
    /// time nothing happens. [`crate::Grant::import`] does this by itself. The message may wait a
    /// millisecond for others, where a library thread serves.
    pub fn mapped(&mut self) {
        if let Some((line, word)) = self.note_mapped() {
            line.post(word);
        }
    }

    /// The error of one that is not current.
    pub(crate) fn why_not_current(&self) -> Error {
        let id = self.id;
        let is_unknown = self.common.page.verdict(id) == Verdict::Unknown;
        if id.slot < PAGE_RESERVED_SLOTS && (is_unknown || !self.mark.is_known()) {
            return Error::not_connected(format!("import {id}: the broker was lost meanwhile"));
        }
        if id.slot < PAGE_RESERVED_SLOTS {
            Error::new(ErrorCode::Stale, format!("import {id}: it ended meanwhile"))
        } else {
            let context = format!(
                "import {id}: this library watches {PAGE_RESERVED_SLOTS} slots, set the broker's \
                     limits.max_slots no higher"
            );
            Error::new(ErrorCode::NotSupported, context)
        }
    }

    /// Whether the allocation still lives, the broker lives, and knows this lease. No syscall, no
    /// lock.
    pub fn is_current(&self) -> bool {
        self.common.process.is_current()
            // The page first: `Mark::is_known` says why that order is enough.
            && self.common.page.is_current(self.id)
            && self.mark.is_known()
    }

    /// How often leases of this client have got other numbers, or were refused: a table by number
    /// is to be made anew then. For the C library.
    #[doc(hidden)]
    pub fn numberings(&self) -> u64 {
        self.common.holdings.numberings()
    }

    /// Whether a broker that came back has refused it. Its number is that of the broker before. For
    /// the C library.
    #[doc(hidden)]
    pub fn was_refused(&self) -> bool {
        self.mark.is_refused()
    }

    /// Whether no broker counts it. Only after all were declared: until then it may wait for that.
    pub(crate) fn is_refused(&self) -> bool {
        !self.mark.is_known()
    }

    /// Gives it back, like drop. Later requests of this client find it gone. The message may wait a
    /// millisecond for others; not if the fd is open, the allocation has ended, the broker is short
    /// of leases, or no library thread serves.
    ///
    /// # Errors
    /// NOT_CONNECTED when there is no broker that knows it: it is not declared to the next one
    /// then.
    pub fn release(mut self) -> Result<(), Error> {
        match self.give_back() {
            Some((line, word)) => {
                line.post(word);
                Ok(())
            }
            None => Err(Error::not_connected("release: no broker knows of this lease")),
        }
    }

    /// Gives many back, by one message per 253. Those that no broker knows are not declared to the
    /// next.
    pub fn release_many(leases: impl IntoIterator<Item = Lease>) {
        let mut line: Option<Arc<dyn Line>> = None;
        let mut released = Vec::new();
        for mut lease in leases {
            let Some((of, word)) = lease.give_back() else { continue };
            let before = line.take_if(|line| !Arc::ptr_eq(line, &of));
            if let Some(before) = before {
                before.post_all(&mut released.drain(..));
            }
            line.get_or_insert(of);
            released.push(word);
        }
        if let Some(line) = line {
            line.post_all(&mut released.into_iter());
        }
    }

    fn note_mapped(&mut self) -> Word {
        // In a forked child the lock may be held by a thread that it does not have.
        if self.is_mapped || !self.common.process.is_current() {
            return None;
        }
        self.is_mapped = true;
        let (line, number) = self.common.holdings.lease_mapped(self.key)?;
        Some((line, OneWay::Mapped(number)))
    }

    /// Takes it out of what is held; once.
    fn give_back(&mut self) -> Word {
        if self.is_given_back || !self.common.process.is_current() {
            return None;
        }
        self.is_given_back = true;
        let (line, number) = self.common.holdings.lease_released(self.key)?;
        let may_wait = self.is_mapped && self.common.page.is_current(self.id);
        let word = if may_wait { OneWay::ReleasedSoon } else { OneWay::Released };
        Some((line, word(number)))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some((line, word)) = self.give_back() {
            line.post(word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::books::page::PageFacts;
    use crate::sync::lock;
    use fdbroker_protocol::page::{
        LIVENESS_OFFSET, PAGE_MAGIC, PAGE_VERSION, PageHeader, generation_offset, page_bytes,
    };
    use fdbroker_protocol::{Facts, NodeKey};
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::sys::uio::pwrite;
    use std::mem::offset_of;
    use std::os::fd::{AsFd, OwnedFd};
    use std::sync::{Mutex, Weak};

    const ID: AllocationId = AllocationId { slot: 3, generation: 1 };

    /// A connection that keeps what it is given.
    #[derive(Debug, Default)]
    struct Heard(Mutex<Vec<OneWay>>);

    impl Line for Heard {
        fn post_all(&self, messages: &mut dyn Iterator<Item = OneWay>) {
            lock(&self.0).extend(messages);
        }
        fn look_away(&self) {}
        fn kill(&self, _: &str) {}
    }

    fn write(page: &OwnedFd, offset: usize, bytes: &[u8]) {
        let offset = i64::try_from(offset).unwrap();
        assert_eq!(pwrite(page, bytes, offset).unwrap(), bytes.len());
    }

    /// A page of four slots with the one live allocation.
    fn page() -> OwnedFd {
        let page = memfd_create(c"page", MFdFlags::MFD_CLOEXEC).unwrap();
        nix::unistd::ftruncate(&page, i64::try_from(page_bytes(4)).unwrap()).unwrap();
        write(&page, offset_of!(PageHeader, magic), &PAGE_MAGIC.to_ne_bytes());
        write(&page, offset_of!(PageHeader, version), &PAGE_VERSION.to_ne_bytes());
        write(&page, offset_of!(PageHeader, slots), &4u32.to_ne_bytes());
        write(&page, LIVENESS_OFFSET, &1u32.to_ne_bytes());
        write(&page, generation_offset(ID.slot), &ID.generation.to_ne_bytes());
        page
    }

    #[test]
    fn release_when_open_or_of_ended_memory_then_may_not_wait_and_else_it_may() {
        let common = Arc::new(Common::new(1, 0, false, false).unwrap());
        let heard = Arc::new(Heard::default());
        let line: Weak<dyn Line> = Arc::<Heard>::downgrade(&heard);
        common.holdings.begin(1, line, &|_| false);
        let page = page();
        common.page.show(1, page.as_fd(), PageFacts { slots: 4, incarnation: 0 }).unwrap();
        let handle = NodeKey::from_bytes([7; 32]).seal(42, ID, &Facts::NONE).prefix;
        let granted = |number| Lease::new(&common, 1, number, ID, Some(handle));
        let [open, mut mapped, mut ended] = [1, 2, 3].map(granted);
        mapped.mapped();
        ended.mapped();
        drop((open, mapped));
        write(&page, generation_offset(ID.slot), &0u32.to_ne_bytes());
        drop(ended);
        use OneWay::{Mapped, Released, ReleasedSoon};
        let told = std::mem::take(&mut *lock(&heard.0));
        assert_eq!(told, [Mapped(2), Mapped(3), Released(1), ReleasedSoon(2), Released(3)]);
    }
}
