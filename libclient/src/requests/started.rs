//! An acquire under way that nobody waits for: started, tested now and then, cancelled or dropped.
//! Must never block, and never lose a grant: what comes too late is given back.

use crate::books::due::{Due, Teller};
use crate::books::grant::Grant;
use crate::books::lease::Lease;
use crate::deadline::Deadline;
use crate::deposit::AllocationInfo;
use crate::error::Error;
use crate::limits::AGAIN_FIRST;
use crate::own_fds::{CLOSED_HERE, OwnFd};
use crate::requests::acquire::Wanted;
use crate::wire::connection::Connection;
use fdbroker_protocol::Handle;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Acquires under way; see [`crate::Client::acquire_start`]. For progress engines: nothing here
/// ever waits.
///
/// [`AcquireRequest::test`] drives it: it sends what did not fit before, reads what has come, and
/// asks again for what is not ready yet. Dropping it is [`AcquireRequest::cancel`]. It does not
/// keep its client connected.
#[derive(Debug)]
#[must_use = "dropping a request cancels it"]
pub struct AcquireRequest {
    state: Box<State>,
}

/// How far a request is: either still to be tested, or done and gone.
#[derive(Debug)]
#[must_use = "dropping it cancels the request, or gives back what it got"]
pub enum Progress<R, T> {
    /// It has not all its outcomes yet: test it again later.
    UnderWay(R),
    /// One outcome per item, in their order. To get objects: all of them, or why there are none.
    Done(T),
}

/// How far an [`AcquireRequest`] is.
pub type AcquireProgress = Progress<AcquireRequest, Vec<Result<Grant, Error>>>;

#[derive(Debug)]
struct State {
    connection: Arc<Connection>,
    handles: Box<[Handle]>,
    deadline: Deadline,
    wanted: Wanted,
    /// Outcomes not handed over yet, by the place of their handle.
    arrived: Vec<(usize, Result<Grant, Error>)>,
    /// Those that came before this test.
    kept: Vec<(usize, Result<Kept, Error>)>,
    step: Step,
    teller: Option<Teller>,
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

/// What the next test has to do.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Send the next message, but not before then.
    Send(Instant),
    /// Look for the reply to the message with this id.
    Look(u64),
}

impl AcquireRequest {
    /// Starts it, and sends the first message if it fits.
    pub(crate) fn start(
        connection: Arc<Connection>,
        handles: &[Handle],
        deadline: Deadline,
    ) -> Self {
        let mut state = Box::new(State {
            connection,
            handles: handles.into(),
            deadline,
            wanted: Wanted::all_of(handles.len()),
            arrived: Vec::new(),
            kept: Vec::new(),
            step: Step::Send(Instant::now()),
            teller: None,
        });
        // Done already is seen by the first test.
        state.advance();
        AcquireRequest { state }
    }

    /// Does what can be done now, without waiting, and says how far it is; in dispatch mode it
    /// serves recalls, too. May be called in a callback. All grants are held until the last outcome
    /// is there, so many need as many fds. The errors are those of [`crate::Client::acquire`]; a
    /// handle whose connection is lost before it is granted answers NOT_CONNECTED, all do in a
    /// child of fork(2).
    pub fn test(mut self) -> AcquireProgress {
        self.state.connection.serve();
        if self.state.advance() {
            Progress::Done(self.state.take_outcomes())
        } else {
            let State { arrived, kept, .. } = &mut *self.state;
            kept.extend(arrived.drain(..).map(|(place, it)| (place, it.and_then(Kept::of))));
            Progress::UnderWay(self)
        }
    }

    /// The same, handing each over as it comes. `None`: all have been.
    pub(crate) fn test_each(
        mut self,
        mut each: impl FnMut(usize, Result<Grant, Error>),
    ) -> Option<Self> {
        self.state.connection.serve();
        let is_done = self.state.advance();
        let arrived = self.state.arrived.drain(..);
        arrived.for_each(|(place, outcome)| each(place, outcome));
        (!is_done).then_some(self)
    }

