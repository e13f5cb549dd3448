//! Acquiring: handles in, grants out, one message per 253; what is not ready is asked for again
//! until the deadline. Must never lose a grant: what cannot be handed over is given back.

use crate::books::grant::Grant;
use crate::books::lease::Lease;
use crate::books::one_way::OneWay;
use crate::deadline::Deadline;
use crate::deposit::{AllocationInfo, DriverData};
use crate::error::Error;
use crate::limits::{AGAIN_FIRST, AGAIN_LAST};
use crate::wire::call::{Call, Reply};
use crate::wire::connection::Connection;
use fdbroker_protocol::limits::DRIVER_DATA_BYTES;
use fdbroker_protocol::message::{AcquireHead, GrantItem, NO_FD};
use fdbroker_protocol::{
    AllocationId, DecodeError, ErrorCode, Handle, HandlePrefix, Kind, Status, Writer,
};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// What became of one handle in one reply.
#[derive(Debug)]
pub(crate) enum Outcome {
    Granted(Grant),
    /// Not ready: ask again.
    Again,
    /// Granted, but its fd did not fit into this process; given back.
    NoRoom,
    Refused(Status),
}

pub(crate) fn acquire_one(
    connection: &Connection,
    handle: &Handle,
    deadline: Deadline,
) -> Result<Grant, Error> {
    let request = Request { handles: &[*handle], chunk: &[0], deadline };
    let mut pause = AGAIN_FIRST;
    loop {
        match request.make(connection, |outcomes| outcomes.next())? {
            Some(Outcome::Granted(grant)) => return Ok(grant),
            Some(Outcome::Again) if !deadline.is_answered() => {}
            Some(other) => return Err(other.into_error(handle)),
            None => unreachable!("one item was asked for and the reply has as many"),
        }
        connection.pause(next_pause(&mut pause, deadline));
    }
}

/// What is handed over.
pub(crate) enum Handed {
    /// The outcome of the handle at this index.
    One(usize, Result<Grant, Error>),
    /// Nothing more before the next message is asked for.
    End,
}

/// Acquires many and hands each over once, in the order in which they come.
pub(crate) fn acquire_each(
    connection: &Connection,
    handles: &[Handle],
    deadline: Deadline,
    mut take: impl FnMut(Handed),
) {
    let mut wanted = Wanted::all_of(handles.len());
    while wanted.choose(connection.facts.max_batch) {
        let request = Request { handles, chunk: &wanted.chunk, deadline };
        let outcomes = request.make(connection, |items| wanted.outcomes.extend(items));
        let handing_over = connection.hand_over();
        let each = |index, outcome| take(Handed::One(index, outcome));
        let pause = wanted.settle(outcomes, handles, deadline, each);
        take(Handed::End);
        drop(handing_over);
        connection.pause(pause);
    }
}

/// Whether a request that failed so says that the next will too.
pub(crate) fn is_final(code: ErrorCode) -> bool {
    use ErrorCode::{NotConnected, Protocol, ShuttingDown, TimedOut};
    matches!(code, NotConnected | Protocol | ShuttingDown | TimedOut)
}

fn next_pause(pause: &mut Duration, deadline: Deadline) -> Duration {
    let now = (*pause).min(deadline.remaining());
    *pause = (*pause * 2).min(AGAIN_LAST);
    now
}

/// What is left to acquire of many handles, known by their index; in rounds of one message.
#[derive(Debug)]
pub(crate) struct Wanted {
    open: VecDeque<usize>,
    /// Those of the message under way.
    chunk: Vec<usize>,
    outcomes: Vec<Outcome>,
    pause: Duration,
}

impl Wanted {
    pub fn all_of(count: usize) -> Self {
        let open = (0..count).collect();
        Wanted { open, chunk: Vec::new(), outcomes: Vec::new(), pause: AGAIN_FIRST }
    }

    /// Chooses at most `most` for the next message, unless that has been done. `false`: none is
    /// left.
    pub fn choose(&mut self, most: usize) -> bool {
        if self.chunk.is_empty() {
            self.chunk.extend(self.open.drain(..self.open.len().min(most)));
        }
        !self.chunk.is_empty()
    }

