//! The broker's state as it is shown, within the sight of whoever asks. Must never allow a change,
//! nor let anything past that is not in sight: the state behind it is private to this file.

use crate::admin::rights::Sight;
use crate::clients::connections::Connections;
use crate::clients::debts::Debts;
use crate::clients::metrics::Metrics;
use crate::fds::files::Files;
use crate::fds::table::FdTable;
use crate::fds::tombstones::Tombstone;
use crate::journal::Journal;
use crate::kernel::Start;
use crate::node::side::Identity;
use crate::node::warden::Warden;
use crate::past::Past;
use crate::settings::ListenerSettings;
use fdbroker_core::{
    Account, AllocationView, CapsOfScopes, ClientId, ClientView, Core, Domain, DomainKey, Job,
    JobKey, JobName, LeaseView, Now, ObjectView, Totals,
};
use fdbroker_protocol::ByGauge;
use fdbroker_protocol::limits::{CONFIG_PATH_BYTES, NAME_BYTES};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use zerocopy::little_endian::U32;

/// What there is to look at.
#[derive(Clone, Copy)]
pub(crate) struct Whole<'a> {
    pub core: &'a Core,
    pub connections: &'a Connections,
    pub fds: &'a FdTable,
    pub metrics: &'a Metrics,
    pub longest_wake_us: u64,
    pub journal: &'a Journal,
    pub debts: &'a Debts,
    pub warden: &'a Warden,
    pub past: &'a Past,
    pub identity: &'a Identity,
    pub listeners: &'a [ListenerSettings],
    /// The caps of the configuration.
    pub configured: CapsOfScopes,
    /// The file that has them, or is to have them.
    pub config_file: Option<&'a Path>,
    /// Entries that the service manager's store lacks for the caps.
    pub store_short: u64,
    /// The configuration file is not what is served with.
    pub is_config_refused: bool,
    pub incarnation: u64,
    /// No service manager stores what is kept.
    pub ends_with_broker: bool,
    pub now: Now,
    /// The start of the first broker whose clients were handed on to this one.
    pub started: Now,
}

/// The place of the listener of this number, as it is told; of one that is not served, as of none.
pub(crate) fn place_of(listeners: &[ListenerSettings], number: u32) -> U32 {
    let place = listeners.iter().position(|it| it.number == number);
    place.and_then(|it| u32::try_from(it).ok()).unwrap_or(u32::MAX).into()
}

/// The broker, to be looked at.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    whole: Whole<'a>,
    sight: Sight,
}

/// A client as others name it.
#[derive(Clone, Copy)]
pub(crate) struct Party {
    /// `u32::MAX`: it is not in sight.
    pub client: u32,
    /// 0: it is gone, or not in sight.
    pub pid: u32,
    /// `u32::MAX`: it is gone, or not in sight.
    pub uid: u32,
    pub name: [u8; NAME_BYTES],
    pub job: Option<(JobKey, JobName)>,
}

impl Party {
    /// One that is gone.
    const NOBODY: Party =
        Party { client: u32::MAX, pid: 0, uid: u32::MAX, name: [0; NAME_BYTES], job: None };
    /// One of a domain that is not in sight.
    const ANOTHER: Party = Party { name: *b"another user\0\0\0\0", ..Party::NOBODY };
}

impl<'a> View<'a> {
    pub fn new(whole: Whole<'a>, sight: Sight) -> Self {
        View { whole, sight }
    }

