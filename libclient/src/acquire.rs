//! Acquiring: handles in, grants out, one message per 253; what is not ready is asked for again until the deadline.
//! Must never lose a grant: what cannot be handed over is given back.

use crate::connection::{Call, Connection};
use crate::deadline::Deadline;
use crate::deposit::DriverData;
use crate::error::Error;
use crate::grant::{AllocationInfo, Grant};
use crate::lease::Lease;
use crate::limits::{AGAIN_FIRST, AGAIN_LAST, REPLY_GRACE};
use crate::outbox::OneWay;
use fdbroker_protocol::message::{AcquireHead, GrantItem, NO_FD};
use fdbroker_protocol::{
    AllocationId, DecodeError, ErrorCode, Handle, Kind, MemoryKind, Status, Writer,
};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// What became of one handle in one reply.
#[derive(Debug)]
enum Outcome {
    Granted(Grant),
    /// Not ready: ask again.
    Again,
    /// Granted, but its fd did not fit into this process; given back.
    NoRoom,
    Refused(Status),
}

/// Acquires one handle.
pub(crate) fn acquire_one(
    connection: &Arc<Connection>,
    handle: &Handle,
    deadline: Deadline,
) -> Result<Grant, Error> {
    let mut pause = AGAIN_FIRST;
    loop {
        let outcome = ask(connection, &[*handle], &[0], deadline, |outcomes| outcomes.next())?;
        match outcome {
            Some(Outcome::Granted(grant)) => return Ok(grant),
            Some(Outcome::Again) if !deadline.has_passed() => {}
            Some(other) => return Err(other.into_error(handle)),
            None => unreachable!("one item was asked for and the reply has as many"),
        }
        wait_a_little(&mut pause, deadline);
    }
}

/// Acquires many and hands each over once, in the order in which they come.
pub(crate) fn acquire_each(
    connection: &Arc<Connection>,
    handles: &[Handle],
    deadline: Deadline,
    mut each: impl FnMut(usize, Result<Grant, Error>),
) {
    let mut open: VecDeque<usize> = (0..handles.len()).collect();
    let mut chunk = Vec::new();
    let mut outcomes: Vec<Outcome> = Vec::new();
    let mut pause = AGAIN_FIRST;
    while !open.is_empty() {
        chunk.clear();
        chunk.extend(open.drain(..open.len().min(connection.facts.max_batch)));
        let asked = ask(connection, handles, &chunk, deadline, |items| outcomes.extend(items));
        if let Err(error) = asked {
            chunk.iter().for_each(|index| each(*index, Err(error.clone())));
            if is_final(error.code) {
                open.drain(..).for_each(|index| each(index, Err(error.clone())));
            }
            continue;
        }
        let is_over = deadline.has_passed();
        let granted = outcomes.iter().any(|outcome| matches!(outcome, Outcome::Granted(_)));
        for (index, outcome) in chunk.iter().zip(outcomes.drain(..)) {
            match outcome {
                Outcome::Granted(grant) => each(*index, Ok(grant)),
                Outcome::Again if !is_over => open.push_back(*index),
                // The caller may have closed those handed over: worth another try if there were any.
                Outcome::NoRoom if granted => open.push_back(*index),
                other => each(*index, Err(other.into_error(&handles[*index]))),
            }
        }
        match granted {
            true => pause = AGAIN_FIRST,
            false if !open.is_empty() => wait_a_little(&mut pause, deadline),
            false => {}
        }
    }
}

/// Whether a request that failed so says that the next will too.
pub(crate) fn is_final(code: ErrorCode) -> bool {
    use ErrorCode::{NotConnected, Protocol, ShuttingDown, TimedOut};
    matches!(code, NotConnected | Protocol | ShuttingDown | TimedOut)
}

fn wait_a_little(pause: &mut Duration, deadline: Deadline) {
    std::thread::sleep((*pause).min(deadline.remaining()));
    *pause = (*pause * 2).min(AGAIN_LAST);
}

