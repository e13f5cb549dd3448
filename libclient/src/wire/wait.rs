//! How a thread waits on a connection. In dispatch mode it serves meanwhile.
//! Must never serve under a lock, or while the thread has the reader's role.

use super::connection::Connection;
use super::poll::{came, poll_many};
use crate::books::roles::Dispatcher;
use crate::interrupt::{ask, is_signalled, now, sleep};
use crate::limits::SEND_SLICE;
use nix::poll::{PollFd, PollFlags};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A thread's wait on a connection. In dispatch mode it serves meanwhile.
#[derive(Debug)]
pub(crate) struct Wait {
    dispatcher: Option<Arc<dyn Dispatcher>>,
    /// Another thread serves what is there: it is left to that one for a slice.
    leaves_events: bool,
    /// Events came last: now it is the socket's turn.
    has_served: bool,
}

impl Wait {
    pub fn on(connection: &Connection) -> Self {
        let dispatcher = connection.common.dispatcher();
        Wait { dispatcher, leaves_events: false, has_served: false }
    }

    pub fn serves(&self) -> bool {
        self.dispatcher.is_some()
    }

    /// Waits up to `patience` for `wanted` on a socket, for events, or a signal. `true`: call
    /// `serve`, out of every role and lock.
    pub fn poll(
        &mut self,
        socket: Option<(BorrowedFd<'_>, PollFlags)>,
        patience: Duration,
    ) -> bool {
        let socket = socket.map(|(fd, wanted)| PollFd::new(fd, wanted));
        let events = self.dispatcher.as_ref().filter(|_| !self.leaves_events);
        let events = events.map(|events| PollFd::new(events.event_fd(), PollFlags::POLLIN));
        let patience = if self.leaves_events { patience.min(SEND_SLICE) } else { patience };
        self.leaves_events = false;
        let has_events = events.is_some();
        // Few, and no allocation: a wait is on the way of each request.
        let came = match (events, socket) {
            (Some(events), Some(socket)) => first_came(&mut [events, socket], patience),
            (Some(one), None) | (None, Some(one)) => first_came(&mut [one], patience) && has_events,
            (None, None) => first_came(&mut [], patience),
        };
        came || is_signalled()
    }

    /// Serves what is there, and asks the program after a signal.
    pub fn serve(&mut self) {
        self.has_served = true;
        ask();
        if let Some(dispatcher) = &self.dispatcher {
            self.leaves_events = dispatcher.serve().is_none_or(|served| served.later);
        }
    }

    /// Whether it has served since this was asked last.
    pub fn take_served(&mut self) -> bool {
        std::mem::take(&mut self.has_served)
    }
}

impl Connection {
    /// In dispatch mode serves what is there, without waiting.
    pub fn serve(&self) {
        if let Some(dispatcher) = self.common.dispatcher() {
            dispatcher.serve();
        }
    }

    /// Lets time pass; serves meanwhile.
    pub fn pause(&self, pause: Duration) {
        let mut wait = Wait::on(self);
        if !wait.serves() {
            return sleep(pause);
        }
        let until = Instant::now() + pause;
        loop {
            let left = until.saturating_duration_since(now());
            if left.is_zero() {
                return;
            }
            if wait.poll(None, left) {
                wait.serve();
            }
        }
    }

    /// Attempts what may have to wait for other threads, until it succeeds. In dispatch mode in
    /// slices, serving in between: what it waits for may be for this thread to do.
    pub fn patiently<T>(
        &self,
        until: Instant,
        mut attempt: impl FnMut(Instant) -> Option<T>,
    ) -> Option<T> {
        if !self.common.dispatches() {
            return attempt(until);
        }
        loop {
            let now = now();
            let succeeded = attempt(now);
            if succeeded.is_some() || now >= until {
                return succeeded;
            }
            self.pause((until - now).min(SEND_SLICE));
        }
    }
}

/// Polls up to `patience`; whether something came for the first.
fn first_came(fds: &mut [PollFd<'_>], patience: Duration) -> bool {
    poll_many(fds, patience);
    fds.first().is_some_and(|first| !came(first).is_empty())
}
