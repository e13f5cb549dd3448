//! What happens, for the journal and for whoever watches: noted as it happens, taken by the daemon after each step. Must cost
//! nothing where nobody wants it, and never keep more than a step can make.

use crate::Core;
use crate::api::{ClientId, DomainKey, Effect, Effects, JobKey, RequestId};
use crate::ledger::Blocked;
use crate::limits::NOTES_KEPT;
use fdbroker_protocol::admin::EventKind;
use fdbroker_protocol::{AllocationId, ErrorCode, Status};

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    /// What.
    pub kind: EventKind,
    /// To whom; `None`: to the node, to an allocation without an owner, or to a connection that is refused.
    pub client: Option<ClientId>,
    /// The pid of the client, or of the connection refused, or 0.
    pub pid: u32,
    /// The domain of the client, of the allocation or of the connection refused; [`DomainKey::NOBODYS`]: of the node.
    pub domain: DomainKey,
    /// The client's job, or the one that has left the allocation.
    pub job: Option<JobKey>,
    /// To which allocation.
    pub id: Option<AllocationId>,
    /// Its size in bytes, or 0.
    pub size_bytes: u64,
    /// Why.
    pub status: Status,
}

impl Note {
    /// One of the node.
    pub fn of_node(kind: EventKind) -> Self {
        let (client, pid, domain, job) = (None, 0, DomainKey::NOBODYS, None);
        Note { kind, client, pid, domain, job, id: None, size_bytes: 0, status: Status::OK }
    }
}

/// Notes not taken yet.
#[derive(Debug, Default)]
pub struct Notes {
    is_on: bool,
    list: Vec<Note>,
    lost: u64,
}

impl Core {
    /// Whether to note what happens from now on. Off in the beginning.
    pub fn set_watched(&mut self, watched: bool) {
        if self.notes.is_on != watched {
            self.notes = Notes { is_on: watched, ..Notes::default() };
        }
    }

    /// Whether something has been noted.
    pub fn has_notes(&self) -> bool {
        !self.notes.list.is_empty() || self.notes.lost > 0
    }

    /// Moves what has been noted to `notes`, in order; how many were lost before or among them, because nobody took
    /// them.
    pub fn take_notes(&mut self, notes: &mut Vec<Note>) -> u64 {
        notes.append(&mut self.notes.list);
        std::mem::take(&mut self.notes.lost)
    }

    fn note(&mut self, note: Note) {
        if self.notes.list.len() < NOTES_KEPT {
            self.notes.list.push(note);
        } else {
            self.notes.lost += 1;
        }
    }

    pub(crate) fn note_of_node(&mut self, kind: EventKind) {
        if self.notes.is_on {
            self.note(Note::of_node(kind));
        }
    }

    pub(crate) fn note_of_client(&mut self, kind: EventKind, client: u32, status: Status) {
        if !self.notes.is_on {
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
        note.into_iter().for_each(|note| self.note(note));
    }

    /// A request or deposit of the client is refused: a cap is full, or the broker is being drained.
    pub(crate) fn count_refusal(&mut self, client: u32, status: Status) {
        self.counters.refusals += 1;
        self.note_of_client(EventKind::Refusal, client, status);
    }

    /// A cap is in the way of a request or deposit of the client: that is counted, and said like this.
    pub(crate) fn refusal(&mut self, client: u32, blocked: Blocked) -> Status {
        let status = self.no_quota(blocked);
        self.count_refusal(client, status);
        self.as_told(client, status)
    }

    /// A request of the client is refused.
    pub(crate) fn refuse(
        &mut self,
        client: ClientId,
        request: RequestId,
        status: Status,
        fx: &mut Effects,
    ) {
        self.count_refusal(client.0, status);
        let status = self.as_told(client.0, status);
        fx.list.push(Effect::Failed { client, request, status });
    }

    /// A connection is refused, because a cap is full: by the core, or by the daemon before the core learns of it. The note
    /// has the peer's process, but no client, since the peer never becomes one.
    pub fn count_refused_connection(
        &mut self,
        pid: u32,
        domain: DomainKey,
        job: Option<JobKey>,
        status: Status,
    ) {
        self.counters.refusals += 1;
        if self.notes.is_on {
            self.note(Note { pid, domain, job, status, ..Note::of_node(EventKind::Refusal) });
        }
    }

    pub(crate) fn note_of_allocation(&mut self, kind: EventKind, slot: u32) {
        if self.notes.is_on {
            self.note(self.allocation_note(kind, slot, Status::OK));
        }
    }

    pub(crate) fn note_end(&mut self, slot: u32, code: ErrorCode) {
        if self.notes.is_on {
            self.note(self.allocation_note(EventKind::End, slot, code.into()));
        }
    }

    fn allocation_note(&self, kind: EventKind, slot: u32, status: Status) -> Note {
        let allocation = &self.allocations[slot];
        let owner = self.clients.find(allocation.owner);
        Note {
            client: owner.map(|_| ClientId(allocation.owner)),
            pid: owner.map_or(0, |owner| owner.pid),
            domain: self.domain_or_nobodys(allocation.domain),
            job: self.job_of_slot(slot).map(|job| self.clients.job_key(job)),
            id: Some(self.allocations.id_of(slot)),
            size_bytes: allocation.size_bytes,
            status,
            ..Note::of_node(kind)
        }
    }
}
