//! What an allocation comes to for whoever wants it, read of all owners that have a say. Must never
//! change anything.

use crate::api::{ClientId, Item, NO_GROUP, NONE, Wanted};
use crate::books::Books;
use crate::books::allocation::{Allocation, State};
use crate::books::clients::Client;
use crate::books::continuity::{DRAINED, Grace};
use crate::books::parked::Wish;
use crate::books::queues::Fate;

use fdbroker_protocol::{AllocationId, ErrorCode, Share, Status};

impl Books {
    /// The client, if it is connected and not gone.
    pub(crate) fn client(&mut self, client: ClientId) -> Option<&mut Client> {
        self.clients.find_mut(client.0).filter(|client| !client.gone)
    }

    /// The client of a number that the state itself holds.
    pub(crate) fn client_mut(&mut self, number: u32) -> &mut Client {
        &mut self.clients[number]
    }

    /// Whether the client may make requests.
    pub(crate) fn welcome(&mut self, client: ClientId) -> bool {
        self.client(client).is_some_and(|client| client.welcome)
    }

    /// The next arrival number.
    pub(crate) fn arrival(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    pub(crate) fn item(&self, client: ClientId, wanted: Wanted) -> Item {
        let id = match wanted {
            Ok(id) => id,
            Err(code) => return Item::Final(code),
        };
        let Some(allocation) = self.allocations.find(id) else {
            return Item::Final(self.end_of_former(id));
        };
        if !self.may_have(client, id.slot, allocation) {
            return Item::Final(ErrorCode::NotPermitted);
        }
        if let State::Ended(code) = allocation.state {
            return Item::Final(code);
        }
        if let Some(code) = self.continuity.lost(id.slot) {
            return Item::Final(code);
        }
        if allocation.outlives_owner() {
            return Item::Ready(id.slot);
        }
        match (allocation.state, self.owner_error(allocation.owner)) {
            (State::Reserved, _) => Item::Reserved(id.slot),
            (_, Some(ErrorCode::OwnerGone)) => Item::Final(ErrorCode::OwnerGone),
            (State::Held | State::Resident, _) => Item::Ready(id.slot),
            (_, Some(code)) => Item::Final(code),
            (State::Recalling, None) => Item::Recalling(id.slot),
            (_, None) => Item::Evicted(id.slot),
        }
    }

    /// Why an item is refused, with the pid of an owner that is silent. Its own domain alone is
    /// told: the pid is a process of a user.
    pub(crate) fn naming_owner(&self, client: ClientId, wanted: Wanted, status: Status) -> Status {
        let (Err(ErrorCode::OwnerSilent), Ok(id)) = (status.result(), wanted) else {
            return status;
        };
        let owner = self.allocations.find(id).and_then(|it| self.clients.find(it.owner));
        let asker = self.clients.find(client.0).map(|asker| asker.domain);
        let pid = owner.filter(|owner| Some(owner.domain) == asker).map_or(0, |owner| owner.pid);
        Status { pid, ..status }
    }

    /// Whether an item of a parked request needs waiting for no more.
    pub(crate) fn has_ended_item(&self, seq: u64) -> bool {
        let parked = &self.parked[&seq];
        let Wish::Acquire(wanted) = &parked.wish else { return false };
        wanted.iter().any(|item| matches!(self.item(parked.by.client, *item), Item::Final(_)))
    }

    /// Whether the client has come too late to deposit anything.
    pub(crate) fn is_turned_away(&mut self, client: u32) -> bool {
        self.draining.is_some_and(|serials| self.clients[client].serial > serials)
    }

    /// The same of one whose slot is free or another's.
    pub(crate) fn end_of_former(&self, id: AllocationId) -> ErrorCode {
        let noted = self.allocations.note(id.slot, id.generation);
        let code = noted.and_then(|noted| ErrorCode::from_number(noted & !DRAINED));
        code.unwrap_or(ErrorCode::Stale)
    }

    /// Whether the broker before the crash had drained an allocation, and its slot is as it left
    /// it.
    pub(crate) fn was_drained(&self, id: AllocationId) -> bool {
        let noted = self.allocations.note(id.slot, id.generation);
        noted.is_some_and(|noted| noted & DRAINED != 0)
    }

    /// Whether an allocation that has ended may be leased without the broker's knowing: clients of
    /// before the crash can declare their leases of it, for its owner to hear when it is drained.
    pub(crate) fn lingers(&self, slot: u32) -> bool {
        let is_former = self.allocations.generation(slot) < self.config.first_generation;
        let is_time = matches!(self.continuity.grace(), Grace::Until(_));
        let owner = self.clients.find(self.allocations[slot].owner);
        let is_owned = owner.is_some_and(|owner| !owner.gone);
        self.continuity.has(slot) || is_owned && is_former && is_time
    }

    /// Whether a client may acquire an allocation, or hold a lease of it.
    fn may_have(&self, client: ClientId, slot: u32, allocation: &Allocation) -> bool {
        let Some(client) = self.clients.find(client.0) else { return false };
        if allocation.domain == client.domain {
            return true;
        }
        match allocation.traits.share() {
            Share::Any => true,
            Share::Gid => {
                let [owners, clients] = [allocation.domain, client.domain]
                    .map(|domain| self.clients.domain_key(domain));
                let has = |gid| client.gid == gid || client.groups.binary_search(&gid).is_ok();
                let is_of = |gid| gid != NO_GROUP && has(gid);
                // Without an owner it has ended: that is what to say.
                owners.listener == clients.listener && self.gid_of(slot).is_none_or(is_of)
            }
            // And one that this release does not know: to nobody else.
            Share::Uid | _ => false,
        }
    }

    /// The group of an allocation's owner, as long as it has one, is kept, or waits for its owner.
    pub(crate) fn gid_of(&self, slot: u32) -> Option<u32> {
        let owner = self.clients.find(self.allocations[slot].owner);
        let gid = owner.map(|owner| owner.gid);
        let gid = gid.or_else(|| self.allocations.orphan(slot).map(|orphan| orphan.gid));
        gid.or_else(|| self.continuity.gid_of(slot))
    }

    /// The number of the job of an allocation's owner; of a kept one without an owner, and of named
    /// objects, the job that has left it.
    pub(crate) fn job_of_slot(&self, slot: u32) -> Option<u32> {
        match self.allocations[slot].owner {
            NONE => match self.allocations.orphan(slot) {
                Some(orphan) => orphan.job,
                None => self.objects.groups.in_slot(slot)?.job,
            },
            owner => self.clients.find(owner)?.job,
        }
    }

    /// Whether one of its items has come to an end that a parked request is answered with.
    pub(crate) fn is_answer_certain(&self, seq: u64) -> bool {
        let Some(parked) = self.parked.get(&seq) else { return false };
        let is_answer = |node: &u32| matches!(self.waiting.fate(*node), Some(Fate::Answer(..)));
        parked.nodes.iter().any(is_answer)
    }
}
