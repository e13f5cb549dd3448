//! This process's connection to the broker, and what it exports and has opened through it. Must never hold a lock of both.

use crate::opened::Opened;
use crate::produced::Produced;
use crate::say::{News, once};
use fdbroker_client::{Error, ErrorCode, Recall, RecallAnswer};
use fdbroker_layer::{Connected, Connection, State};
use fdbroker_virtual_fds::VirtualFd;
use nix::errno::Errno;
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use fdbroker_layer::is_absent;

static CONNECTION: Connection<Memory> = Connection::new();

/// The connection, with what this process has through it.
#[derive(Clone, Copy)]
pub struct Broker(&'static Connected<Memory>);

/// The memory that this process exports, and that it has opened.
#[derive(Default)]
pub struct Memory {
    produced: Mutex<Produced>,
    opened: Mutex<Opened>,
}

impl Broker {
    pub fn produced(&self) -> MutexGuard<'_, Produced> {
        self.state.produced()
    }

    pub fn opened(&self) -> MutexGuard<'_, Opened> {
        self.state.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for Broker {
    type Target = Connected<Memory>;

    fn deref(&self) -> &Self::Target {
        self.0
    }
}

impl Memory {
    fn produced(&self) -> MutexGuard<'_, Produced> {
        self.produced.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State for Memory {
    fn connection() -> &'static Connection<Self> {
        &CONNECTION
    }

    fn recall(&self, recall: &Recall) -> Result<RecallAnswer, ErrorCode> {
        self.produced().recall(recall)
    }

    fn end(&self) {
        // A recall under way is waited for: it has this lock.
        self.produced().end();
    }

    fn close(_: &Connected<Self>, _: VirtualFd) -> Result<(), Errno> {
        // The layer has no virtual fds yet.
        Err(Errno::EBADF)
    }

    fn say_absent(is_lost: bool, error: &Error) {
        let (news, what) = match is_lost {
            true => (News::BrokerLost, "the broker is gone"),
            false => (News::NoBroker, "no broker"),
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

/// The connection that this process made before, alive or lost. `None`: it has made none; a parent's does not count.
pub fn known() -> Option<Broker> {
    CONNECTION.known().map(Broker)
}

/// The connection, made now when there is none. A lost one comes back by itself: the library looks for the broker.
pub fn connected() -> Option<Broker> {
    CONNECTION.connected().map(Broker)
}

/// Tells the user once that there is no broker, or that it is gone.
pub fn say_absent(error: &Error) {
    CONNECTION.say_absent(error);
}
