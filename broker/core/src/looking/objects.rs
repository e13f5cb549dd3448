//! What the core shows of objects, for lists and for requests about single names. Read only.

use std::ops::Range;

use crate::api::{ClientId, DomainKey, GroupId, JobKey, Making, Now};
use crate::books::Allocation;
use crate::books::objects::groups::{Group, GroupState, Member};
use crate::books::objects::names::{Entry, NameScope, Place};
use crate::core::Core;
use fdbroker_protocol::object::ObjectState;
use fdbroker_protocol::{AllocationId, Status};

/// What is known of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectView<'a> {
    /// What the core has of the object.
    pub record: &'a Member,
    /// What it has of the object's group.
    pub group: &'a Group,
    /// Sealed, or in the making.
    pub state: ObjectState,
    /// The number of the group.
    pub id: GroupId,
    /// The group's allocation.
    pub allocation: AllocationId,
    /// What the core has of that.
    pub of: &'a Allocation,
    /// When it ends if nobody uses it.
    pub until: Option<Now>,
    /// The group outlives its creator.
    pub is_kept: bool,
    /// The creator is not connected any more.
    pub is_creator_gone: bool,
    /// The domain that is charged.
    pub domain: DomainKey,
    /// The creator's job.
    pub job: Option<JobKey>,
}

impl ObjectView<'_> {
    /// The name is one of its job.
    pub fn is_of_job(&self) -> bool {
        matches!(self.group.scope, NameScope::Job(_))
    }
}

impl Core {
    /// The objects whose names a client means, that begin so and come behind `after`, in the order
    /// of their names; of a name that leads to one, and under which others are made, the first
    /// alone. `None`: all of a name have ended, and are still to be swept.
    ///
    /// # Errors
    /// NOT_SUPPORTED when names of a job are meant, and the client is of none.
    pub fn names_for<'a>(
        &'a self,
        client: ClientId,
        of_job: bool,
        prefix: &'a [u8],
        after: &[u8],
    ) -> Result<impl Iterator<Item = (&'a [u8], Option<ObjectView<'a>>)> + use<'a>, Status> {
        let names = self.books.objects.names.with_prefix(
            self.books.names_of(client.0, of_job)?,
            prefix,
            after,
        );
        Ok(names.map(|(name, entry)| (&**name, self.object_of(entry))))
    }

    /// Slots of groups of objects, those included that are free again.
    pub fn group_slots(&self) -> u32 {
        self.books.objects.groups.slots()
    }

    /// The objects of the groups in some slots, of every domain: each with its group's slot and its
    /// place there. Of the first group those from a place on.
    pub fn objects(
        &self,
        groups: Range<u32>,
        from: u16,
    ) -> impl Iterator<Item = ((u32, u16), ObjectView<'_>)> {
        let first = groups.start;
        let all = self.books.objects.groups.iter_within(groups);
        let live = all.filter(|(_, group)| !group.is_ended());
        live.flat_map(move |(number, group)| {
            let from = if number == first { from.into() } else { 0 };
            let members = (0..).zip(&group.members).skip(from).filter(|(_, it)| it.is_named);
            members.map(move |(member, _)| {
                ((number, member), self.object_at(Place { group: number, member }))
            })
        })
    }

    /// The memory of a group that a client makes; `None`: it makes none of this number.
    pub fn making_of(&self, client: ClientId, group: GroupId) -> Option<Making> {
        self.books.clients.find(client.0)?;
        let number = self.books.making(client.0, group).ok()?;
        let slot = self.books.objects.groups[number].allocation;
        let allocation = &self.books.allocations[slot];
        Some(Making {
            allocation: self.books.allocations.id_of(slot),
            kind: allocation.traits.kind(),
            end: allocation.fd_offset.checked_add(allocation.size_bytes)?,
        })
    }

    fn object_of(&self, entry: &Entry) -> Option<ObjectView<'_>> {
        let sealed = self.books.sealed_of(entry).map(|(place, _)| place);
        // One that has ended, whose memory may be gone, is not shown.
        Some(self.object_at(sealed.or_else(|| self.books.makers(entry).next())?))
    }

    /// One that has not ended.
    fn object_at(&self, place: Place) -> ObjectView<'_> {
        let group = &self.books.objects.groups[place.group];
        ObjectView {
            record: &group.members[usize::from(place.member)],
            group,
            state: match group.state {
                GroupState::Sealed(_) => ObjectState::Sealed,
                GroupState::Making => ObjectState::Making,
                GroupState::Ended { .. } => ObjectState::Unknown,
            },
            id: self.books.objects.groups.id_of(place.group),
            allocation: self.books.allocations.id_of(group.allocation),
            of: &self.books.allocations[group.allocation],
            until: self.books.until(group),
            is_kept: group.is_kept || group.keep_us.is_some() || group.pin,
            is_creator_gone: self.books.clients.of_serial(group.creator).is_none_or(|it| it.gone),
            domain: self.books.clients.domain_key(group.domain),
            job: group.job.map(|job| self.books.clients.job_key(job)),
        }
    }
}
