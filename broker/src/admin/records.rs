//! Records for whoever looks: what the core and the connections know, as the protocol has it. Must
//! never change anything, nor know more than a view gives.

use crate::admin::chosen::{Chosen, Traits};
use crate::admin::rights::Sight;
use crate::admin::view::View;
use crate::fds::tombstones::Tombstone;
use crate::messages::objects::object_record;
use fdbroker_core::{
    Account, AllocationView, Caps, ClientId, ClientView, DomainKey, JobKey, JobName, LeaseView,
    Now, ObjectView,
};
use fdbroker_protocol::admin::{
    AccountRecord, AllocationRecord, ClientRecord, LeaseRecord, NO_AGE, NO_OWN_FD, NodeStatus,
    OTHER_OWNER, ObjectLabel, OwnedObject, TombstoneRecord, Use,
};
use fdbroker_protocol::message::register_flags;
use fdbroker_protocol::{ByResource, Scope};
use std::os::fd::AsRawFd;

impl View<'_> {
    pub(crate) fn node_status(&self) -> NodeStatus {
        let totals = self.totals();
        let scope = match self.sight() {
            Sight::Node => Scope::Node,
            Sight::Domain(_) => Scope::Domain,
        };
        let mut gauges = totals.gauges;
        if let Some(whole) = self.node() {
            gauges.sockets_away = whole.warden.away() as u64;
            gauges.sockets_unkept = whole.warden.unkept().0 as u64;
            gauges.store_short = whole.store_short;
            gauges.config_refused = whole.is_config_refused.into();
            gauges.lanes_hung = whole.fds.lanes_hung() as u64;
        }
        NodeStatus {
            pid: std::process::id().into(),
            draining: u32::from(self.is_draining()).into(),
            node: self.identity().node.into(),
            incarnation: self.incarnation().into(),
            uptime_ms: self.ms_since(self.started()).into(),
            scope: (scope as u32).into(),
            unkept_errno: self
                .node()
                .map_or(0, |whole| whole.warden.unkept().1.unsigned_abs())
                .into(),
            uses: ByResource::from_fn(|resource| {
                let (now, peak, cap) = totals.usage(resource);
                Use::new(now, peak, cap)
            }),
            gauges: gauges.map(|count| (*count).into()),
            counters: totals.counters.map(|count| (*count).into()),
        }
    }

    pub(crate) fn allocation_record(&self, view: &AllocationView<'_>) -> AllocationRecord {
        let record = view.record;
        let recallable = if record.traits.is_recallable() { register_flags::RECALLABLE } else { 0 };
        let kept = if record.traits.is_to_be_kept() { register_flags::KEEP } else { 0 };
        let flags = recallable | kept | if view.named { register_flags::NAMED } else { 0 };
        let files = self.files(view);
        let files_ms = match files.since_us {
            0 => u64::MAX,
            since_us => self.now().0.saturating_sub(since_us) / 1000,
        };
        let fd = self.held(view).and_then(|fd| u32::try_from(fd.as_raw_fd()).ok());
        let owner = self.party(view.record.owner());
        let virtual_fd = self.identity().key.virtual_fd(view.id);
        let virtual_fd = virtual_fd.filter(|_| record.traits.has_virtual_fd());
        let count = |leases: usize| u32::try_from(leases).unwrap_or(u32::MAX);
        AllocationRecord {
            slot: view.id.slot.into(),
            generation: view.id.generation.into(),
            facts: view.facts.into(),
            share: record.traits.share() as u8,
            flags,
            owner_gone: view.record.owner().is_none().into(),
            base: record.base.into(),
            state: (view.state as u32).into(),
            owner_pid: if owner.pid == 0 { view.former_pid } else { owner.pid }.into(),
            owner_uid: view.domain.uid.into(),
            open_leases: record.open.into(),
            mapped_leases: (count(record.leases.len()) - record.open).into(),
            waiters: count(view.waiters).into(),
            inode: files.inode.into(),
            owner_name: owner.name,
            job: view.job.map_or(0, |job| job.0).into(),
            job_name: self.job_name(view.domain, view.job).bytes(),
            fd: fd.unwrap_or(NO_OWN_FD).into(),
            virtual_fd: virtual_fd.map_or(0, |fd| fd.number().cast_unsigned()).into(),
            files_ms: files_ms.into(),
            former_inodes: files.former.map(|former| former.inode.into()),
            age_ms: self.ms_since(record.registered.begin()).into(),
            unused_ms: self.ms_since(record.stamp.last_use().begin()).into(),
            object: ObjectLabel::new(view.object.unwrap_or_default()),
        }
    }

    pub(crate) fn lease_record(&self, view: &LeaseView<'_>) -> LeaseRecord {
        let holder = self.party(Some(ClientId(view.record.client)));
        let (job, job_name) = holder.job.unwrap_or((JobKey(0), JobName::NONE));
        LeaseRecord {
            lease: view.id.0.into(),
            slot: view.allocation.slot.into(),
            generation: view.allocation.generation.into(),
            state: if view.record.mapped { 2 } else { 1 }.into(),
            ended: u32::from(!view.of.is_live()).into(),
            client: holder.client.into(),
            pid: holder.pid.into(),
            uid: holder.uid.into(),
            owner_pid: self.owner_pid(view).into(),
            size_bytes: view.of.size_bytes.into(),
            age_ms: self.ms_since(view.record.since).into(),
            name: holder.name,
            job: job.0.into(),
            job_name: job_name.bytes(),
        }
    }

    pub(crate) fn client_record(&self, view: &ClientView<'_>) -> ClientRecord {
        let start = self.start_of(view);
        ClientRecord {
            client: view.id.0.into(),
            pid: view.record.pid.into(),
            uid: view.domain.uid.into(),
            silent: u32::from(view.record.silent).into(),
            uses: ByResource::from_fn(|resource| view.account.now(resource).into()),
            age_ms: start.age_ms().unwrap_or(NO_AGE).into(),
            listener: self.listener(view.domain),
            name: self.party(Some(view.id)).name,
            job: view.job.map_or(0, |job| job.0).into(),
            job_name: self.job_name(view.domain, view.job).bytes(),
            command: start.command,
        }
    }

    pub(crate) fn object_record(&self, view: &ObjectView<'_>) -> OwnedObject {
        let name = &view.record.name;
        OwnedObject {
            object: object_record(name, view, self.now(), self.ends_with_broker()),
            uid: view.domain.uid.into(),
            listener: self.listener(view.domain),
            job: view.job.map_or(0, |job| job.0).into(),
            job_name: self.job_name(view.domain, view.job).bytes(),
            name: ObjectLabel::new(name),
        }
    }

    fn ms_since(&self, then: Now) -> u64 {
        self.now().0.saturating_sub(then.0) / 1000
    }

    pub(crate) fn tombstone_record(&self, tombstone: &Tombstone) -> TombstoneRecord {
        TombstoneRecord {
            inode: tombstone.inode.into(),
            size_bytes: tombstone.size_bytes.into(),
            age_ms: tombstone.age_ms(self.now()).into(),
            slot: tombstone.id().slot.into(),
            generation: tombstone.id().generation.into(),
            owner_pid: tombstone.pid.into(),
            owner_uid: tombstone.domain().uid.into(),
            listener: self.listener(tombstone.domain()),
            code: tombstone.code().into(),
            kind: tombstone.kind(),
            reserved: 0,
            job: tombstone.job().map_or(0, |job| job.0).into(),
            job_name: self.job_name_of(tombstone).bytes(),
        }
    }

    /// What a job, or a domain, is charged for, if it is chosen. `orphans`: kept allocations that
    /// the clients of a job have left; `objects`: names of objects that these have made.
    pub(crate) fn account_record(
        &self,
        chosen: Chosen,
        job: Option<(JobKey, JobName)>,
        domain: DomainKey,
        (orphans, objects, account): (u32, u32, &Account),
        caps: &Caps,
    ) -> Option<AccountRecord> {
        let of = job.map(|(key, _)| key);
        let traits = Traits { allocation: None, pid: 0, uid: domain.uid, job: of };
        let (key, name) = job.unwrap_or((JobKey(0), JobName::NONE));
        chosen.has(traits).then(|| AccountRecord {
            key: key.0.into(),
            uid: domain.uid.into(),
            listener: self.listener(domain),
            left_allocations: orphans.into(),
            objects: objects.into(),
            uses: ByResource::from_fn(|resource| {
                Use::new(account.now(resource), account.peak(resource), caps[resource])
            }),
            name: name.bytes(),
        })
    }

    fn owner_pid(&self, lease: &LeaseView<'_>) -> u32 {
        if self.sight().has(lease.domain) { self.party(lease.of.owner()).pid } else { OTHER_OWNER }
    }

    /// Whether an allocation is chosen.
    pub(crate) fn is_chosen(&self, chosen: &Chosen, view: &AllocationView<'_>) -> bool {
        chosen.is_all()
            || chosen.has(Traits {
                allocation: Some((view.id.slot, view.id.generation)),
                pid: self.party(view.record.owner()).pid,
                uid: view.domain.uid,
                job: view.job,
            })
    }

    /// Whether a lease is chosen.
    pub(crate) fn is_lease_chosen(&self, chosen: &Chosen, view: &LeaseView<'_>) -> bool {
        if chosen.is_all() {
            return true;
        }
        let holder = self.party(Some(ClientId(view.record.client)));
        chosen.has(Traits {
            allocation: Some((view.allocation.slot, view.allocation.generation)),
            pid: holder.pid,
            uid: holder.uid,
            job: holder.job.map(|(job, _)| job),
        })
    }
}
