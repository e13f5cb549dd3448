//! Named objects: groups of them in allocations of the registry, their names, and requests that
//! wait for names. Must never show a name before its group is sealed, nor half of a group, nor
//! memory under another version than its own.
//!
//! Objects use the registry, the ledger and the leases. These know of objects only where the memory
//! of a group ends ([`Core::memory_ended`]), where it is asked who keeps an allocation without an
//! owner ([`Objects::keeps`]), and in parked requests ([`Wish::Get`](crate::books::parked::Wish)).

pub(crate) mod charges;
pub(crate) mod get;
pub(crate) mod groups;
pub(crate) mod names;
pub(crate) mod order;
pub(crate) mod saved;
pub(crate) mod waits;
pub(crate) mod watches;

use crate::api::KeptChange;
use crate::books::objects::groups::Groups;
use crate::books::objects::names::Names;
use crate::books::objects::order::Order;
use crate::books::objects::waits::Waits;
use crate::books::objects::watches::Watches;
use crate::books::rounds::Rounds;

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

    /// Whether an allocation lives on without an owner, because its group is kept.
    pub fn keeps(&self, slot: u32) -> bool {
        self.groups.in_slot(slot).is_some_and(|group| group.is_kept)
    }
}
