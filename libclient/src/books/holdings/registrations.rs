//! The registrations of a client: what each was made with, so that it can be named again to another broker.
//! Must never name what its owner has freed, replaced or ended.

use crate::books::one_way::{Line, OwnerKey};
use crate::books::spans::{Spans, place_of};
use crate::deposit::{Deposit, Registration, RegistrationRef};
use fdbroker_protocol::handle::TOKEN_BYTES;
use fdbroker_protocol::message::RedepositItem;
use fdbroker_protocol::{AllocationId, ErrorCode, Handle};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// The registrations.
#[derive(Debug, Default)]
pub(super) struct Registrations {
    all: HashMap<AllocationId, Named>,
    /// Of those that have an address.
    places: Spans<AllocationId>,
    /// Those that wait to be named; some of them may have ended.
    waiting: VecDeque<AllocationId>,
}

#[derive(Debug)]
struct Named {
    deposit: Deposit,
    handle: Handle,
    token: [u8; TOKEN_BYTES],
    /// The connection it was made over.
    birth: u64,
    /// How often it was registered and not unregistered.
    count: u64,
    /// How many of these the broker counts: named again, it counts one.
    at_broker: u64,
    memory: Memory,
    standing: Standing,
}

/// Whether what was registered is there still, by its owner's words. If not it stays to be unregistered, or drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    There,
    /// Something else was about to be registered in its range.
    Replaced,
    /// A recall was answered so.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Known,
    Waiting,
    /// Named, and not answered.
    Asked,
}

/// Registrations to be named in one message.
#[derive(Debug)]
pub(crate) struct Naming {
    pub items: Vec<RedepositItem>,
    ids: Vec<AllocationId>,
}

/// A registration that ended with a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LostRegistration {
    pub id: AllocationId,
    pub birth: u64,
    pub base: u64,
    pub owner_allocation_id: u64,
    pub code: ErrorCode,
}

/// What ending a registration comes to.
#[derive(Debug)]
pub(crate) enum Ending {
    /// The broker is to be told, over this connection.
    Tell(Arc<dyn Line>),
    /// Others of its count are left, and the broker does not know of so many.
    Counted,
    /// It was known to a broker that is gone, and is not named to the next one.
    Away,
    /// There is none.
    Absent,
    /// A buffer's, which ends it by itself.
    Kept,
}

impl Registrations {
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Another broker: what can be named to it waits; the rest has ended.
    pub fn begin(&mut self) -> Vec<LostRegistration> {
        self.waiting.clear();
        let is_lost = |_: &AllocationId, named: &mut Named| {
            let can_be_named = named.deposit.recallable || named.deposit.keep;
            !can_be_named || named.is_gone() || named.count == 0
        };
        let lost: Vec<(AllocationId, Named)> = self.all.extract_if(is_lost).collect();
        for (id, named) in &mut self.all {
            named.standing = Standing::Waiting;
            self.waiting.push_back(*id);
        }
        let ended = lost.into_iter().filter_map(|(id, named)| {
            self.vacate(&named, id);
            (named.count > 0 && !named.is_gone()).then(|| named.lost(id, ErrorCode::OwnerGone))
        });
        ended.collect()
    }

    /// The broker has ended it, and nobody has a lease of it.
    pub fn forget(&mut self, id: AllocationId) {
        self.remove(id);
    }

    fn remove(&mut self, id: AllocationId) -> Option<Named> {
        let named = self.all.remove(&id)?;
        self.vacate(&named, id);
        Some(named)
    }

    fn vacate(&mut self, named: &Named, id: AllocationId) {
        if let Some(place) = place_of(&named.deposit)
            && self.places.get(place) == Some(&id)
        {
            self.places.remove(place);
        }
    }

    /// It is about to be registered: whatever else was in its range is not there any more, whatever the answer.
    pub fn supersede(&mut self, deposit: &Deposit) {
        let Some(place) = place_of(deposit) else { return };
        for other in self.places.overlapping(place, deposit.size_bytes) {
            let id = *self.places.get(other).expect("just found");
            if self.all.get(&id).is_some_and(|named| !named.deposit.is_same(deposit)) {
                self.note_gone(id, Memory::Replaced);
            }
        }
    }

    /// The broker counts it again, so it lives there: what was about to replace it has not come to be.
    fn note_living(&mut self, id: AllocationId) {
        let Some(named) = self.all.get_mut(&id) else { return };
        let Some(place) = place_of(&named.deposit) else { return };
        let size_bytes = named.deposit.size_bytes;
        if named.memory == Memory::Replaced && self.places.overlapping(place, size_bytes).is_empty()
        {
            named.memory = Memory::There;
            self.places.insert(place, size_bytes, id);
        }
    }

    pub fn note_gone(&mut self, id: AllocationId, memory: Memory) {
        let Some(named) = self.all.get_mut(&id) else { return };
        named.memory = memory;
        let place = place_of(&named.deposit).filter(|place| self.places.get(*place) == Some(&id));
        place.and_then(|place| self.places.remove(place));
    }