    /// From now on it tells `due` this token when there is something to test: its answer has come,
    /// or the connection has ended. Test it as well when [`AcquireRequest::due_within`] has passed.
    pub fn tell(&mut self, due: &Due, token: u64) {
        self.state.teller = Some(Teller::new(due, token));
        self.state.have_told();
    }

    /// When to test it though it has not told: a pause is over, or its deadline has come.
    pub fn due_within(&self) -> Duration {
        match self.state.step {
            Step::Send(not_before) => due_at(not_before),
            Step::Look(_) => due_at(self.state.deadline.given_up_at()),
        }
    }

    /// Gives it up, like drop: the broker is told, and what it grants all the same is given back.
    /// Never waits.
    pub fn cancel(self) {}
}

/// How long until then; a moment at least, for what did not fit the last time.
pub(crate) fn due_at(then: Instant) -> Duration {
    then.saturating_duration_since(Instant::now()).max(AGAIN_FIRST)
}

impl State {
    fn have_told(&self) {
        if let (Step::Look(id), Some(teller)) = (self.step, &self.teller) {
            self.connection.tell(id, teller);
        }
    }

    /// Goes on until there is nothing to do but wait. Whether all have an outcome.
    fn advance(&mut self) -> bool {
        loop {
            let pause = match self.step {
                Step::Send(not_before) if Instant::now() < not_before => return false,
                Step::Send(_) if !self.wanted.choose(self.connection.facts.max_batch) => {
                    return true;
                }
                Step::Send(_) => match self.send() {
                    Ok(None) => return false,
                    Ok(Some(id)) => {
                        // The reply to a request just sent is never there yet.
                        self.step = Step::Look(id);
                        self.have_told();
                        return false;
                    }
                    Err(error) => self.settle(Err(error)),
                },
                Step::Look(id) => {
                    let State { connection, handles, deadline, wanted, .. } = self;
                    match wanted.look(connection, id, handles, *deadline) {
                        None => return false,
                        Some(answered) => self.settle(answered),
                    }
                }
            };
            self.step = Step::Send(Instant::now() + pause);
        }
    }

    /// Sends the next message if it fits: its id.
    fn send(&self) -> Result<Option<u64>, Error> {
        let start = || self.wanted.start(&self.connection, &self.handles, self.deadline);
        if let Some(id) = start()? {
            return Ok(Some(id));
        }
        // What is in the way may be replies that wait to be read.
        self.connection.read_if_nobody_does();
        match start()? {
            None if Instant::now() >= self.deadline.given_up_at() => {
                Err(Error::timed_out("acquire: no room for another request"))
            }
            started => Ok(started),
        }
    }

    fn settle(&mut self, answered: Result<(), Error>) -> Duration {
        let State { handles, deadline, wanted, arrived, .. } = self;
        wanted.settle(answered, handles, *deadline, |place, outcome| {
            arrived.push((place, outcome));
        })
    }

    fn take_outcomes(&mut self) -> Vec<Result<Grant, Error>> {
        if !self.connection.common.process.is_current() {
            // What was granted before a fork is the parent's.
            return self.handles.iter().map(|_| Err(self.connection.lost("acquire"))).collect();
        }
        let mut arrived = std::mem::take(&mut self.arrived);
        let kept = self.kept.drain(..);
        arrived.extend(kept.map(|(place, it)| (place, it.and_then(Kept::into_grant))));
        arrived.sort_unstable_by_key(|(place, _)| *place);
        arrived.into_iter().map(|(_, outcome)| outcome).collect()
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if let Step::Look(id) = self.step {
            self.connection.forget(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_when_made_then_may_go_to_another_thread() {
        fn assert_send<T: Send>() {}
        assert_send::<AcquireRequest>();
        assert_send::<AcquireProgress>();
    }
}
