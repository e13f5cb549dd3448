//! The producer's table: one registration per allocation, however many pointers into it are
//! exported. Must never give out the handle of memory that was freed, replaced or ended.
//!
//! **Order.** What is being registered stands in `underway`, what is registered in `known`; neither
//! holds two ranges that overlap. Whoever wants a range in which another is under way waits for
//! that answer first, so the broker hears of a range in the order in which the table does. Nobody
//! waits while it has something under way.
//!
//! **Lock order**: underway, then known. No lock is held over an export, a message or an answer.

mod known;
mod started;

pub use started::{RegisterProgress, RegisterRequest};

use crate::api::client::Client;
use crate::books::holdings::LostRegistration;
use crate::books::page::Verdict;
use crate::books::roles::Registrant;
use crate::books::spans::{Place, Spans, place_of};
use crate::deadline::Deadline;
use crate::deposit::{Deposit, Drained, Export, Registration, RegistrationRef};
use crate::error::Error;
use crate::interrupt::{Condvar, wait_until};
use crate::limits::UNREGISTER_TIMEOUT;
use crate::requests::register::Batch;
use crate::sync::{is_in_callback, lock};
use crate::wire::connection::Connection;
use fdbroker_protocol::{AllocationId, ErrorCode, Handle};
use known::{Entry, Known};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The registrations of a producer whose memory has addresses: asked for the same allocation again,
/// it gives the handle it knows.
///
/// An allocation is the same when device, base, size and id are. Another size or id at an address,
/// or a range that overlaps, means that the memory there was freed: the old registration is retired
/// at once, and its handle never given out again. A registration that has ended otherwise (an
/// administrator's revoke) is not given out either; registering makes a new one. Over a loss of the
/// broker registrations go on, but for those told of by [`crate::Notice::RegistrationLost`].
///
/// One per [`Client`], shared by its threads. It keeps the client connected, and has as many
/// entries as this client has registrations by it, which the broker's cap on allocations bounds;
/// those ended by others are swept out before they are as many again. Dropping it unregisters
/// nothing.
#[derive(Debug)]
pub struct Exports {
    client: Client,
    known: Arc<Table>,
    /// Those whose answer a thread awaits.
    underway: Mutex<Spans<Underway>>,
    /// One of them has been answered.
    answered: Condvar,
}

#[derive(Debug, Default)]
struct Table(RwLock<Known>);

impl Registrant for Table {
    fn lost(&self, registration: &LostRegistration) {
        self.write().remove_lost(registration.id, registration.birth);
    }
}

impl Table {
    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A registration whose answer is awaited.
#[derive(Debug)]
struct Underway {
    owner_allocation_id: u64,
    /// The memory was freed or replaced meanwhile: the registration is undone when it comes.
    superseded: bool,
}

/// What a deposit finds in the table.
enum Found<'a> {
    Known(Handle),
    /// Its range is the caller's, to register.
    Claimed(Claim<'a>),
    /// Another thread registers in its range.
    Busy,
}

impl Exports {
    /// A table without an entry, whose allocations are registered at `client`.
    pub fn new(client: &Client) -> Self {
        let known: Arc<Table> = Arc::default();
        let registrant: std::sync::Weak<Table> = Arc::downgrade(&known);
        client.common().registrants.add(registrant);
        Exports {
            client: client.clone(),
            known,
            underway: Mutex::default(),
            answered: Condvar::new(),
        }
    }

    /// The handle of an allocation, offset 0. One that is known is looked up, without a message.
    /// Otherwise `export` is called once, within the export window ([`Client::register_with`]), and
    /// must not wait for anything. Threads that register the same allocation at once make one
    /// registration. A deposit without an address (`base` 0) is registered anew each time and not
    /// kept here.
    ///
    /// # Errors
    /// As [`Client::register`], and those of `export`. STALE: the memory was retired or replaced by
    /// another thread meanwhile; its registration is undone.
    pub fn register(
        &self,
        deposit: &Deposit,
        export: impl FnOnce() -> Result<OwnedFd, Error>,
        deadline: Deadline,
    ) -> Result<Handle, Error> {
        let mut export = Some(export);
        let mut fresh = |_| {
            let export = export.take().expect("called once per deposit");
            export().and_then(Export::fresh)
        };
        let mut batch =
            Batch { deposits: std::slice::from_ref(deposit), export: &mut fresh, fresh: true };
        self.register_one(&mut batch, deadline)
    }

