//! What the core shows of itself: for the administrator's queries and for the simulator. Read only.

use std::ops::Range;

use crate::api::{CapsOfScopes, ClientId, DomainKey, JobKey, JobName, LeaseId, NONE, Ticket};
use crate::books::clients::{Domain, Job};
use crate::books::objects::groups::Group;
use crate::books::{Account, Allocation, Client, Lease, Recall, ScopeId, State};
use crate::core::Core;
use fdbroker_protocol::admin::AllocationState;
use fdbroker_protocol::limits::DRIVER_DATA_BYTES;
use fdbroker_protocol::{AllocationId, ByCounter, ByGauge, Caps, ErrorCode, Facts, Resource};

/// The node at a glance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// The node's account.
    pub node: Account,
    /// Its caps.
    pub caps: Caps,
    /// The broker's fd table: in use (the reserve included), most ever, most allowed.
    pub table: (u64, u64, u64),
    /// What there is now beside that.
    pub gauges: ByGauge<u64>,
    /// What has happened since the start.
    pub counters: ByCounter<u64>,
}

impl Totals {
    /// Now, peak and cap of a resource on the node.
    #[allow(clippy::wildcard_enum_match_arm, reason = "few resources have a rule of their own")]
    pub fn usage(&self, resource: Resource) -> (u64, u64, u64) {
        match resource {
            Resource::TablePlaces => self.table,
            _ => (self.node.now(resource), self.node.peak(resource), self.caps[resource]),
        }
    }
}

/// One allocation: what the core has of it, and what that leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationView<'a> {
    /// Its id.
    pub id: AllocationId,
    /// What the core has of it.
    pub record: &'a Allocation,
    /// What is known of it.
    pub facts: Facts,
    /// Where its fd is.
    pub state: AllocationState,
    /// Items of requests that wait for its fd.
    pub waiters: usize,
    /// Its owner's job; of a kept one whose owner is gone, the job that has left it.
    pub job: Option<JobKey>,
    /// Its owner's domain.
    pub domain: DomainKey,
    /// It is the memory of named objects.
    pub named: bool,
    /// The first of their names; `None`: it has none (any more).
    pub object: Option<&'a [u8]>,
    /// They outlive their creator.
    pub is_kept_object: bool,
    /// Of before a crash: its owner's pid, if that lived then; else 0.
    pub former_pid: u32,
}

/// One lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseView<'a> {
    /// Its number.
    pub id: LeaseId,
    /// What the core has of it.
    pub record: &'a Lease,
    /// Its allocation.
    pub allocation: AllocationId,
    /// What the core has of that.
    pub of: &'a Allocation,
    /// The domain of its allocation; [`DomainKey::NOBODYS`] while that is not known again after a
    /// crash.
    pub domain: DomainKey,
    /// The domain of its holder.
    pub holder: DomainKey,
}

/// One client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientView<'a> {
    /// Its number.
    pub id: ClientId,
    /// What the core has of it.
    pub record: &'a Client,
    /// Its domain.
    pub domain: DomainKey,
    /// Its job.
    pub job: Option<JobKey>,
    /// What it is charged for.
    pub account: &'a Account,
}

impl Core {
    /// Whether the fd of this allocation has been asked for from this client, and not come yet.
    pub fn is_awaited_from(&self, client: ClientId, id: AllocationId) -> bool {
        let found = self.books.allocations.find(id);
        found.is_some_and(|it| it.owner == client.0 && it.state == State::Recalling)
    }

    /// Fds of a client that are on their way through the closers.
    pub fn closings_of(&self, client: ClientId) -> u64 {
        let client = self.books.clients.find(client.0);
        client.map_or(0, |client| self.books.closings.of_client(client.serial))
    }

    /// The client that an fd on its way through the closers is charged to; `None`: it has left it
    /// to its domain.
    pub fn client_of(&self, ticket: Ticket) -> Option<ClientId> {
        let client = self.books.closings.get(ticket)?.client?;
        self.books.clients.of_serial(client).map(|_| ClientId(client.0))
    }

