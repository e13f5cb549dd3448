//! The registrations of a client: what each was made with, so that it can be named again to another
//! broker. Must never name what its owner has freed, replaced or ended.

use crate::books::one_way::{Line, OneWay, OwnerKey, Unregister};
use crate::books::spans::{Spans, place_of};
use crate::deposit::{Deposit, Registration, RegistrationRef};
use crate::limits::RETIRED_KEPT;
use fdbroker_protocol::handle::TOKEN_BYTES;
use fdbroker_protocol::message::{RedepositItem, register_flags};
use fdbroker_protocol::{AllocationId, ErrorCode, Facts, Handle};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

/// Every registration of this client that has not ended, by id and by address.
#[derive(Debug, Default)]
pub(super) struct Registrations {
    all: HashMap<AllocationId, Entry>,
    /// Of those that have an address.
    places: Spans<AllocationId>,
    /// Those that wait to be named; some of them may have ended.
    waiting: VecDeque<AllocationId>,
    /// Those that were retired and are drained, the latest of them.
    drained: BTreeSet<AllocationId>,
}

#[derive(Debug)]
struct Entry {
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
    /// It has ended, and its owner waits for its drain.
    awaits_drain: bool,
    /// Its owner asks whether it is drained.
    is_retired: bool,
}

/// Whether what was registered is there still, by its owner's words. If not it stays to be
/// unregistered, or drained.
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
    /// And which of them have ended.
    ids: Vec<(AllocationId, bool)>,
}

/// What came of naming some.
#[derive(Debug, Default)]
pub(crate) struct Named {
    /// They have been ended meanwhile, and are now to be ended there.
    pub ended: Vec<Unregister>,
    /// They have ended with the former broker.
    pub lost: Vec<LostRegistration>,
    /// They had ended, and the broker is going to say when they are drained.
    pub adopted: Vec<OwnerKey>,
    /// They had ended, and are drained.
    pub drained: Vec<OwnerKey>,
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
    /// It was known to a broker that is gone, and is not named to the next one, or as ended.
    Away,
    /// It had ended before, and the broker of the moment is going to say when it is drained.
    Draining,
    /// No registration has this id.
    Absent,
    /// A buffer's, which ends it by itself.
    Kept,
}

impl Registrations {
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Another broker: what can be named to it waits; the rest has ended.
    pub fn begin(&mut self, is_closed: &dyn Fn(u64) -> bool) -> Vec<LostRegistration> {
        self.waiting.clear();
        let is_lost = |_: &AllocationId, named: &mut Entry| {
            let Deposit { recallable, keep, base, .. } = named.deposit;
            let can_be_named = keep || recallable && !is_closed(base);
            !named.is_named_as_ended() && (!can_be_named || named.is_over())
        };
        let lost: Vec<(AllocationId, Entry)> = self.all.extract_if(is_lost).collect();
        for (id, named) in &mut self.all {
            if named.is_over() {
                named.count = 0;
            }
            named.standing = Standing::Waiting;
            self.waiting.push_back(*id);
        }
        let ended = lost.into_iter().filter_map(|(id, named)| {
            self.vacate(&named, id);
            (named.count > 0 && !named.is_gone()).then(|| named.lost(id, ErrorCode::Lost))
        });
        ended.collect()
    }

    /// The broker has ended it, and nobody has a lease of it.
    pub fn forget(&mut self, id: AllocationId) {
        if self.remove(id).is_some_and(|named| named.is_retired) {
            self.drained.insert(id);
        }
        if self.drained.len() > RETIRED_KEPT {
            self.drained.pop_first();
        }
    }

    /// Ends all that is left of its count, for an owner that asks from now on whether it is
    /// drained. What the broker is to be told.
    pub fn retire(&mut self, id: AllocationId, line: Option<&Arc<dyn Line>>) -> Vec<OneWay> {
        let mut told = Vec::new();
        loop {
            match self.end(id.into(), line.cloned(), true) {
                Ending::Tell(_) => {
                    told.push(OneWay::Unregister(Unregister { id, key: self.key_of(id) }));
                }
                Ending::Counted | Ending::Away => {}
                Ending::Draining | Ending::Absent | Ending::Kept => break,
            }
        }
        if let Some(named) = self.all.get_mut(&id) {
            named.is_retired = true;
        }
        told
    }

