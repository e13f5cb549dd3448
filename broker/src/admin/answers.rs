//! Answers to the queries of administrators. Must never change anything, nor look at more slots than one message may.

use crate::admin::chosen::{Chosen, Traits};
use crate::admin::page::write_page;
use crate::admin::view::View;
use crate::limits::ADMIN_SLOTS_SCANNED;
use fdbroker_protocol::admin::{Limits, Metrics, Query};
use fdbroker_protocol::{ErrorCode, Kind, Writer};

impl View<'_> {
    /// The answer to a query.
    pub fn answer<'w>(
        &self,
        writer: &'w mut Writer,
        kind: Kind,
        id: u64,
        query: &Query,
    ) -> &'w [u8] {
        let Some(chosen) = Chosen::of(query.filter.get(), query.value.get()) else {
            return writer.failed(id, ErrorCode::NotSupported.into());
        };
        let cursor = query.cursor.get();
        let end = cursor.saturating_add(ADMIN_SLOTS_SCANNED);
        let next = |slots: u32| (end < slots).then_some(end);
        match kind {
            Kind::AdminStatus => {
                writer.start(Kind::AdminStatusReply, id).push(&self.node_status());
                writer.finish(0, 0)
            }
            Kind::AdminAllocations => {
                let all = self.core.allocations_within(cursor..end).map(|view| {
                    let is_chosen = self.is_chosen(&chosen, &view);
                    (view.id.slot, is_chosen.then(|| self.allocation_record(&view)))
                });
                let next = next(self.core.allocation_slots());
                write_page(writer, Kind::AdminAllocationsReply, id, all, next)
            }
            Kind::AdminLeases => {
                let all = self.core.leases_within(cursor..end).map(|view| {
                    let (pid, uid) = self.pid_and_uid_of(view.client);
                    let allocation = Some((view.allocation.slot, view.allocation.generation));
                    let job = self.core.job_of(view.client);
                    let is_chosen = chosen.has(Traits { allocation, pid, uid, job });
                    // The low half of a lease's number is its slot.
                    let slot = (view.id.0 & u64::from(u32::MAX)) as u32;
                    (slot, is_chosen.then(|| self.lease_record(&view)))
                });
                write_page(writer, Kind::AdminLeasesReply, id, all, next(self.core.lease_slots()))
            }
            Kind::AdminClients => {
                let all = self.core.clients(cursor).map(|view| {
                    let (pid, uid, job) = (view.pid, view.domain.uid, view.job);
                    let is_chosen =
                        chosen.has(Traits { allocation: None, pid, uid, job }) && !view.gone;
                    (view.id.0, is_chosen.then(|| self.client_record(&view)))
                });
                write_page(writer, Kind::AdminClientsReply, id, all, None)
            }
            Kind::AdminTombstones => {
                let tombstones = self.fds.tombstones();
                let all = tombstones.within(cursor..end.min(tombstones.end())).map(|(at, it)| {
                    let allocation = Some((it.id().slot, it.id().generation));
                    let (pid, uid, job) = (it.pid(), it.domain().uid, it.job());
                    let is_chosen = chosen.has(Traits { allocation, pid, uid, job });
                    (at, is_chosen.then(|| self.tombstone_record(it)))
                });
                write_page(writer, Kind::AdminTombstonesReply, id, all, next(tombstones.end()))
            }
            Kind::AdminJobs => self.answer_jobs(writer, id, cursor, chosen),
            Kind::AdminLimits => self.answer_limits(writer, id),
            Kind::AdminMetrics => {
                let tombstones = self.fds.tombstones().counts();
                let events = self.past.counts();
                let metrics = Metrics {
                    longest_wake_us: self.longest_wake_us.into(),
                    tombstones: tombstones.0.into(),
                    tombstones_dropped: tombstones.1.into(),
                    events: events.0.into(),
                    events_dropped: events.1.into(),
                    journal: self.journal.record(),
                    grant_latency: self.metrics.grant_latency.record(),
                    recall_time: self.metrics.recall_time.record(),
                };
                writer.start(Kind::AdminMetricsReply, id).push(&metrics);
                writer.finish(0, 0)
            }
            Kind::AdminDomains => self.answer_domains(writer, id, cursor, chosen),
            _ => writer.failed(id, ErrorCode::NotSupported.into()),
        }
    }

    /// The caps in force.
    pub fn answer_limits<'w>(&self, writer: &'w mut Writer, id: u64) -> &'w [u8] {
        let limits: Limits = self.core.caps().map(|caps| caps.map(|cap| (*cap).into()));
        writer.start(Kind::AdminLimitsReply, id).push(&limits);
        writer.finish(0, 0)
    }
}
