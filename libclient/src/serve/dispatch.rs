//! Dispatch mode: no library thread; the application serves when an fd is readable, and every call that waits serves too.
//! Must never wait for another thread that serves, nor let two serve at once.

use super::callback::is_in_callback;
use super::server::{Interest, Server};
use super::session::Session;
use crate::books::roles::{Dispatcher, Served};
use crate::error::Error;
use crate::limits::{HELLO_SLICE, IDLE, LIVENESS_LOOK, SEND_SLICE};
use crate::wire::connection::Connection;
use crate::wire::poll::poll_many;
use fdbroker_protocol::ErrorCode;
use nix::poll::{PollFd, PollFlags};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

/// The seat of the thread that serves, and the fd that says when.
#[derive(Debug)]
pub(crate) struct Dispatch {
    session: Arc<Session>,
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
    pub fn new(session: Arc<Session>) -> Result<Self, Error> {
        let failed = |errno| Error::no_fd(ErrorCode::Internal, "event fd", errno);
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed)?;
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).map_err(failed)?;
        let readable = || EpollEvent::new(EpollFlags::EPOLLIN, 0);
        epoll.add(session.common.wake.as_fd(), readable()).map_err(failed)?;
        epoll.add(timer.as_fd(), readable()).map_err(failed)?;
        let seat = Seat { server: Server::new(), watched: None, timer_is_set: false };
        Ok(Dispatch { session, epoll, timer, seat: Mutex::new(seat) })
    }

    /// Serves, and waits up to `timeout` for something when there is nothing. How many things.
    pub fn run(&self, timeout: Duration) -> usize {
        let until = Instant::now() + timeout.min(IDLE);
        loop {
            let served = self.serve();
            let left = until.saturating_duration_since(Instant::now());
            match served {
                Some(Served { count, .. }) if count > 0 => return count,
                _ if left.is_zero() => return 0,
                Some(Served { later: false, .. }) => {
                    let slice = left.min(LIVENESS_LOOK);
                    poll_many(&mut [PollFd::new(self.event_fd(), PollFlags::POLLIN)], slice);
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

impl Dispatcher for Dispatch {
    fn event_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    fn serve(&self) -> Option<Served> {
        let session = &*self.session;
        if is_in_callback() {
            return None;
        }
        let mut seat = match self.seat.try_lock() {
            Ok(seat) => seat,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        if session.is_stopping() {
            return Some(Served::default());
        }
        let Seat { server, .. } = &mut *seat;
        let connection = server.connection(session);
        // Everything is looked at: what was of interest may be long ago.
        let all = PollFlags::POLLIN;
        let interest = Interest { events: all, socket: all, within: None };
        let came = server.wait(session, &connection, &interest, Duration::ZERO);
        let served = server.serve(session, &connection, &came);
        let connection = server.connection(session);
        let interest = server.prepare(session, &connection);
        self.watch(&mut seat, connection, &interest);
        Some(served)
    }
}

fn event(wanted: PollFlags) -> EpollEvent {
    let mut flags = EpollFlags::empty();
    flags.set(EpollFlags::EPOLLIN, wanted.contains(PollFlags::POLLIN));
    flags.set(EpollFlags::EPOLLOUT, wanted.contains(PollFlags::POLLOUT));
    EpollEvent::new(flags, 0)
}
