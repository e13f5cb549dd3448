//! Groups that are begun or sealed while nobody waits: started, tested now and then, cancelled or
//! dropped. Must never wait for the broker, nor leave a group behind.

use super::group::{Group, SealError};
use super::options::{NewObject, ObjectOptions, Place, Whose};
use super::wire::{Items, Made, Making};
use crate::backend::MakersWork;
use crate::books::due::{Due, Teller};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::limits::AGAIN_FIRST;
use crate::own_fds::{CLOSED_HERE, OwnFd};
use crate::requests::register::{Claimed, claim_start, look_for_credit};
use crate::requests::started::{Progress, due_at};
use crate::wire::again::Again;
use fdbroker_protocol::ErrorCode;
use fdbroker_protocol::object::ObjectCreateHead;
use std::time::{Duration, Instant};

/// A group that is being begun or sealed; see [`crate::Objects::create_start`] and
/// [`Group::seal_start`]. For progress engines: nothing here waits for the broker.
///
/// [`GroupRequest::test`] drives it. Dropping it is [`GroupRequest::cancel`].
#[must_use = "dropping a request cancels it"]
pub struct GroupRequest<T> {
    state: Box<State>,
    done: fn(Box<Group>, Result<u64, Error>) -> T,
}

/// A group being begun; its outcome is that of [`crate::Objects::create`].
pub type CreateRequest = GroupRequest<Result<Group, Error>>;

/// A group being sealed; its outcome is that of [`Group::seal`].
pub type SealRequest = GroupRequest<Result<u64, SealError>>;

#[derive(Debug)]
struct State {
    /// `None`: it is done.
    group: Option<Box<Group>>,
    deadline: Deadline,
    again: Again,
    next: Next,
    step: Step,
    teller: Option<Teller>,
}

/// The message that is sent next, or was sent last.
#[derive(Debug)]
enum Next {
    Create { head: ObjectCreateHead, items: Items, fd: OwnFd },
    Add { items: Items, begin: usize },
    Seal,
}

/// What the next test has to do.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Send the message, but not before then.
    Send(Instant),
    /// Look for the answer to a message that asks for credit.
    Credit(u64),
    /// Look for the answer to the message.
    Look(u64),
}

