//! The library thread: sleeps until there is something to serve, and serves it; ended and joined with its client.
//! Must never run the application's signal handlers, nor outlive the code it runs.

use super::server::{Server, left};
use super::session::Session;
use crate::error::Error;
use crate::limits::{HANG_UP_PAUSE, THREAD_END_TIMEOUT};
use crate::sync::{lock, wait_until};
use fdbroker_protocol::ErrorCode;
use nix::sys::signal::{SigSet, SigmaskHow};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

/// The thread of one client.
#[derive(Debug)]
pub(crate) struct LibraryThread {
    handle: JoinHandle<()>,
    end: Arc<End>,
}

/// Told by the thread when nothing is left for it to do: so that the wait for it has a bound, unlike join.
#[derive(Debug, Default)]
struct End {
    has_come: Mutex<bool>,
    changed: Condvar,
}

/// Tells it on drop, hence after a panic too.
struct TellEnd(Arc<End>);

impl Drop for TellEnd {
    fn drop(&mut self) {
        *lock(&self.0.has_come) = true;
        self.0.changed.notify_all();
    }
}

impl LibraryThread {
    /// Starts it, all signals blocked: handlers are for the application's threads.
    pub fn start(session: Arc<Session>) -> Result<Self, Error> {
        let end = Arc::new(End::default());
        let all = SigSet::all();
        let before = all.thread_swap_mask(SigmaskHow::SIG_SETMASK);
        let told = TellEnd(Arc::clone(&end));
        let started = std::thread::Builder::new().name("fdbroker".into()).spawn(move || {
            // Dropped last.
            let _told = told;
            run(&session);
            drop(session);
        });
        if let Ok(before) = before {
            // The mask came from the kernel a moment ago: setting it again cannot fail.
            let _ = before.thread_set_mask();
        }
        let handle = started.map_err(|error| {
            Error::new(ErrorCode::Internal, format!("cannot start the library thread: {error}"))
        })?;
        Ok(LibraryThread { handle, end })
    }

    /// Waits until it is gone, code, stack and all: the library may be unloaded after. It has been told to end. A
    /// callback that hangs is not waited for, and must then not be unloaded.
    pub fn join(self) {
        if self.handle.thread().id() == std::thread::current().id() {
            return;
        }
        let until = Instant::now() + THREAD_END_TIMEOUT;
        let mut ended = lock(&self.end.has_come);
        while !*ended {
            if Instant::now() >= until {
                return log::warn!(
                    "a callback does not end: its thread is left behind; do not unload its code"
                );
            }
            ended = wait_until(&self.end.changed, ended, until);
        }
        drop(ended);
        if self.handle.join().is_err() {
            log::error!("the library thread panicked");
        }
    }

    /// Lets go of it without a word, as a forked child must: the thread is its parent's, and the memory behind
    /// the handle may be gone.
    pub fn forget(self) {
        std::mem::forget(self);
    }
}

fn run(session: &Session) {
    let mut server = Server::new();
    while !session.is_stopping() {
        let connection = server.connection(session);
        let interest = server.prepare(session, &connection);
        let idle = || server.idle_time(session, &connection, &interest);
        let patience = connection.attend().map_or_else(idle, |due| left(&due));
        let came = server.wait(session, &connection, &interest, patience);
        if session.is_stopping() {
            break;
        }
        if server.serve(session, &connection, &came).later {
            std::thread::sleep(HANG_UP_PAUSE);
        }
    }
    session.kill_all();
}
