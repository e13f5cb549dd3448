//! What this client has at the broker: its registrations and its leases, over all connections. Pure bookkeeping, no IO.
//! Must never call anything under its lock, nor hold a connection: connections hold this.
//!
//! **Over a loss.** While a connection works, everything in here is known to its broker. When it is lost, nothing is. The
//! next one is *begun* (`begin`): what can be named again waits to be named, what cannot has ended. `resume` then names
//! it, message by message, before the application gets the connection. What the application ends meanwhile is not named
//! any more, or taken back when the answer comes. What a broker refuses has ended.
//!
//! **Stragglers.** A reply may be read from a connection that is lost by the time its thread decodes it: what it brings is
//! entered as waiting, too, and named by the connection of the moment, or the next one.
//!
//! **Lock order**: after any other lock of the library; none is taken under it.

mod leases;
mod registrations;

pub(crate) use leases::{Declaring, LeaseKey, Mark, RefusedLease};
pub(crate) use registrations::{Ending, LostRegistration, Naming};

use crate::sync::lock;
use crate::wire::connection::Connection;
use leases::Leases;
use registrations::Registrations;
use std::sync::{Arc, Mutex, Weak};

/// See the file's head.
#[derive(Debug, Default)]
pub(crate) struct Holdings {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    link: Link,
    leases: Leases,
    registrations: Registrations,
}

/// The connection that what is in here is said to.
#[derive(Debug, Default)]
struct Link {
    /// Of the last connection begun; 0: none yet.
    epoch: u64,
    connection: Option<Weak<Connection>>,
}

impl Link {
    fn connection(&self) -> Option<Arc<Connection>> {
        self.connection.as_ref()?.upgrade()
    }

    /// Whether what connection `epoch` has brought is known to the broker of the moment.
    fn is_of(&self, epoch: u64) -> bool {
        self.connection.is_some() && self.epoch == epoch
    }
}

impl Holdings {
    /// From now on things are said to this connection; all that is here waits to be named to it. What has ended for want
    /// of a way to name it.
    pub fn begin(&self, connection: &Arc<Connection>) -> Vec<LostRegistration> {
        let mut state = lock(&self.state);
        let State { link, leases, registrations } = &mut *state;
        link.epoch = connection.epoch;
        link.connection = Some(Arc::downgrade(connection));
        leases.begin();
        let lost = registrations.begin();
        // Lost before it was entered: nobody takes it out.
        if !connection.is_usable() {
            link.connection = None;
        }
        lost
    }

    /// Connection `epoch` is lost.
    pub fn unlink(&self, epoch: u64) {
        let mut state = lock(&self.state);
        if state.link.epoch == epoch {
            state.link.connection = None;
        }
    }

    /// The connection that things are said to, also before the application has it.
    pub fn connection(&self) -> Option<Arc<Connection>> {
        lock(&self.state).link.connection()
    }

    /// Whether something waits to be named.
    pub fn has_waiting(&self) -> bool {
        let state = lock(&self.state);
        state.leases.has_waiting() || state.registrations.has_waiting()
    }
}
