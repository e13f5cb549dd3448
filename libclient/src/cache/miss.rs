//! The way of a miss: one thread asks the broker, opens, closes the fd, reports and keeps; threads
//! that come later wait. Must never leave a lease, a count or memory behind when it fails.

use crate::api::client::Client;
use crate::books::grant::Grant;
use crate::books::lease::Lease;
use crate::cache::cached::{CachedImport, out_of_bounds};
use crate::cache::cold::Held;
use crate::cache::opened::{Opened, Opener, Openers};
use crate::cache::settings::ImportMode;
use crate::cache::table::claims::{Claim, Fresh, Look, Waited, Waiter};
use crate::cache::table::{Pinned, Table, close_all};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::inherited::Way;
use crate::limits::{CLOSE_CHUNK, QUOTA_SLICE};
use crate::map::{Mapping, leave_out_of_children};
use crate::zones::Gathering;
use fdbroker_protocol::{ErrorCode, Handle};
use std::time::Duration;

/// How memory is opened.
pub(super) enum Opening<O> {
    /// By the opener of its kind, else mapped by the library.
    Map,
    With(O),
}

/// How memory was opened: by this library, or by other means.
enum Memory {
    Mapped(Mapping),
    Opened(Box<dyn Opened>),
}

/// What an import needs to know.
pub(super) struct Importer<'a, O> {
    pub client: &'a Client,
    pub table: &'a Table,
    pub openers: &'a Openers,
    pub mode: ImportMode,
    pub deadline: Deadline,
    pub opening: Opening<O>,
}

impl<'a, O: Opener> Importer<'a, O> {
    /// Imports one that a hit did not find.
    pub fn import(&mut self, handle: &Handle) -> Result<CachedImport<'a>, Error> {
        // Before the table's lock: a forked child may not take it, a callback may not wait.
        self.client.connection("import", self.deadline)?;
        loop {
            let pinned = match self.table.look(handle, self.mode.access) {
                Look::Found(pinned) => pinned,
                Look::Fetch(claim) => self.fetch(claim, handle)?,
                Look::Suspended => return Err(Error::suspended(handle.id())),
                Look::Wait(waiter) => match self.wait(waiter, handle)? {
                    Some(pinned) => pinned,
                    None => continue,
                },
            };
            return CachedImport::new(self.table, pinned, handle);
        }
    }

    /// Waits for the thread that fetches it; `None`: look again.
    pub fn wait(&self, waiter: Waiter<'_>, handle: &Handle) -> Result<Option<Pinned<'a>>, Error> {
        match waiter.wait(self.deadline) {
            Waited::Pinned(pin) => Ok(self.table.adopt(pin, handle.id())),
            Waited::Nothing => Ok(None),
            Waited::TimedOut => {
                let context = format!("import {}: another thread imports it", handle.id());
                Err(Error::timed_out(context))
            }
        }
    }

    fn fetch(&mut self, claim: Claim<'_>, handle: &Handle) -> Result<Pinned<'a>, Error> {
        // Before the broker is asked: a full strict cache would give the grant back.
        self.table.make_room_for(handle.id(), 1)?;
        let mut slices = Slices::of(self.deadline);
        let grant = loop {
            match self.client.acquire(handle, slices.next(self.table)) {
                Err(error)
                    if slices.allow_another(&error) && slices.make_room(self.table, [&error]) => {}
                outcome => break outcome?,
            }
        };
        // The new memory may take the addresses of what has to go for it.
        let gathering = Gathering::begin();
        let early = self.table.evict_early(grant.info.id, grant.info.facts.size_bytes);
        let leases = Held::close_each(early.into_iter().collect());
        let mut closed = Vec::new();
        let kept = self.take_in(claim, handle, grant, None, &mut closed);
        drop(gathering);
        close_all(closed);
        Lease::release_many(leases);
        kept
    }

    /// Opens what was granted unless it is `mapped`, closes its fd, reports it and keeps it.
    pub fn take_in(
        &mut self,
        claim: Claim<'_>,
        handle: &Handle,
        grant: Grant,
        mapped: Option<Mapping>,
        closed: &mut Vec<Held>,
    ) -> Result<Pinned<'a>, Error> {
        let info = grant.info;
        if info.id != handle.id() {
            let context = format!("import {}: the broker granted {}", handle.id(), info.id);
            return Err(Error::new(ErrorCode::Protocol, context));
        }
        if handle.offset_bytes >= info.facts.size_bytes {
            return Err(out_of_bounds(handle, info.facts.size_bytes));
        }
        self.table.make_room_for(info.id, info.facts.size_bytes)?;
        let memory = match mapped {
            Some(mapping) => Memory::Mapped(mapping),
            None => self.open(&grant)?,
        };
        let (is_host, is_final, inheritable, opened): (_, _, _, Box<dyn Opened>) = match memory {
            Memory::Mapped(mapping) => {
                let way = |_: &Lease| Some(Way::Handle(handle.prefix));
                let inheritable = grant.inheritable(&mapping, way);
                (true, mapping.is_final(), inheritable, Box::new(mapping))
            }
            Memory::Opened(opened) => (false, false, None, opened),
        };
        let Grant { fd, lease, .. } = grant;
        // Declared together: memory is closed before its lease is given back, whatever fails from
        // here on.
        let mut held = Held { inheritable, opened, lease };
        drop(fd);
        held.lease.mapped();
        let len =
            held.opened.len().min(usize::try_from(info.facts.size_bytes).unwrap_or(usize::MAX));
        let fresh = Fresh { held, len, mode: self.mode, is_host, is_final };
        self.table.keep(claim, handle, fresh, closed)
    }
}

