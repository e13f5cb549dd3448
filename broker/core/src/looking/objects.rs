//! What the core shows of objects, for lists and for requests about single names. Read only.

use crate::api::{ClientId, GroupId, Making, Now};
use crate::books::Allocation;
use crate::books::objects::groups::{Group, GroupState, Member};
use crate::books::objects::names::Entry;
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
        let place = sealed.or_else(|| self.books.makers(entry).next())?;
        let group = &self.books.objects.groups[place.group];
        // One that has ended, whose memory may be gone, is not shown.
        Some(ObjectView {
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
        })
    }
}
