//! Dispatch mode: no library thread; the application serves when an fd is readable, and every call that waits serves too.
//! Must never wait for another thread that serves, nor let two serve at once.

use crate::api::client::Shared;
use crate::error::Error;
use crate::limits::{HELLO_SLICE, IDLE, SEND_SLICE};
use crate::serve::server::{Interest, Served, Server, is_in_callback};
use crate::wire::connection::Connection;
use crate::wire::poll::{came, poll_many};
use fdbroker_protocol::ErrorCode;
use nix::poll::{PollFd, PollFlags};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

/// The seat of who serves, and the fd that says when.
#[derive(Debug)]
pub(crate) struct Dispatch {
    epoll: Epoll,
    /// For what is to be tried again without an event.
    timer: TimerFd,
    /// Only ever tried: callbacks run under it.
    seat: Mutex<Seat>,
}

#[derive(Debug)]
struct Seat {
    server: Server,
    watched: Option<Watched>,
    timer_is_set: bool,
}

/// A connection whose sockets are in the epoll, and what for. Held so that they are taken out before they are closed:
/// a forked child's copies would keep them there.
#[derive(Debug)]
struct Watched {
    connection: Arc<Connection>,
    events: PollFlags,
    socket: PollFlags,
}

impl Dispatch {
    pub fn new(wake: BorrowedFd<'_>) -> Result<Self, Error> {
        let failed = |errno: nix::Error| {
            let code = match errno {
                nix::Error::EMFILE | nix::Error::ENFILE => ErrorCode::LocalFdLimit,
                _ => ErrorCode::Internal,
            };
            Error::os(code, "event fd", errno)
        };
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed)?;
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).map_err(failed)?;
        let readable = || EpollEvent::new(EpollFlags::EPOLLIN, 0);
        epoll.add(wake, readable()).map_err(failed)?;
        epoll.add(timer.as_fd(), readable()).map_err(failed)?;
        let seat = Seat { server: Server::new(), watched: None, timer_is_set: false };
        Ok(Dispatch { epoll, timer, seat: Mutex::new(seat) })
    }

    /// Readable when there is something to serve.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// Serves what is there, without waiting. `None`: another thread does, or this one does further up the stack.
    pub fn serve(&self, shared: &Shared) -> Option<Served> {
        if is_in_callback() {
            return None;
        }
        let mut seat = match self.seat.try_lock() {
            Ok(seat) => seat,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        if shared.is_stopping() {
            return Some(Served::default());
        }
        let Seat { server, .. } = &mut *seat;
        let connection = server.connection(shared);
        // Everything is looked at: what was of interest may be long ago.
        let all = PollFlags::POLLIN;
        let interest = Interest { events: all, socket: all, within: None };
        let came = server.wait(shared, &connection, &interest, Duration::ZERO);
        let served = server.serve(shared, &connection, &came);
        let connection = server.connection(shared);
        let interest = server.prepare(shared, &connection);
        self.watch(&mut seat, connection, &interest);
        Some(served)
    }

    /// Serves, and waits up to `timeout` for something when there is nothing. How many things.
    pub fn run(&self, shared: &Shared, timeout: Duration) -> usize {
        let until = Instant::now() + timeout.min(IDLE);
        loop {
            let served = self.serve(shared);
            let left = until.saturating_duration_since(Instant::now());
            match served {
                Some(Served { count, .. }) if count > 0 => return count,
                _ if left.is_zero() => return 0,
                Some(Served { later: false, .. }) => {
                    poll_many(&mut [PollFd::new(self.event_fd(), PollFlags::POLLIN)], left);
                }
                // Readable all the time, and for another thread to do.
                _ => std::thread::sleep(left.min(SEND_SLICE)),
            }
        }
    }

    /// Sees to it that the event fd is readable when, and only when, there is something to serve.
    fn watch(&self, seat: &mut Seat, connection: Arc<Connection>, interest: &Interest) {
        let is_usable = connection.is_usable();
        let is_other = |old: &mut Watched| !is_usable || !Arc::ptr_eq(&old.connection, &connection);
        if let Some(old) = seat.watched.take_if(is_other) {
            // That they are not in there any more is no error.
            let _ = self.epoll.delete(&old.connection.events);
            let _ = self.epoll.delete(&old.connection.socket);
        }
        if is_usable {
            let watched = self.watch_sockets(seat, &connection, interest);
            if let Err(errno) = watched {
                connection.kill(&format!("its sockets cannot be watched: {errno}"));
            }
        }
        let hello = seat.server.hello_socket().map(|_| HELLO_SLICE);
        let within = [interest.within, hello].into_iter().flatten().min();
        self.set_timer(seat, within);
    }

    fn watch_sockets(
        &self,
        seat: &mut Seat,
        connection: &Arc<Connection>,
        interest: &Interest,
    ) -> nix::Result<()> {
        let Interest { events, socket, .. } = *interest;
        match &mut seat.watched {
            Some(watched) => {
                if watched.events != events {
                    self.epoll.modify(&connection.events, &mut event(events))?;
                    watched.events = events;
                }
                if watched.socket != socket {
                    self.epoll.modify(&connection.socket, &mut event(socket))?;
                    watched.socket = socket;
                }
            }
            None => {
                let connection = Arc::clone(connection);
                let watched = seat.watched.insert(Watched { connection, events, socket });
                self.epoll.add(&watched.connection.events, event(events))?;
                self.epoll.add(&watched.connection.socket, event(socket))?;
            }
        }
        Ok(())
    }

    fn set_timer(&self, seat: &mut Seat, within: Option<Duration>) {
        let set = match within {
            // Zero would turn it off.
            Some(within) => {
                let within = TimeSpec::from(within.max(Duration::from_nanos(1)));
                self.timer.set(Expiration::OneShot(within), TimerSetTimeFlags::empty())
            }
            None if seat.timer_is_set => self.timer.unset(),
            None => Ok(()),
        };
        seat.timer_is_set = within.is_some();
        if let Err(errno) = set {
            // It takes numbers only, and these are in range.
            log::error!("the event fd's timer cannot be set: {errno}");
        }
    }
}

