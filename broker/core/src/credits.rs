//! Deposit credits: places that are reserved for the next deposits of a client. Idle ones count as free: they are taken
//! back when another needs the place. Must never take back the credit that a client has waited for.

use crate::Core;
use crate::acquire::Turn;
use crate::api::{ClientId, Effects, Now, RequestId};
use crate::ledger::{Blocked, Charge, FOR_CREDIT};
use crate::parked::{Parked, Wait, Wish};
use fdbroker_protocol::{ErrorCode, Resource, Scope, Status};

/// What a client is charged with for so many credits.
fn places(count: u64) -> Charge {
    Charge(Resource::ReservedPlaces, count)
}

impl Core {
    /// The credits of a client change, and with them its idle ones; it is charged for them already.
    pub(crate) fn set_credits(&mut self, number: u32, credits: u64, is_waited_for: bool) {
        let place = self.clients.next_creditor();
        let record = self.client_mut(number);
        (record.credits, record.credit_waited_for) = (credits, is_waited_for);
        let (scope, idle) = (record.scope, credits - u64::from(is_waited_for));
        let more = idle > self.ledger[scope].idle_credits;
        self.ledger.set_idle_credits(scope, idle, place);
        if more {
            self.ledger.can_be_had(scope);
        }
    }

    /// A client uses credits up, from the one on that it has waited for.
    pub(crate) fn use_credits(&mut self, number: u32, count: u64) {
        let record = self.client_mut(number);
        let (left, waited) = (record.credits - count, record.credit_waited_for && count == 0);
        self.set_credits(number, left, waited);
    }

    /// Takes back idle credits in the scope in which a charge did not fit, those first that were given first. `false`: the
    /// charge would not fit all the same, and they stay.
    pub(crate) fn take_idle_credits(&mut self, blocked: Blocked, amount: u64) -> bool {
        let short_of = self.ledger.short_of_credits(blocked, amount);
        let Some(mut left) = short_of.filter(|left| *left > 0) else { return false };
        while left > 0
            && let Some((_, number)) = self.ledger[blocked.scope].creditors.first_key()
        {
            let most = u64::from(self.config.max_credits);
            let record = self.client_mut(number);
            let (credits, is_waited_for) = (record.credits, record.credit_waited_for);
            let taken = left.min(credits - u64::from(is_waited_for));
            record.credits_taken = most.min(record.credits_taken + taken);
            self.undo_charge(number, places(taken));
            self.set_credits(number, credits - taken, is_waited_for);
            left -= taken;
        }
        true
    }

    /// A client has sent fds for credits that were taken back, as it could not know. They get places all the same, if there are
    /// some and its domain has not used up its share; `false`: they get none.
    pub(crate) fn give_again(&mut self, number: u32, count: u64) -> bool {
        let record = self.client_mut(number);
        let (scope, credits) = (record.scope, record.credits);
        let is_waited_for = record.credit_waited_for;
        record.credits_taken = record.credits_taken.saturating_sub(count);
        let domain = record.domain;
        if self.beyond_share_of_held(domain).is_some()
            || self.ahead(Turn::Last, number, FOR_CREDIT).is_some()
        {
            return false;
        }
        // Those that it still has are not taken for the others.
        self.ledger.set_idle_credits(scope, 0, 0);
        let is_given = self.charge(number, places(count - credits)).is_ok();
        self.set_credits(number, if is_given { count } else { credits }, is_waited_for);
        is_given
    }

    /// Brings the credits of a client to what it wants, as far as there is free room; gives the number.
    pub(crate) fn adjust_credits(&mut self, number: u32, wanted: u64) -> u32 {
        let (base, most) = (self.config.base_credits.into(), self.config.max_credits.into());
        let target = wanted.max(base).min(most);
        let now = self.client_mut(number).credits;
        let now = if now > target {
            self.release_charge(number, places(now - target));
            target
        } else {
            // Half of the room, so that a burst of one client leaves some to the others. The requests
            // that wait for room come first.
            let room = if self.rooms.is_empty() { self.held_room(number) } else { 0 };
            let more = (target - now).min(room.div_ceil(2));
            self.charge(number, places(more)).expect("the room was just measured");
            now + more
        };
        let is_waited_for = self.client_mut(number).credit_waited_for;
        self.set_credits(number, now, is_waited_for && now > 0);
        u32::try_from(now).expect("at most max_credits")
    }

    /// Answers a wait for credits if one can be had.
    pub(crate) fn try_credits(
        &mut self,
        client: ClientId,
        request: RequestId,
        wanted: u64,
        turn: Turn,
        fx: &mut Effects,
    ) -> Option<Wait> {
        // It may have got some by another request meanwhile.
        if self.client_mut(client.0).credits == 0 {
            if let Some(blocked) = self.ahead(turn, client.0, FOR_CREDIT) {
                return Some(Wait::Room(blocked));
            }
            let domain = self.client_mut(client.0).domain;
            if let Some(share) = self.beyond_share_of_held(domain) {
                return Some(Wait::Space(share));
            }
            if let Err(blocked) = self.charge(client.0, places(1)) {
                if self.may_make_room(blocked) {
                    self.evict_for(blocked, 1, fx);
                }
                return Some(Wait::Room(blocked));
            }
            let more = wanted.saturating_sub(1).min(self.held_room(client.0) / 2);
            self.charge(client.0, places(more)).expect("the room was just measured");
            self.set_credits(client.0, 1 + more, true);
        }
        self.answer_registered(client, request, fx.registered.len(), fx);
        None
    }

    /// A client without credits asks for some, and waits for the first.
    pub(crate) fn wait_for_credits(
        &mut self,
        client: ClientId,
        request: RequestId,
        wanted: u64,
        deadline: Now,
        fx: &mut Effects,
    ) {
        let Some(wait) = self.try_credits(client, request, wanted, Turn::Last, fx) else { return };
        let most = self.config.max_parked_per_client;
        let status = if deadline <= self.now || self.is_credit_beyond_caps(client.0) {
            self.no_credit(client)
        } else if self.client_mut(client.0).parked.len() >= most as usize {
            Self::no_quota_limit(Resource::ParkedRequests, Scope::Client, most.into())
        } else {
            let (seq, wish) = (self.arrival(), Wish::Credits(wanted));
            self.park(seq, Parked::new(client, request, deadline, wish, wait));
            return;
        };
        self.refuse(client, request, status, fx);
    }

    /// Whether a cap leaves no place for a held fd, whatever others give back: beside the fds that the client has by itself.
    fn is_credit_beyond_caps(&self, client: u32) -> bool {
        let scope = self.scope_of(client);
        let own = self.ledger[scope].account.counted(Resource::OwnFds);
        let cap = |of, resource| self.ledger.cap(of, resource);
        self.ledger
            .path(scope)
            .any(|of| cap(of, Resource::HeldFds) == 0 || cap(of, Resource::Fds) <= own)
    }

    /// Why there is no credit for a client now.
    pub(crate) fn no_credit(&mut self, client: ClientId) -> Status {
        let domain = self.client_mut(client.0).domain;
        if let Some(share) = self.beyond_share_of_held(domain) {
            return self.no_quota(share);
        }
        let full = self.blocked(client.0, places(1));
        match full.or_else(|| self.ahead(Turn::Last, client.0, FOR_CREDIT)) {
            Some(blocked) => self.no_quota(blocked),
            None => ErrorCode::Again.into(),
        }
    }
}
