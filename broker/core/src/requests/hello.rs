//! Hello: a client is let in as soon as its connection and what it declares fit, and waits for that
//! until its deadline, like any request. Before, its connection has nothing but its socket, for
//! which the daemon has a place. Must never take from others for a client that cannot be let in.

use crate::api::{Asker, ClientId, Effect, Now};
use crate::books::{
    Blocked, Books, Charge, Client, PLACES, Parked, SHARE_OF_FDS, ScopeId, Wait, Wish,
};
use crate::core::Core;
use crate::limits::{HELLO_IN_LINE_FDS, IDLE_FDS_KEPT};
use crate::moves::Step;
use crate::requests::turn::Turn;
use fdbroker_protocol::admin::EventKind;
use fdbroker_protocol::{ErrorCode, MAX_BATCH, Resource, Scope, Status};

/// Resources of which a hello takes some; the first one always, the others if it declares fds.
const FOR_HELLO: &[Resource] = &[Resource::TablePlaces, Resource::Fds, SHARE_OF_FDS];

impl Core {
    pub(crate) fn hello(&mut self, by: Asker, own_fds: u32, deadline: Now, step: &mut Step) {
        let client = by.client;
        let Some(record) = self.books.client(client) else { return };
        if record.welcome || !record.parked.is_empty() {
            return self.refuse_stranger(by, step);
        }
        let own = u64::from(own_fds);
        let Err(blocked) = self.let_in(by, own, Turn::Last, step) else { return };
        if deadline <= step.now || own > self.most_own_fds().1 {
            return self.refuse_hello(by, own, blocked, step);
        }
        let wait = self.wait_of_hello(client.0, own, blocked, step);
        let (seq, wish) = (self.books.arrival(), Wish::Hello(own));
        self.books.park(seq, Parked::new(by, deadline, wish, wait), step);
    }

    /// A client ends. If it is not let in yet, so does its parked hello.
    pub(crate) fn give_up_hello(&mut self, client: ClientId, status: Status, step: &mut Step) {
        let record = self.books.client(client).filter(|record| !record.welcome);
        for seq in record.map_or(Vec::new(), |record| record.parked.clone()) {
            if let Some(Parked { by, .. }) = self.books.unpark(seq, step) {
                step.fail(by, status);
            }
        }
        step.fx.list.push(Effect::Disconnect { client, status });
    }

    /// Lets a client in, charged with what it declares; or says which cap is in the way.
    pub(crate) fn let_in(
        &mut self,
        by: Asker,
        own: u64,
        turn: Turn,
        step: &mut Step,
    ) -> Result<(), Blocked> {
        let needs = if own > 0 { FOR_HELLO } else { &FOR_HELLO[..1] };
        let client = by.client;
        if let Some(blocked) = self.ahead(turn, client.0, needs) {
            return Err(blocked);
        }
        let Client { scope, domain, .. } = self.books.clients[client.0];
        let own_fds = Charge(Resource::OwnFds, own);
        let share = self
            .books
            .beyond_share_of_places(domain)
            .or_else(|| self.books.beyond_share_of_fds(domain, own));
        let blocked =
            share.or_else(|| self.books.ledger.blocked(&[(scope, own_fds), (scope, PLACES)]));
        if let Some(blocked) = blocked {
            return Err(blocked);
        }
        for charge in [own_fds, PLACES] {
            self.books.charge(client.0, charge).expect("nothing was in the way just now");
        }
        let record = self.books.client_mut(client.0);
        record.own_fds = own;
        record.welcome = true;
        self.books.note_of_client(EventKind::Connected, client.0, Status::OK);
        let deposit_credits = self.adjust_credits(client.0, 0);
        let request = by.request;
        step.fx.list.push(Effect::Welcome { client, request, deposit_credits });
        Ok(())
    }

    /// Refuses a hello: it declares more than any client could have, or something is in its way.
    pub(crate) fn refuse_hello(&mut self, by: Asker, own: u64, blocked: Blocked, step: &mut Step) {
        let status = match self.most_own_fds() {
            (scope, most) if own > most => Books::no_quota_limit(Resource::OwnFds, scope, most),
            _ => self.books.no_quota(blocked),
        };
        let (client, status) = (by.client, self.books.refused(by.client.0, status));
        step.fail(by, status);
        step.fx.list.push(Effect::Disconnect { client, status });
    }