fn event(wanted: PollFlags) -> EpollEvent {
    let mut flags = EpollFlags::empty();
    flags.set(EpollFlags::EPOLLIN, wanted.contains(PollFlags::POLLIN));
    flags.set(EpollFlags::EPOLLOUT, wanted.contains(PollFlags::POLLOUT));
    EpollEvent::new(flags, 0)
}

/// A thread's wait on a connection. In dispatch mode it serves meanwhile.
#[derive(Debug)]
pub(crate) struct Wait {
    shared: Option<Arc<Shared>>,
    /// Another thread serves what is there: it is left to that one for a slice.
    leaves_events: bool,
    /// Events came last: now it is the socket's turn.
    has_served: bool,
}

impl Wait {
    pub fn on(connection: &Connection) -> Self {
        let shared = connection.common.dispatching();
        Wait { shared, leaves_events: false, has_served: false }
    }

    /// Whether it serves.
    pub fn serves(&self) -> bool {
        self.shared.is_some()
    }

    /// Waits up to `patience` for `wanted` on a socket, or for events. `true`: call `serve`, out of every role and
    /// lock.
    pub fn poll(
        &mut self,
        socket: Option<(BorrowedFd<'_>, PollFlags)>,
        patience: Duration,
    ) -> bool {
        let socket = socket.map(|(fd, wanted)| PollFd::new(fd, wanted));
        let shared = self.shared.as_ref().filter(|_| !self.leaves_events);
        let events = shared.and_then(|shared| shared.dispatch.as_ref());
        let events = events.map(|events| PollFd::new(events.event_fd(), PollFlags::POLLIN));
        let patience = if self.leaves_events { patience.min(SEND_SLICE) } else { patience };
        self.leaves_events = false;
        match (socket, events) {
            (Some(socket), Some(events)) => {
                let mut fds = [events, socket];
                poll_many(&mut fds, patience);
                !came(&fds[0]).is_empty()
            }
            (None, Some(events)) => {
                let mut fds = [events];
                poll_many(&mut fds, patience);
                !came(&fds[0]).is_empty()
            }
            (Some(socket), None) => {
                poll_many(&mut [socket], patience);
                false
            }
            (None, None) => {
                poll_many(&mut [], patience);
                false
            }
        }
    }

    /// Serves what is there.
    pub fn serve(&mut self) {
        self.has_served = true;
        if let Some(shared) = &self.shared {
            self.leaves_events = shared.serve().is_none_or(|served| served.later);
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
        if let Some(shared) = self.common.dispatching() {
            shared.serve();
        }
    }

    /// Lets time pass; serves meanwhile.
    pub fn pause(&self, pause: Duration) {
        let mut wait = Wait::on(self);
        if !wait.serves() {
            return std::thread::sleep(pause);
        }
        let until = Instant::now() + pause;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            if wait.poll(None, left) {
                wait.serve();
            }
        }
    }

    /// Attempts what may have to wait for other threads, until it succeeds. In dispatch mode in slices, serving in
    /// between: what it waits for may be for this thread to do.
    pub fn patiently<T>(
        &self,
        until: Instant,
        mut attempt: impl FnMut(Instant) -> Option<T>,
    ) -> Option<T> {
        if self.common.dispatching().is_none() {
            return attempt(until);
        }
        loop {
            let now = Instant::now();
            let succeeded = attempt(now);
            if succeeded.is_some() || now >= until {
                return succeeded;
            }
            self.pause((until - now).min(SEND_SLICE));
        }
    }
}