    /// Starts the message of those chosen, without waiting. `None`: it does not fit now.
    pub fn start(
        &self,
        connection: &Connection,
        handles: &[Handle],
        deadline: Deadline,
    ) -> Result<Option<u64>, Error> {
        let request = Request { handles, chunk: &self.chunk, deadline };
        connection.start(&request.call(), &[], |writer| request.write(writer))
    }

    /// Takes the outcomes of a message started, if they have come.
    pub fn look(
        &mut self,
        connection: &Connection,
        id: u64,
        handles: &[Handle],
        deadline: Deadline,
    ) -> Option<Result<(), Error>> {
        let Wanted { chunk, outcomes, .. } = self;
        let request = Request { handles, chunk, deadline };
        let take = |items: &mut dyn Iterator<Item = Outcome>| outcomes.extend(items);
        connection.look(id, &request.call(), |reply| request.read(connection, reply, take))
    }

    /// Hands over what is final of the message under way, and keeps the rest for another. How long
    /// to wait before it.
    pub fn settle(
        &mut self,
        answered: Result<(), Error>,
        handles: &[Handle],
        deadline: Deadline,
        mut each: impl FnMut(usize, Result<Grant, Error>),
    ) -> Duration {
        if let Err(error) = answered {
            self.chunk.drain(..).for_each(|index| each(index, Err(error.clone())));
            if is_final(error.code) {
                self.open.drain(..).for_each(|index| each(index, Err(error.clone())));
            }
            return Duration::ZERO;
        }
        let is_over = deadline.is_answered();
        let granted = self.outcomes.iter().any(|outcome| matches!(outcome, Outcome::Granted(_)));
        for (index, outcome) in self.chunk.drain(..).zip(self.outcomes.drain(..)) {
            match outcome {
                Outcome::Granted(grant) => each(index, Ok(grant)),
                Outcome::Again if !is_over => self.open.push_back(index),
                // The caller may have closed those handed over: worth another try if there were
                // any.
                Outcome::NoRoom if granted => self.open.push_back(index),
                other => each(index, Err(other.into_error(&handles[index]))),
            }
        }
        if granted {
            self.pause = AGAIN_FIRST;
        }
        if granted || self.open.is_empty() {
            Duration::ZERO
        } else {
            next_pause(&mut self.pause, deadline)
        }
    }
}

/// One acquire message: of the handles at `chunk`, in that order.
struct Request<'a> {
    handles: &'a [Handle],
    chunk: &'a [usize],
    deadline: Deadline,
}

impl Request<'_> {
    fn call(&self) -> Call<'static> {
        Call::new("acquire", Kind::Acquire, Kind::Granted, self.deadline)
    }

    fn write(&self, writer: &mut Writer) -> usize {
        let deadline_ms = self.deadline.answer_ms().into();
        writer.push(&AcquireHead { deadline_ms, flags: 0.into() });
        self.chunk.iter().for_each(|index| {
            writer.push(&self.handles[*index].prefix.to_bytes());
        });
        self.chunk.len()
    }

    /// Makes it and waits for the reply.
    fn make<T>(
        &self,
        connection: &Connection,
        take: impl FnOnce(&mut dyn Iterator<Item = Outcome>) -> T,
    ) -> Result<T, Error> {
        let decode = |reply: Reply<'_>| self.read(connection, reply, take);
        connection.call(self.call(), &[], |writer| self.write(writer), decode)
    }

    fn read<T>(
        &self,
        connection: &Connection,
        reply: Reply<'_>,
        take: impl FnOnce(&mut dyn Iterator<Item = Outcome>) -> T,
    ) -> Result<T, DecodeError> {
        let (items, blocks) = reply.message.grants()?;
        if items.len() != self.chunk.len() {
            let (got, expected) = (items.len(), self.chunk.len());
            return Err(DecodeError::Length { kind: Kind::Granted, got, expected });
        }
        let announced = usize::from(reply.message.fd_count);
        let mut arrived = Arrived::new(reply.fds, announced);
        let mut blocks = blocks.iter();
        let wanted = self.chunk.iter().map(|index| self.handles[*index].prefix);
        let mut outcomes = items.iter().zip(wanted).map(|(item, handle)| {
            outcome(connection, item, Some(handle), &mut blocks, &mut arrived)
        });
        let taken = take(&mut outcomes);
        // Whatever the caller did not take is given back by its drop.
        outcomes.for_each(drop);
        Ok(taken)
    }
}

