//! Coming back after a crash: allocations of before it are reserved for their owners, and end when
//! the owners do not name them again. Must never give such a slot to another allocation, nor grant
//! it before its owner has named it; nor call one drained as long as a client may still declare a
//! lease of it.
//!
//! An example: the broker is killed while owner A has slots 7 and 8, and B a lease of 7. The next
//! broker finds both in its records, without fds, and waits for A. A request of B for slot 7 is
//! parked. A connects, names 7, and says that this is all (`complete`): 7 is evicted, as if its fd
//! had gone to make room, so B's request has A asked for the fd. 8 ends as STALE. Had A not come in
//! the grace time, 7 would end as LOST, and B's request with it. B declares its lease, so 7
//! counts as leased, and is not drained before B releases it.

use std::collections::VecDeque;

use crate::api::{Comeback, DomainKey, Now, OwnerKey};

use fdbroker_protocol::ErrorCode;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

/// In the note of a slot: the broker before the crash had drained its last allocation.
pub(crate) const DRAINED: u16 = 1 << 15;

/// An owner of before the crash: its domain, its group, and the client itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct FormerOwner {
    pub domain: DomainKey,
    pub gid: u32,
    pub key: OwnerKey,
}

/// The slots of an owner of before the crash.
#[derive(Debug)]
struct Estate {
    owner: FormerOwner,
    /// Slots that wait for the owner, and some that do not wait any more.
    slots: Vec<u32>,
    /// Those of them that have ended since the owner has named all that is alive: their holders
    /// may declare leases of them as long as there is time.
    ended: Vec<u32>,
    /// The owner has named all that is alive.
    is_complete: bool,
}

/// A slot that waits for an owner, by the owner's place in the list of estates.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    estate: u32,
    how: Standing,
}

/// How a slot stands that waits for its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Standing {
    /// Its fd is closed: it ends unless its owner names it.
    Reserved,
    /// Its fd outlived the crash: it ends when its owner says so, and not because its owner says
    /// nothing.
    Kept,
    /// It has ended: clients may have leases of it, and its owner may want to hear of the drain.
    Ended,
}

/// The time that owners have to name their slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Grace {
    /// Nothing waits for its owner.
    #[default]
    None,
    /// Owners have until this time to name what is alive.
    Until(Now),
    /// The time is over: slots that nobody has named end, from the owner at this place on.
    Ending(usize),
}

/// The allocations that wait for their owners. At most one entry for each slot.
#[derive(Debug, Default)]
pub(crate) struct Continuity {
    estates: Vec<Estate>,
    by_owner: FxHashMap<FormerOwner, u32>,
    awaited: FxHashMap<u32, Awaited>,
    /// Slots in `awaited` that are reserved.
    pub(crate) reserved: u32,
    /// Slots of before the crash that have ended under their owners in the grace time: not drained
    /// before it is over.
    lingering: Vec<u32>,
    grace: Grace,
    /// What has become of them so far.
    pub(crate) comeback: Comeback,
    /// The same, once the time is over.
    over: Option<Comeback>,
    /// Places of the owners that have named all that is alive, and whose other slots have not all
    /// ended.
    complete: VecDeque<u32>,
}

impl Continuity {
    /// The slot waits for this owner from now on.
    pub fn enter(&mut self, slot: u32, owner: FormerOwner, how: Standing) {
        let next = u32::try_from(self.estates.len()).expect("owners are fewer than slots");
        let estate = *self.by_owner.entry(owner).or_insert(next);
        if estate == next {
            let (slots, ended, is_complete) = (Vec::new(), Vec::new(), false);
            self.estates.push(Estate { owner, slots, ended, is_complete });
        }
        self.estates[estate as usize].slots.push(slot);
        self.awaited.insert(slot, Awaited { estate, how });
        self.reserved += u32::from(how == Standing::Reserved);
    }

    /// The owner has named the slot, or nobody waits for that any more.
    pub fn leave(&mut self, slot: u32) {
        if let Some(Awaited { how, .. }) = self.awaited.remove(&slot) {
            self.reserved -= u32::from(how == Standing::Reserved);
        }
    }

    /// The slot has ended. One that was reserved waits for its owner still, who may want to hear
    /// when it is drained.
    pub fn end(&mut self, slot: u32) {
        match self.awaited.get_mut(&slot) {
            Some(Awaited { how: how @ Standing::Reserved, .. }) => {
                *how = Standing::Ended;
                self.reserved -= 1;
            }
            _ => self.leave(slot),
        }
    }

    /// What has become of all, once the time is over; once.
    pub fn take_comeback(&mut self) -> Option<Comeback> {
        self.over.take()
    }

    /// The slot has ended under its owner: it is not drained before the grace time is over.
    pub fn linger(&mut self, slot: u32) {
        self.lingering.push(slot);
    }

    pub fn has(&self, slot: u32) -> bool {
        self.awaited.contains_key(&slot)
    }

    pub fn is_empty(&self) -> bool {
        self.awaited.is_empty() && self.lingering.is_empty()
    }