    /// Up to `most` registrations to name, in one message.
    pub fn take_waiting(&mut self, most: usize) -> Naming {
        let mut naming = Naming { items: Vec::new(), ids: Vec::new() };
        while naming.ids.len() < most {
            let Some(id) = self.waiting.pop_front() else { break };
            let Some(named) = self.all.get_mut(&id) else { continue };
            if named.standing != Standing::Waiting || named.is_gone() {
                continue;
            }
            named.standing = Standing::Asked;
            let Named { deposit, handle, token, .. } = *named;
            naming.items.push(RedepositItem { item: deposit.to_item(), handle, token });
            naming.ids.push(id);
        }
        naming
    }

    /// A registration just made; the epoch that it is known by from now on: the first one's, if it is counted again.
    /// One that the broker of the moment does not know waits to be named.
    pub fn enter(&mut self, deposit: &Deposit, registration: &Registration, is_known: bool) -> u64 {
        let id = registration.id();
        if let Some(named) = self.all.get_mut(&id)
            && named.handle.prefix == registration.handle.prefix
        {
            named.count += 1;
            named.at_broker += u64::from(is_known);
            let birth = named.birth;
            self.note_living(id);
            return birth;
        }
        // One of a directory that is gone.
        self.remove(id);
        if let Some(place) = place_of(deposit) {
            self.supersede(deposit);
            // The same memory under another id: the former one has been ended.
            if let Some(former) = self.places.get(place).copied() {
                self.note_gone(former, Memory::Replaced);
            }
            self.places.insert(place, deposit.size_bytes, id);
        }
        let standing = if is_known { Standing::Known } else { Standing::Waiting };
        let Registration { handle, token, epoch: birth } = *registration;
        let (deposit, memory) = (*deposit, Memory::There);
        let named =
            Named { deposit, handle, token, birth, count: 1, at_broker: 1, memory, standing };
        self.all.insert(id, named);
        self.waiting.extend((!is_known).then_some(id));
        birth
    }

    /// An allocation that is registered, as its owner knows it.
    pub fn key_of(&self, id: AllocationId) -> Option<OwnerKey> {
        let Deposit { base, owner_allocation_id, .. } = self.all.get(&id)?.deposit;
        Some(OwnerKey { base, owner_allocation_id })
    }

    pub fn is_another(&self, handle: &Handle) -> bool {
        self.all.get(&handle.id()).is_some_and(|named| named.handle.prefix != handle.prefix)
    }

    /// Whether it is known to the broker, or is going to be named to the next.
    pub fn has(&self, registration: &Registration) -> bool {
        let named = self.all.get(&registration.id());
        named.is_some_and(|named| named.birth == registration.epoch)
    }

    /// Ends one registration, the last of its count for good. `line` leads to the broker of the moment.
    pub fn end(&mut self, what: RegistrationRef, line: Option<Arc<dyn Line>>) -> Ending {
        let Some(named) = self.all.get_mut(&what.id) else { return Ending::Absent };
        if what.epoch.is_some_and(|epoch| epoch != named.birth) || named.count == 0 {
            return Ending::Absent;
        }
        named.count -= 1;
        if named.count >= named.at_broker {
            return Ending::Counted;
        }
        named.at_broker = named.at_broker.saturating_sub(1);
        let (is_last, standing) = (named.count == 0, named.standing);
        // Of one that is asked for the answer is awaited: it is ended then.
        if is_last && standing != Standing::Asked {
            self.remove(what.id);
        }
        match (standing, line) {
            (Standing::Known, Some(line)) => Ending::Tell(line),
            _ => Ending::Away,
        }
    }

    /// The answers to what was named, in its order: what has been ended meanwhile and is now to be ended there, and what has
    /// ended with the former broker. What answers AGAIN waits to be named again, if `may_retry`.
    pub fn note_named(
        &mut self,
        naming: &Naming,
        answers: &[Result<(), ErrorCode>],
        may_retry: bool,
    ) -> (Vec<AllocationId>, Vec<LostRegistration>) {
        debug_assert_eq!(answers.len(), naming.ids.len());
        let (mut ended, mut lost) = (Vec::new(), Vec::new());
        for (id, answer) in naming.ids.iter().zip(answers) {
            // Superseded meanwhile: the broker is to forget it, too.
            let Some(named) = self.all.get_mut(id) else {
                ended.extend(answer.is_ok().then_some(*id));
                continue;
            };
            match answer {
                Ok(()) if named.count == 0 || named.is_gone() => {
                    self.remove(*id);
                    ended.push(*id);
                }
                Ok(()) => (named.standing, named.at_broker) = (Standing::Known, 1),
                Err(ErrorCode::Again) if may_retry && named.count > 0 => {
                    named.standing = Standing::Waiting;
                    self.waiting.push_back(*id);
                }
                Err(code) => {
                    let named = self.remove(*id).expect("just found");
                    let is_told = named.count > 0 && !named.is_gone();
                    lost.extend(is_told.then(|| named.lost(*id, *code)));
                }
            }
        }
        (ended, lost)
    }
}

impl Named {
    fn is_gone(&self) -> bool {
        self.memory != Memory::There
    }

    fn lost(&self, id: AllocationId, code: ErrorCode) -> LostRegistration {
        let Deposit { base, owner_allocation_id, .. } = self.deposit;
        LostRegistration { id, birth: self.birth, base, owner_allocation_id, code }
    }
}
