//! What the table does for a miss: says which thread fetches and which wait, and keeps what was
//! fetched. Must never let two threads fetch the same, nor keep what has ended meanwhile.

use super::{Pinned, Table, Victims, close_all, pinned, place};
use crate::books::page::Verdict;
use crate::cache::cold::{Cold, Held};
use crate::cache::entry::tag_of;
use crate::cache::flight::{End, Flight, Key};
use crate::cache::pin::Pin;
use crate::cache::segments::{my_seat, my_stripe};
use crate::cache::settings::ImportMode;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::map::Access;
use crate::sync::lock;
use fdbroker_protocol::{ErrorCode, Handle};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What a look under the lock finds.
#[derive(Debug)]
pub(in crate::cache) enum Look<'a> {
    Found(Pinned<'a>),
    /// Another thread is fetching it.
    Wait(Waiter<'a>),
    /// The caller is to fetch it.
    Fetch(Claim<'a>),
    /// The cache is suspended.
    Suspended,
}

/// Memory just opened, to be kept.
#[derive(Debug)]
pub(in crate::cache) struct Fresh {
    pub held: Held,
    pub len: usize,
    pub mode: ImportMode,
    pub is_host: bool,
    pub is_final: bool,
}

impl Table {
    /// Looks under the lock: what a hit could not see, what is ended, and whether another thread
    /// fetches it. Counts.
    pub fn look(&self, handle: &Handle, access: Access) -> Look<'_> {
        let mut closed = Vec::new();
        let mut cold = lock(&self.cold);
        let look = self.look_locked(&mut cold, handle, access, &mut closed);
        cold.misses += u64::from(!matches!(look, Look::Found(_)));
        drop(cold);
        close_all(closed);
        look
    }

    fn look_locked(
        &self,
        cold: &mut Cold,
        handle: &Handle,
        access: Access,
        closed: &mut Vec<Held>,
    ) -> Look<'_> {
        let id = handle.id();
        if let Some(number) = self.listed(id.slot) {
            let row = self.row(number);
            let verdict = self.common.page.verdict(cold.id(place(row)));
            // No broker that could say: the entry stays, for when one is back.
            if verdict == Verdict::Ended {
                cold.stale += 1;
                closed.extend(self.detach(cold, number));
            } else if let Some(word) =
                self.validate(row.entry(), tag_of(&handle.prefix), id, access)
            {
                let stripe = my_stripe();
                row.make_count(stripe);
                // Pinned too often: it is fetched anew, and this one is closed when the last user
                // releases it.
                if row.pin(stripe).is_ok() {
                    row.entry().refer(word);
                    self.hits.add(my_seat());
                    return Look::Found(pinned(row, Pin::new(number, stripe, word.incarnation())));
                }
            }
        }
        if cold.suspended.is_some() {
            return Look::Suspended;
        }
        let key = Key::of(handle);
        if let Some(flight) = cold.flights.get(&key) {
            let serves = access == Access::Read || flight.access == Access::ReadWrite;
            return Look::Wait(Waiter::join(self, Arc::clone(flight), serves));
        }
        let flight = Arc::new(Flight::new(access));
        cold.flights.insert(key, Arc::clone(&flight));
        Look::Fetch(Claim::new(self, key, flight))
    }

    /// Keeps what was fetched, pinned once for the caller and once for each waiter; what has to go
    /// for it is in `closed`. If it has ended meanwhile, or the connection has, nothing is kept.
    pub fn keep(
        &self,
        claim: Claim<'_>,
        handle: &Handle,
        fresh: Fresh,
        closed: &mut Vec<Held>,
    ) -> Result<Pinned<'_>, Error> {
        let id = fresh.held.lease.id();
        let mut cold = lock(&self.cold);
        // The page under the lock: an end that came before is seen here, one that comes after finds
        // the entry.
        if !fresh.held.lease.is_current() {
            drop(cold);
            return Err(fresh.held.lease.why_not_current());
        }
        if cold.suspended.is_some() {
            drop(cold);
            return Err(Error::suspended(id));
        }
        if let Some(older) = self.listed(id.slot) {
            // Opened for reading only, or of another generation.
            closed.extend(self.detach(&mut cold, older));
        }
        // `make_room_for` has made room; another thread may have been faster.
        while let Some(limit) = self.strict_limit(&cold, fresh.len as u64) {
            let Some(held) = self.evict(&mut cold, Victims::All) else {
                drop(cold);
                return Err(limit.is_full(id));
            };
            closed.push(held);
        }
        let Some(number) = self.free_number(&mut cold, id.slot) else {
            drop(cold);
            let context = format!("import {id}: all entries of the cache are in use; release some");
            return Err(Error::new(ErrorCode::Internal, context));
        };
        let row = self.segments.make(number);
        let entry = row.entry();
        entry.tag.store(tag_of(&handle.prefix), Ordering::Relaxed);
        entry.generation.store(id.generation, Ordering::Relaxed);
        entry.ptr.store(fresh.held.opened.as_ptr(), Ordering::Relaxed);
        entry.len.store(fresh.len, Ordering::Relaxed);
        let stripe = my_stripe();
        let count = row.make_count(stripe);
        count.fetch_add(1, Ordering::SeqCst);
        let incarnation = entry.open(fresh.mode, fresh.is_host, fresh.is_final);
        let pin = Pin::new(number, stripe, incarnation);
        let mapped = if fresh.is_host { self.room.addresses(fresh.len) } else { 0 };
        row.set_place(Some(cold.keep(number, fresh.held, fresh.len as u64, mapped)));
        if number != id.slot {
            self.segments.make(id.slot).set_elsewhere(Some(number));
        }
        cold.flights.remove(&claim.key());
        claim.land(|waiters| {
            count.fetch_add(waiters, Ordering::SeqCst);
            pin
        });
        let empties = self.settings.empty_cache && self.victims(&cold).is_some();
        if !empties {
            self.make_room(&mut cold, closed);
        }
        drop(cold);
        if empties {
            self.empty_when_full();
        }
        Ok(pinned(row, pin))
    }

    /// Takes a flight out that nobody else has ended; whether it was there.
    fn forget_flight(&self, key: Key, flight: &Arc<Flight>) -> bool {
        if !self.is_own_process() {
            return false;
        }
        let mut cold = lock(&self.cold);
        let is_it = cold.flights.get(&key).is_some_and(|known| Arc::ptr_eq(known, flight));
        if is_it {
            cold.flights.remove(&key);
        }
        is_it
    }
}

