//! What this client has at the broker: its registrations and its leases, over all connections. Pure
//! bookkeeping, no IO. Must never call anything under its lock, nor hold a connection but as a
//! `Line`: connections hold this.
//!
//! **Over a loss.** While a connection works, everything in here is known to its broker. When it is
//! lost, nothing is. The next one is *begun* (`begin`): what can be named again waits to be named,
//! what cannot has ended. `resume` then names it, message by message, before the application gets
//! the connection. What the application ends meanwhile is not named any more (as ended, if it is
//! kept or its owner waits for its drain), or taken back when the answer comes. What a broker
//! refuses has ended.
//!
//! **Stragglers.** A reply may be read from a connection that is lost by the time its thread
//! decodes it: what it brings is entered as waiting, too, and named by the connection of the
//! moment, or the next one.
//!
//! **Lock order**: after any other lock of the library; none is taken under it.

mod leases;
mod registrations;

pub(crate) use leases::{Declaring, LeaseKey, Mark, RefusedLease};
pub(crate) use registrations::{Ending, LostRegistration, Named, Naming};

use super::one_way::{Line, OneWay, OwnerKey};
use super::wake::Wake;
use crate::deposit::{Deposit, Registration, RegistrationRef};
use crate::interrupt::{Condvar, now, wait_until};
use crate::sync::lock;
use fdbroker_protocol::{AllocationId, ErrorCode, Handle, HandlePrefix};
use leases::Leases;
use registrations::{Memory, Registrations};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

/// See the file's head.
#[derive(Debug)]
pub(crate) struct Holdings {
    state: Mutex<State>,
    wake: Wake,
    /// How often leases have got other numbers.
    numberings: AtomicU64,
    /// What was retired may be drained.
    drained: Condvar,
}

#[derive(Debug, Default)]
struct State {
    link: Link,
    leases: Leases,
    registrations: Registrations,
    /// Nothing was here, and the library thread sleeps until something is.
    sleeps: bool,
}

/// The connection by which the broker hears of what is in here.
#[derive(Debug, Default)]
struct Link {
    /// Of the last connection begun; 0: none yet.
    epoch: u64,
    line: Option<Weak<dyn Line>>,
}

impl Link {
    fn line(&self) -> Option<Arc<dyn Line>> {
        self.line.as_ref()?.upgrade()
    }

    /// Whether what connection `epoch` has brought is known to the broker of the moment.
    fn is_of(&self, epoch: u64) -> bool {
        self.line.is_some() && self.epoch == epoch
    }
}

impl Holdings {
    pub fn new(wake: Wake) -> Self {
        let (numberings, drained) = (AtomicU64::new(0), Condvar::new());
        Holdings { state: Mutex::default(), wake, numberings, drained }
    }

    /// Connection `epoch` is begun: all that is here waits to be named over it. What has ended for
    /// want of a way to name it. `is_closed`: the memory at an address cannot be exported again.
    pub fn begin(
        &self,
        epoch: u64,
        line: Weak<dyn Line>,
        is_closed: &dyn Fn(u64) -> bool,
    ) -> Vec<LostRegistration> {
        let mut state = lock(&self.state);
        state.link = Link { epoch, line: Some(line) };
        state.leases.begin();
        state.registrations.begin(is_closed)
    }

    /// Connection `epoch` is lost.
    pub fn unlink(&self, epoch: u64) {
        let mut state = lock(&self.state);
        if state.link.epoch == epoch {
            state.link.line = None;
        }
    }

    /// The connection of the moment, also before the application has it.
    pub fn line(&self) -> Option<Arc<dyn Line>> {
        lock(&self.state).link.line()
    }

    /// Whether something waits to be named.
    pub fn has_waiting(&self) -> bool {
        let state = lock(&self.state);
        state.leases.has_waiting() || state.registrations.has_waiting()
    }

    /// Whether the library thread may sleep for long: nothing is here. It is woken by what comes.
    pub fn may_sleep(&self) -> bool {
        let mut state = lock(&self.state);
        state.sleeps = state.leases.is_empty() && state.registrations.is_empty();
        state.sleeps
    }

    /// A lease just granted over connection `epoch`, its fd open. Another broker's by now: it waits
    /// to be declared.
    pub fn enter_lease(
        &self,
        epoch: u64,
        number: u64,
        id: AllocationId,
        handle: Option<HandlePrefix>,
    ) -> (LeaseKey, Arc<Mark>) {
        self.enter(epoch, |state, is_known| state.leases.enter(number, id, handle, is_known))
    }

    /// A registration just made over connection `epoch`; the epoch that it is known by from now on:
    /// the first one's, if it is counted again. Another broker's by now: it waits to be named.
    pub fn enter_registration(&self, epoch: u64, deposit: &Deposit, made: &Registration) -> u64 {
        self.enter(epoch, |state, is_known| state.registrations.enter(deposit, made, is_known))
    }

    fn enter<T>(&self, epoch: u64, enter: impl FnOnce(&mut State, bool) -> T) -> T {
        let mut state = lock(&self.state);
        let is_known = state.link.is_of(epoch);
        let entered = enter(&mut state, is_known);
        let sleeps = std::mem::take(&mut state.sleeps);
        drop(state);
        if !is_known || sleeps {
            // The thread that serves may have named all that there was, or had nothing to look
            // after.
            self.wake.kick();
        }
        entered
    }

