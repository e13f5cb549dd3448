//! Where names lead, as far as groups live. Must never show a name before its group is sealed.

use crate::api::{GroupId, Inherits, NONE, Now};
use crate::books::Books;
use crate::books::clients::Client;
use crate::books::objects::groups::{Expect, Group, GroupState};
use crate::books::objects::names::{Entry, NameScope, Place};

use fdbroker_protocol::{ErrorCode, Status};

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
        group.is_kept || self.clients.of_serial(group.creator).is_some_and(|it| !it.gone)
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

    /// How long a group in the making lasts if it is sealed now, and whether it is pinned: what its
    /// maker has said, and for the rest what the versions have that it replaces.
    pub(crate) fn lasting(&self, group: &Group) -> (Option<u64>, bool) {
        let Group { mut keep_us, mut pin, inherits, .. } = *group;
        let replaces = group.members.iter().filter(|member| member.expect != Expect::Free);
        for member in replaces.filter(|_| inherits != Inherits::default()) {
            let Some((place, _)) = self.sealed(group.scope, &member.name) else { continue };
            let former = &self.objects.groups[place.group];
            keep_us = keep_us.max(former.keep_us.filter(|_| inherits.keep));
            pin |= former.pin && inherits.pin;
        }
        if group.outlives && !pin {
            keep_us.get_or_insert(u64::MAX);
        }
        (keep_us, pin)
    }
}
