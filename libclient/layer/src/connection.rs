//! A process's connection to the broker, made at its first use. Must never make a forked child
//! wait, nor look for an absent broker again for each handle.

use crate::away::Away;
use crate::drains::Drains;
use crate::kept::Kept;
use crate::limits::CONNECT_PAUSE_S;
use crate::neighbours::Neighbours;
use fdbroker_client::{
    Client, Error, ErrorCode, Exports, Notice, Recall, RecallAnswer, default_socket_path,
};
use fdbroker_virtual_fds::VirtualFd;
use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};
use std::os::fd::OwnedFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, Ordering};

/// What a layer's process has through its connection: it begins empty with each connection, and
/// does not survive it.
pub trait State: Default + Send + Sync + 'static {
    /// The layer's one connection.
    fn connection() -> &'static Connection<Self>;

    /// Answers a recall, on the library's thread.
    ///
    /// # Errors
    /// The code that the broker gets: AGAIN is asked again, others end the allocation.
    fn recall(&self, recall: &Recall) -> Result<RecallAnswer, ErrorCode>;

    /// At exit, before the driver takes itself apart: no recall may call it from now on. Waits for
    /// one under way.
    fn end(&self);

    /// The program closes a virtual fd that it has exported.
    ///
    /// # Errors
    /// EBADF: it has exported none of this number.
    fn close(connected: &Connected<Self>, fd: VirtualFd) -> Result<(), Errno>;

    /// A duplicate of the fd behind a number that this process has exported. `None`: the layer has
    /// no fd open for it, and the broker is asked.
    fn own(_connected: &Connected<Self>, _number: VirtualFd) -> Option<OwnedFd> {
        None
    }

    /// The numbers that the program has open, which close_range(2) may close.
    fn numbers(connected: &Connected<Self>) -> Vec<VirtualFd>;

    /// Tells the user, once, that there is no broker (`is_lost`: no more) and what that means.
    fn say_absent(is_lost: bool, error: &Error);

    /// Tells the user, once, that the program waits, and for what.
    fn say_waiting(error: &Error);
}

/// A connection with all that this process has exported and opened through it. It is never freed: a
/// child of fork(2) makes its own and leaves the parent's copy alone, whose locks may be held by
/// threads that the child does not have.
#[derive(Debug)]
pub struct Connected<S> {
    /// The client of the library that the layer's calls go through.
    pub client: Client,
    /// What was registered through it.
    pub exports: Exports,
    /// What the layer keeps.
    pub state: S,
    pub(crate) neighbours: Neighbours,
    pub(crate) kept: Kept,
    pub(crate) drains: Drains,
    /// The broker may not have carried out yet what the program has ended.
    pub(crate) has_ends: AtomicBool,
}

impl<S> Connected<S> {
    /// The program has ended something without waiting: what it asks for next is asked behind that.
    pub fn note_end(&self) {
        self.has_ends.store(true, Ordering::Relaxed);
    }
}

/// The place of a process's connection.
#[derive(Debug)]
pub struct Connection<S> {
    current: AtomicPtr<Connected<S>>,
    last_try_s: AtomicI64,
    /// The last try found a socket that nobody serves.
    was_refused: AtomicBool,
    pub(crate) away: Away,
    has_used_driver: AtomicBool,
    has_ended: AtomicBool,
}

impl<S: State> Connection<S> {
    /// A place for a connection that the first call makes.
    pub const fn new() -> Self {
        Connection {
            current: AtomicPtr::new(null_mut()),
            last_try_s: AtomicI64::new(i64::MIN),
            was_refused: AtomicBool::new(false),
            away: Away::new(),
            has_used_driver: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        }
    }

