//! What happens is counted and noted as it happens. Must never cost anything where nobody watches.

use crate::api::{Asker, ClientId, Note};
use crate::books::{Blocked, Books};
use crate::moves::Step;
use fdbroker_protocol::Status;
use fdbroker_protocol::admin::EventKind;

impl Books {
    pub(crate) fn note_of_node(&mut self, kind: EventKind) {
        if self.notes.is_on() {
            self.notes.add(Note::of_node(kind));
        }
    }

    pub(crate) fn note_of_client(&mut self, kind: EventKind, client: u32, status: Status) {
        if !self.notes.is_on() {
            return;
        }
        let note = self.clients.find(client).map(|record| Note {
            client: Some(ClientId(client)),
            pid: record.pid,
            domain: self.clients.domain_key(record.domain),
            job: record.job.map(|job| self.clients.job_key(job)),
            status,
            ..Note::of_node(kind)
        });
        note.into_iter().for_each(|note| self.notes.add(note));
    }

    /// A request or deposit of the client is refused: a cap is full, or the broker is being
    /// drained. Gives the status that the client is told.
    pub(crate) fn refused(&mut self, client: u32, status: Status) -> Status {
        self.counters.refusals += 1;
        self.note_of_client(EventKind::Refusal, client, status);
        self.as_told(client, status)
    }

    /// A cap is in the way of a request or deposit of the client: that is counted, and said like
    /// this.
    pub(crate) fn refusal(&mut self, client: u32, blocked: Blocked) -> Status {
        self.refused(client, self.no_quota(blocked))
    }

    /// A request of the client is refused.
    pub(crate) fn refuse(&mut self, by: Asker, status: Status, step: &mut Step) {
        let status = self.refused(by.client.0, status);
        step.fail(by, status);
    }

    pub(crate) fn note_of_allocation(&mut self, kind: EventKind, slot: u32, status: Status) {
        if !self.notes.is_on() {
            return;
        }
        let allocation = &self.allocations[slot];
        let owner = self.clients.find(allocation.owner);
        self.notes.add(Note {
            client: owner.map(|_| ClientId(allocation.owner)),
            pid: owner.map_or(0, |owner| owner.pid),
            domain: self.domain_or_nobodys(allocation.domain),
            job: self.job_of_slot(slot).map(|job| self.clients.job_key(job)),
            id: Some(self.allocations.id_of(slot)),
            size_bytes: allocation.size_bytes,
            status,
            ..Note::of_node(kind)
        });
    }
}
