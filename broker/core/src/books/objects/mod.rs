//! Named objects: groups of them in allocations of the registry, their names, and requests that wait for names. Must never
//! show a name before its group is sealed, nor half of a group, nor memory under another version than its own.
//!
//! Objects use the registry, the ledger and the leases. These know of objects only where the memory of a group ends
//! ([`Core::memory_ended`]), where it is asked who keeps an allocation without an owner ([`Objects::keeps`]), and in
//! parked requests ([`Wish::Get`](crate::parked::Wish)).

pub(crate) mod charges;
pub(crate) mod get;
pub(crate) mod groups;
pub(crate) mod names;
pub(crate) mod order;
pub(crate) mod saved;
pub(crate) mod waits;
pub(crate) mod watches;

use crate::api::former::KeptChange;
use crate::api::ids::{GroupId, Now};
use crate::books::Books;
use crate::books::clients::Client;
use crate::books::objects::groups::{Group, GroupState, Groups};
use crate::books::objects::names::{Entry, NameScope, Names, Place};
use crate::books::objects::order::Order;
use crate::books::objects::waits::Waits;
use crate::books::objects::watches::Watches;
use crate::books::rounds::Rounds;
use crate::books::slots::NONE;
use fdbroker_protocol::{ErrorCode, Status};

/// See the module.
#[derive(Debug, Default)]
pub struct Objects {
    pub(crate) names: Names,
    pub(crate) groups: Groups,
    pub(crate) waits: Waits,
    pub(crate) watches: Watches,
    pub(crate) order: Order,
    /// Ended groups with members that still have their names, or with their memory.
    pub(crate) ending: Rounds,
    /// The last version given.
    pub(crate) version: u64,
    /// What the table of kept groups is to hear after the step.
    pub(crate) changes: Vec<KeptChange>,
}

impl Objects {
    /// Whether nothing is left over for a poll.
    pub fn is_idle(&self) -> bool {
        self.ending.is_empty() && self.waits.is_idle() && self.watches.is_idle()
    }

    /// What is to be told to those who watch.
    pub fn watches_mut(&mut self) -> &mut Watches {
        &mut self.watches
    }

    /// Takes what the table of kept groups is to hear.
    pub fn take_changes(&mut self, into: &mut Vec<KeptChange>) {
        into.append(&mut self.changes);
    }

    /// The versions up to this one have been given by a broker before.
    pub fn begin_above(&mut self, version: u64) {
        self.version = self.version.max(version);
    }

    /// Whether an allocation lives on without an owner, because its group is kept.
    pub fn keeps(&self, slot: u32) -> bool {
        self.groups.in_slot(slot).is_some_and(|group| group.is_kept)
    }

    /// Whether the allocation in a slot is the memory of a group.
    pub fn has_group_in(&self, slot: u32) -> bool {
        self.groups.in_slot(slot).is_some()
    }
}

impl Books {
    /// When a kept group ends if nobody uses it.
    pub(crate) fn until(&self, group: &Group) -> Option<Now> {
        let keep_us = group.keep_us.filter(|_| group.is_kept && !group.pin)?;
        Some(group.used.after(keep_us.min(self.config.object_ttl_us)))
    }

    /// Whether a group that may be evicted is leased; `None`: it may not be.
    pub(crate) fn may_go(&self, group: &Group) -> Option<bool> {
        let is_leased = |slot| slot != NONE && !self.allocations[slot].leases.is_empty();
        group.may_be_evicted().then(|| is_leased(group.allocation))
    }

    /// Whose names a client means.
    pub(crate) fn names_of(&self, client: u32, of_job: bool) -> Result<NameScope, Status> {
        let found = self.clients.find(client).ok_or(ErrorCode::Protocol)?;
        let Client { domain, job, .. } = *found;
        match (of_job, job) {
            (false, _) => Ok(NameScope::Domain(domain)),
            (true, Some(job)) => Ok(NameScope::Job(job)),
            (true, None) => Err(ErrorCode::NotSupported.into()),
        }
    }

    /// The group of a number, if the client makes it.
    pub(crate) fn making(&self, client: u32, group: GroupId) -> Result<u32, Status> {
        let serial = self.clients[client].serial;
        let found = self.objects.groups.find(group);
        let its = found.filter(|number| self.objects.groups[*number].creator == (client, serial));
        let number = its.ok_or(ErrorCode::Aborted)?;
        match self.objects.groups[number].state {
            GroupState::Making => Ok(number),
            GroupState::Sealed(_) => Err(ErrorCode::Sealed.into()),
            GroupState::Ended { .. } => Err(ErrorCode::Aborted.into()),
        }
    }

    /// Whether a group has not ended, nor its creator, if it ends with that.
    fn is_group_live(&self, group: &Group) -> bool {
        let (creator, serial) = group.creator;
        let is_creator = |client: &Client| client.serial == serial && !client.gone;
        group.is_kept || self.clients.find(creator).is_some_and(is_creator)
    }

    /// The object that a name leads to, and its version.
    pub(crate) fn sealed(&self, scope: NameScope, name: &[u8]) -> Option<(Place, u64)> {
        self.sealed_of(self.objects.names.find(scope, name)?)
    }

    pub(crate) fn sealed_of(&self, entry: &Entry) -> Option<(Place, u64)> {
        let place = entry.sealed?;
        let group = &self.objects.groups[place.group];
        match group.state {
            GroupState::Sealed(version) if self.is_group_live(group) => Some((place, version)),
            GroupState::Sealed(_) | GroupState::Making | GroupState::Ended { .. } => None,
        }
    }

    /// Those that are being made under a name, the oldest first.
    pub(crate) fn makers<'a>(&'a self, entry: &'a Entry) -> impl Iterator<Item = Place> + 'a {
        let is_made = |place: &Place| {
            let group = &self.objects.groups[place.group];
            group.state == GroupState::Making && self.is_group_live(group)
        };
        entry.makers.iter().copied().filter(is_made)
    }
}