    /// The same with an fd that the caller has, and keeps.
    ///
    /// # Errors
    /// As [`Exports::register`].
    pub fn register_shared(
        &self,
        deposit: &Deposit,
        fd: BorrowedFd<'_>,
        deadline: Deadline,
    ) -> Result<Handle, Error> {
        let mut shared = |_| Ok(Export::Shared(fd));
        let mut batch =
            Batch { deposits: std::slice::from_ref(deposit), export: &mut shared, fresh: false };
        self.register_one(&mut batch, deadline)
    }

    /// Any number, `fds[i]` being that of `deposits[i]`; one outcome each, in their order. What is
    /// not known travels in batches, as with [`Client::register_many`]. Where deposits of one call
    /// overlap, one of them stays registered, and the others answer STALE or get a handle that is.
    ///
    /// # Errors
    /// When nothing was tried: NOT_CONNECTED, or NOT_SUPPORTED in a callback.
    ///
    /// # Panics
    /// When `deposits` and `fds` differ in length.
    pub fn register_many(
        &self,
        deposits: &[Deposit],
        fds: &[BorrowedFd<'_>],
        deadline: Deadline,
    ) -> Result<Vec<Result<Handle, Error>>, Error> {
        assert_eq!(deposits.len(), fds.len(), "one fd per deposit");
        self.connected(deposits, |client, what| client.connection(what, deadline))?;
        let mut handles: Vec<Option<Result<Handle, Error>>> = Vec::new();
        handles.resize_with(deposits.len(), || None);
        let mut claims: Vec<(usize, Option<Claim<'_>>)> = Vec::new();
        let mut busy = Vec::new();
        for (index, deposit) in deposits.iter().enumerate() {
            let Some(place) = place_of(deposit) else {
                claims.push((index, None));
                continue;
            };
            match self.find(place, deposit) {
                Found::Known(handle) => handles[index] = Some(Ok(handle)),
                Found::Claimed(claim) => claims.push((index, Some(claim))),
                Found::Busy => busy.push(index),
            }
        }

        let chosen: Vec<Deposit> = claims.iter().map(|(index, _)| deposits[*index]).collect();
        let mut shared = |at: usize| Ok(Export::Shared(fds[claims[at].0]));
        let mut batch = Batch { deposits: &chosen, export: &mut shared, fresh: false };
        let outcomes = self.client.register_batch(&mut batch, deadline)?;
        for ((index, claim), outcome) in claims.into_iter().zip(outcomes) {
            let deposit = &deposits[index];
            handles[index] = Some(match claim {
                Some(claim) => outcome.and_then(|registration| claim.keep(deposit, &registration)),
                None => outcome.map(|registration| registration.handle),
            });
        }

        // With nothing of its own under way, so that two such calls cannot wait for each other.
        for index in busy {
            handles[index] = Some(self.register_shared(&deposits[index], fds[index], deadline));
        }
        let outcome = |one: Option<_>| one.expect("known, registered or found busy");
        Ok(handles.into_iter().map(outcome).collect())
    }

    /// The handle of the registered allocation that `pointer` points into, with its offset set. No
    /// message, no wait. `None`: unknown, ended, or there is no broker.
    pub fn lookup(&self, device: u32, pointer: u64) -> Option<Handle> {
        if !self.client.is_connected() {
            return None;
        }
        let known = self.known.read();
        let (offset, entry) = known.containing(device, pointer)?;
        (!self.has_ended(entry.handle.id())).then(|| entry.handle.at(offset))
    }

    /// The allocation at `base` was freed: it is gone from the table at once and ended at the
    /// broker by one message without an answer; which it was. To know when the last consumer has
    /// released it, call [`Exports::unregister`] instead. Fine in a callback.
    pub fn retire(&self, device: u32, base: u64) -> Option<AllocationId> {
        // The locks may be held by a thread that a forked child does not have.
        if self.client.is_forked_copy() {
            return None;
        }
        let mut underway = lock(&self.underway);
        if let Some(other) = underway.get_mut((device, base)) {
            other.superseded = true;
        }
        let retired = self.known.write().remove((device, base));
        drop(underway);
        let retired = retired?;
        self.unregister_one_way(vec![retired]);
        Some(retired.handle.id())
    }

    /// Ends an allocation by its number and waits for the answer: whether no lease was left; if one
    /// was, [`crate::Notice::Drained`] follows the last. It is gone from the table at once. Also
    /// for those without an address.
    ///
    /// # Errors
    /// As [`Client::unregister`].
    pub fn unregister(&self, id: AllocationId) -> Result<Drained, Error> {
        self.unregister_within(id, Deadline::after(UNREGISTER_TIMEOUT))
    }

    /// The same within a deadline.
    ///
    /// # Errors
    /// As [`Client::unregister`].
    pub fn unregister_within(
        &self,
        id: AllocationId,
        deadline: Deadline,
    ) -> Result<Drained, Error> {
        if is_in_callback() || self.client.is_forked_copy() {
            // Refused, and nothing touched.
            self.client.connection("unregister", deadline)?;
        }
        let known = self.known.write().remove_id(id);
        let epoch = known.map(|entry| entry.birth);
        self.client.unregister_within(RegistrationRef { id, epoch }, deadline)
    }

    /// The same by a handle, which another broker may have made: BAD_HANDLE then, and what has its
    /// number here stays.
    ///
    /// # Errors
    /// As [`Client::unregister`].
    pub fn unregister_handle(&self, handle: &Handle, deadline: Deadline) -> Result<Drained, Error> {
        let id = handle.id();
        if !self.client.is_forked_copy() && self.client.common().holdings.is_another(handle) {
            return Err(Error::new(ErrorCode::BadHandle, format!("unregister {id}")));
        }
        self.unregister_within(id, deadline)
    }

    /// Allocations in the table; some of them may have ended otherwise.
    pub fn len(&self) -> usize {
        if self.client.is_forked_copy() { 0 } else { self.known.read().len() }
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn register_one(&self, batch: &mut Batch<'_, '_>, deadline: Deadline) -> Result<Handle, Error> {
        let deposit = batch.deposits[0];
        let Some(place) = place_of(&deposit) else {
            return self.send_one(batch, deadline).map(|registration| registration.handle);
        };
        if let Some(handle) = self.known_as(place, &deposit) {
            return Ok(handle);
        }
        self.connected(batch.deposits, |client, what| client.connection(what, deadline))?;
        match self.find_waiting(place, &deposit, deadline)? {
            Found::Known(handle) => Ok(handle),
            Found::Claimed(claim) => claim.keep(&deposit, &self.send_one(batch, deadline)?),
            Found::Busy => unreachable!("it was waited for"),
        }
    }

    fn send_one(
        &self,
        batch: &mut Batch<'_, '_>,
        deadline: Deadline,
    ) -> Result<Registration, Error> {
        let outcomes = self.client.register_batch(batch, deadline)?;
        outcomes.into_iter().next().expect("one outcome per deposit")
    }

    /// The handle of this very allocation, if it is registered.
    fn known_as(&self, place: Place, deposit: &Deposit) -> Option<Handle> {
        if !self.client.is_connected() {
            return None;
        }
        let known = self.known.read();
        let entry = known.exact(place, deposit)?;
        (!self.has_ended(entry.handle.id())).then_some(entry.handle)
    }

    /// Whether a broker says so. When none can, the registration stays: it goes on at the next.
    fn has_ended(&self, id: AllocationId) -> bool {
        self.client.common().page.verdict(id) == Verdict::Ended
    }

    /// The connection of the moment. If there is none: what is in these ranges besides the very
    /// same allocations is not there any more, and is not named to the next one.
    fn connected(
        &self,
        deposits: &[Deposit],
        find: impl FnOnce(&Client, &str) -> Result<Arc<Connection>, Error>,
    ) -> Result<Arc<Connection>, Error> {
        let connected = find(&self.client, "register");
        if connected.as_ref().is_err_and(|error| error.code == ErrorCode::NotConnected)
            && !self.client.is_forked_copy()
        {
            for (place, deposit) in deposits.iter().filter_map(|one| Some((place_of(one)?, one))) {
                let replaced = self.known.write().take_others(place, deposit);
                self.unregister_one_way(replaced);
            }
        }
        connected
    }

    /// Finds a deposit's allocation, or its range free for the caller, without waiting.
    fn find(&self, place: Place, deposit: &Deposit) -> Found<'_> {
        let mut underway = lock(&self.underway);
        let (found, retired) = self.look(&mut underway, place, deposit);
        drop(underway);
        self.unregister_one_way(retired);
        found
    }

    /// The same, waiting while another thread registers in its range: known, or claimed.
    fn find_waiting(
        &self,
        place: Place,
        deposit: &Deposit,
        deadline: Deadline,
    ) -> Result<Found<'_>, Error> {
        let mut underway = lock(&self.underway);
        loop {
            let (found, retired) = self.look(&mut underway, place, deposit);
            let is_busy = matches!(found, Found::Busy);
            if !is_busy || !retired.is_empty() {
                drop(underway);
                self.unregister_one_way(retired);
                if !is_busy {
                    return Ok(found);
                }
                // It may have been answered meanwhile.
                underway = lock(&self.underway);
                continue;
            }
            if deadline.has_passed() {
                let context = "register: another thread is registering this memory";
                return Err(Error::timed_out(context));
            }
            underway = wait_until(&self.answered, &self.underway, underway, deadline.at());
        }
    }

    /// Supersedes and retires whatever else is in the range, and enters the deposit as under way
    /// when it is free. A claim must not be dropped under the lock.
    fn look(
        &self,
        underway: &mut Spans<Underway>,
        place: Place,
        deposit: &Deposit,
    ) -> (Found<'_>, Vec<Entry>) {
        let (size_bytes, owner_allocation_id) =
            (deposit.facts.size_bytes, deposit.facts.owner_allocation_id);
        let same = underway.exact(place, size_bytes);
        if same.is_some_and(|other| other.owner_allocation_id == owner_allocation_id) {
            return (Found::Busy, Vec::new());
        }
        if let Some(handle) = self.known_as(place, deposit) {
            return (Found::Known(handle), Vec::new());
        }
        let retired = {
            let mut known = self.known.write();
            let is_kept = known.exact(place, deposit).map(|entry| entry.handle);
            if let Some(handle) = is_kept.filter(|handle| !self.has_ended(handle.id())) {
                // Lost right now: nobody can register it, and it goes on.
                return (Found::Known(handle), Vec::new());
            }
            known.take_overlapping(place, size_bytes)
        };
        let others = underway.overlapping(place, size_bytes);
        if others.is_empty() {
            let entry = Underway { owner_allocation_id, superseded: false };
            underway.insert(place, size_bytes, entry);
            return (Found::Claimed(Claim { exports: self, place }), retired);
        }
        for other in others {
            underway.get_mut(other).expect("just found").superseded = true;
        }
        (Found::Busy, retired)
    }

    /// Ends them, at the broker too if there is one.
    fn unregister_one_way(&self, retired: Vec<Entry>) {
        let registration = |one: Entry| {
            let epoch = Some(one.birth);
            RegistrationRef { id: one.handle.id(), epoch }
        };
        self.client.common().retire(retired.into_iter().map(registration));
    }
}

/// For memory of devices that others allocated.
#[cfg(any(feature = "cuda", feature = "level-zero"))]
impl Exports {
    /// The handle of an allocation, offset 0, if it is registered: by device, base, size and id.
    pub(crate) fn known(&self, deposit: &Deposit) -> Option<Handle> {
        self.known_as(place_of(deposit)?, deposit)
    }