    /// Whether one that was retired is drained. `None`: nobody can say.
    pub fn is_drained(&self, id: AllocationId) -> Option<bool> {
        let awaits = || self.all.get(&id).filter(|named| named.is_retired).map(|_| false);
        self.drained.contains(&id).then_some(true).or_else(awaits)
    }

    /// The broker has heard that it has ended: another one need not, unless its owner waits for its
    /// drain.
    pub fn note_heard(&mut self, id: AllocationId) {
        if self.all.get(&id).is_some_and(|named| named.count == 0 && !named.awaits_drain) {
            self.remove(id);
        }
    }

    fn remove(&mut self, id: AllocationId) -> Option<Entry> {
        let named = self.all.remove(&id)?;
        self.vacate(&named, id);
        Some(named)
    }

    fn vacate(&mut self, named: &Entry, id: AllocationId) {
        if let Some(place) = place_of(&named.deposit)
            && self.places.get(place) == Some(&id)
        {
            self.places.remove(place);
        }
    }

    /// It is about to be registered: whatever else was in its range is not there any more, whatever
    /// the answer.
    pub fn supersede(&mut self, deposit: &Deposit) {
        let Some(place) = place_of(deposit) else { return };
        for other in self.places.overlapping(place, deposit.facts.size_bytes) {
            let id = *self.places.get(other).expect("just found");
            if self.all.get(&id).is_some_and(|named| !named.deposit.is_same(deposit)) {
                self.note_gone(id, Memory::Replaced);
            }
        }
    }