pub(super) fn create(
    whose: &Whose,
    members: &[NewObject<'_>],
    place: Place<'_>,
    options: ObjectOptions,
    deadline: Deadline,
) -> Result<CreateRequest, Error> {
    let connection = whose.client.usable("create")?;
    let (group, head, items) = Group::plan(whose, connection, members, &place, options)?;
    let fd = group.export(&place)?.kept()?;
    let next = Next::Create { head, items, fd };
    let done = |group: Box<Group>, made: Result<u64, Error>| made.map(|_| *group);
    Ok(GroupRequest::start(Box::new(group), next, deadline, done))
}

impl Group {
    /// Starts to seal it, without waiting for the broker: see [`GroupRequest`]. Its memory is
    /// sealed inside this call, after the work of its device as for [`Group::seal`]. May be called
    /// in a callback. To cancel it gives the group up, unless it is sealed by then.
    ///
    /// # Errors
    /// When nothing was started: SEALED_BUSY, ABORTED, NOT_CONNECTED. All else is said by
    /// [`GroupRequest::test`], as [`Group::seal`] says it.
    pub fn seal_start(self, deadline: Deadline) -> Result<SealRequest, SealError> {
        self.seal_memory(None).map(|it| it.seal_started(deadline))
    }

    /// The same, waiting for this work alone.
    ///
    /// # Safety
    /// As [`Group::seal_after`].
    ///
    /// # Errors
    /// As [`Group::seal_start`]; NOT_SUPPORTED: as [`Group::seal_after`].
    pub unsafe fn seal_after_start(
        self,
        work: MakersWork,
        deadline: Deadline,
    ) -> Result<SealRequest, SealError> {
        self.seal_memory(Some(work)).map(|it| it.seal_started(deadline))
    }

    fn seal_started(self, deadline: Deadline) -> SealRequest {
        GroupRequest::start(Box::new(self), Next::Seal, deadline, Group::sealed)
    }
}

impl<T> GroupRequest<T> {
    fn start(
        group: Box<Group>,
        next: Next,
        deadline: Deadline,
        done: fn(Box<Group>, Result<u64, Error>) -> T,
    ) -> Self {
        let (again, step) = (Again::new(), Step::Send(Instant::now()));
        let (group, teller) = (Some(group), None);
        let mut state = Box::new(State { group, deadline, again, next, step, teller });
        // An error is seen by the first test.
        if let Ok(Some(sent)) = state.send() {
            state.step = sent;
        }
        GroupRequest { state, done }
    }

    /// Does what can be done now, without waiting for the broker, and says how far it is; in
    /// dispatch mode it serves recalls, too. May be called in a callback.
    pub fn test(mut self) -> Progress<Self, T> {
        self.state.group().connection().serve();
        match self.state.advance() {
            Some(outcome) => {
                let group = self.state.group.take().expect("it was not done");
                Progress::Done((self.done)(group, outcome))
            }
            None => Progress::UnderWay(self),
        }
    }

    /// From now on it tells `due` this token when there is something to test: an answer has come,
    /// or the connection has ended. Test it as well when [`GroupRequest::due_within`] has passed.
    pub fn tell(&mut self, due: &Due, token: u64) {
        self.state.teller = Some(Teller::new(due, token));
        self.state.have_told();
    }

    /// When to test it though it has not told: a pause is over, or its deadline has come.
    pub fn due_within(&self) -> Duration {
        match self.state.step {
            Step::Send(not_before) => due_at(not_before),
            Step::Credit(_) | Step::Look(_) => due_at(self.state.deadline.given_up_at()),
        }
    }

    /// Gives it up, like drop: nothing of the group is charged any more. One that was being sealed
    /// may be sealed all the same. Never waits.
    pub fn cancel(self) {}
}

impl State {
    fn group(&self) -> &Group {
        self.group.as_deref().expect("it is not done")
    }

    fn have_told(&self) {
        if let (Step::Credit(id) | Step::Look(id), Some(teller)) = (self.step, &self.teller) {
            self.group().connection().tell(id, teller);
        }
    }

    /// Goes on until there is nothing to do but wait; its outcome, with the version of a seal.
    fn advance(&mut self) -> Option<Result<u64, Error>> {
        loop {
            let answered = match self.step {
                Step::Send(not_before) if Instant::now() < not_before => return None,
                Step::Send(_) => match self.send().transpose()? {
                    Ok(sent) => {
                        self.step = sent;
                        self.have_told();
                        return None;
                    }
                    Err(error) => return Some(Err(error)),
                },
                Step::Credit(id) => look_for_credit(self.group().connection(), id, self.deadline)?,
                Step::Look(id) => {
                    let made = self.message().look(self.group().connection(), id, self.deadline)?;
                    match made.map(|made| self.go_on(made)) {
                        Ok(Some(number)) => return Some(Ok(number)),
                        gone_on => gone_on.map(drop),
                    }
                }
            };
            let pause = match answered.map_err(|error| self.again.is_due(error, self.deadline)) {
                Ok(()) => Duration::ZERO,
                Err(Ok(())) => AGAIN_FIRST,
                Err(Err(error)) => return Some(Err(error)),
            };
            self.step = Step::Send(Instant::now() + pause);
        }
    }

    /// Takes the answer to a message: `None`, there is another one to send; else the last number.
    fn go_on(&mut self, made: Made) -> Option<u64> {
        let end = self.message().end();
        if let Next::Create { .. } = self.next {
            self.group.iter_mut().for_each(|group| group.begun(made));
        }
        match std::mem::replace(&mut self.next, Next::Seal) {
            Next::Create { items, .. } | Next::Add { items, .. } if end < items.len() => {
                self.next = Next::Add { items, begin: end };
                None
            }
            _ => Some(made.number),
        }
    }

    fn message(&self) -> Making<'_> {
        let number = self.group().number();
        match &self.next {
            Next::Create { head, items, .. } => Making::Create(head, items),
            Next::Add { items, begin } => Making::add(number, items, *begin),
            Next::Seal => Making::Seal(number),
        }
    }

    /// Sends the message if there are credit and room for it; what to look for then.
    fn send(&self) -> Result<Option<Step>, Error> {
        if let Some(sent) = self.try_send()? {
            return Ok(Some(sent));
        }
        // What is in the way may be replies that wait to be read.
        self.group().connection().read_if_nobody_does();
        match self.try_send()? {
            None if Instant::now() >= self.deadline.given_up_at() => {
                Err(Error::timed_out("create or seal: no room for another request"))
            }
            sent => Ok(sent),
        }
    }

    fn try_send(&self) -> Result<Option<Step>, Error> {
        let (connection, message) = (self.group().connection(), self.message());
        if !connection.is_usable() {
            // Before any lock, as in `Client::usable`.
            return Err(connection.lost("create or seal"));
        }
        let Next::Create { fd, .. } = &self.next else {
            return Ok(message.start(connection, None, self.deadline)?.map(Step::Look));
        };
        match claim_start(connection, 1, 1, self.deadline)? {
            None => Ok(None),
            Some(Claimed::Asked(id)) => Ok(Some(Step::Credit(id))),
            Some(Claimed::Credits(credit)) => {
                let closed = || Error::new(ErrorCode::UnsupportedFd, "create").because(CLOSED_HERE);
                let fd = fd.proved().ok_or_else(closed);
                let sent = fd.and_then(|fd| message.start(connection, Some(fd), self.deadline));
                if !matches!(sent, Ok(Some(_))) {
                    connection.credits.give_back(credit);
                }
                Ok(sent?.map(Step::Look))
            }
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if let (Step::Credit(id) | Step::Look(id), Some(group)) = (self.step, &self.group) {
            group.connection().forget(id);
        }
    }
}

impl<T> std::fmt::Debug for GroupRequest<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupRequest").field("state", &self.state).finish_non_exhaustive()
    }
}