    /// What a lease was granted for; `None`: for the name of an object.
    pub fn handle_of(&self, key: LeaseKey) -> Option<HandlePrefix> {
        lock(&self.state).leases.handle(key)
    }

    /// What all leases were granted for that are not given back; each allocation once.
    pub fn in_use(&self) -> Vec<HandlePrefix> {
        lock(&self.state).leases.in_use()
    }

    /// The memory is imported and the fd closed: the connection to say so over, and the lease's
    /// number.
    pub fn lease_mapped(&self, key: LeaseKey) -> Option<(Arc<dyn Line>, u64)> {
        let mut state = lock(&self.state);
        let number = state.leases.mapped(key)?;
        Some((state.link.line()?, number))
    }

    /// Its holder is done with it: the connection to say so over, and the lease's number. The key
    /// is void.
    pub fn lease_released(&self, key: LeaseKey) -> Option<(Arc<dyn Line>, u64)> {
        let mut state = lock(&self.state);
        let number = state.leases.released(key)?;
        Some((state.link.line()?, number))
    }

    /// These are about to be registered: what was in their ranges before is not there any more,
    /// whatever the answer.
    pub fn supersede<'a>(&self, deposits: impl Iterator<Item = &'a Deposit>) {
        let mut state = lock(&self.state);
        deposits.for_each(|deposit| state.registrations.supersede(deposit));
    }

    /// Whether a registration lasts: the broker knows it, or it is going to be named to the next.
    pub fn has(&self, registration: &Registration) -> bool {
        lock(&self.state).registrations.has(registration)
    }

    /// An allocation that is registered, as its owner knows it.
    pub fn key_of(&self, id: AllocationId) -> Option<OwnerKey> {
        lock(&self.state).registrations.key_of(id)
    }

    /// Whether a registration has the number in this handle, and another handle.
    pub fn is_another(&self, handle: &Handle) -> bool {
        lock(&self.state).registrations.is_another(handle)
    }

    /// Ends one registration, the last of its count for good. `awaits_drain`: its owner waits for
    /// its drain, over losses of the broker, too.
    pub fn end(&self, what: RegistrationRef, awaits_drain: bool) -> Ending {
        let mut state = lock(&self.state);
        let line = state.link.line();
        state.registrations.end(what, line, awaits_drain)
    }

    /// Its owner has answered a recall so.
    pub fn note_gone(&self, id: AllocationId) {
        lock(&self.state).registrations.note_gone(id, Memory::Gone);
    }

    /// The broker has ended it, and nobody has a lease of it.
    pub fn forget(&self, id: AllocationId) {
        lock(&self.state).registrations.forget(id);
        self.drained.notify_all();
    }

    /// Ends what is left of an allocation, for an owner that waits until nobody has it: what the
    /// broker is to be told, over which connection.
    pub fn retire(&self, id: AllocationId) -> (Option<Arc<dyn Line>>, Vec<OneWay>) {
        let mut state = lock(&self.state);
        let line = state.link.line();
        let told = state.registrations.retire(id, line.as_ref());
        (line, told)
    }

    /// Waits until what was retired is drained. `None`: nobody can say.
    pub fn wait_drained(&self, id: AllocationId, until: Instant) -> Option<bool> {
        let mut state = lock(&self.state);
        loop {
            let is_drained = state.registrations.is_drained(id);
            if is_drained != Some(false) || now() >= until {
                return is_drained;
            }
            state = wait_until(&self.drained, &self.state, state, until);
        }
    }

    /// The broker has heard that it has ended.
    pub fn note_heard(&self, id: AllocationId) {
        lock(&self.state).registrations.note_heard(id);
    }

    /// Up to `most` registrations to name, in one message.
    pub fn take_unnamed(&self, most: usize) -> Naming {
        lock(&self.state).registrations.take_waiting(most)
    }

    /// Up to `most` leases to declare, in one message.
    pub fn take_undeclared(&self, most: usize) -> Declaring {
        lock(&self.state).leases.take_waiting(most)
    }

    /// The answers to what was named over connection `epoch`: see `Registrations::note_named`.
    pub fn note_named(
        &self,
        epoch: u64,
        naming: &Naming,
        answers: &[Result<bool, ErrorCode>],
        may_retry: bool,
    ) -> Named {
        let mut state = lock(&self.state);
        // Lost meanwhile: they wait again, or will.
        if state.link.is_of(epoch) {
            self.drained.notify_all();
            state.registrations.note_named(naming, answers, may_retry)
        } else {
            Default::default()
        }
    }

    /// The answers to what was declared over connection `epoch`: see `Leases::note_declared`.
    pub fn note_declared(
        &self,
        epoch: u64,
        declaring: &Declaring,
        answers: &[Result<u64, ErrorCode>],
    ) -> (Vec<OneWay>, Vec<RefusedLease>) {
        let mut state = lock(&self.state);
        // Lost meanwhile: they wait again, or will.
        if state.link.is_of(epoch) {
            let noted = state.leases.note_declared(declaring, answers);
            self.numberings.fetch_add(1, Ordering::Release);
            noted
        } else {
            Default::default()
        }
    }

    /// How often leases have got other numbers, or were refused.
    pub fn numberings(&self) -> u64 {
        self.numberings.load(Ordering::Acquire)
    }
}
