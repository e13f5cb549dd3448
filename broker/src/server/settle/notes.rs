//! Tells the journal, the log and those that watch what has happened. Must cost a grant nothing
//! while nobody watches its domain.

use crate::admin::watch::{event, lost_event, unix_us};
use crate::clients::connection::index;
use crate::past::Of;
use crate::server::parts::Server;
use fdbroker_core::{ClientId, Granted, Note};
use fdbroker_protocol::admin::{EventKind, EventRecord};
use fdbroker_protocol::limits::NAME_BYTES;
use fdbroker_protocol::{LogTopic, Status};

impl Server {
    /// Hands what the core has noted to the journal and the watchers. Before the effects of the
    /// step are applied: a client that ends has its name still.
    pub(crate) fn take_notes(&mut self) {
        if !self.core.has_notes() {
            return;
        }
        let mut notes = self.admin.take_notes();
        let lost = self.core.take_notes(&mut notes);
        {
            let unix_us = unix_us();
            for note in notes.drain(..) {
                self.journal.hear(&note, self.now);
                let name = note.client.map_or([0; NAME_BYTES], |client| self.name_of(client));
                self.tell(EventRecord { name, ..event(&note, unix_us) }, of(&note));
            }
            if lost > 0 {
                self.tell(lost_event(lost, unix_us), Of::default());
            }
        }
        self.admin.keep_notes(notes);
    }

    fn tell(&mut self, event: EventRecord, of: Of) {
        self.admin.tell(&event, of);
        self.past.add(event, of);
    }

    /// Tells of what the core does not note.
    pub(crate) fn tell_of(&mut self, note: &Note) {
        self.tell(event(note, unix_us()), of(note));
    }

    /// Tells watchers of a grant that was sent. No grant is kept for later.
    pub(crate) fn note_grants(&mut self, client: ClientId, grants: &[Granted]) {
        let connection = &self.connections[index(client)];
        let (pid, domain) = (connection.pid, connection.domain);
        if !self.admin.is_domain_watched(domain) {
            return;
        }
        let (name, unix_us) = (self.name_of(client), unix_us());
        let job = self.core.client(client).and_then(|it| it.job);
        for grant in grants.iter().filter(|grant| grant.status.is_ok()) {
            let note = Note {
                kind: EventKind::Grant,
                client: Some(client),
                pid,
                domain,
                job,
                id: grant.wanted.ok(),
                size_bytes: grant.facts.size_bytes,
                status: Status::OK,
            };
            self.admin.tell(&EventRecord { name, ..event(&note, unix_us) }, of(&note));
        }
    }

    fn name_of(&self, client: ClientId) -> [u8; NAME_BYTES] {
        self.connections.get(index(client)).map_or([0; NAME_BYTES], |connection| connection.name)
    }

    pub(crate) fn log_bad_client(&mut self, client: ClientId, what: &dyn std::fmt::Display) {
        let connection = &mut self.connections[index(client)];
        let (uid, pid) = (connection.domain.uid, connection.pid);
        if !std::mem::replace(&mut connection.is_bad_input_logged, true) {
            self.log_bad_input(uid, pid, what);
        }
    }

    pub(crate) fn log_bad_input(&mut self, uid: u32, pid: u32, what: &dyn std::fmt::Display) {
        if self.journal.allows(LogTopic::BadInput, uid, self.now) {
            log::warn!("pid {pid} (uid {uid}): {what}");
        }
    }
}

/// Whose a note is, as far as its event does not say.
fn of(note: &Note) -> Of {
    (note.domain.pod, note.job)
}
