//! Answers to queries. Must never change anything, nor look at more slots than one message may.

use crate::admin::chosen::{Chosen, Traits};
use crate::admin::page::write_page;
use crate::admin::rights::Sight;
use crate::admin::view::View;
use crate::fds::tombstones::Tombstone;
use crate::limits::{ADMIN_SLOTS_SCANNED, MEMBER_BITS, OBJECT_GROUPS_SHARE, VIEWER_SLOTS_SCANNED};
use fdbroker_core::{
    Account, AllocationView, CapsOfScopes, ClientView, Domain, Job, LeaseView, ObjectView,
};
use fdbroker_protocol::admin::{Limits, LimitsReply, Metrics, Query};
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
        let scanned = match self.sight() {
            Sight::Node => ADMIN_SLOTS_SCANNED,
            Sight::Domain(_) => VIEWER_SLOTS_SCANNED,
        };
        let end = cursor.saturating_add(scanned);
        let next = |slots: u32| (end < slots).then_some(end);
        match kind {
            Kind::AdminStatus => {
                writer.start(Kind::AdminStatusReply, id).push(&self.node_status());
                writer.finish(0, 0)
            }
            Kind::AdminAllocations => {
                let record = |view: AllocationView<'_>| {
                    self.is_chosen(&chosen, &view).then(|| self.allocation_record(&view))
                };
                let (all, next) = (self.allocations(cursor..end), next(self.allocation_slots()));
                write_page(writer, Kind::AdminAllocationsReply, id, all, next, record)
            }
            Kind::AdminLeases => {
                let record = |view: LeaseView<'_>| {
                    self.is_lease_chosen(&chosen, &view).then(|| self.lease_record(&view))
                };
                let (all, next) = (self.leases(cursor..end), next(self.lease_slots()));
                write_page(writer, Kind::AdminLeasesReply, id, all, next, record)
            }
            Kind::AdminClients => {
                let record = |view: ClientView<'_>| {
                    let (pid, uid, job) = (view.record.pid, view.domain.uid, view.job);
                    let is_it = chosen.has(Traits { allocation: None, pid, uid, job });
                    (is_it && !view.record.gone).then(|| self.client_record(&view))
                };
                let all = self.clients(cursor);
                write_page(writer, Kind::AdminClientsReply, id, all, None, record)
            }
            Kind::AdminObjects => {
                let most = scanned / OBJECT_GROUPS_SHARE;
                let (group, from) = (cursor >> MEMBER_BITS, cursor & ((1 << MEMBER_BITS) - 1));
                let from = u16::try_from(from).unwrap_or(u16::MAX);
                let end = group.saturating_add(most);
                let next = (end < self.group_slots()).then_some(end << MEMBER_BITS);
                let all = self
                    .objects(group..end, from)
                    .map(|((group, member), it)| (group << MEMBER_BITS | u32::from(member), it));
                let record = |it: ObjectView<'_>| {
                    let allocation = Some((it.allocation.slot, it.allocation.generation));
                    let (pid, uid, job) = (it.group.creator_pid, it.domain.uid, it.job);
                    let is_it = chosen.has(Traits { allocation, pid, uid, job });
                    is_it.then(|| self.object_record(&it))
                };
                write_page(writer, Kind::AdminObjectsReply, id, all, next, record)
            }
            Kind::AdminTombstones => {
                let record = |it: &Tombstone| {
                    let allocation = Some((it.id().slot, it.id().generation));
                    let (pid, uid, job) = (it.pid, it.domain().uid, it.job());
                    let is_it = chosen.has(Traits { allocation, pid, uid, job });
                    is_it.then(|| self.tombstone_record(it))
                };
                let (all, next) = (self.tombstones(cursor..end), next(self.tombstones_end()));
                write_page(writer, Kind::AdminTombstonesReply, id, all, next, record)
            }
            Kind::AdminJobs => {
                let caps = self.caps().job;
                let record = |(it, account): (&Job, &Account)| {
                    let (domain, key) = it.key;
                    let (job, of) = (Some((key, it.name)), (it.orphans, it.objects, account));
                    self.account_record(chosen, job, domain, of, &caps)
                };
                write_page(writer, Kind::AdminJobsReply, id, self.jobs(cursor), None, record)
            }
            Kind::AdminDomains => {
                let caps = self.caps().domain;
                let record = |(it, account): (&Domain, &Account)| {
                    self.account_record(chosen, None, it.key, (0, 0, account), &caps)
                };
                let all = self.domains(cursor);
                write_page(writer, Kind::AdminDomainsReply, id, all, None, record)
            }
            Kind::AdminLimits => self.answer_limits(writer, id),
            Kind::AdminMetrics => self.answer_metrics(writer, id),
            _ => writer.failed(id, ErrorCode::NotSupported.into()),
        }
    }

    /// How long things take, and what has gone wrong.
    fn answer_metrics<'w>(&self, writer: &'w mut Writer, id: u64) -> &'w [u8] {
        let Some(whole) = self.node() else {
            return writer.failed(id, ErrorCode::NotPermitted.into());
        };
        let tombstones = whole.fds.tombstones.counts();
        let events = whole.past.counts();
        let metrics = Metrics {
            longest_wake_us: whole.longest_wake_us.into(),
            tombstones: tombstones.0.into(),
            tombstones_dropped: tombstones.1.into(),
            events: events.0.into(),
            events_dropped: events.1.into(),
            journal: whole.journal.record(),
            grant_latency: whole.metrics.grant_latency.record(),
            recall_time: whole.metrics.recall_time.record(),
        };
        writer.start(Kind::AdminMetricsReply, id).push(&metrics);
        writer.finish(0, 0)
    }

    /// The caps in force.
    pub fn answer_limits<'w>(&self, writer: &'w mut Writer, id: u64) -> &'w [u8] {
        let told =
            |caps: CapsOfScopes| -> Limits { caps.map(|caps| caps.map(|cap| (*cap).into())) };
        let (in_force, configured) = (told(self.caps()), told(self.configured_caps()));
        let config_file = self.config_file();
        let reply = LimitsReply { in_force, configured, config_file };
        writer.start(Kind::AdminLimitsReply, id).push(&reply);
        writer.finish(0, 0)
    }
}