    /// Fds that a client may send, as far as it can know. What was taken back meanwhile is answered
    /// AGAIN.
    pub fn deposit_credits(&self, client: ClientId) -> u64 {
        let client = self.books.clients.find(client.0);
        client.map_or(0, |client| client.credits + client.credits_taken)
    }

    /// The node at a glance.
    pub fn totals(&self) -> Totals {
        Totals {
            node: self.books.ledger[ScopeId::NODE].account,
            caps: Caps {
                domains: self.books.config.max_domains.into(),
                ..self.books.ledger.caps().node
            },
            table: self.books.ledger.table(),
            gauges: ByGauge {
                jobs: self.books.clients.count_of_jobs() as u64,
                stored_fds: self.books.allocations.held(),
                closing_fds: self.books.closings.len() as u64,
                leases_ending: self.books.leases.unswept(),
                // The daemon's to know.
                users_away: 0,
                sockets_away: 0,
                sockets_unkept: 0,
                config_refused: 0,
                lanes_hung: 0,
                store_short: 0,
            },
            counters: self.books.counters,
        }
    }

    /// Slots of allocations, those included that are free again.
    pub fn allocation_slots(&self) -> u32 {
        self.books.allocations.slots()
    }

    /// Slots of leases, those included that are free again.
    pub fn lease_slots(&self) -> u32 {
        self.books.leases.slots()
    }

