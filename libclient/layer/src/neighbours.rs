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
        let goes_on = lock(&self.0).goes_on();
        let (handle, taken) = self.ask(client, number, goes_on, deadline)?;
        let outcome = taken.unwrap_or_else(|| {
            let outcome = client.acquire(&handle, deadline);
            self.fetch(client, deadline, &is_here);
            outcome
        });
        outcome.map(|grant| (handle, grant))
    }

    /// Has the broker tell what is behind a number, and of its neighbours. `is_in_row`: the program
    /// will most likely want them, so their fds are to come, too. The first handle, with its grant
    /// if that has come.
    fn ask(
        &self,
        client: &Client,
        number: VirtualFd,
        is_in_row: bool,
        deadline: Deadline,
    ) -> Result<(Handle, Option<Result<Grant, Error>>), Error> {
        let (mut handles, count) = if is_in_row {
            client.resolve_ahead(number, TOLD_AHEAD, deadline)?
        } else {
            (client.resolve(number, TOLD_AHEAD, deadline)?, 0)
        };
        let handle = handles.remove(0);
        // The first comes before the answer, or none comes.
        let taken = if count > 0 { client.take_ahead(&handle) } else { None };
        let fetched = if taken.is_some() { count - 1 } else { 0 };
        lock(&self.0).replace(handles, fetched, is_in_row);
        Ok((handle, taken))
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
        let asked = number.filter(|_| is_in_row).map(|it| self.ask(client, it, true, deadline));
        // Another one's grant is given back by its drop.
        if let Some(Ok((first, Some(outcome)))) = asked
            && is_it(&first)
        {
            return outcome.map(|grant| (first, grant));
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

    /// A program that has used up all of them in a row goes on.
    fn goes_on(&self) -> bool {
        self.is_in_row && self.handles.is_empty()
    }

    /// The broker tells others, of which the first `fetched` were asked for ahead.
    fn replace(&mut self, handles: Vec<Handle>, fetched: usize, is_in_row: bool) {
        // An owner without any registers them one by one, as they are opened: not each of them
        // asks.
        let in_a_row = if handles.is_empty() { 0 } else { self.in_a_row };
        let handles = handles.into();
        let (misses, is_worth_it) = (0, true);
        *self = Told { handles, fetched, is_in_row, misses, is_worth_it, in_a_row, ..*self };
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