    /// All of it, where the node's is seen; for what cannot be divided.
    pub fn node(&self) -> Option<&Whole<'a>> {
        (self.sight == Sight::Node).then_some(&self.whole)
    }

    pub fn sight(&self) -> Sight {
        self.sight
    }

    pub fn now(&self) -> Now {
        self.whole.now
    }

    pub fn identity(&self) -> &'a Identity {
        self.whole.identity
    }

    /// Which of the listeners a domain's is, as it is told.
    pub fn listener(&self, domain: DomainKey) -> U32 {
        place_of(self.whole.listeners, domain.listener)
    }

    pub fn incarnation(&self) -> u64 {
        self.whole.incarnation
    }

    pub fn started(&self) -> Now {
        self.whole.started
    }

    pub fn is_draining(&self) -> bool {
        self.whole.core.is_draining()
    }

    /// The caps in force: of nobody, so everybody sees them.
    pub fn caps(&self) -> CapsOfScopes {
        self.whole.core.caps()
    }

    /// The caps of the configuration: of nobody, too.
    pub fn configured_caps(&self) -> CapsOfScopes {
        self.whole.configured
    }

    /// Their file, for those who see the whole.
    pub fn config_file(&self) -> [u8; CONFIG_PATH_BYTES] {
        let mut told = [0; CONFIG_PATH_BYTES];
        let file = self.node().and(self.whole.config_file);
        let file = file.and_then(|path| std::path::absolute(path).ok());
        if let Some(path) = file.as_deref().map(|it| it.as_os_str().as_bytes())
            && let Some(place) = told.get_mut(..path.len())
        {
            place.copy_from_slice(path);
        }
        told
    }

    /// The node's totals; of a domain its account, and what is counted of it by itself.
    pub fn totals(&self) -> Totals {
        let core = self.whole.core;
        let Sight::Domain(own) = self.sight else {
            let mut totals = core.totals();
            (totals.counters.long_calls, totals.gauges.users_away) = self.whole.debts.counts();
            return totals;
        };
        let node = core.account_of_domain(own).unwrap_or_default();
        let jobs = core.jobs(0).filter(|(_, job, _)| job.key.0 == own).count() as u64;
        let (gauges, counters) = (ByGauge { jobs, ..ByGauge::all(0) }, Default::default());
        Totals { node, caps: core.caps().domain, table: (0, 0, u64::MAX), gauges, counters }
    }

    // --- records, by slot: `None` in place of one that is not in sight ---------------------------

    pub fn allocation_slots(&self) -> u32 {
        self.whole.core.allocation_slots()
    }

    pub fn allocations(
        &self,
        slots: Range<u32>,
    ) -> impl Iterator<Item = (u32, Option<AllocationView<'a>>)> + use<'a> {
        let (all, sight) = (self.whole.core.allocations(slots), self.sight);
        all.map(move |it| (it.id.slot, Some(it).filter(|it| sight.has(it.domain))))
    }

    pub fn lease_slots(&self) -> u32 {
        self.whole.core.lease_slots()
    }

    /// Those of clients in sight, and of allocations in sight.
    pub fn leases(
        &self,
        slots: Range<u32>,
    ) -> impl Iterator<Item = (u32, Option<LeaseView<'a>>)> + use<'a> {
        let (all, sight) = (self.whole.core.leases(slots), self.sight);
        all.map(move |it| {
            // The low half of a lease's number is its slot.
            let slot = (it.id.0 & 0xffff_ffff) as u32;
            (slot, Some(it).filter(|it| sight.has(it.holder) || sight.has(it.domain)))
        })
    }

    pub fn clients(
        &self,
        cursor: u32,
    ) -> impl Iterator<Item = (u32, Option<ClientView<'a>>)> + use<'a> {
        let (all, sight) = (self.whole.core.clients(cursor), self.sight);
        all.map(move |it| (it.id.0, Some(it).filter(|it| sight.has(it.domain))))
    }

    pub fn jobs(
        &self,
        cursor: u32,
    ) -> impl Iterator<Item = (u32, Option<(&'a Job, &'a Account)>)> + use<'a> {
        let (all, sight) = (self.whole.core.jobs(cursor), self.sight);
        all.map(move |(number, it, account)| (number, sight.has(it.key.0).then_some((it, account))))
    }

    pub fn domains(
        &self,
        cursor: u32,
    ) -> impl Iterator<Item = (u32, Option<(&'a Domain, &'a Account)>)> + use<'a> {
        let (all, sight) = (self.whole.core.domains(cursor), self.sight);
        all.map(move |(number, it, account)| (number, sight.has(it.key).then_some((it, account))))
    }

    pub fn group_slots(&self) -> u32 {
        self.whole.core.group_slots()
    }

    /// Objects of the groups in these slots; see [`Core::objects`].
    pub fn objects(
        &self,
        groups: Range<u32>,
        from: u16,
    ) -> impl Iterator<Item = ((u32, u16), Option<ObjectView<'a>>)> + use<'a> {
        let (all, sight) = (self.whole.core.objects(groups, from), self.sight);
        all.map(move |(at, it)| (at, Some(it).filter(|it| sight.has(it.domain))))
    }

    /// Whether what is kept ends with this broker.
    pub fn ends_with_broker(&self) -> bool {
        self.whole.ends_with_broker
    }

    /// How far tombstones go.
    pub fn tombstones_end(&self) -> u32 {
        self.whole.fds.tombstones.end()
    }

    pub fn tombstones(
        &self,
        range: Range<u32>,
    ) -> impl Iterator<Item = (u32, Option<&'a Tombstone>)> + use<'a> {
        let all = &self.whole.fds.tombstones;
        let (within, sight) = (all.within(range.start..range.end.min(all.end())), self.sight);
        within.map(move |(at, it)| (at, Some(it).filter(|it| sight.has(it.domain()))))
    }

    // --- what belongs to a record that is in sight -----------------------------------------------

    /// The name of the job of a tombstone.
    pub fn job_name_of(&self, tombstone: &Tombstone) -> JobName {
        self.whole.fds.tombstones.job_name(tombstone)
    }

    pub fn files(&self, of: &AllocationView<'_>) -> Files {
        self.whole.fds.files(of.id.slot)
    }

    /// The broker's own fd of an allocation. Its number tells how many fds there are of all, so it
    /// is for those that see all.
    pub fn held(&self, of: &AllocationView<'_>) -> Option<BorrowedFd<'a>> {
        let node = (self.sight == Sight::Node).then_some(self.whole)?;
        node.fds.held(of.id.slot)
    }

    pub fn job_name(&self, domain: DomainKey, job: Option<JobKey>) -> JobName {
        job.map_or(JobName::NONE, |job| self.whole.core.job_name(domain, job))
    }

    /// Of the process of a client.
    pub fn start_of(&self, client: &ClientView<'_>) -> Start {
        let connection = self.whole.connections.get(client.id.0 as usize);
        connection.map_or(Start::default(), |known| known.start)
    }

    /// A client that a record names, or its owner that is gone.
    pub fn party(&self, client: Option<ClientId>) -> Party {
        let Whole { core, connections, .. } = self.whole;
        let Some(client) = client else { return Party::NOBODY };
        let Some(view) = core.client(client) else { return Party::NOBODY };
        let domain = view.domain;
        if !self.sight.has(domain) {
            return Party::ANOTHER;
        }
        let job = view.job.map(|job| (job, core.job_name(domain, job)));
        let connection = connections.get(client.0 as usize);
        let unknown = Party { client: client.0, job, ..Party::NOBODY };
        connection.map_or(unknown, |it| Party {
            pid: it.pid,
            uid: it.domain.uid,
            name: it.name,
            ..unknown
        })
    }
}
