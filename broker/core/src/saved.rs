//! The broker's state as plain data, for a successor that goes on with the same connections. Must never leave
//! out what a client could notice the lack of. (How it is taken in again: `restore`.)

use serde::{Deserialize, Serialize};

use crate::Core;
use crate::api::{DomainKey, Effect, Effects, JobKey};
use crate::continuity::{FormerOwner, Grace};
use crate::ledger::ScopeId;
use crate::slots::{NONE, SavedSlots};
use crate::state::{Allocation, AllocationList, Client, Job, Lease, LeaseList, State, Wish};
use fdbroker_protocol::ErrorCode;

/// All that a successor needs to know to go on: see [`Core::save`]. Opaque; its format is that of its serde form
/// and changes with the version of this crate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    pub(crate) node_peaks: Vec<u128>,
    pub(crate) table_peak: u64,
    /// In the order of the table of counters.
    pub(crate) counters: Vec<u64>,
    pub(crate) arrivals: u64,
    pub(crate) serials: u64,
    /// Until when former owners may name their slots; 0 = it is too late.
    pub(crate) grace_until: u64,
    pub(crate) owners: Vec<SavedOwner>,
    pub(crate) domains: Vec<SavedDomain>,
    pub(crate) jobs: Vec<SavedJob>,
    pub(crate) clients: Vec<SavedClient>,
    pub(crate) allocations: SavedSlots<SavedAllocation>,
    pub(crate) leases: SavedSlots<SavedLease>,
    /// Turns given to domains.
    pub(crate) turns: u64,
    /// Gone clients not yet torn down, in their turn.
    pub(crate) dying: Vec<u32>,
    /// Being drained: clients ever connected when that began.
    pub(crate) draining: Option<u64>,
}

/// An owner of before a crash that slots wait for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedOwner {
    pub(crate) listener: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) key: SavedKey,
    /// It has named all that is alive.
    pub(crate) is_complete: bool,
    /// Each slot, and whether its fd outlived the crash.
    pub(crate) slots: Vec<(u32, bool)>,
}

/// The fields of an [`OwnerKey`].
pub(crate) type SavedKey = (u32, u32, u64);

/// A domain that clients or allocations are of; they name it by its place in the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedDomain {
    pub(crate) listener: u32,
    pub(crate) uid: u32,
    pub(crate) turn: u64,
    pub(crate) peaks: Vec<u128>,
}

