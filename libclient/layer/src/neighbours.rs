//! What the broker has told, and sent, ahead: of the allocations that an owner registered after one
//! that was asked for. A program that fetches the fds of a tensor one by one asks the broker twice,
//! and for the others not at all. Must never decide what a number leads to: the broker refuses the
//! handle of an allocation that has ended, and is asked for the number then.

use crate::limits::{IN_A_ROW, MISSES_AHEAD};
use fdbroker_client::layer::lock;
use fdbroker_client::{Client, Deadline, Error, ErrorCode, Grant, Handle};
use fdbroker_virtual_fds::VirtualFd;
use std::collections::VecDeque;
use std::sync::Mutex;

/// How many handles are told ahead: a tensor of 512 MiB has 26 segments in PyTorch. The protocol's
/// most.
const TOLD_AHEAD: u32 = 31;

/// What was told last, and what has become of it.
#[derive(Debug, Default)]
pub(crate) struct Neighbours(Mutex<Told>);

/// Handles in their order, each used once.
#[derive(Debug, Default)]
struct Told {
    handles: VecDeque<Handle>,
    /// The first so many of them were asked for ahead.
    fetched: usize,
    /// The last one that was asked for stood first: the program goes through them in a row.
    is_in_row: bool,
    /// Fds in a row that were asked for ahead and had not come.
    misses: usize,
    /// What was asked for ahead has brought something, or nothing was asked for since the broker
    /// told these.
    is_worth_it: bool,
    /// The slot of the handle that was asked for last, and how many before it were in a row.
    last_slot: u32,
    in_a_row: u32,
}

impl Neighbours {
    /// The fd behind a number, and the handle that it was granted for. `is_here`: needs no
    /// fetching.
    ///
    /// # Errors
    /// Those of [`Client::acquire_virtual`].
    pub(crate) fn acquire(
        &self,
        client: &Client,
        number: VirtualFd,
        deadline: Deadline,
        is_here: impl Fn(&Handle) -> bool,
    ) -> Result<(Handle, Grant), Error> {
        let is_it = |handle: &Handle| handle.virtual_fd() == Some(number);
        if let Some(outcome) = self.acquire_told(client, is_it, deadline, &is_here) {
            return outcome;
        }
        let mut handles = client.resolve(number, TOLD_AHEAD, deadline)?;
        let handle = handles.remove(0);
        lock(&self.0).replace(handles);
        let outcome = client.acquire(&handle, deadline);
        self.fetch(client, deadline, &is_here);
        outcome.map(|grant| (handle, grant))
    }

    /// The same for a handle; `number`: its virtual fd. The broker is asked for its neighbours
    /// where the program goes through handles in the order of their slots, as an owner gets them
    /// that registers in a row.
    ///
    /// # Errors
    /// Those of [`Client::acquire`].
    pub(crate) fn acquire_handle(
        &self,
        client: &Client,
        (handle, number): (&Handle, Option<VirtualFd>),
        deadline: Deadline,
        is_here: impl Fn(&Handle) -> bool,
    ) -> Result<(Handle, Grant), Error> {
        let is_in_row = lock(&self.0).note_slot(handle.id().slot);
        let is_it = |other: &Handle| other.prefix == handle.prefix;
        if let Some(outcome) = self.acquire_told(client, is_it, deadline, &is_here) {
            return outcome;
        }
        let told = number.filter(|_| is_in_row).map(|it| client.resolve(it, TOLD_AHEAD, deadline));
        if let Some(Ok(mut handles)) = told
            && handles.first().is_some_and(is_it)
        {
            handles.remove(0);
            let mut told = lock(&self.0);
            told.replace(handles);
            told.is_in_row = true;
        }
        let outcome = client.acquire(handle, deadline);
        self.fetch(client, deadline, &is_here);
        outcome.map(|grant| (*handle, grant))
    }

    /// One of those that were told; `None`: it is none, or the broker does not know it any more.
    fn acquire_told(
        &self,
        client: &Client,
        is_it: impl Fn(&Handle) -> bool,
        deadline: Deadline,
        is_here: impl Fn(&Handle) -> bool,
    ) -> Option<Result<(Handle, Grant), Error>> {
        // Not under the lock: the body asks the broker.
        let told = lock(&self.0).take(is_it);
        let (handle, was_fetched) = told?;
        if was_fetched {
            let taken = client.take_ahead(&handle);
            lock(&self.0).note_taken(taken.is_some());
            if let Some(outcome) = taken {
                self.fetch(client, deadline, &is_here);
                return Some(outcome.map(|grant| (handle, grant)));
            }
        }
        match client.acquire(&handle, deadline) {
            Err(Error { code: ErrorCode::Stale | ErrorCode::BadHandle, .. }) => None,
            outcome => {
                self.fetch(client, deadline, &is_here);
                Some(outcome.map(|grant| (handle, grant)))
            }
        }
    }

    /// Has the next ones sent ahead while the program uses this one, if it goes through them in a
    /// row and the first of them is not here already.
    fn fetch(&self, client: &Client, deadline: Deadline, is_here: impl Fn(&Handle) -> bool) {
        let next = lock(&self.0).to_fetch();
        if next.first().is_some_and(|first| !is_here(first)) {
            let count = client.fetch_ahead(&next, deadline);
            lock(&self.0).note_fetched(count);
        }
    }
}

impl Told {
    /// Notes which handle is asked for. Whether the last ones were in a row.
    fn note_slot(&mut self, slot: u32) -> bool {
        let is_next = self.last_slot.checked_add(1) == Some(slot);
        self.in_a_row = if is_next { self.in_a_row.saturating_add(1) } else { 0 };
        self.last_slot = slot;
        self.in_a_row >= IN_A_ROW
    }

    /// One of the handles, and whether it was asked for ahead.
    fn take(&mut self, is_it: impl Fn(&Handle) -> bool) -> Option<(Handle, bool)> {
        let place = self.handles.iter().position(is_it)?;
        self.is_in_row = place == 0;
        let was_fetched = place < self.fetched;
        if was_fetched {
            // Those before it are given up with it: they lie in front of it.
            self.handles.drain(..place);
            self.fetched -= place + 1;
            return self.handles.pop_front().map(|handle| (handle, true));
        }
        self.handles.remove(place).map(|handle| (handle, false))
    }

    /// What was asked for ahead had come, or not. It comes in order, so after several that did not
    /// there is none.
    fn note_taken(&mut self, is_there: bool) {
        self.is_worth_it |= is_there;
        self.misses = if is_there { 0 } else { self.misses + 1 };
        if self.misses == MISSES_AHEAD {
            (self.misses, self.fetched) = (0, 0);
        }
    }

    /// The broker tells others. A program that has used up those before in a row goes on.
    fn replace(&mut self, handles: Vec<Handle>) {
        let is_in_row = self.is_in_row && self.handles.is_empty();
        let handles = handles.into();
        *self = Told { handles, fetched: 0, is_in_row, misses: 0, is_worth_it: true, ..*self };
    }

    /// Those to be asked for ahead now; none while some of them may still come, or when the last
    /// ones did not.
    fn to_fetch(&self) -> Vec<Handle> {
        if self.is_in_row && self.fetched == 0 && self.is_worth_it {
            self.handles.iter().copied().collect()
        } else {
            Vec::new()
        }
    }

    /// The first so many were asked for.
    fn note_fetched(&mut self, count: usize) {
        (self.fetched, self.is_worth_it) = (count.min(self.handles.len()), false);
    }
}
