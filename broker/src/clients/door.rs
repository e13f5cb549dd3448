//! Where clients come in: the listeners, and the pause while there is no room for a connection.
//! Must never spin when there is none.

use crate::limits::ACCEPT_RETRY;
use crate::node::listeners::Listener;
use crate::{clock, kernel};
use fdbroker_core::Now;
use nix::errno::Errno;
use std::os::fd::{AsFd, OwnedFd};

struct Entrance {
    listener: Listener,
    /// There may be connections to accept.
    is_ready: bool,
}

pub struct Door {
    entrances: Vec<Entrance>,
    /// There was no room for a connection: none is accepted until then.
    shut_until: Option<Now>,
    /// The log has said that there is no room.
    is_said: bool,
}

impl Door {
    pub fn new(listeners: Vec<Listener>) -> Self {
        let entrances = listeners.into_iter();
        let entrances = entrances.map(|listener| Entrance { listener, is_ready: false });
        Door { entrances: entrances.collect(), shut_until: None, is_said: false }
    }

    /// The listeners, by number.
    pub fn listeners(&self) -> impl Iterator<Item = &Listener> {
        self.entrances.iter().map(|entrance| &entrance.listener)
    }

    /// The listeners, to be changed.
    pub fn listeners_mut(&mut self) -> impl Iterator<Item = &mut Listener> {
        self.entrances.iter_mut().map(|entrance| &mut entrance.listener)
    }

    /// How many listeners there are.
    pub fn count(&self) -> usize {
        self.entrances.len()
    }

    /// A connection waits at listener `number`.
    pub fn note(&mut self, number: usize) {
        if let Some(entrance) = self.entrances.get_mut(number) {
            entrance.is_ready = true;
        }
    }

    /// Whether there may be something to accept now.
    pub fn is_due(&self, now: Now) -> bool {
        match self.shut_until {
            Some(until) => until <= now,
            None => self.entrances.iter().any(|entrance| entrance.is_ready),
        }
    }

    /// When it opens again, if it is shut.
    pub fn due(&self) -> Option<Now> {
        self.shut_until
    }

    /// Opens it if its time has come. `true`: it was shut.
    pub fn open(&mut self, now: Now) -> bool {
        self.shut_until.take_if(|until| *until <= now).is_some()
    }

    /// Shuts it for a while: a connection stays queued and readable, and is tried again then or
    /// when a place is free.
    pub fn shut(&mut self, errno: Errno, now: Now) {
        if !std::mem::replace(&mut self.is_said, true) {
            log::warn!(
                "there is no room for more connections: {errno}; trying every {ACCEPT_RETRY:?}"
            );
        }
        self.shut_until = Some(clock::after(now, ACCEPT_RETRY));
    }

    /// A place is free: if it is shut, it opens now.
    pub fn try_again(&mut self, now: Now) {
        self.shut_until = self.shut_until.map(|_| now);
    }

    /// Whether a connection may wait at listener `number`.
    pub fn is_ready(&self, number: usize) -> bool {
        self.shut_until.is_none() && self.entrances.get(number).is_some_and(|it| it.is_ready)
    }

    /// Accepts one connection at listener `number`. `None`: none waits, or there is no room for it.
    pub fn accept(&mut self, number: usize, now: Now) -> Option<OwnedFd> {
        let entrance = self.entrances.get_mut(number)?;
        match kernel::accept(entrance.listener.as_fd()) {
            Ok(socket) => {
                self.is_said = false;
                return Some(socket);
            }
            Err(Errno::EAGAIN) => entrance.is_ready = false,
            Err(Errno::EINTR | Errno::ECONNABORTED) => {}
            Err(errno) => self.shut(errno, now),
        }
        None
    }
}
