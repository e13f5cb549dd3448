//! Records for administrators: what the core and the connections know, as the protocol has it. Must never change anything, nor
//! choose which are wanted.

use crate::admin::chosen::{Chosen, Traits};
use crate::admin::view::View;
use crate::clients::connection::Connection;
use crate::fds::tombstones::Tombstone;
use fdbroker_core::{AllocationView, ClientId, ClientView, DomainKey, JobKey, JobName, LeaseView};
use fdbroker_protocol::ByResource;
use fdbroker_protocol::admin::{
    AllocationRecord, ClientRecord, LeaseRecord, NO_OWN_FD, NodeStatus, TombstoneRecord, Use,
};
use fdbroker_protocol::limits::{JOB_NAME_BYTES, NAME_BYTES};
use fdbroker_protocol::message::register_flags;
use std::os::fd::AsRawFd;

impl View<'_> {
    pub(crate) fn node_status(&self) -> NodeStatus {
        let totals = self.core.totals();
        NodeStatus {
            pid: std::process::id().into(),
            draining: u32::from(self.core.is_draining()).into(),
            node: self.identity.node.into(),
            incarnation: self.incarnation.into(),
            uptime_ms: (self.now.0.saturating_sub(self.started.0) / 1000).into(),
            uses: ByResource::from_fn(|resource| {
                let (now, peak, cap) = totals.usage(resource);
                Use::new(now, peak, cap)
            }),
            gauges: totals.gauges.map(|count| (*count).into()),
            counters: totals.counters.map(|count| (*count).into()),
        }
    }

    pub(crate) fn allocation_record(&self, view: &AllocationView) -> AllocationRecord {
        let recallable = if view.recallable { register_flags::RECALLABLE } else { 0 };
        let kept = if view.keep { register_flags::KEEP } else { 0 };
        let flags = recallable | kept | if view.named { register_flags::NAMED } else { 0 };
        let files = self.fds.files(view.id.slot);
        let files_ms = match files.since_us {
            0 => u64::MAX,
            since_us => self.now.0.saturating_sub(since_us) / 1000,
        };
        let fd = self.fds.held(view.id.slot).and_then(|fd| u32::try_from(fd.as_raw_fd()).ok());
        let virtual_fd = self.identity.key.virtual_fd(view.id).filter(|_| view.virtual_fd);
        AllocationRecord {
            slot: view.id.slot.into(),
            generation: view.id.generation.into(),
            state: (view.state as u32).into(),
            kind: view.kind as u8,
            share: view.share as u8,
            flags,
            owner_gone: view.owner.is_none().into(),
            size_bytes: view.size_bytes.into(),
            fd_offset: view.fd_offset.into(),
            owner_allocation_id: view.owner_allocation_id.into(),
            base: view.base.into(),
            device: view.device.into(),
            owner_pid: self.pid_of(view.owner).into(),
            owner_uid: view.domain.uid.into(),
            open_leases: view.open_leases.into(),
            mapped_leases: view.mapped_leases.into(),
            waiters: view.waiters.into(),
            inode: files.inode.into(),
            owner_name: self.name_of(view.owner),
            job: view.job.map_or(0, |job| job.0).into(),
            job_name: self.job_name(view.domain, view.job),
            fd: fd.unwrap_or(NO_OWN_FD).into(),
            virtual_fd: virtual_fd.map_or(0, |fd| fd.number().cast_unsigned()).into(),
            files_ms: files_ms.into(),
            former_inodes: files.former.map(|former| former.inode.into()),
        }
    }

    pub(crate) fn lease_record(&self, view: &LeaseView) -> LeaseRecord {
        let (pid, uid) = self.pid_and_uid_of(view.client);
        let job = self.core.job_of(view.client);
        let domain = self.connection_of(Some(view.client)).map(|connection| connection.domain);
        LeaseRecord {
            lease: view.id.0.into(),
            slot: view.allocation.slot.into(),
            generation: view.allocation.generation.into(),
            state: if view.mapped { 2 } else { 1 }.into(),
            ended: u32::from(view.ended).into(),
            client: view.client.0.into(),
            pid: pid.into(),
            uid: uid.into(),
            owner_pid: self.pid_of(view.owner).into(),
            size_bytes: view.size_bytes.into(),
            age_ms: (self.now.0.saturating_sub(view.since.0) / 1000).into(),
            name: self.name_of(Some(view.client)),
            job: job.map_or(0, |job| job.0).into(),
            job_name: self.job_name(domain.unwrap_or(DomainKey::NOBODYS), job),
        }
    }

    pub(crate) fn client_record(&self, view: &ClientView) -> ClientRecord {
        ClientRecord {
            client: view.id.0.into(),
            pid: view.pid.into(),
            uid: view.domain.uid.into(),
            silent: u32::from(view.silent).into(),
            uses: ByResource::from_fn(|resource| view.account.now(resource).into()),
            reserved: 0.into(),
            listener: view.domain.listener.into(),
            name: self.name_of(Some(view.id)),
            job: view.job.map_or(0, |job| job.0).into(),
            job_name: self.job_name(view.domain, view.job),
        }
    }

    pub(crate) fn tombstone_record(&self, tombstone: &Tombstone) -> TombstoneRecord {
        TombstoneRecord {
            inode: tombstone.inode().into(),
            size_bytes: tombstone.size_bytes().into(),
            age_ms: tombstone.age_ms(self.now).into(),
            slot: tombstone.id().slot.into(),
            generation: tombstone.id().generation.into(),
            owner_pid: tombstone.pid().into(),
            owner_uid: tombstone.domain().uid.into(),
            listener: tombstone.domain().listener.into(),
            code: tombstone.code().into(),
            kind: tombstone.kind(),
            reserved: 0,
            job: tombstone.job().map_or(0, |job| job.0).into(),
            job_name: self.fds.tombstones().job_name(tombstone).bytes(),
        }
    }

    fn connection_of(&self, client: Option<ClientId>) -> Option<&Connection> {
        self.connections.get(client?.0 as usize)
    }

    pub(crate) fn pid_of(&self, client: Option<ClientId>) -> u32 {
        self.connection_of(client).map_or(0, |connection| connection.pid)
    }

    pub(crate) fn pid_and_uid_of(&self, client: ClientId) -> (u32, u32) {
        let connection = self.connection_of(Some(client));
        connection.map_or((0, u32::MAX), |connection| (connection.pid, connection.domain.uid))
    }

    pub(crate) fn name_of(&self, client: Option<ClientId>) -> [u8; NAME_BYTES] {
        self.connection_of(client).map_or([0; NAME_BYTES], |connection| connection.name)
    }

    pub(crate) fn job_name(&self, domain: DomainKey, job: Option<JobKey>) -> [u8; JOB_NAME_BYTES] {
        job.map_or(JobName::NONE, |job| self.core.job_name(domain, job)).bytes()
    }

    /// Whether an allocation is chosen.
    pub(crate) fn is_chosen(&self, chosen: &Chosen, view: &AllocationView) -> bool {
        chosen.has(Traits {
            allocation: Some((view.id.slot, view.id.generation)),
            pid: self.pid_of(view.owner),
            uid: view.domain.uid,
            job: view.job,
        })
    }
}
