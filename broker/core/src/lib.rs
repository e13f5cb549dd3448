//! fdbroker's logic: registry, LRU, ledger, leases, policy. A pure state machine: must never do IO,
//! read a clock, know an OS type, or contain unsafe code.
//!
//! [`Core::step`] takes one input and appends what the daemon is to do to the effects; [`Core::poll`] does
//! what time or leftover work asks for, when [`Core::poll_timeout`] says; [`Core::take_events`]
//! gives one message for a client's event socket.
#![forbid(unsafe_code)]

pub mod api;
mod books;
pub mod limits;
mod looking;
mod moves;
mod requests;
mod step;
pub mod work;

pub use api::config::*;
pub use api::deposit::*;
pub use api::effect::*;
pub use api::former::*;
pub use api::ids::*;
pub use api::job_name::JobName;
pub use api::objects::*;
pub use api::request::*;
pub use api::subordinate::{SubordinateRange, SubordinateUids};
pub use books::check::RestoreError;
pub use books::ledger::Account;
pub use books::shares::Part;
pub use fdbroker_protocol::Caps;
pub use looking::saved::Saved;
pub use looking::view::{AllocationView, ClientView, DomainView, JobView, LeaseView, Totals};

use std::sync::Arc;

use books::Books;

/// The broker. See the crate's page.
#[derive(Debug)]
pub struct Core {
    books: Books,
    /// Its caps are those in the beginning; the ledger has those in force.
    config: Arc<Config>,
}

impl Core {
    /// An empty broker.
    ///
    /// # Errors
    /// When a number of the configuration cannot work; the message says which and why.
    pub fn new(mut config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        config.bound_caps();
        let config = Arc::new(config);
        Ok(Core { books: Books::new(Arc::clone(&config)), config })
    }
}
