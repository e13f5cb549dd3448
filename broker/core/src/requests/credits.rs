//! Deposit credits: places that are reserved for the next deposits of a client. Idle ones count as
//! free: they are taken back when another needs the place. Must never take back the credit that a
//! client has waited for.

use crate::api::{Asker, ClientId, Now};
use crate::books::{Client, FOR_CREDIT, Wait, Wish};
use crate::core::Core;
use crate::moves::Step;
use crate::moves::charging::places;
use crate::requests::turn::{Attempt, Turn};
use fdbroker_protocol::{ErrorCode, Resource, Status};

impl Core {
    /// A client has sent fds for credits that were taken back, as it could not know. They get
    /// places all the same, if there are some and its domain has not used up its share; `false`:
    /// they get none. What it may send is less by these, and by no more: the messages behind this
    /// one count on the rest.
    pub(crate) fn give_again(&mut self, number: u32, count: u64) -> bool {
        let short_of = count - self.books.clients[number].credits;
        let is_given = self.give_more(number, short_of);
        let record = self.books.client_mut(number);
        let gone = if is_given { short_of } else { count };
        record.credits_taken = record.credits_taken.saturating_sub(gone);
        is_given
    }

    /// Gives a client so many credits more, or none.
    fn give_more(&mut self, number: u32, more: u64) -> bool {
        let Client { scope, domain, credits, credit_waited_for: is_waited_for, .. } =
            self.books.clients[number];
        if self.books.beyond_share_of_held(domain).is_some()
            || self.ahead(Turn::Last, number, FOR_CREDIT).is_some()
        {
            return false;
        }
        // Those that it still has are not taken for the others.
        self.books.ledger.set_idle_credits(scope, 0, 0);
        let is_given = self.books.charge(number, places(more)).is_ok();
        self.books.set_credits(
            number,
            if is_given { credits + more } else { credits },
            is_waited_for,
        );
        is_given
    }

    /// Brings the credits of a client to what it wants, as far as there is free room; gives the
    /// number.
    pub(crate) fn adjust_credits(&mut self, number: u32, wanted: u64) -> u32 {
        let (base, most) =
            (self.books.config.base_credits.into(), self.books.config.max_credits.into());
        let target = wanted.max(base).min(most);
        let now = self.books.client_mut(number).credits;
        let now = if now > target {
            self.books.release_charge(number, places(now - target));
            // Messages that are on their way count on them.
            self.books.client_mut(number).note_taken(now - target, most);
            target
        } else {
            // Half of the room, so that a burst of one client leaves some to the others. The
            // requests that wait for room come first.
            let room = if self.books.rooms.is_empty() { self.books.held_room(number) } else { 0 };
            let more = (target - now).min(room.div_ceil(2));
            self.books.charge(number, places(more)).expect("the room was just measured");
            now + more
        };
        let is_waited_for = self.books.client_mut(number).credit_waited_for;
        self.books.set_credits(number, now, is_waited_for && now > 0);
        u32::try_from(now).expect("at most max_credits")
    }

    /// Answers a wait for credits if one can be had.
    pub(crate) fn try_credits(
        &mut self,
        by: Asker,
        wanted: u64,
        turn: Turn,
        step: &mut Step,
    ) -> Option<Wait> {
        let client = by.client;
        // It may have got some by another request meanwhile.
        if self.books.client_mut(client.0).credits == 0 {
            if let Some(blocked) = self.ahead(turn, client.0, FOR_CREDIT) {
                return Some(Wait::Room(blocked));
            }
            let domain = self.books.client_mut(client.0).domain;
            if let Some(share) = self.books.beyond_share_of_held(domain) {
                return Some(Wait::Space(share));
            }
            if let Err(blocked) = self.books.charge(client.0, places(1)) {
                if self.books.may_make_room(blocked) {
                    self.books.evict_for(blocked, 1, step);
                }
                return Some(Wait::Room(blocked));
            }
            let more = wanted.saturating_sub(1).min(self.books.held_room(client.0) / 2);
            self.books.charge(client.0, places(more)).expect("the room was just measured");
            self.books.set_credits(client.0, 1 + more, true);
        }
        self.answer_registered(by, step.fx.registered.len(), step);
        None
    }

    /// A client without credits asks for some, and waits for the first.
    pub(crate) fn wait_for_credits(
        &mut self,
        by: Asker,
        wanted: u64,
        deadline: Now,
        step: &mut Step,
    ) {
        let Some(wait) = self.try_credits(by, wanted, Turn::Last, step) else { return };
        let client = by.client;
        let status = if deadline <= step.now || self.is_credit_beyond_caps(client.0) {
            self.no_credit(client)
        } else {
            let attempt = Attempt::new(by, self.books.arrival(), deadline);
            match self.park(attempt, Wish::Credits(wanted), wait, step) {
                Ok(()) => return,
                Err(status) => status,
            }
        };
        self.books.refuse(by, status, step);
    }

    /// Whether a cap leaves no place for a held fd, whatever others give back: beside the fds that
    /// the client has by itself.
    fn is_credit_beyond_caps(&self, client: u32) -> bool {
        let (scope, ledger) = (self.books.scope_of(client), &self.books.ledger);
        let own = ledger[scope].account.counted(Resource::OwnFds);
        let cap = |of, resource| ledger.cap(of, resource);
        ledger
            .path(scope)
            .any(|of| cap(of, Resource::HeldFds) == 0 || cap(of, Resource::Fds) <= own)
    }

    /// Why there is no credit for a client now.
    pub(crate) fn no_credit(&mut self, client: ClientId) -> Status {
        let domain = self.books.client_mut(client.0).domain;
        if let Some(share) = self.books.beyond_share_of_held(domain) {
            return self.books.no_quota(share);
        }
        let full = self.books.blocked(client.0, places(1));
        match full.or_else(|| self.ahead(Turn::Last, client.0, FOR_CREDIT)) {
            Some(blocked) => self.books.no_quota(blocked),
            None => ErrorCode::Again.into(),
        }
    }
}