    /// The most fds of its own that any client could have: the smallest cap of fds, and its scope.
    fn most_own_fds(&self) -> (Scope, u64) {
        let caps = self.books.ledger.caps().iter().map(|(scope, caps)| (scope, caps.fds));
        caps.min_by_key(|(_, cap)| *cap).unwrap_or((Scope::Node, u64::MAX))
    }

    /// What a hello waits for that something is in the way of. It has room made, and stands in line
    /// with other requests if these must leave to it what comes back: one that declares many fds
    /// would hold them all up until so many are free, and one for whose connection nothing comes
    /// back, or the share of its domain is used up, for no use.
    #[allow(clippy::wildcard_enum_match_arm, reason = "few resources have a rule of their own")]
    pub(crate) fn wait_of_hello(
        &mut self,
        client: u32,
        own: u64,
        blocked: Blocked,
        step: &mut Step,
    ) -> Wait {
        if own <= MAX_BATCH as u64 && self.books.may_make_room(blocked) {
            self.make_room_for_hello(client, own, blocked, step);
        }
        let lacks = |(at, amount): &(Blocked, u64)| self.books.ledger.lacking(*at, *amount) > 0;
        step.also_blocked =
            self.needs_of_hello(client, own).into_iter().filter(lacks).map(|it| it.0).collect();
        let node = &self.books.ledger[ScopeId::NODE];
        let table_to_be = self.books.ledger.table_room_after(node.idle_credits + node.coming);
        let is_in_line = match blocked.resource {
            _ if blocked == Blocked::TABLE => table_to_be >= PLACES.1,
            Resource::Fds => own <= HELLO_IN_LINE_FDS,
            _ => false,
        };
        if is_in_line { Wait::Room(blocked) } else { Wait::Space(blocked) }
    }

    /// The accounts that letting a client in takes from, and how much.
    fn needs_of_hello(&self, client: u32, own: u64) -> Vec<(Blocked, u64)> {
        let (scopes, resource) =
            (self.books.ledger.path(self.books.scope_of(client)), Resource::Fds);
        let caps = scopes.map(|scope| Blocked { resource, scope });
        caps.map(|at| (at, own)).chain([(Blocked::TABLE, PLACES.1)]).collect()
    }

    /// Has as many idle fds closed as a hello is short of, if that lets it in: else it would cost
    /// others their fds and help nobody. One that declares few fds has clients asked for leases,
    /// too.
    fn make_room_for_hello(&mut self, client: u32, own: u64, blocked: Blocked, step: &mut Step) {
        let short_of = |at: Blocked, amount| {
            let lacking = if amount > 0 { self.books.ledger.lacking(at, amount) } else { 0 };
            lacking.saturating_sub(self.books.ledger[at.scope].idle_credits)
        };
        let closable = |at: Blocked| {
            let kept = if at == Blocked::TABLE { IDLE_FDS_KEPT } else { 0 };
            self.books.ledger[at.scope].evictable.saturating_sub(kept)
        };
        let mut needs = self.needs_of_hello(client, own).into_iter();
        let can_be_made = needs.all(|(at, amount)| short_of(at, amount) <= closable(at));
        let amount = if blocked == Blocked::TABLE { PLACES.1 } else { own };
        let count = usize::try_from(short_of(blocked, amount)).unwrap_or(usize::MAX);
        if can_be_made && (blocked == Blocked::TABLE || blocked.resource == Resource::Fds) {
            self.books.evict_for(blocked, count, step);
        } else if own <= HELLO_IN_LINE_FDS {
            self.books.reclaim(blocked, count, step);
        }
    }

    /// A request before hello; or one that the daemon read just before it learnt of the client's
    /// end.
    pub(crate) fn refuse_stranger(&mut self, by: Asker, step: &mut Step) {
        let client = by.client;
        if self.books.client(client).is_some() {
            let status = ErrorCode::Protocol.into();
            step.fail(by, status);
            self.give_up_hello(client, status, step);
        }
    }
}