    pub fn grace(&self) -> Grace {
        self.grace
    }

    pub fn set_grace(&mut self, grace: Grace) {
        self.grace = grace;
    }

    /// Whether slots are to be ended now.
    pub fn has_work(&self) -> bool {
        !self.complete.is_empty() || matches!(self.grace, Grace::Ending(_))
    }

    fn estate_of(&self, slot: u32) -> Option<(&Estate, Standing)> {
        let Awaited { estate, how } = *self.awaited.get(&slot)?;
        Some((&self.estates[estate as usize], how))
    }

    /// Why the slot can no longer be named: its owner has not named it in time.
    pub fn lost(&self, slot: u32) -> Option<ErrorCode> {
        let (estate, how) = self.estate_of(slot)?;
        match (self.grace, how) {
            (_, Standing::Ended) => None,
            _ if estate.is_complete => Some(ErrorCode::Stale),
            (Grace::Ending(_), Standing::Reserved) => Some(ErrorCode::Lost),
            _ => None,
        }
    }

    /// The process of an owner that lives, as far as was known at the begin.
    pub fn pid_of(&self, slot: u32) -> Option<u32> {
        self.estate_of(slot).map(|(estate, _)| estate.owner.key.pid)
    }

    /// The group of the slot's owner.
    pub fn gid_of(&self, slot: u32) -> Option<u32> {
        self.estate_of(slot).map(|(estate, _)| estate.owner.gid)
    }

    /// The owner's slots that still wait are to end. Once the time is over they end anyway.
    pub fn complete(&mut self, owner: FormerOwner) {
        if matches!(self.grace, Grace::Ending(_)) {
            return;
        }
        let Some(place) = self.by_owner.get(&owner).copied() else { return };
        let estate = &mut self.estates[place as usize];
        if !std::mem::replace(&mut estate.is_complete, true) {
            self.complete.push_back(place);
        }
    }

    /// The next slot to end, and why; or, without a reason, one that has ended and may be drained.
    /// Each entry looked at takes one of `looks`.
    pub(crate) fn next_lost(&mut self, looks: &mut usize) -> Option<(u32, Option<ErrorCode>)> {
        while *looks > 0 {
            let (place, is_complete) = match (self.complete.front(), self.grace) {
                (Some(place), _) => (*place, true),
                (None, Grace::Ending(place)) => (u32::try_from(place).ok()?, false),
                (None, _) => return None,
            };
            *looks -= 1;
            let estate = self.estates.get_mut(place as usize);
            if estate.is_none()
                && let Some(slot) = self.lingering.pop()
            {
                return Some((slot, None));
            }
            let slot = estate.and_then(|estate| {
                let slot = estate.slots.pop();
                if is_complete { slot } else { slot.or_else(|| estate.ended.pop()) }
            });
            let Some(slot) = slot else {
                self.next_estate(is_complete);
                continue;
            };
            let awaited = self.awaited.get(&slot).filter(|awaited| awaited.estate == place);
            let Some(how) = awaited.map(|awaited| awaited.how) else { continue };
            match how {
                Standing::Kept if !is_complete => self.leave(slot),
                Standing::Kept => return Some((slot, Some(ErrorCode::Stale))),
                // As long as there is time it stays.
                Standing::Ended | Standing::Reserved if is_complete => {
                    self.estates[place as usize].ended.push(slot);
                    if how == Standing::Reserved {
                        return Some((slot, Some(ErrorCode::Stale)));
                    }
                }
                Standing::Ended => return Some((slot, None)),
                Standing::Reserved => {
                    self.comeback.not_named += 1;
                    return Some((slot, Some(ErrorCode::Lost)));
                }
            }
        }
        None
    }

    /// The owner at hand has no slots any more.
    fn next_estate(&mut self, is_complete: bool) {
        match self.grace {
            _ if is_complete => drop(self.complete.pop_front()),
            Grace::Ending(place) if place < self.estates.len() => {
                self.grace = Grace::Ending(place + 1);
            }
            Grace::None | Grace::Until(_) | Grace::Ending(_) => {
                let over = Some(self.comeback);
                *self = Continuity { over, ..Continuity::default() };
            }
        }
    }

    /// Lets another owner's slots end next.
    pub(crate) fn turn(&mut self) {
        if self.complete.len() > 1 {
            self.complete.rotate_left(1);
        }
    }

    /// All owners that slots wait for: whether each has named all that is alive, and its slots.
    pub fn all(&self) -> impl Iterator<Item = (FormerOwner, bool, Vec<(u32, Standing)>)> {
        (0..).zip(&self.estates).filter_map(|(place, estate)| {
            let awaited = |slot: &u32| {
                let awaited = self.awaited.get(slot).filter(|awaited| awaited.estate == place)?;
                Some((*slot, awaited.how))
            };
            let all = estate.slots.iter().chain(&estate.ended);
            let slots: Vec<_> = all.filter_map(awaited).collect();
            (!slots.is_empty()).then_some((estate.owner, estate.is_complete, slots))
        })
    }
}