    /// Allocations of some slots, in slot order.
    pub fn allocations(&self, slots: Range<u32>) -> impl Iterator<Item = AllocationView<'_>> {
        self.books.allocations.iter_within(slots).map(|(slot, allocation)| AllocationView {
            id: self.books.allocations.id_of(slot),
            record: allocation,
            facts: self.books.allocations.facts(slot),
            state: match allocation.state {
                State::Held => AllocationState::Held,
                State::Resident => AllocationState::Resident,
                State::Evicted => AllocationState::Evicted,
                State::Recalling => AllocationState::Recalling,
                State::Reserved => AllocationState::Reserved,
                State::Ended(_) => AllocationState::Ended,
            },
            waiters: match allocation.recall {
                NONE => 0,
                recall => {
                    let Recall { waiting, pinned, .. } = self.books.recalls[recall];
                    self.books.waiting.len(waiting) + self.books.waiting.len(pinned)
                }
            },
            job: self.books.job_of_slot(slot).map(|job| self.books.clients.job_key(job)),
            domain: self.books.clients.domain_key(allocation.domain),
            named: self.books.objects.groups.number_in(slot).is_some(),
            object: self.books.objects.groups.in_slot(slot).and_then(Group::first_name),
            is_kept_object: self.books.objects.keeps(slot),
            former_pid: match allocation.state {
                State::Ended(ErrorCode::Lost) | State::Reserved => {
                    self.books.continuity.pid_of(slot).unwrap_or(0)
                }
                State::Held
                | State::Resident
                | State::Evicted
                | State::Recalling
                | State::Ended(_) => 0,
            },
        })
    }

    /// The allocation in a slot, if it is of the domain of a client.
    pub fn allocation_of_domain(&self, client: ClientId, slot: u32) -> Option<AllocationView<'_>> {
        let domain = self.books.clients.find(client.0)?.domain;
        let found = self.books.allocations.in_slot(slot).filter(|it| it.domain == domain);
        found.and_then(|_| self.allocations(slot..slot + 1).next())
    }

    /// Whether it is the memory of named objects of the client's domain.
    pub fn is_object_of_domain(&self, client: ClientId, id: AllocationId) -> bool {
        let found = self.allocation_of_domain(client, id.slot);
        found.is_some_and(|it| it.id == id && it.named)
    }

    /// The slot of the allocation that the owner of this one has registered next, ended ones
    /// included.
    pub fn registered_after(&self, slot: u32) -> Option<u32> {
        self.books.allocations.registered_after(slot)
    }

    /// What is known of the allocation in a slot, live or ended.
    pub fn facts(&self, slot: u32) -> Option<Facts> {
        self.books.allocations.in_slot(slot).map(|_| self.books.allocations.facts(slot))
    }

    /// What there is of an allocation, live or ended.
    pub fn allocation(&self, id: AllocationId) -> Option<&Allocation> {
        self.books.allocations.find(id)
    }

    /// Leases of some slots, in slot order; a lease's slot is the low half of its number.
    pub fn leases(&self, slots: Range<u32>) -> impl Iterator<Item = LeaseView<'_>> {
        self.books.leases.iter_within(slots).map(|(slot, lease)| {
            let allocation = &self.books.allocations[lease.allocation];
            LeaseView {
                id: self.books.leases.id_of(slot),
                record: lease,
                allocation: self.books.allocations.id_of(lease.allocation),
                of: allocation,
                domain: self.books.domain_or_nobodys(allocation.domain),
                holder: self.books.clients.domain_key(self.books.clients[lease.client].domain),
            }
        })
    }

    /// Clients from a number on, in order, those being torn down included.
    pub fn clients(&self, cursor: u32) -> impl Iterator<Item = ClientView<'_>> {
        let all = self.books.clients.iter_from(cursor);
        all.filter_map(|(number, _)| self.client(ClientId(number)))
    }

    /// A client, also one that is being torn down.
    pub fn client(&self, client: ClientId) -> Option<ClientView<'_>> {
        let record = self.books.clients.find(client.0)?;
        Some(ClientView {
            id: client,
            record,
            domain: self.books.clients.domain_key(record.domain),
            job: record.job.map(|job| self.books.clients.job_key(job)),
            account: &self.books.ledger[record.scope].account,
        })
    }

    /// The caps in force.
    pub fn caps(&self) -> CapsOfScopes {
        *self.books.ledger.caps()
    }

    /// How much of a resource the node is charged with.
    pub fn now_in_node(&self, resource: Resource) -> u64 {
        self.books.ledger[ScopeId::NODE].account.now(resource)
    }

    /// These caps as they would be in force.
    pub fn bounded(&self, caps: CapsOfScopes) -> CapsOfScopes {
        self.books.config.bounded(caps)
    }

    /// The name of a job; none when it is not known (any more).
    pub fn job_name(&self, domain: DomainKey, job: JobKey) -> JobName {
        let number = self.books.clients.find_job((domain, job));
        number.map_or(JobName::NONE, |number| self.books.clients.job(number).name)
    }

    /// Jobs in use from a number on, in order, each with what it is charged for.
    pub fn jobs(&self, cursor: u32) -> impl Iterator<Item = (u32, &Job, &Account)> {
        let account = |job: &Job| &self.books.ledger[job.scope].account;
        self.books.clients.jobs(cursor).map(move |(number, job)| (number, job, account(job)))
    }

    /// Domains in use from a number on, in order, each with what it is charged for.
    pub fn domains(&self, cursor: u32) -> impl Iterator<Item = (u32, &Domain, &Account)> {
        let account = |domain: &Domain| &self.books.ledger[domain.scope].account;
        self.books.clients.domains(cursor).map(move |(number, it)| (number, it, account(it)))
    }

    /// What a domain is charged for, if it is in use.
    pub fn account_of_domain(&self, key: DomainKey) -> Option<Account> {
        let number = self.books.clients.find_domain(key)?;
        Some(self.books.ledger[self.books.clients.scope_of_domain(number)].account)
    }

    /// Driver data of a live allocation: bytes in use, and the bytes.
    pub fn driver_data(&self, id: AllocationId) -> Option<&(u8, [u8; DRIVER_DATA_BYTES])> {
        self.books.allocations.find(id)?;
        self.books.allocations.driver_data(id.slot)
    }

    /// Whether the broker is being drained.
    pub fn is_draining(&self) -> bool {
        self.books.draining.is_some()
    }

    /// Slots of before a crash that no owner has named again yet.
    pub fn reserved(&self) -> u32 {
        self.books.continuity.reserved
    }

    /// Whether an allocation has ended and is not forgotten: it is leased, or its owner has not
    /// heard that it is drained.
    pub fn is_ended_here(&self, id: AllocationId) -> bool {
        let found = self.books.allocations.find(id);
        found.is_some_and(|allocation| !allocation.is_live())
    }
}