    /// Whose registrations these are.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }
}

/// The right to register in a range; given up on drop, and whoever waits for the range looks again.
struct Claim<'a> {
    exports: &'a Exports,
    place: Place,
}

impl Claim<'_> {
    /// The broker has registered it: into the table, unless it was superseded meanwhile.
    fn keep(self, deposit: &Deposit, registration: &Registration) -> Result<Handle, Error> {
        let (exports, place) = (self.exports, self.place);
        let (handle, birth) = (registration.handle, registration.epoch);
        let owner_allocation_id = deposit.facts.owner_allocation_id;
        let entry = Entry { handle, owner_allocation_id, birth };
        let underway = lock(&exports.underway);
        let superseded = underway.get(place).is_none_or(|one| one.superseded);
        let mut is_lost = false;
        let retired = if superseded {
            vec![entry]
        } else {
            let mut known = exports.known.write();
            let swept = known.sweep(|id| exports.has_ended(id));
            // Under the lock: if it is lost after this look, it is found in the table.
            is_lost = !exports.client.common().holdings.has(registration);
            if !is_lost {
                known.insert(place, deposit.facts.size_bytes, entry);
            }
            swept
        };
        drop(underway);
        drop(self);
        exports.unregister_one_way(retired);
        if superseded {
            let context = "register: the memory was freed or replaced meanwhile";
            return Err(Error::new(ErrorCode::Stale, context));
        }
        if is_lost {
            Err(Error::not_connected("register: the broker was lost meanwhile"))
        } else {
            Ok(handle)
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        lock(&self.exports.underway).remove(self.place);
        self.exports.answered.notify_all();
    }
}