/// The duty to end a flight; failed if dropped.
#[derive(Debug)]
pub(in crate::cache) struct Claim<'a> {
    table: &'a Table,
    key: Key,
    flight: Arc<Flight>,
    has_landed: bool,
}

impl<'a> Claim<'a> {
    fn new(table: &'a Table, key: Key, flight: Arc<Flight>) -> Self {
        Claim { table, key, flight, has_landed: false }
    }

    pub fn key(&self) -> Key {
        self.key
    }

    /// It has landed, and is no longer in the table.
    fn land(mut self, pin: impl FnOnce(u32) -> Pin) {
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

/// A place among the waiters for a flight; a pin that nobody fetched is given back on drop.
#[derive(Debug)]
pub(in crate::cache) struct Waiter<'a> {
    table: &'a Table,
    flight: Arc<Flight>,
    /// Whether a pin is made for it: the flight's access serves it.
    wants_pin: bool,
}

/// What a waiter got.
#[derive(Debug)]
pub(in crate::cache) enum Waited {
    /// The memory, pinned.
    Pinned(Pin),
    /// Nothing: look again.
    Nothing,
    TimedOut,
}

impl<'a> Waiter<'a> {
    /// Joins the waiters. The caller holds the table's lock.
    fn join(table: &'a Table, flight: Arc<Flight>, wants_pin: bool) -> Self {
        if wants_pin {
            flight.join();
        }
        Waiter { table, flight, wants_pin }
    }

    /// Waits for the flight's end.
    pub fn wait(mut self, deadline: Deadline) -> Waited {
        let Some(end) = self.flight.wait(deadline) else { return Waited::TimedOut };
        let wants_pin = std::mem::take(&mut self.wants_pin);
        match end {
            End::Landed(pin) if wants_pin => Waited::Pinned(pin),
            _ => Waited::Nothing,
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if self.wants_pin
            && let Some(pin) = self.flight.leave()
        {
            self.table.release_held(pin);
        }
    }
}
