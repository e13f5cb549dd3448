//! This process's connection to the broker, and what it exports and has opened through it. Must
//! never call the driver with a lock held, nor take one lock while another is held.

use crate::kept::{self, KeptFds};
use crate::limits::{RECALL_PATIENCE, RETIRE_TIMEOUT};
use crate::opened::Opened;
use crate::produced::{Place, Produced, Recalled};
use crate::say::{News, once};
use fdbroker_client::layer::lock;
use fdbroker_client::{Deadline, Error, ErrorCode, Recall, RecallAnswer};
use fdbroker_layer::{Connected, Connection, State, settle};
use fdbroker_virtual_fds::VirtualFd;
use level_zero_sys::ze_result_t;
use nix::errno::Errno;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

pub use fdbroker_layer::is_absent;

static CONNECTION: Connection<Memory> = Connection::new();

/// The connection, with what this process has through it.
#[derive(Clone, Copy)]
pub struct Broker(&'static Connected<Memory>);

/// The memory that this process exports, and what it has opened.
#[derive(Default)]
pub struct Memory {
    produced: Mutex<Produced>,
    /// A recall was answered.
    answered: Condvar,
    opened: Mutex<Opened>,
    kept: Mutex<KeptFds>,
}

impl Broker {
    pub fn produced(&self) -> MutexGuard<'_, Produced> {
        lock(&self.state.produced)
    }

    pub fn opened(&self) -> MutexGuard<'_, Opened> {
        lock(&self.state.opened)
    }

    /// The fds of event pools.
    pub fn kept(&self) -> MutexGuard<'_, KeptFds> {
        lock(&self.state.kept)
    }

    /// Ends the chosen allocations, and waits until the broker has ended them: memory that is about
    /// to be freed. The choice is made again after each export for the broker, which must not meet
    /// the free.
    pub fn retire(&self, chosen: impl Fn(&Produced) -> Vec<usize>) {
        let mut produced = self.produced();
        let mut bases = chosen(&produced);
        if !produced.is_quiet(&bases) {
            let is_busy = |produced: &mut Produced| !produced.is_quiet(&chosen(produced));
            produced = self.state.wait_while(produced, is_busy);
            bases = chosen(&produced);
        }
        for base in &bases {
            // Under the lock, so that no Get on another thread finds a registration that ends.
            for tile in produced.take(*base) {
                self.exports.retire(tile, *base as u64);
            }
        }
        drop(produced);
        if !bases.is_empty() {
            self.wait_until_retired();
        }
    }

    /// Waits until the broker has ended what was retired, and for a moment until it has closed its
    /// fds, which keep the memory. A process that learns that the memory is freed must not find the
    /// key alive. A broker that is gone has ended it.
    fn wait_until_retired(&self) {
        if settle(&self.client).is_err() {
            // A broker that hangs is left after a while. Its fd keeps the memory alive, so a
            // consumer sees other bytes only where the driver's pool reuses them.
            let _ = self.client.flush(Deadline::after(RETIRE_TIMEOUT));
        }
    }
}

impl Deref for Broker {
    type Target = Connected<Memory>;

    fn deref(&self) -> &Self::Target {
        self.0
    }
}

impl Memory {
    /// Waits for exports that the broker has asked for, but no longer than a driver may take that
    /// hangs.
    fn wait_while<'a>(
        &self,
        produced: MutexGuard<'a, Produced>,
        is_busy: impl FnMut(&mut Produced) -> bool,
    ) -> MutexGuard<'a, Produced> {
        let waited = self.answered.wait_timeout_while(produced, RECALL_PATIENCE, is_busy);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Puts the driver's handle of an export that waited to be sent.
    pub fn put(&self, waited: &Recalled) {
        waited.held.inspect(|held| waited.allocation.let_go(&held.driver));
        self.done(waited);
    }

    /// The memory may be freed now.
    fn done(&self, recalled: &Recalled) {
        lock(&self.produced).recall_done(recalled);
        self.answered.notify_all();
    }
}

