//! One-way messages: what a drop sends. Queued when the socket is full, sent before anything later.
//! Must never wait, and never lose a release while the connection lives.

use crate::books::one_way::{OneWay, Unregister};
use crate::limits::MAX_QUEUED_ONE_WAY;
use fdbroker_protocol::limits::ENDS_PER_MESSAGE;
use fdbroker_protocol::message::{AllocationItem, LeaseItem};
use fdbroker_protocol::{Kind, MAX_BATCH, Writer};
use fdbroker_scm::SendError;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

/// The queue and the writer of one connection's request socket, under its send lock.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pub writer: Writer,
    mapped: VecDeque<u64>,
    released: VecDeque<u64>,
    cancels: VecDeque<u64>,
    unregisters: VecDeque<Unregister>,
    unregisters_posted: u64,
    complete: bool,
}

/// Hands out the id of an unregister request about to be sent, or `None` while enough are under way;
/// takes its items back with `None` when it was not sent.
pub(crate) trait Unregistering {
    /// An id, if another may be sent.
    fn begin(&mut self) -> Option<u64>;
    /// Notes who is to be told of the reply. Called before the send: the reply may be read by another thread.
    fn expect(&mut self, id: u64, items: Vec<Unregister>);
    /// It was not sent after all.
    fn withdraw(&mut self, id: u64);
}

impl Outbox {
    /// Queues; `false`: the queue is at its bound.
    pub fn push(&mut self, message: OneWay) -> bool {
        match message {
            OneWay::Mapped(lease) => self.mapped.push_back(lease),
            OneWay::Released(lease) => self.released.push_back(lease),
            OneWay::Cancel(id) => self.cancels.push_back(id),
            OneWay::Complete => self.complete = true,
            OneWay::Unregister(item) => {
                self.unregisters.push_back(item);
                self.unregisters_posted += 1;
            }
        }
        self.len() <= MAX_QUEUED_ONE_WAY
    }

    fn len(&self) -> usize {
        let complete = usize::from(self.complete);
        complete
            + self.mapped.len()
            + self.released.len()
            + self.cancels.len()
            + self.unregisters.len()
    }

    /// Unregisters ever posted, and of these sent. They go in their order.
    pub fn unregisters(&self) -> (u64, u64) {
        (self.unregisters_posted, self.unregisters_posted - self.unregisters.len() as u64)
    }

    /// Whether something waits for room on the socket (and not for a reply).
    pub fn wants_room(&self) -> bool {
        self.complete
            || !(self.mapped.is_empty() && self.released.is_empty() && self.cancels.is_empty())
    }

    /// Whether nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sends what is queued, without waiting. `mapped` goes before `released`: both may be of one lease.
    pub fn flush(
        &mut self,
        socket: BorrowedFd<'_>,
        unregistering: &mut dyn Unregistering,
    ) -> Result<(), SendError> {
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
        self.send_unregisters(socket, unregistering)
    }

    fn send_unregisters(
        &mut self,
        socket: BorrowedFd<'_>,
        unregistering: &mut dyn Unregistering,
    ) -> Result<(), SendError> {
        while !self.unregisters.is_empty() {
            let Some(id) = unregistering.begin() else { return Ok(()) };
            let count = self.unregisters.len().min(ENDS_PER_MESSAGE);
            let items: Vec<Unregister> = self.unregisters.iter().take(count).copied().collect();
            self.writer.start(Kind::Unregister, id);
            for item in &items {
                let (slot, generation) = (item.id.slot.into(), item.id.generation.into());
                self.writer.push(&AllocationItem { slot, generation });
            }
            unregistering.expect(id, items);
            let sent = fdbroker_scm::send(socket, self.writer.finish(count, 0), &[]);
            if let Err(error) = sent {
                unregistering.withdraw(id);
                return Err(error);
            }
            self.unregisters.drain(..count);
        }
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