/// The grant or the error of one item of a reply; of an object there is no handle. A grant takes
/// its fd from the fds that arrived.
pub(crate) fn outcome(
    connection: &Connection,
    item: &GrantItem,
    handle: Option<HandlePrefix>,
    blocks: &mut std::slice::Iter<'_, [u8; DRIVER_DATA_BYTES]>,
    arrived: &mut Arrived,
) -> Outcome {
    let driver_data = match item.driver_data_len {
        0 => DriverData::EMPTY,
        len => blocks.next().map_or(DriverData::EMPTY, |b| DriverData::from_block(b, len)),
    };
    let status = item.status.get();
    match status.result() {
        Ok(()) => {}
        Err(ErrorCode::Again) => return Outcome::Again,
        Err(code) => {
            if code == ErrorCode::NoQuota {
                connection.press();
            }
            return Outcome::Refused(status);
        }
    }
    let fd = arrived.take(item.fd_index.get());
    let (fd, facts) = match (fd, item.facts.get()) {
        (Fd::Here(fd), Some(facts)) => (fd, facts),
        (fd, facts) => {
            connection.post(OneWay::Released(item.lease.get()));
            return match (fd, facts) {
                (Fd::Lost, Some(_)) => Outcome::NoRoom,
                _ => Outcome::Refused(ErrorCode::Protocol.into()),
            };
        }
    };
    let id = AllocationId { slot: item.slot.get(), generation: item.generation.get() };
    Outcome::Granted(Grant {
        fd,
        lease: Lease::new(&connection.common, connection.epoch, item.lease.get(), id, handle)
            .with_room(status.value),
        info: AllocationInfo { id, facts, driver_data },
    })
}

impl Outcome {
    /// The error of an outcome that is final and no grant.
    pub(super) fn into_error(self, handle: &Handle) -> Error {
        let what = format!("acquire {}", handle.id());
        match self {
            Outcome::Refused(status) => Error::from_status(status, what),
            Outcome::NoRoom => Error::new(ErrorCode::LocalFdLimit, what),
            Outcome::Again => Error::timed_out(format!(
                "{what}: not ready by the deadline: its owner was asked for it, or leases of the same call fill a cap"
            )),
            Outcome::Granted(_) => unreachable!("a grant is no error"),
        }
    }
}

/// The fds of one reply by their index. The kernel installs them in order, so those that did not
/// fit are the last ones. The first is kept apart: a reply of one allocates nothing.
pub(crate) struct Arrived {
    announced: usize,
    count: usize,
    first: Option<OwnedFd>,
    others: Vec<Option<OwnedFd>>,
}

enum Fd {
    Here(OwnedFd),
    /// Announced, but this process had no room.
    Lost,
    /// No such index, or taken twice.
    Wrong,
}

impl Arrived {
    pub(crate) fn new(fds: &mut dyn Iterator<Item = OwnedFd>, announced: usize) -> Self {
        let first = fds.next();
        let others: Vec<_> = fds.map(Some).collect();
        Arrived { announced, count: usize::from(first.is_some()) + others.len(), first, others }
    }

    fn take(&mut self, index: u16) -> Fd {
        let at = usize::from(index);
        if index == NO_FD || at >= self.announced {
            return Fd::Wrong;
        }
        if at >= self.count {
            return Fd::Lost;
        }
        let place = match at {
            0 => &mut self.first,
            later => &mut self.others[later - 1],
        };
        place.take().map_or(Fd::Wrong, Fd::Here)
    }
}
