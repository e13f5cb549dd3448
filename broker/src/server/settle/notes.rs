//! Tells the journal and those that watch what has happened. Must cost a grant nothing while nobody watches its domain.

use crate::admin::chosen::Chosen;
use crate::admin::watch::{Watch, event, lost_event, unix_us};
use crate::clients::connection::index;
use crate::server::parts::Server;
use fdbroker_core::{ClientId, Granted, JobKey, Note};
use fdbroker_protocol::admin::{EventKind, EventRecord};
use fdbroker_protocol::limits::NAME_BYTES;
use fdbroker_protocol::{Kind, Status};

impl Server {
    /// The administrator's connection `index` is told what happens from now on, after the events since `since_us`, if that is said;
    /// `false`: as many are as may be.
    pub(crate) fn start_watch(
        &mut self,
        index: usize,
        chosen: Chosen,
        since_us: Option<u64>,
    ) -> bool {
        let Some(comer) = self.admin.comer(index) else { return true };
        // Before the past is looked at, which takes a while.
        let (may_watch, left) = self.admin.may_watch(index);
        if let Some((socket, comer)) = left {
            self.retire_viewer(socket, comer);
        }
        if !may_watch {
            return false;
        }
        let mut watch = Watch::new(comer.rights.sight, chosen);
        if let Some(since_us) = since_us {
            let past = self.past.iter();
            watch.begin_with(past.filter(|(event, _)| event.unix_us.get() >= since_us));
        }
        self.admin.set_watch(index, watch);
        self.note_watchers();
        true
    }

    /// Watchers have come or gone.
    pub(crate) fn note_watchers(&mut self) {
        self.admin.count_watches();
    }

    /// Hands what the core has noted to the journal and the watchers. Before the effects of the step are applied: a client that ends has
    /// its name still.
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
                self.tell(EventRecord { name, ..event(&note, unix_us) }, note.job);
            }
            if lost > 0 {
                self.tell(lost_event(lost, unix_us), None);
            }
        }
        self.admin.keep_notes(notes);
    }

    fn tell(&mut self, event: EventRecord, job: Option<JobKey>) {
        self.admin.tell(&event, job);
        self.past.add(event, job);
    }

    /// Tells of what the core does not note.
    pub(crate) fn tell_of(&mut self, note: &Note) {
        self.tell(event(note, unix_us()), note.job);
    }

    /// Tells watchers of a grant that was sent. No grant is kept for later.
    pub(crate) fn note_grants(&mut self, client: ClientId, grants: &[Granted]) {
        let Some(connection) = self.connections.get(index(client)) else { return };
        let (pid, domain) = (connection.pid, connection.domain);
        if !self.admin.is_domain_watched(domain) {
            return;
        }
        let (name, unix_us) = (self.name_of(client), unix_us());
        let job = self.core.job_of(client);
        for grant in grants.iter().filter(|grant| grant.status.is_ok()) {
            let note = Note {
                kind: EventKind::Grant,
                client: Some(client),
                pid,
                domain,
                job,
                id: grant.wanted.ok(),
                size_bytes: grant.size_bytes,
                status: Status::OK,
            };
            self.admin.tell(&EventRecord { name, ..event(&note, unix_us) }, job);
        }
    }

    fn name_of(&self, client: ClientId) -> [u8; NAME_BYTES] {
        self.connections.get(index(client)).map_or([0; NAME_BYTES], |connection| connection.name)
    }

    /// One message of events for a watcher; `false`: the connection is to end.
    pub(crate) fn send_events_to_watcher(&mut self, index: usize) -> bool {
        let events = self.admin.watch(index).map(|watch| watch.take(unix_us())).unwrap_or_default();
        let mut writer = std::mem::take(&mut self.writer);
        writer.start(Kind::AdminEvents, 0).push(&events[..]);
        let is_open = self.send_admin(index, writer.finish(events.len(), 0));
        self.writer = writer;
        is_open
    }
}