/// One acquire: of the handles at `chunk`, in that order.
fn ask<T>(
    connection: &Arc<Connection>,
    handles: &[Handle],
    chunk: &[usize],
    deadline: Deadline,
    take: impl FnOnce(&mut dyn Iterator<Item = Outcome>) -> T,
) -> Result<T, Error> {
    let call = Call {
        what: "acquire",
        kind: Kind::Acquire,
        answer: Kind::Granted,
        until: deadline.at() + REPLY_GRACE,
        deposits: 0,
    };
    let write = |writer: &mut Writer| {
        let head = AcquireHead { deadline_ms: deadline.remaining_ms().into(), flags: 0.into() };
        writer.push(&head);
        chunk.iter().for_each(|index| {
            writer.push(&handles[*index].prefix);
        });
        chunk.len()
    };
    connection.call(call, &[], write, |reply| {
        let (items, blocks) = reply.message.grants()?;
        if items.len() != chunk.len() {
            let (got, expected) = (items.len(), chunk.len());
            return Err(DecodeError::Length { kind: Kind::Granted, got, expected });
        }
        let announced = usize::from(reply.message.fd_count);
        let mut arrived = Arrived::new(reply.fds, announced);
        let mut blocks = blocks.iter();
        let mut outcomes = items.iter().map(|item| {
            let driver_data = match item.driver_data_len {
                0 => DriverData::EMPTY,
                len => blocks.next().map_or(DriverData::EMPTY, |b| DriverData::from_block(b, len)),
            };
            outcome(connection, item, driver_data, &mut arrived)
        });
        let taken = take(&mut outcomes);
        // Whatever the caller did not take is given back by its drop.
        outcomes.for_each(drop);
        Ok(taken)
    })
}

fn outcome(
    connection: &Arc<Connection>,
    item: &GrantItem,
    driver_data: DriverData,
    arrived: &mut Arrived,
) -> Outcome {
    match item.status.result() {
        Ok(()) => {}
        Err(ErrorCode::Again) => return Outcome::Again,
        Err(_) => return Outcome::Refused(item.status),
    }
    let fd = arrived.take(item.fd_index.get());
    let (fd, kind) = match (fd, MemoryKind::from_number(item.kind)) {
        (Fd::Here(fd), Some(kind)) => (fd, kind),
        (fd, kind) => {
            connection.post(OneWay::Released(item.lease.get()));
            return match (fd, kind) {
                (Fd::Lost, Some(_)) => Outcome::NoRoom,
                _ => Outcome::Refused(ErrorCode::Protocol.into()),
            };
        }
    };
    let id = AllocationId { slot: item.slot.get(), generation: item.generation.get() };
    Outcome::Granted(Grant {
        fd,
        lease: Lease::new(Arc::clone(connection), item.lease.get(), id),
        info: AllocationInfo {
            id,
            size_bytes: item.size_bytes.get(),
            fd_offset: item.fd_offset.get(),
            kind,
            device: item.device.get(),
            owner_allocation_id: item.owner_allocation_id.get(),
            driver_data,
        },
    })
}

impl Outcome {
    /// The error of an outcome that is final and no grant.
    fn into_error(self, handle: &Handle) -> Error {
        let what = format!("acquire {}", handle.id());
        match self {
            Outcome::Refused(status) => Error::from_status(status, what),
            Outcome::NoRoom => Error::new(ErrorCode::LocalFdLimit, what),
            Outcome::Again => Error::timed_out(format!("{what}: its owner was asked for it")),
            Outcome::Granted(_) => unreachable!("a grant is no error"),
        }
    }
}

/// The fds of one reply by their index. The kernel installs them in order, so those that did not fit
/// are the last ones. The first is kept apart: a reply of one allocates nothing.
struct Arrived {
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
    fn new(fds: &mut dyn Iterator<Item = OwnedFd>, announced: usize) -> Self {
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
