//! Groups that are begun, sealed or put while nobody waits: started, tested now and then, cancelled
//! or dropped. Must never wait for the broker, nor leave a group behind.

use super::group::{Group, SealError};
use super::options::{NewObject, ObjectOptions, Place, PutObject, Whose};
use super::wire::{Items, Made, Making};
use crate::backend::MakersWork;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::own_fds::{CLOSED_HERE, OwnFd};
use crate::requests::register::{Claimed, claim_start, look_for_credit};
use crate::requests::started::{Exchange, Messages, Request};
use crate::wire::again::Again;
use crate::wire::connection::Connection;
use fdbroker_protocol::object::ObjectCreateHead;
use fdbroker_protocol::{ErrorCode, Kind};
use std::sync::Arc;
use std::time::Duration;

/// A group being begun; its outcome is that of [`crate::Objects::create`]. To cancel it gives the
/// group up.
pub type CreateRequest = Request<'static, Result<Group, Error>>;

/// A group being sealed; its outcome is that of [`Group::seal`]. To cancel it gives the group up,
/// unless it is sealed by then.
pub type SealRequest = Request<'static, Result<u64, SealError>>;

/// Objects being put; its outcome is that of [`crate::Objects::put_group`]. To cancel it gives them
/// up, unless they are sealed by then.
pub type PutRequest = Request<'static, Result<u64, Error>>;

struct Maker<T> {
    /// `None`: it is done.
    group: Option<Box<Group>>,
    deadline: Deadline,
    again: Again,
    next: Next,
    /// What is begun is sealed, too.
    seals: bool,
    /// The message under way asks for credit.
    asks_credit: bool,
    /// With the version of a seal.
    outcome: Option<Result<u64, Error>>,
    done: fn(Box<Group>, Result<u64, Error>) -> T,
}

/// The message that is sent next, or was sent last.
#[derive(Debug)]
enum Next {
    Create { head: ObjectCreateHead, items: Items, fd: OwnFd },
    Add { items: Items, begin: usize },
    Seal,
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
    Ok(Maker::start(group, next, false, deadline, done))
}

pub(super) fn put(
    whose: &Whose,
    objects: &[PutObject<'_>],
    options: ObjectOptions,
    deadline: Deadline,
) -> Result<PutRequest, Error> {
    let connection = whose.client.usable("put")?;
    let (group, head, items, fd) = Group::written(whose, connection, objects, options)?;
    let next = Next::Create { head, items, fd };
    let done = |group: Box<Group>, made| group.sealed(made).map_err(Error::from);
    Ok(Maker::start(group, next, true, deadline, done))
}

impl Group {
    /// Starts to seal it, without waiting for the broker: see [`SealRequest`]. Its memory is
    /// sealed inside this call, after the work of its device as for [`Group::seal`]. May be called
    /// in a callback. To cancel it gives the group up, unless it is sealed by then.
    ///
    /// # Errors
    /// When nothing was started: SEALED_BUSY, ABORTED, NOT_CONNECTED. All else is said by
    /// [`Request::test`], as [`Group::seal`] says it.
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
        Maker::start(self, Next::Seal, false, deadline, Group::sealed)
    }
}

impl<T: 'static> Maker<T> {
    fn start(
        group: Group,
        next: Next,
        seals: bool,
        deadline: Deadline,
        done: fn(Box<Group>, Result<u64, Error>) -> T,
    ) -> Request<'static, T> {
        Request::of(Exchange::started(Maker {
            group: Some(Box::new(group)),
            deadline,
            again: Again::new(),
            next,
            seals,
            asks_credit: false,
            outcome: None,
            done,
        }))
    }
}

impl<T> Maker<T> {
    fn group(&self) -> &Group {
        self.group.as_deref().expect("it is not done")
    }

    /// Takes the answer to a message, and says what the next one is.
    fn go_on(&mut self, made: Made) {
        let end = self.message().end();
        if let Next::Create { .. } = self.next {
            self.group.iter_mut().for_each(|group| group.begun(made));
        }
        match std::mem::replace(&mut self.next, Next::Seal) {
            Next::Create { items, .. } | Next::Add { items, .. } if end < items.len() => {
                self.next = Next::Add { items, begin: end };
            }
            Next::Create { .. } | Next::Add { .. } if self.seals => {}
            _ => self.outcome = Some(Ok(made.number)),
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
}

impl<T> Messages for Maker<T> {
    type Outcome = T;
    const WHAT: &'static str = "create or seal";

    fn connection(&self) -> &Arc<Connection> {
        self.group().connection()
    }

    fn deadline(&self) -> Deadline {
        self.deadline
    }

    fn outcome(&mut self) -> Option<T> {
        let outcome = self.outcome.take()?;
        Some((self.done)(self.group.take()?, outcome))
    }

    fn kind(&self) -> Kind {
        match self.next {
            Next::Create { .. } => Kind::ObjectCreate,
            Next::Add { .. } | Next::Seal => Kind::ObjectSeal,
        }
    }

    /// If there are credit and room for it.
    fn send(&mut self) -> Result<Option<u64>, Error> {
        let (connection, message) = (self.group().connection(), self.message());
        if !connection.is_usable() {
            // Before any lock, as in `Client::usable`.
            return Err(connection.lost("create or seal"));
        }
        let Next::Create { fd, .. } = &self.next else {
            return message.start(connection, None, self.deadline);
        };
        let (asks_credit, sent) = match claim_start(connection, 1, 1, self.deadline)? {
            None => return Ok(None),
            Some(Claimed::Asked(id)) => (true, Ok(Some(id))),
            Some(Claimed::Credits(credit)) => {
                let closed = || Error::new(ErrorCode::UnsupportedFd, "create").because(CLOSED_HERE);
                let fd = fd.proved().ok_or_else(closed);
                let sent = fd.and_then(|fd| message.start(connection, Some(fd), self.deadline));
                if !matches!(sent, Ok(Some(_))) {
                    connection.credits.give_back(credit);
                }
                (false, sent)
            }
        };
        self.asks_credit = asks_credit;
        sent
    }

    fn look(&mut self, id: u64) -> Option<Result<(), Error>> {
        let connection = self.group().connection();
        if self.asks_credit {
            return look_for_credit(connection, id, self.deadline);
        }
        let made = self.message().look(connection, id, self.deadline)?;
        Some(made.map(|made| self.go_on(made)))
    }

    fn settle(&mut self, answered: Result<(), Error>) -> Duration {
        self.again.settle(answered, self.deadline, |error| self.outcome = Some(Err(error)))
    }
}

impl<T> std::fmt::Debug for Maker<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Maker").field("group", &self.group).finish_non_exhaustive()
    }
}
