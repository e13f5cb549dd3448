//! An import under way: one thread asks the broker, the others that want the same wait for it.
//! Must never lose a waiter's pin, nor let anyone wait for a thread that has given up.

use crate::cache::cached::Pin;
use crate::cache::entry::tag_of;
use crate::cache::table::Table;
use crate::deadline::Deadline;
use crate::map::Access;
use crate::sync::{lock, wait_until};
use fdbroker_protocol::{AllocationId, Handle};
use std::sync::{Arc, Condvar, Mutex};

/// What is under way: the allocation, and the proof that came with it, so that a forged handle delays nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    id: AllocationId,
    tag: u64,
}

impl Key {
    pub fn of(handle: &Handle) -> Self {
        Key { id: handle.id(), tag: tag_of(&handle.prefix) }
    }
}

/// One import under way.
#[derive(Debug)]
pub(super) struct Flight {
    pub access: Access,
    state: Mutex<State>,
    landed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Those to be given a pin each.
    waiters: u32,
    end: Option<End>,
}

#[derive(Clone, Copy, Debug)]
enum End {
    /// Each waiter has a pin like this.
    Landed(Pin),
    Failed,
}

impl Flight {
    pub fn new(access: Access) -> Self {
        Flight { access, state: Mutex::default(), landed: Condvar::new() }
    }

    /// It has landed: `pin` makes that many pins, all alike, for those who wait.
    pub fn land(&self, pin: impl FnOnce(u32) -> Pin) {
        let mut state = lock(&self.state);
        state.end = Some(End::Landed(pin(state.waiters)));
        drop(state);
        self.landed.notify_all();
    }

    /// It has failed: those who wait try themselves.
    pub fn fail(&self) {
        lock(&self.state).end = Some(End::Failed);
        self.landed.notify_all();
    }
}

/// The duty to end a flight; failed if dropped.
#[derive(Debug)]
pub(super) struct Claim<'a> {
    table: &'a Table,
    key: Key,
    flight: Arc<Flight>,
    has_landed: bool,
}

impl<'a> Claim<'a> {
    pub fn new(table: &'a Table, key: Key, flight: Arc<Flight>) -> Self {
        Claim { table, key, flight, has_landed: false }
    }

    pub fn key(&self) -> Key {
        self.key
    }

    /// It has landed, and is no longer in the table.
    pub fn land(mut self, pin: impl FnOnce(u32) -> Pin) {
        self.has_landed = true;
        self.flight.land(pin);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.has_landed && self.table.forget_flight(self.key, &self.flight) {
            self.flight.fail();
        }
    }
}

/// A place among those who wait for a flight; a pin that nobody fetched is given back on drop.
#[derive(Debug)]
pub(super) struct Waiter<'a> {
    table: &'a Table,
    flight: Arc<Flight>,
    /// Whether a pin is made for it: the flight's access serves it.
    wants_pin: bool,
}

/// What a waiter got.
#[derive(Debug)]
pub(super) enum Waited {
    /// The memory, pinned.
    Pinned(Pin),
    /// Nothing: look again.
    Nothing,
    TimedOut,
}

impl<'a> Waiter<'a> {
    /// Joins those who wait. The caller holds the table's lock, under which the flight is ended.
    pub fn join(table: &'a Table, flight: Arc<Flight>, wants_pin: bool) -> Self {
        lock(&flight.state).waiters += u32::from(wants_pin);
        Waiter { table, flight, wants_pin }
    }

    /// Waits for the flight's end.
    pub fn wait(mut self, deadline: Deadline) -> Waited {
        let flight = Arc::clone(&self.flight);
        let mut state = lock(&flight.state);
        loop {
            match state.end {
                Some(End::Landed(pin)) if self.wants_pin => {
                    self.wants_pin = false;
                    return Waited::Pinned(pin);
                }
                Some(_) => {
                    self.wants_pin = false;
                    return Waited::Nothing;
                }
                None if deadline.has_passed() => break,
                None => state = wait_until(&flight.landed, state, deadline.at()),
            }
        }
        // Before the drop, which locks it.
        drop(state);
        Waited::TimedOut
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if !self.wants_pin {
            return;
        }
        let mut state = lock(&self.flight.state);
        match state.end {
            None => state.waiters -= 1,
            Some(End::Failed) => {}
            Some(End::Landed(pin)) => {
                drop(state);
                self.table.release_held(pin);
            }
        }
    }
}