impl State for Memory {
    fn connection() -> &'static Connection<Self> {
        &CONNECTION
    }

    fn recall(&self, recall: &Recall) -> Result<RecallAnswer, ErrorCode> {
        if recall.facts.device == kept::DEVICE {
            return lock(&self.kept).recall(recall);
        }
        let recalled = lock(&self.produced).recall(recall)?;
        let fd = recalled.fd();
        self.done(&recalled);
        Ok(RecallAnswer::unchanged(recall, fd?))
    }

    fn end(&self) {
        let mut produced = lock(&self.produced);
        produced.end();
        drop(self.wait_while(produced, |produced| !produced.is_all_quiet()));
    }

    fn close(connected: &Connected<Self>, fd: VirtualFd) -> Result<(), Errno> {
        let Some(given) = lock(&connected.state.produced).put_number(fd) else {
            let registration = lock(&connected.state.kept).close(fd).ok_or(Errno::EBADF)?;
            let _ =
                connected.client.unregister_within(&registration, Deadline::after(RETIRE_TIMEOUT));
            return Ok(());
        };
        given.put_held();
        if given.is_last {
            let Place { base, .. } = given.place;
            let Some(broker) = known() else { return Ok(()) };
            broker.retire(|produced| produced.containing(base).into_iter().collect());
        }
        Ok(())
    }

    fn own(connected: &Connected<Self>, fd: VirtualFd) -> Option<OwnedFd> {
        let sent = lock(&connected.state.produced).send(fd)?;
        let fd = sent.fd().ok();
        let waited = lock(&connected.state.produced).end_wait(sent.place);
        waited.iter().for_each(|waited| connected.state.put(waited));
        connected.state.done(&sent);
        fd
    }

    fn numbers(_: &Connected<Self>) -> Vec<VirtualFd> {
        // They stand in handles, which the program Puts.
        Vec::new()
    }

    fn say_absent(is_lost: bool, error: &Error) {
        let (news, what) = match (error.code, is_lost) {
            (ErrorCode::LocalFdLimit, _) => (News::NoFreeFd, "no fd to connect to the broker with"),
            (_, true) => (News::BrokerLost, "the broker is gone"),
            (ErrorCode::NotConnected | ErrorCode::ShuttingDown, false) => {
                (News::NoBroker, "no broker")
            }
            (_, false) => (News::NoBroker, "the broker cannot be used"),
        };
        once(
            news,
            format_args!("{what}, IPC handles are the driver's own, not good by value: {error}"),
        );
    }

    fn say_waiting(error: &Error) {
        once(News::Waiting, format_args!("waits for the fd of a handle: {error}"));
    }
}

/// Virtual fds are good from now on, where this library stands before the C library.
pub fn install() {
    fdbroker_virtual_fds::install(&CONNECTION);
}

/// The program uses Level Zero.
pub fn note_driver() {
    CONNECTION.note_driver();
}

/// The connection that this process made before, alive or lost. `None`: it has made none; a
/// parent's does not count.
pub fn known() -> Option<Broker> {
    CONNECTION.known().map(Broker)
}

/// The connection, made now when there is none. A lost one comes back by itself: the library looks
/// for the broker.
pub fn connected() -> Option<Broker> {
    CONNECTION.connected().map(Broker)
}

/// The same, waited for when the broker is away.
pub fn awaited() -> Option<Broker> {
    CONNECTION.awaited().map(Broker)
}

/// Has the driver allocate memory, and again for a moment where it finds none.
pub fn allocate(below: impl Fn() -> ze_result_t) -> ze_result_t {
    fdbroker_layer::allocate::<Memory, _>(is_out_of_memory, below)
}

fn is_out_of_memory(code: ze_result_t) -> bool {
    matches!(
        code,
        ze_result_t::ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY
            | ze_result_t::ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY
    )
}

/// Acquires as patiently as pidfd_getfd(2) of a virtual fd does: `attempt` gets the deadline of one
/// try.
///
/// # Errors
/// Those of `attempt`.
pub fn patiently<T>(attempt: impl FnMut(Deadline) -> Result<T, Error>) -> Result<T, Error> {
    fdbroker_layer::patiently::<Memory, T>(attempt)
}

/// Registers, also when the broker goes away meanwhile and comes back.
///
/// # Errors
/// Those of `attempt`.
pub fn through_outage<T>(attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    fdbroker_layer::through_outage::<Memory, T>(attempt)
}

/// Tells the user once that there is no broker, or that it is gone.
pub fn say_absent(error: &Error) {
    CONNECTION.say_absent(error);
}
