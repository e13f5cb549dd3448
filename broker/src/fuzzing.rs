//! The daemon turn by turn, for tests/fuzz: its loop on the caller's thread, its state to be
//! judged. Only with the feature `fuzzing`; must never be part of a daemon that is installed, nor
//! do anything that the daemon does not.

use crate::handover::ledger;
use crate::handover::state::State;
use crate::manager::inherited::Inherited;
use crate::manager::notify::Manager;
use crate::node::signals::Signals;
use crate::node::warden::Warden;
use crate::server::parts::Server;
use crate::settings::Settings;
use crate::start::{Outside, RunError, prepare, real_calls};
use fdbroker_core::{Config, Core, Now};
use mio::Events;
use std::time::Duration;

/// Turns after which a daemon that is still busy is said to spin.
const MOST_TURNS: usize = 100_000;
/// Waits of a millisecond for the closer threads.
const MOST_WAITS: usize = 10_000;

/// A daemon that moves only when told to.
#[expect(missing_debug_implementations, reason = "nobody prints it, nor its parts")]
pub struct Daemon {
    server: Server,
    events: Events,
}

impl Daemon {
    /// All of it: directories, key, page, sockets, closer threads.
    ///
    /// # Errors
    /// See [`RunError`].
    pub fn start(settings: Settings) -> Result<Self, RunError> {
        let signals = Signals::block()
            .map_err(|errno| RunError::Os { what: "block signals", source: errno.into() })?;
        // Whoever runs this is to be ended by signals as usual.
        signals.unblock();
        let outside = Outside {
            signals,
            until_eof: None,
            warden: Warden::default(),
            manager: Manager::default(),
            inherited: Inherited::default(),
            arrived: None,
        };
        let calls = real_calls(&settings);
        let server = prepare(settings, outside, calls)?;
        Ok(Daemon { server, events: Events::with_capacity(64) })
    }

    /// Turns until there is nothing to do at once.
    ///
    /// # Panics
    /// When that does not come about.
    pub fn rest(&mut self) {
        for _ in 0..MOST_TURNS {
            // A lane reads the facts about the process of a new client.
            let wait = if self.server.is_asking() { 1 } else { 0 };
            self.turn(Duration::from_millis(wait));
            if self.events.is_empty() && self.server.is_at_rest() {
                return;
            }
        }
        panic!("the loop does not come to rest");
    }

    /// Turns until nothing is left of any client.
    ///
    /// # Panics
    /// When something stays: a leak.
    pub fn forget_all(&mut self) {
        for _ in 0..MOST_WAITS {
            self.rest();
            if self.is_empty() {
                return;
            }
            self.turn(Duration::from_millis(1));
        }
        panic!("something is left: {:?}", self.server.core().totals());
    }

    /// Checks every sum and list of the core.
    ///
    /// # Panics
    /// When one is wrong.
    pub fn check_invariants(&mut self) {
        self.server.core().check_invariants();
    }

    fn turn(&mut self, timeout: Duration) {
        self.server.turn(&mut self.events, Some(timeout)).expect("epoll answers");
    }

    fn is_empty(&mut self) -> bool {
        let is_without_connections = self.server.is_without_connections();
        let core = self.server.core();
        let totals = core.totals();
        is_without_connections
            && (totals.gauges.stored_fds, totals.gauges.closing_fds) == (0, 0)
            && totals.node.is_zero()
            && core.allocations(0..u32::MAX).next().is_none()
    }
}

/// The body of the ledger that a broker with this core would hand over, without connections.
///
/// # Panics
/// When it cannot be written.
pub fn saved(core: &Core) -> Vec<u8> {
    let state = State { core: Some(core.save()), ..State::default() };
    postcard::to_allocvec(&state).expect("plain data")
}

/// The core of a ledger with this body, if both are sound: the header is right whatever the body
/// is.
///
/// # Panics
/// Never because of the body.
pub fn restored(body: &[u8], config: &Config, now: Now) -> Option<Core> {
    let memfd = ledger::sealed(body).expect("a memfd");
    let state = ledger::read(memfd).ok()?;
    Core::restore(config.clone(), state.core?, now).ok()
}

/// The path that names a process's job, from the text of its `/proc/PID/cgroup`.
pub fn job_name(cgroup: &str) -> Option<&str> {
    Some(crate::clients::schedulers::job_cgroup(cgroup)?.path)
}
