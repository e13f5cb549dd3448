//! Acquires under way that nobody waits for. Must never lose a grant: what is not handed over is
//! given back.

use crate::books::due::Teller;
use crate::books::grant::Grant;
use crate::books::lease::Lease;
use crate::deadline::Deadline;
use crate::deposit::AllocationInfo;
use crate::error::Error;
use crate::own_fds::{CLOSED_HERE, OwnFd};
use crate::requests::acquire::Wanted;
use crate::requests::started::{Exchange, Messages, Progress, Request, Work};
use crate::wire::connection::Connection;
use fdbroker_protocol::{Handle, Kind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Acquires under way; see [`crate::Client::acquire_start`].
///
/// The errors are those of [`crate::Client::acquire`]; a handle whose connection is lost before it
/// is granted answers NOT_CONNECTED, all do in a child of fork(2). All grants are held until the
/// last outcome is there, so many need as many fds.
pub type AcquireRequest = Request<'static, Vec<Result<Grant, Error>>>;

/// How far an [`AcquireRequest`] is: one outcome per handle, in their order.
pub type AcquireProgress = Progress<'static, Vec<Result<Grant, Error>>>;

#[derive(Debug)]
pub(crate) struct Acquiring {
    connection: Arc<Connection>,
    handles: Box<[Handle]>,
    deadline: Deadline,
    wanted: Wanted,
    /// Outcomes not handed over yet, by the place of their handle.
    arrived: Vec<(usize, Result<Grant, Error>)>,
}

/// The same, whose outcomes are handed over when all are there.
#[derive(Debug)]
pub(crate) struct Acquires {
    acquiring: Exchange<Acquiring>,
    /// Those that came before this test.
    kept: Vec<(usize, Result<Kept, Error>)>,
}

/// A grant until it is handed over: the program may close its fd meanwhile, which it does not know
/// yet.
#[derive(Debug)]
struct Kept {
    // Before the lease: fields are dropped in their order.
    fd: OwnFd,
    lease: Lease,
    info: AllocationInfo,
}

impl Kept {
    fn of(grant: Grant) -> Result<Self, Error> {
        let Grant { fd, lease, info } = grant;
        Ok(Kept { fd: OwnFd::kept(fd)?, lease, info })
    }

    fn into_grant(self) -> Result<Grant, Error> {
        let Kept { fd, lease, info } = self;
        let closed = || Error::not_connected(format!("acquire {}", info.id)).because(CLOSED_HERE);
        Ok(Grant { fd: fd.into_proved().ok_or_else(closed)?, lease, info })
    }
}

impl Acquiring {
    pub fn start(
        connection: Arc<Connection>,
        handles: &[Handle],
        deadline: Deadline,
    ) -> Exchange<Self> {
        let wanted = Wanted::all_of(handles.len());
        let (handles, arrived) = (handles.into(), Vec::new());
        let acquiring = Acquiring { connection, handles, deadline, wanted, arrived };
        Exchange::started(acquiring)
    }

    /// Those that have come since this was asked last.
    pub fn take_arrived(&mut self) -> Vec<(usize, Result<Grant, Error>)> {
        std::mem::take(&mut self.arrived)
    }
}

impl Messages for Acquiring {
    /// All have come.
    type Outcome = ();
    const WHAT: &'static str = "acquire";

    fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    fn deadline(&self) -> Deadline {
        self.deadline
    }

    fn outcome(&mut self) -> Option<()> {
        (!self.wanted.choose(self.connection.facts.max_batch)).then_some(())
    }

    fn kind(&self) -> Kind {
        Kind::Acquire
    }

    fn send(&mut self) -> Result<Option<u64>, Error> {
        if !self.wanted.choose(self.connection.facts.max_batch) {
            return Ok(None);
        }
        self.wanted.start(&self.connection, &self.handles, self.deadline)
    }

    fn look(&mut self, id: u64) -> Option<Result<(), Error>> {
        let Acquiring { connection, handles, deadline, wanted, .. } = self;
        wanted.look(connection, id, handles, *deadline)
    }

    fn settle(&mut self, answered: Result<(), Error>) -> Duration {
        let Acquiring { handles, deadline, wanted, arrived, .. } = self;
        wanted.settle(answered, handles, *deadline, |place, outcome| {
            arrived.push((place, outcome));
        })
    }
}

impl Acquires {
    pub fn start(connection: Arc<Connection>, handles: &[Handle], deadline: Deadline) -> Self {
        let acquiring = Acquiring::start(connection, handles, deadline);
        Acquires { acquiring, kept: Vec::new() }
    }
}

impl Work for Acquires {
    type Outcome = Vec<Result<Grant, Error>>;

    fn advance(&mut self) -> Option<Self::Outcome> {
        let is_over = self.acquiring.advance().is_some();
        let Acquiring { connection, handles, arrived, .. } = &mut self.acquiring.messages;
        if !is_over {
            let arrived = arrived.drain(..);
            self.kept.extend(arrived.map(|(place, it)| (place, it.and_then(Kept::of))));
            return None;
        }
        if !connection.common.process.is_current() {
            // What was granted before a fork is the parent's.
            return Some(handles.iter().map(|_| Err(connection.lost("acquire"))).collect());
        }
        let kept = self.kept.drain(..);
        arrived.extend(kept.map(|(place, it)| (place, it.and_then(Kept::into_grant))));
        arrived.sort_unstable_by_key(|(place, _)| *place);
        Some(arrived.drain(..).map(|(_, outcome)| outcome).collect())
    }

    fn tell(&mut self, teller: &Teller) {
        self.acquiring.tell(teller);
    }

    fn goes_on_at(&self) -> Instant {
        self.acquiring.goes_on_at()
    }
}