impl<O: Opener> Importer<'_, O> {
    /// Opens what was granted.
    fn open(&mut self, grant: &Grant) -> Result<Memory, Error> {
        let opened = match (&mut self.opening, self.openers.of(grant.info.facts.kind)) {
            (Opening::With(open), _) => open(grant)?,
            (Opening::Map, Some(opener)) => opener.open(grant, self.mode.access)?,
            (Opening::Map, None) => return self.map(grant).map(Memory::Mapped),
        };
        if opened.is_range() {
            leave_out_of_children(opened.as_ptr(), opened.len())?;
        }
        Ok(Memory::Opened(opened))
    }

    /// Whether this library maps what is granted.
    pub fn maps(&self, grant: &Grant) -> bool {
        matches!(self.opening, Opening::Map) && self.openers.of(grant.info.facts.kind).is_none()
    }

    /// Maps what was granted. While the process has no room for it, what is unused here is closed.
    fn map(&self, grant: &Grant) -> Result<Mapping, Error> {
        loop {
            match grant.map(self.mode.access, 0) {
                Err(failure) if failure.lacks_room && self.table.evict_unused(CLOSE_CHUNK) > 0 => {
                    // Now, lest what was closed is still there at the next try.
                    drop(Gathering::begin());
                }
                outcome => return Ok(outcome?),
            }
        }
    }
}

/// One try after the other, each longer: while something here could be closed for the broker's
/// caps, the broker does not get all of the time for a try.
pub(super) struct Slices {
    deadline: Deadline,
    next: Duration,
    current: Deadline,
}

impl Slices {
    pub fn of(deadline: Deadline) -> Self {
        Slices { deadline, next: QUOTA_SLICE, current: deadline }
    }

    /// How long the broker may take for the next try.
    pub fn next(&mut self, table: &Table) -> Deadline {
        self.current = if table.has_listed() {
            self.deadline.answered_within(self.next)
        } else {
            self.deadline
        };
        self.next *= 2;
        self.current
    }

    /// Whether a refusal may be due to what this cache keeps, and is worth another try.
    pub fn allow_another(&self, error: &Error) -> bool {
        let is_quota = error.code == ErrorCode::NoQuota;
        let was_cut = self.current < self.deadline;
        (is_quota || (was_cut && error.code == ErrorCode::TimedOut)) && !self.deadline.has_passed()
    }

    /// Makes room after a try that the broker has refused. An owner that is asked, or no answer,
    /// says nothing of its caps. Whether to try again: room was made, or time is left.
    pub fn make_room<'e>(
        &self,
        table: &Table,
        errors: impl IntoIterator<Item = &'e Error>,
    ) -> bool {
        let is_refused = errors.into_iter().any(|error| error.status.is_some());
        (is_refused && table.close_unused(CLOSE_CHUNK) > 0) || self.current < self.deadline
    }
}
