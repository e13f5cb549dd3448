//! Facts that the core hears once the list of effects at hand has been applied. Must never reach
//! the core in the middle of a list.

use fdbroker_core::{Body, ClientId, Core, Effects, Input, LeaseId, Now, RequestId};
use std::ops::Range;

/// A grant that could not be sent, by its place in the effects of the pass.
pub(crate) struct Unsent {
    pub client: ClientId,
    pub request: RequestId,
    pub range: Range<usize>,
    pub deadline: Now,
    pub seq: u64,
}

#[derive(Default)]
pub(crate) struct Feedback {
    gone: Vec<ClientId>,
    unsent: Vec<Unsent>,
    /// Leases of grants that were cut to what may be in flight.
    cut: Vec<(ClientId, Vec<LeaseId>)>,
    sendable: Vec<(ClientId, bool)>,
    /// Empty lists, reused.
    list: Effects,
    spare: Effects,
}

impl Feedback {
    /// An empty list of effects.
    pub fn take_list(&mut self) -> Effects {
        std::mem::take(&mut self.list)
    }

    /// Keeps an empty list for the next input.
    pub fn keep_list(&mut self, list: Effects) {
        self.list = list;
    }

    /// The connection of the client has ended.
    pub fn note_gone(&mut self, client: ClientId) {
        self.gone.push(client);
    }

    /// A grant could not be sent.
    pub fn note_unsent(&mut self, unsent: Unsent) {
        self.unsent.push(unsent);
    }

    /// A grant was sent without these leases.
    pub fn note_cut(&mut self, client: ClientId, leases: Vec<LeaseId>) {
        self.cut.push((client, leases));
    }

    /// Whether the client can be sent fds, from now on.
    pub fn note_sendable(&mut self, client: ClientId, is_sendable: bool) {
        self.sendable.push((client, is_sendable));
    }

    /// Whether there is nothing to hear.
    pub fn is_empty(&self) -> bool {
        self.sendable.is_empty() && self.unsent.is_empty() && self.gone.is_empty()
    }

    /// Tells the core, and says what follows. A client whose grant was not sent is told to be full
    /// first, so that the grant is not tried again at once.
    pub fn hand_back(&mut self, core: &mut Core, now: Now, mut applied: Effects) -> Effects {
        let mut list = std::mem::take(&mut self.spare);
        let next = &mut list;
        for (client, sendable) in self.sendable.drain(..) {
            core.step(now, Input::Sendable { client, sendable }, next);
        }
        for unsent in self.unsent.drain(..) {
            let Unsent { client, request, range, deadline, seq } = unsent;
            let grants = &applied.granted[range];
            core.step(now, Input::Unsent { client, request, grants, deadline, seq }, next);
        }
        for (client, leases) in self.cut.drain(..) {
            let release = Body::Release { leases: &leases[..] };
            core.step(now, release.by(client, RequestId::ONE_WAY), next);
        }
        for client in self.gone.drain(..) {
            core.step(now, Input::Gone { client }, next);
        }
        applied.clear();
        self.spare = applied;
        list
    }

    /// Forgets which clients can be sent fds: there are none.
    pub fn forget_sendable(&mut self) {
        self.sendable.clear();
    }
}
