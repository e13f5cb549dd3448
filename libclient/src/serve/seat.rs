//! The seat of the thread that serves: the server, and what its bell rings for. Must never add or
//! change what is not proved, nor keep a bell that a forked child's copies of closed sockets would
//! ring for ever.

use super::server::{Interest, Server};
use super::session::Session;
use crate::books::wake::Bell;
use crate::wire::connection::Connection;
use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::epoll::EpollFlags;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Seat {
    pub server: Server,
    pub bell: Arc<Bell>,
    watched: Option<Watched>,
}

/// A connection whose sockets ring the bell, and for what. Held so that they are taken out before
/// they are closed: a forked child's copies would keep them there.
#[derive(Debug)]
struct Watched {
    connection: Arc<Connection>,
    events: PollFlags,
    socket: PollFlags,
}

impl Seat {
    pub fn new(session: &Session) -> Self {
        Seat { server: Server::new(), bell: session.common.wake.bell(), watched: None }
    }

    /// Serves by this bell from now on.
    pub fn take(&mut self, bell: &Arc<Bell>) {
        self.bell = Arc::clone(bell);
        self.watched = None;
    }

    /// Sees to it that the bell rings when there is something to serve.
    pub fn watch(&mut self, session: &Session, connection: Arc<Connection>, interest: &Interest) {
        let is_usable = connection.is_usable();
        let is_other = |old: &mut Watched| !is_usable || !Arc::ptr_eq(&old.connection, &connection);
        if let Some(old) = self.watched.take_if(is_other) {
            for socket in [&old.connection.events, &old.connection.socket] {
                match socket.proved() {
                    // That it is not in there any more is no error.
                    Some(socket) => drop(self.bell.delete(socket)),
                    None => session.common.wake.lose(&self.bell),
                }
            }
        }
        // Nothing is added to what has the bell's number.
        if !is_usable || self.watched.is_none() && session.common.wake.is_lost() {
            return;
        }
        match self.watch_sockets(&connection, interest) {
            Ok(()) => {}
            Err(errno @ (Errno::ENOMEM | Errno::ENOSPC | Errno::EEXIST)) => {
                connection.kill(&format!("its sockets cannot be watched: {errno}"));
            }
            // Not what was added, or not to this: closed, and perhaps open again.
            Err(_) => {
                session.common.wake.lose(&self.bell);
                connection.look_at_fds();
            }
        }
    }

    fn watch_sockets(
        &mut self,
        connection: &Arc<Connection>,
        interest: &Interest,
    ) -> nix::Result<()> {
        let Interest { events, socket, .. } = *interest;
        let bell = &self.bell;
        match &mut self.watched {
            Some(watched) => {
                if watched.events != events {
                    bell.modify(connection.events.polled(), flags(events))?;
                    watched.events = events;
                }
                if watched.socket != socket {
                    bell.modify(connection.socket.polled(), flags(socket))?;
                    watched.socket = socket;
                }
            }
            None => {
                let proved = |fd: Option<BorrowedFd<'_>>, wanted| {
                    bell.add(fd.ok_or(Errno::EBADF)?, flags(wanted))
                };
                let connection = Arc::clone(connection);
                let watched = self.watched.insert(Watched { connection, events, socket });
                proved(watched.connection.events.proved(), events)?;
                proved(watched.connection.socket.proved(), socket)?;
            }
        }
        Ok(())
    }
}

fn flags(wanted: PollFlags) -> EpollFlags {
    let mut flags = EpollFlags::empty();
    flags.set(EpollFlags::EPOLLIN, wanted.contains(PollFlags::POLLIN));
    flags.set(EpollFlags::EPOLLOUT, wanted.contains(PollFlags::POLLOUT));
    flags
}
