//! Named objects: groups of them in allocations of the registry, their names, and requests that wait for names. Must never
//! show a name before its group is sealed, nor half of a group, nor memory under another version than its own.
//!
//! Objects use the registry, the ledger and the leases. These know of objects only where the memory of a group ends
//! ([`Core::memory_ended`]), where it is asked who keeps an allocation without an owner ([`Objects::keeps`]), and in
//! parked requests ([`Wish::Get`](crate::parked::Wish)).

pub mod api;
mod charges;
mod check;
mod ending;
mod evicting;
mod getting;
mod groups;
mod kept;
mod making;
mod names;
mod saved;
mod touching;
mod view;
mod waits;
mod watches;

use api::KeptChange;
use evicting::Order;
use groups::{Group, GroupState, Groups};
use names::{Entry, NameScope, Names, Place};
use waits::Waits;
use watches::Watches;

use crate::Core;
use crate::clients::Client;
use crate::rounds::Rounds;

pub(crate) use getting::Asked;
pub use getting::Get;
pub use saved::SavedObjects;
pub use watches::ObjectNews;

/// See the module.
#[derive(Debug, Default)]
pub struct Objects {
    names: Names,
    groups: Groups,
    waits: Waits,
    watches: Watches,
    order: Order,
    /// Ended groups with members that still have their names, or with their memory.
    ending: Rounds,
    /// The last version given.
    version: u64,
    /// What the table of kept groups is to hear after the step.
    changes: Vec<KeptChange>,
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

impl Core {
    /// Whether a group has not ended, nor its creator, if it ends with that.
    fn is_group_live(&self, group: &Group) -> bool {
        let (creator, serial) = group.creator;
        let is_creator = |client: &Client| client.serial == serial && !client.gone;
        group.is_kept || self.clients.find(creator).is_some_and(is_creator)
    }

    /// The object that a name leads to, and its version.
    fn sealed(&self, scope: NameScope, name: &[u8]) -> Option<(Place, u64)> {
        self.sealed_of(self.objects.names.find(scope, name)?)
    }

    fn sealed_of(&self, entry: &Entry) -> Option<(Place, u64)> {
        let place = entry.sealed?;
        let group = &self.objects.groups[place.group];
        match group.state {
            GroupState::Sealed(version) if self.is_group_live(group) => Some((place, version)),
            GroupState::Sealed(_) | GroupState::Making | GroupState::Ended { .. } => None,
        }
    }

    /// Those that are being made under a name, the oldest first.
    fn makers<'a>(&'a self, entry: &'a Entry) -> impl Iterator<Item = Place> + 'a {
        let is_made = |place: &Place| {
            let group = &self.objects.groups[place.group];
            group.state == GroupState::Making && self.is_group_live(group)
        };
        entry.makers.iter().copied().filter(is_made)
    }
}