/// A job that clients of a domain are of, or have left kept allocations of; they name it by its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedJob {
    pub(crate) listener: u32,
    pub(crate) uid: u32,
    pub(crate) key: u64,
    pub(crate) name: String,
    pub(crate) peaks: Vec<u128>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedClient {
    pub(crate) number: u32,
    pub(crate) serial: u64,
    pub(crate) domain: u32,
    pub(crate) job: Option<u64>,
    pub(crate) pid: u32,
    pub(crate) key: SavedKey,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    pub(crate) welcome: bool,
    pub(crate) gone: bool,
    pub(crate) silent: bool,
    pub(crate) sendable: bool,
    pub(crate) credits: u64,
    pub(crate) own_fds: u64,
    pub(crate) peaks: Vec<u128>,
    pub(crate) keeps_asked: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SavedState {
    Held,
    Resident,
    Evicted,
    Recalling {
        deadline: Option<u64>,
        overdue: bool,
        /// The recall is still to be sent.
        to_tell: bool,
    },
    Reserved,
    /// Of this code.
    Ended(u16),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedAllocation {
    pub(crate) state: SavedState,
    pub(crate) size_bytes: u64,
    pub(crate) fd_offset: u64,
    pub(crate) owner_allocation_id: u64,
    pub(crate) base: u64,
    pub(crate) device: u32,
    pub(crate) owner: Option<u32>,
    pub(crate) domain: u32,
    pub(crate) registrations: u32,
    pub(crate) kind: u8,
    pub(crate) share: u8,
    pub(crate) recallable: bool,
    pub(crate) keep: bool,
    pub(crate) drained: bool,
    /// Device, inode and bytes of its file, if it is held.
    pub(crate) file: Option<(u64, u64, u64)>,
    /// What is remembered of its file, if it is not.
    pub(crate) file_pages: u32,
    /// Empty = none.
    pub(crate) driver_data: Vec<u8>,
    /// Kept, and without an owner.
    pub(crate) orphan: Option<SavedOrphan>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedOrphan {
    pub(crate) until: u64,
    pub(crate) gid: u32,
    pub(crate) job: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedLease {
    pub(crate) since: u64,
    pub(crate) allocation: u32,
    pub(crate) client: u32,
    pub(crate) asked: u32,
    pub(crate) mapped: bool,
    /// Its holder is still to be told that it is asked for, or that its allocation has ended.
    pub(crate) to_tell: bool,
}

impl From<(FormerOwner, bool, Vec<(u32, bool)>)> for SavedOwner {
    fn from((owner, is_complete, slots): (FormerOwner, bool, Vec<(u32, bool)>)) -> Self {
        let FormerOwner { domain, gid, key } = owner;
        let key = (key.pid, key.started, key.random);
        SavedOwner { listener: domain.listener, uid: domain.uid, gid, key, is_complete, slots }
    }
}

impl Core {
    /// Answers every parked request AGAIN, so that nothing waits any more. The effects go to clients as
    /// those of a step do.
    pub fn settle_parked(&mut self, effects: &mut Effects) {
        while let Some((seq, parked)) = self.parked.first_key_value() {
            let (seq, client, request) = (*seq, parked.client, parked.request);
            let is_gone = self.clients[client.0 as usize].as_deref().is_none_or(|it| it.gone);
            match parked.wish {
                _ if is_gone => _ = self.unpark(seq),
                Wish::Acquire(_) => self.answer_ended_item(seq, effects),
                Wish::Credits(_) => {
                    self.unpark(seq);
                    let status = ErrorCode::Again.into();
                    effects.list.push(Effect::Failed { client, request, status });
                }
                Wish::Hello(_) => {
                    let status = ErrorCode::Again.into();
                    self.give_up_hello(client, status, effects);
                    effects.list.push(Effect::Disconnect { client, status });
                }
            }
        }
        while !self.ending.is_empty() {
            self.sweep_ended();
        }
        // The teardown of an owner goes on, and what it kept lives on from now.
        self.after(effects);
    }

    /// What a successor goes on with. Not in it: fds in the closers, which the daemon closes or forgets.
    ///
    /// # Panics
    /// When requests are parked: [`Core::settle_parked`] comes first, and no step in between.
    pub fn save(&self) -> Saved {
        assert!(self.parked.is_empty(), "parked requests are settled before the state is saved");
        let mut used: Vec<u32> = self.all_clients().map(|(_, client)| client.domain).collect();
        let of_allocations = self.allocations.iter_from(0).map(|(_, allocation)| allocation.domain);
        used.extend(of_allocations);
        used.sort_unstable();
        used.dedup();
        let place = |domain: u32| {
            let at = used.binary_search(&domain).expect("it was just entered");
            u32::try_from(at).expect("domains have 32-bit numbers")
        };
        Saved {
            node_peaks: self.ledger[ScopeId::NODE].account.peaks(),
            table_peak: self.ledger.table().1,
            counters: self.counters.iter().map(|(_, count)| *count).collect(),
            arrivals: self.arrivals,
            serials: self.serials,
            grace_until: match self.continuity.grace() {
                Grace::Until(at) => at.0,
                Grace::None | Grace::Ending(_) => 0,
            },
            owners: self.continuity.all().map(SavedOwner::from).collect(),
            domains: used.iter().map(|domain| self.saved_domain(*domain)).collect(),
            jobs: self.saved_jobs(),
            clients: self
                .all_clients()
                .map(|(number, client)| self.saved_client(number, client, place(client.domain)))
                .collect(),
            allocations: self.allocations.save(|slot, allocation| {
                self.saved_allocation(slot, allocation, place(allocation.domain))
            }),
            leases: self.leases.save(|_, lease| Self::saved_lease(lease)),
            turns: self.rooms.turns_given(),
            dying: self.dying.iter().copied().collect(),
            draining: self.draining.map(|draining| draining.serials),
        }
    }

    fn saved_domain(&self, domain: u32) -> SavedDomain {
        let domain = &self.domains[domain];
        let (listener, uid) = (domain.key.listener, domain.key.uid);
        SavedDomain {
            listener,
            uid,
            turn: domain.turn,
            peaks: self.ledger[domain.scope].account.peaks(),
        }
    }

    fn saved_jobs(&self) -> Vec<SavedJob> {
        let mut jobs: Vec<&Job> = self.jobs.iter_from(0).map(|(_, job)| job).collect();
        jobs.sort_unstable_by_key(|job| job.key);
        jobs.into_iter()
            .map(|job| {
                let (DomainKey { listener, uid }, JobKey(key)) = job.key;
                let name = job.name.as_str().to_owned();
                SavedJob { listener, uid, key, name, peaks: self.ledger[job.scope].account.peaks() }
            })
            .collect()
    }

    fn saved_client(&self, number: u32, client: &Client, domain: u32) -> SavedClient {
        SavedClient {
            number,
            serial: client.serial,
            domain,
            job: client.job.map(|job| self.jobs[job].key.1.0),
            pid: client.pid,
            key: (client.key.pid, client.key.started, client.key.random),
            gid: client.gid,
            groups: client.groups.to_vec(),
            welcome: client.welcome,
            gone: client.gone,
            silent: client.silent,
            sendable: client.sendable,
            credits: client.credits,
            own_fds: client.own_fds,
            peaks: self.ledger[client.scope].account.peaks(),
            keeps_asked: client.keeps_asked,
        }
    }

    fn saved_allocation(&self, slot: u32, allocation: &Allocation, domain: u32) -> SavedAllocation {
        let data = self.driver_data.get(&slot);
        let orphan = self.orphans.get(&slot);
        SavedAllocation {
            state: self.saved_state(allocation),
            size_bytes: allocation.size_bytes,
            fd_offset: allocation.fd_offset,
            owner_allocation_id: allocation.owner_allocation_id,
            base: allocation.base,
            device: allocation.device,
            owner: (allocation.owner != NONE).then_some(allocation.owner),
            domain,
            registrations: allocation.registrations,
            kind: allocation.traits.kind() as u8,
            share: allocation.traits.share() as u8,
            recallable: allocation.traits.is_recallable(),
            keep: allocation.traits.is_to_be_kept(),
            drained: allocation.drained,
            file: self.file_of(slot).map(|it| (it.id.device, it.id.inode, it.pinned_bytes)),
            file_pages: if allocation.is_held() { NONE } else { allocation.file },
            driver_data: data
                .map(|(length, bytes)| bytes[..usize::from(*length)].to_vec())
                .unwrap_or_default(),
            orphan: orphan.map(|orphan| SavedOrphan {
                until: orphan.until.0,
                gid: orphan.gid,
                job: orphan.job.map(|job| self.jobs[job].key.1.0),
            }),
        }
    }

    fn saved_state(&self, allocation: &Allocation) -> SavedState {
        match allocation.state {
            State::Held => SavedState::Held,
            State::Resident => SavedState::Resident,
            State::Evicted => SavedState::Evicted,
            State::Recalling => {
                let recall = &self.recalls[allocation.recall];
                let deadline = recall.deadline.map(|at| at.0);
                let to_tell = allocation.is_in(AllocationList::Event);
                SavedState::Recalling { deadline, overdue: recall.overdue, to_tell }
            }
            State::Reserved => SavedState::Reserved,
            State::Ended(code) => SavedState::Ended(code as u16),
        }
    }

    fn saved_lease(lease: &Lease) -> SavedLease {
        let Lease { since, allocation, client, asked, mapped, .. } = *lease;
        let to_tell = lease.is_in(LeaseList::Event);
        SavedLease { since: since.0, allocation, client, asked, mapped, to_tell }
    }
}
