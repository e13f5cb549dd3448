//! Hello: a client is let in as soon as what it declares fits, and waits for that until its deadline, like any request.
//! Must never take from others for a client that cannot be let in.

use crate::Core;
use crate::acquire::Turn;
use crate::api::{ClientId, Effect, Effects, Now, RequestId};
use crate::ledger::{Blocked, Charge, SHARE_OF_FDS};
use crate::limits::HELLO_IN_LINE_FDS;
use crate::state::{Parked, Wait, Wish};
use fdbroker_protocol::admin::EventKind;
use fdbroker_protocol::{MAX_BATCH, Resource, Status};

/// Resources of which a hello takes some.
const FOR_HELLO: &[Resource] = &[Resource::Fds, SHARE_OF_FDS];

impl Core {
    pub(crate) fn hello(
        &mut self,
        client: ClientId,
        request: RequestId,
        own_fds: u32,
        deadline: Now,
        fx: &mut Effects,
    ) {
        let Some(record) = self.client(client) else { return };
        if record.welcome || !record.parked.is_empty() {
            return self.refuse_stranger(client, request, fx);
        }
        let own = u64::from(own_fds);
        let Err(blocked) = self.let_in(client, request, own, Turn::Last, fx) else { return };
        if deadline <= self.now || own > self.most_own_fds() {
            return self.refuse_hello(client, request, self.no_quota(blocked), fx);
        }
        let (seq, wish, nodes) = (self.arrival(), Wish::Hello(own), Box::default());
        let wait = hello_waits(own, blocked);
        self.park(seq, Parked { client, request, deadline, wish, nodes, wait, supplied: false });
        self.make_room_for_hello(own, blocked, fx);
    }

    /// The client's own bound of what is held for it, beside its caps.
    pub(crate) fn bound_held(&mut self, client: ClientId, fds: u32) {
        if let Some(record) = self.client(client).filter(|record| !record.welcome) {
            record.most_held = Some(fds);
            let scope = record.scope;
            self.ledger.bound_held(scope, fds.into());
        }
    }

    /// Looks at a parked hello again; says what it still waits for.
    pub(crate) fn retry_hello(
        &mut self,
        client: ClientId,
        request: RequestId,
        own: u64,
        turn: Turn,
        fx: &mut Effects,
    ) -> Option<Wait> {
        let blocked = self.let_in(client, request, own, turn, fx).err()?;
        self.make_room_for_hello(own, blocked, fx);
        Some(hello_waits(own, blocked))
    }

    /// The deadline of a hello has passed: the client is let in now, or never.
    pub(crate) fn hello_too_late(
        &mut self,
        client: ClientId,
        request: RequestId,
        own: u64,
        fx: &mut Effects,
    ) {
        if let Err(blocked) = self.let_in(client, request, own, Turn::Last, fx) {
            self.refuse_hello(client, request, self.no_quota(blocked), fx);
        }
    }

    /// A client that is not let in yet ends: so does its parked hello.
    pub(crate) fn give_up_hello(&mut self, client: ClientId, status: Status, fx: &mut Effects) {
        let Some(record) = self.client(client).filter(|record| !record.welcome) else { return };
        for seq in record.parked.clone() {
            if let Some(Parked { request, .. }) = self.unpark(seq) {
                fx.list.push(Effect::Failed { client, request, status });
            }
        }
    }

    /// Lets a client in, charged with what it declares; or says which cap is in the way.
    fn let_in(
        &mut self,
        client: ClientId,
        request: RequestId,
        own: u64,
        turn: Turn,
        fx: &mut Effects,
    ) -> Result<(), Blocked> {
        if own > 0
            && let Some(blocked) = self.ahead(turn, client.0, FOR_HELLO)
        {
            return Err(blocked);
        }
        self.charge_share(client.0, Charge(Resource::OwnFds, own))?;
        let record = self.client_mut(client.0);
        record.own_fds = own;
        record.welcome = true;
        self.note_of_client(EventKind::Connected, client.0, Status::OK);
        let deposit_credits = self.adjust_credits(client.0, 0);
        fx.list.push(Effect::Welcome { client, request, deposit_credits });
        Ok(())
    }

    fn refuse_hello(
        &mut self,
        client: ClientId,
        request: RequestId,
        status: Status,
        fx: &mut Effects,
    ) {
        self.count_refusal(client.0, status);
        fx.list.push(Effect::Failed { client, request, status });
        fx.list.push(Effect::Disconnect { client, status });
    }

    /// The most fds of its own that any client could have.
    fn most_own_fds(&self) -> u64 {
        self.ledger.caps().iter().map(|(_, caps)| caps.fds).fold(u64::MAX, u64::min)
    }

    /// Has as many idle fds closed as a hello is short of, if that lets it in: else it would cost others their fds and
    /// help nobody. One that declares few fds has clients asked for leases, too.
    fn make_room_for_hello(&mut self, own: u64, blocked: Blocked, fx: &mut Effects) {
        if own > MAX_BATCH as u64 || !self.may_make_room(blocked) {
            return;
        }
        let Blocked { resource, scope } = blocked;
        let lacking = self.ledger.lacking(blocked, own);
        let short_of = lacking.saturating_sub(self.ledger[scope].idle_credits);
        let short_of = usize::try_from(short_of).unwrap_or(usize::MAX);
        if resource != SHARE_OF_FDS && self.ledger[scope].evictable >= short_of as u64 {
            self.evict_for(blocked, short_of, fx);
        } else if own <= HELLO_IN_LINE_FDS {
            self.reclaim(blocked, short_of);
        }
    }
}

/// A hello that declares few fds stands in line with other requests. One that declares many would hold them all up until
/// so many are free: it stands before nobody. Neither does one for which the share of its domain is used up.
fn hello_waits(own: u64, blocked: Blocked) -> Wait {
    match own <= HELLO_IN_LINE_FDS && blocked.resource != SHARE_OF_FDS {
        true => Wait::Room(blocked),
        false => Wait::Space(blocked),
    }
}