    /// The broker counts it again, so it lives there: what was about to replace it has not come to
    /// be.
    fn note_living(&mut self, id: AllocationId) {
        let Some(named) = self.all.get_mut(&id) else { return };
        let Some(place) = place_of(&named.deposit) else { return };
        let size_bytes = named.deposit.facts.size_bytes;
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
            let has_ended = named.is_named_as_ended();
            if named.standing != Standing::Waiting || named.is_gone() && !has_ended {
                continue;
            }
            named.standing = Standing::Asked;
            let Entry { deposit, handle, token, .. } = *named;
            let mut item = deposit.to_item();
            item.flags |= if has_ended { register_flags::ENDED } else { 0 };
            naming.items.push(RedepositItem { item, handle: handle.into(), token });
            naming.ids.push((id, has_ended));
        }
        naming
    }

    /// A registration just made; the epoch that it is known by from now on: the first one's, if it
    /// is counted again. One that the broker of the moment does not know waits to be named.
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
            self.places.insert(place, deposit.facts.size_bytes, id);
        }
        let standing = if is_known { Standing::Known } else { Standing::Waiting };
        let Registration { handle, token, epoch: birth } = *registration;
        let (deposit, memory) = (*deposit, Memory::There);
        let (count, at_broker, awaits_drain, is_retired) = (1, 1, false, false);
        let named = Entry {
            deposit,
            handle,
            token,
            birth,
            count,
            at_broker,
            memory,
            standing,
            awaits_drain,
            is_retired,
        };
        self.all.insert(id, named);
        self.waiting.extend((!is_known).then_some(id));
        birth
    }

    /// An allocation that is registered, as its owner knows it.
    pub fn key_of(&self, id: AllocationId) -> Option<OwnerKey> {
        self.all.get(&id).map(Entry::key)
    }

    pub fn is_another(&self, handle: &Handle) -> bool {
        self.all.get(&handle.id()).is_some_and(|named| named.handle.prefix != handle.prefix)
    }

    /// Whether it is known to the broker, or is going to be named to the next.
    pub fn has(&self, registration: &Registration) -> bool {
        let named = self.all.get(&registration.id());
        named.is_some_and(|named| named.birth == registration.epoch && named.count > 0)
    }

    /// Ends one registration, the last of its count for good. `line` leads to the broker of the
    /// moment. `awaits_drain`: its owner is to hear when it is drained, of this broker or another
    /// one.
    pub fn end(
        &mut self,
        what: RegistrationRef,
        line: Option<Arc<dyn Line>>,
        awaits_drain: bool,
    ) -> Ending {
        let Some(named) = self.all.get_mut(&what.id) else { return Ending::Absent };
        if what.epoch.is_some_and(|epoch| epoch != named.birth) {
            return Ending::Absent;
        }
        if named.count == 0 {
            let is_told = named.awaits_drain && named.standing == Standing::Known;
            return if is_told { Ending::Draining } else { Ending::Absent };
        }
        named.count -= 1;
        if named.count >= named.at_broker {
            return Ending::Counted;
        }
        named.at_broker = named.at_broker.saturating_sub(1);
        let (is_last, standing) = (named.count == 0, named.standing);
        if is_last && (awaits_drain || named.deposit.keep) {
            named.awaits_drain = awaits_drain;
            self.note_gone(what.id, Memory::Gone);
        } else if is_last && standing != Standing::Asked {
            // Of one that is asked for the answer is awaited: it is ended then.
            self.remove(what.id);
        }
        match (standing, line) {
            (Standing::Known, Some(line)) => Ending::Tell(line),
            _ => Ending::Away,
        }
    }

    /// The answers to what was named, in its order; `Ok(true)`: it is drained. What answers AGAIN
    /// waits to be named again, if `may_retry`.
    pub fn note_named(
        &mut self,
        naming: &Naming,
        answers: &[Result<bool, ErrorCode>],
        may_retry: bool,
    ) -> Named {
        debug_assert_eq!(answers.len(), naming.ids.len());
        let mut came = Named::default();
        for ((id, had_ended), answer) in naming.ids.iter().zip(answers) {
            let id = *id;
            // Superseded meanwhile, or drained: the broker is to forget it, too.
            let Some(named) = self.all.get_mut(&id) else {
                let is_alive = answer.is_ok() && !had_ended;
                came.ended.extend(is_alive.then_some(Unregister { id, key: None }));
                continue;
            };
            let key = named.key();
            match answer {
                Ok(true) => {
                    self.forget(id);
                    came.drained.push(key);
                }
                Ok(false) if named.is_named_as_ended() => {
                    named.standing = Standing::Known;
                    came.adopted.push(key);
                    let key = Some(key);
                    came.ended.extend((!had_ended).then_some(Unregister { id, key }));
                }
                Ok(false) if named.is_over() => {
                    self.remove(id);
                    came.ended.push(Unregister { id, key: None });
                }
                Ok(false) => (named.standing, named.at_broker) = (Standing::Known, 1),
                Err(ErrorCode::Again)
                    if may_retry && (named.count > 0 || named.is_named_as_ended()) =>
                {
                    named.standing = Standing::Waiting;
                    self.waiting.push_back(id);
                }
                Err(code) => {
                    let named = self.remove(id).expect("just found");
                    let is_told = named.count > 0 && !named.is_gone();
                    came.lost.extend(is_told.then(|| named.lost(id, *code)));
                }
            }
        }
        came
    }
}

impl Entry {
    fn key(&self) -> OwnerKey {
        let Deposit { base, facts: Facts { owner_allocation_id, .. }, .. } = self.deposit;
        OwnerKey { base, owner_allocation_id }
    }

    fn is_gone(&self) -> bool {
        self.memory != Memory::There
    }

    fn is_over(&self) -> bool {
        self.count == 0 || self.is_gone()
    }

    /// Whether another broker is to hear that it has ended: its owner waits for its drain; or it is
    /// kept, and would outlive this connection for a time.
    fn is_named_as_ended(&self) -> bool {
        self.awaits_drain || self.deposit.keep && self.is_over()
    }

    fn lost(&self, id: AllocationId, code: ErrorCode) -> LostRegistration {
        let Deposit { base, facts: Facts { owner_allocation_id, .. }, .. } = self.deposit;
        LostRegistration { id, birth: self.birth, base, owner_allocation_id, code }
    }
}
