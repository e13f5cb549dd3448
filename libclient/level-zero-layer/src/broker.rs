//! This process's connection to the broker, made at its first use. Must never make a forked child wait, nor look for an
//! absent broker again for each handle.

use crate::limits::CONNECT_PAUSE_S;
use crate::opened::Opened;
use crate::produced::Produced;
use crate::say::{News, once};
use fdbroker_client::{Client, Error, ErrorCode, Exports, Recall, RecallAnswer};
use std::sync::atomic::{AtomicI64, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The connection, with all that this process exports and has opened through it. It is never freed: a child of fork(2)
/// makes its own and leaves the parent's copy alone, whose locks may be held by threads that the child does not have.
pub struct Broker {
    pub client: Client,
    pub exports: Exports,
    produced: Mutex<Produced>,
    opened: Mutex<Opened>,
}

static CURRENT: AtomicPtr<Broker> = AtomicPtr::new(std::ptr::null_mut());

impl Broker {
    pub fn produced(&self) -> MutexGuard<'_, Produced> {
        self.produced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn opened(&self) -> MutexGuard<'_, Opened> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The connection that this process made before, alive or lost. `None`: it has made none; a parent's does not count.
pub fn known() -> Option<&'static Broker> {
    // SAFETY: null, or a box that is never freed.
    let broker = unsafe { CURRENT.load(Ordering::Acquire).as_ref() };
    broker.filter(|broker| !broker.client.is_forked_copy())
}

/// The connection, made now when there is none. A lost one comes back by itself: the library looks for the broker.
pub fn connected() -> Option<&'static Broker> {
    known().or_else(connect)
}

fn connect() -> Option<&'static Broker> {
    static LAST_TRY_S: AtomicI64 = AtomicI64::new(i64::MIN);
    let now_s = monotonic_s();
    let last_s = LAST_TRY_S.load(Ordering::Relaxed);
    if now_s.saturating_sub(last_s) < CONNECT_PAUSE_S {
        return None;
    }
    let connected = Client::builder().on_recall(Box::new(recall)).connect();
    match connected {
        Ok(client) => {
            // A child of this process may have to connect anew at once.
            LAST_TRY_S.store(i64::MIN, Ordering::Relaxed);
            Some(install(client))
        }
        Err(error) => {
            LAST_TRY_S.store(now_s, Ordering::Relaxed);
            say_absent(&error);
            None
        }
    }
}

/// Makes this the process's connection, unless another thread was faster; answers the one in force.
fn install(client: Client) -> &'static Broker {
    let before = CURRENT.load(Ordering::Acquire);
    // SAFETY: null, or a box that is never freed.
    if let Some(other) = unsafe { before.as_ref() }.filter(|it| !it.client.is_forked_copy()) {
        return other;
    }
    let broker = Box::into_raw(Box::new(Broker {
        exports: Exports::new(&client),
        client,
        produced: Mutex::default(),
        opened: Mutex::default(),
    }));
    match CURRENT.compare_exchange(before, broker, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            // SAFETY: a function of this library, which stays loaded (build.rs). If there is no room for it, the
            // process's death ends the connection all the same.
            unsafe { libc::atexit(end) };
            // SAFETY: made above, never freed.
            unsafe { &*broker }
        }
        Err(faster) => {
            // SAFETY: made above, and nobody has seen it.
            drop(unsafe { Box::from_raw(broker) });
            // SAFETY: what is installed is never freed.
            unsafe { &*faster }
        }
    }
}

/// Answers a recall, on the library's thread.
fn recall(recall: &Recall) -> Result<RecallAnswer, ErrorCode> {
    let broker = known().ok_or(ErrorCode::Again)?;
    broker.produced().recall(recall)
}

/// At exit, before the loader and the driver take themselves apart: no recall may call them then.
extern "C" fn end() {
    if let Some(broker) = known() {
        // A recall under way is waited for: it has this lock.
        broker.produced().end();
        broker.client.end();
    }
}

/// Tells the user once that there is no broker, or that it is gone.
pub fn say_absent(error: &Error) {
    let is_lost = known().is_some();
    let (news, what) = match is_lost {
        true => (News::BrokerLost, "the broker is gone"),
        false => (News::NoBroker, "no broker"),
    };
    once(
        news,
        format_args!("{what}, IPC handles are the driver's own, not good by value: {error}"),
    );
}

/// Whether the error means that no broker can be asked now.
pub fn is_absent(error: &Error) -> bool {
    matches!(error.code, ErrorCode::NotConnected | ErrorCode::ShuttingDown)
}

fn monotonic_s() -> i64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).map_or(0, |time| time.tv_sec())
}
