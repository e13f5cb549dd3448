//! One-way messages: what a drop sends. Queued when the socket is full, sent before anything later.
//! Must never wait, and never lose a release while the connection lives.

use super::gathering::{Fate, Gathering};
use crate::books::one_way::{OneWay, Unregister};
use crate::limits::MAX_QUEUED_ONE_WAY;
use fdbroker_protocol::limits::ENDS_PER_MESSAGE;
use fdbroker_protocol::message::{AllocationItem, LeaseItem};
use fdbroker_protocol::object::ObjectGroup;
use fdbroker_protocol::{Kind, MAX_BATCH, Writer};
use fdbroker_scm::SendError;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::Instant;

/// The queue and the writer of one connection's request socket, under its send lock.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pub writer: Writer,
    mapped: VecDeque<u64>,
    released: VecDeque<u64>,
    cancels: VecDeque<u64>,
    aborts: VecDeque<u64>,
    unregisters: VecDeque<Unregister>,
    unregisters_posted: u64,
    complete: bool,
    pub(super) gathering: Gathering,
}

impl Outbox {
    /// Queues; and what becomes of it.
    pub(super) fn push(&mut self, message: OneWay, now: Instant) -> Fate {
        match message {
            OneWay::Mapped(lease) => self.mapped.push_back(lease),
            OneWay::Released(lease) | OneWay::ReleasedSoon(lease) => {
                // That it was mapped meanwhile matters no more.
                self.mapped.pop_back_if(|last| *last == lease);
                self.released.push_back(lease);
            }
            OneWay::Cancel(id) => self.cancels.push_back(id),
            OneWay::Abort(group) => self.aborts.push_back(group),
            OneWay::Complete => self.complete = true,
            OneWay::Unregister(item) | OneWay::UnregisterSoon(item) => {
                self.unregisters.push_back(item);
                self.unregisters_posted += 1;
            }
        }
        let count = self.len();
        match message {
            _ if count > MAX_QUEUED_ONE_WAY => Fate::Overflows,
            OneWay::Mapped(_) => self.gathering.mapped(count, now),
            OneWay::ReleasedSoon(_) | OneWay::UnregisterSoon(_) => {
                self.gathering.given_back(count, now)
            }
            _ => Fate::Goes,
        }
    }

    /// Messages in the queue.
    pub(super) fn len(&self) -> usize {
        let complete = usize::from(self.complete);
        complete
            + self.mapped.len()
            + self.released.len()
            + self.cancels.len()
            + self.aborts.len()
            + self.unregisters.len()
    }

    /// Unregisters ever posted, and of these sent. They go in their order.
    pub fn unregisters(&self) -> (u64, u64) {
        (self.unregisters_posted, self.unregisters_posted - self.unregisters.len() as u64)
    }

    /// Whether nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sends what is queued but unregisters and aborts, without waiting. `mapped` goes before
    /// `released`: both may be of one lease.
    pub fn flush(&mut self, socket: BorrowedFd<'_>) -> Result<(), SendError> {
        if self.complete {
            self.writer.start(Kind::Complete, 0);
            fdbroker_scm::send(socket, self.writer.finish(0, 0), &[])?;
            self.complete = false;
        }
        send_leases(socket, &mut self.writer, Kind::Mapped, &mut self.mapped)?;
        send_leases(socket, &mut self.writer, Kind::Release, &mut self.released)?;
        while let Some(id) = self.cancels.front() {
            self.writer.start(Kind::Cancel, *id);
            fdbroker_scm::send(socket, self.writer.finish(0, 0), &[])?;
            self.cancels.pop_front();
        }
        Ok(())
    }

    /// The group that is to be given up next.
    pub fn next_abort(&self) -> Option<u64> {
        self.aborts.front().copied()
    }

    /// Sends that as request `id`.
    pub fn send_abort(&mut self, socket: BorrowedFd<'_>, id: u64) -> Result<(), SendError> {
        let Some(group) = self.next_abort() else { return Ok(()) };
        self.writer.start(Kind::ObjectAbort, id).push(&ObjectGroup { group: group.into() });
        fdbroker_scm::send(socket, self.writer.finish(0, 0), &[])?;
        self.aborts.pop_front();
        Ok(())
    }

    /// The unregisters for the next message; empty when none is queued.
    pub fn next_unregisters(&self) -> Vec<Unregister> {
        self.unregisters.iter().take(ENDS_PER_MESSAGE).copied().collect()
    }

    /// Sends those as request `id`.
    pub fn send_unregisters(&mut self, socket: BorrowedFd<'_>, id: u64) -> Result<(), SendError> {
        let count = self.unregisters.len().min(ENDS_PER_MESSAGE);
        self.writer.start(Kind::Unregister, id);
        for item in self.unregisters.iter().take(count) {
            let (slot, generation) = (item.id.slot.into(), item.id.generation.into());
            self.writer.push(&AllocationItem { slot, generation });
        }
        fdbroker_scm::send(socket, self.writer.finish(count, 0), &[])?;
        self.unregisters.drain(..count);
        Ok(())
    }
}

fn send_leases(
    socket: BorrowedFd<'_>,
    writer: &mut Writer,
    kind: Kind,
    leases: &mut VecDeque<u64>,
) -> Result<(), SendError> {
    while !leases.is_empty() {
        let count = leases.len().min(MAX_BATCH);
        writer.start(kind, 0);
        for lease in leases.iter().take(count) {
            writer.push(&LeaseItem { lease: (*lease).into() });
        }
        fdbroker_scm::send(socket, writer.finish(count, 0), &[])?;
        leases.drain(..count);
    }
    Ok(())
}