    /// The connection that this process made before, alive or lost. `None`: it has made none; a
    /// parent's does not count.
    pub fn known(&self) -> Option<&'static Connected<S>> {
        // SAFETY: null, or a box that is never freed.
        let connected = unsafe { self.current.load(Ordering::Acquire).as_ref() };
        connected.filter(|it| !it.client.is_forked_copy())
    }

    /// The connection, made now when there is none. A lost one comes back by itself: the library
    /// looks for the broker.
    pub fn connected(&'static self) -> Option<&'static Connected<S>> {
        self.look().inspect_err(|error| self.say_absent(error)).ok()
    }

    pub(crate) fn look(&'static self) -> Result<&'static Connected<S>, Error> {
        self.known().map_or_else(|| self.connect(), Ok)
    }

    /// Whether a broker that is not to be had may be away alone: this process or its parent has had
    /// one, or its socket stands there.
    pub(crate) fn is_expected(&self) -> bool {
        let was_connected = !self.current.load(Ordering::Relaxed).is_null();
        was_connected || self.was_refused.load(Ordering::Relaxed)
    }

    /// The program uses the driver: from now on it may ask for the fds of processes that it cannot
    /// see.
    pub fn note_driver(&self) {
        if !self.has_used_driver() {
            self.has_used_driver.store(true, Ordering::Relaxed);
        }
    }

    /// This process exits: the connection has ended, and no other is made.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    pub(crate) fn has_used_driver(&self) -> bool {
        self.has_used_driver.load(Ordering::Relaxed)
    }

    /// Tells the user once that there is no broker, or that it is gone.
    pub fn say_absent(&self, error: &Error) {
        // At exit it is this process that has gone.
        if !self.has_ended() {
            S::say_absent(self.known().is_some(), error);
        }
    }

    fn connect(&'static self) -> Result<&'static Connected<S>, Error> {
        let now_s = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| time.tv_sec());
        let last_s = self.last_try_s.load(Ordering::Relaxed);
        if now_s.saturating_sub(last_s) < CONNECT_PAUSE_S {
            return Err(Error::new(ErrorCode::NotConnected, "connect: tried a moment ago"));
        }
        let recall = |recall: &Recall| {
            let connected = S::connection().known().ok_or(ErrorCode::Again)?;
            connected.state.recall(recall)
        };
        let notice = |notice| S::connection().notice(&notice);
        let builder = Client::builder().on_recall(recall).on_notice(notice);
        // The program knows nothing of fdbroker: whoever runs it with the layer names the broker.
        match builder.start(false).connect() {
            Ok(client) => {
                // A child of this process may have to connect anew at once.
                self.last_try_s.store(i64::MIN, Ordering::Relaxed);
                Ok(self.install(client))
            }
            Err(error) => {
                // A lack of fds may pass at once, and says nothing of the broker.
                if error.code != ErrorCode::LocalFdLimit {
                    self.last_try_s.store(now_s, Ordering::Relaxed);
                }
                let is_absent = error.code == ErrorCode::NotConnected;
                let was_refused = is_absent && default_socket_path().exists();
                self.was_refused.store(was_refused, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    fn notice(&self, notice: &Notice) {
        let Some(connected) = self.known() else { return };
        match notice {
            Notice::Revoked { id, .. } => connected.kept.end(*id),
            Notice::Reclaim { .. } | Notice::Disconnected => {
                fdbroker_virtual_fds::end_leases();
                connected.kept.press();
            }
            Notice::Drained { .. } => connected.drains.note(),
            Notice::Reconnected { .. } => self.away.end(),
            _ => {}
        }
    }

    /// Makes this the process's connection, unless another thread was faster; answers the one in
    /// force.
    fn install(&'static self, client: Client) -> &'static Connected<S> {
        let before = self.current.load(Ordering::Acquire);
        if let Some(other) = self.known() {
            return other;
        }
        let exports = Exports::new(&client);
        let made = Box::into_raw(Box::new(Connected {
            client,
            exports,
            state: S::default(),
            neighbours: Neighbours::default(),
            kept: Kept::default(),
            drains: Drains::default(),
            has_ends: AtomicBool::new(false),
        }));
        match self.current.compare_exchange(before, made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                // SAFETY: a function of the layer, which stays loaded (build.rs). If there is no
                // room for it, the process's death ends the connection all the same.
                unsafe { libc::atexit(end::<S>) };
                // SAFETY: made above, never freed.
                unsafe { &*made }
            }
            Err(faster) => {
                // SAFETY: made above, and nobody has seen it.
                drop(unsafe { Box::from_raw(made) });
                // SAFETY: what is installed is never freed.
                unsafe { &*faster }
            }
        }
    }
}

impl<S: State> Default for Connection<S> {
    fn default() -> Self {
        Connection::new()
    }
}

/// At exit, before the driver takes itself apart.
extern "C" fn end<S: State>() {
    if let Some(connected) = S::connection().known() {
        S::connection().has_ended.store(true, Ordering::Relaxed);
        connected.state.end();
        connected.client.end();
    }
}

/// Whether the error means that no broker can be asked now.
pub fn is_absent(error: &Error) -> bool {
    matches!(error.code, ErrorCode::NotConnected | ErrorCode::ShuttingDown)
}
