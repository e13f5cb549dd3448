//! Whom a request stands behind. Must never let a newcomer take room that an earlier request of its
//! domain waits for.

use crate::api::{Asker, Now};
use crate::books::{Blocked, Books, Parked, Wait, Wish, items_of};
use crate::core::Core;
use crate::moves::Step;
use fdbroker_protocol::{Resource, Scope, Status};

/// Whom a request stands behind: it may not take what those wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nobody: a supplied fd waits for it.
    First,
    /// Those in line before the parked request of this arrival number.
    InLine(u64),
    /// Everybody who is parked.
    Last,
}

/// A request being looked at.
#[derive(Clone, Copy)]
pub(crate) struct Attempt {
    /// Whose it is.
    pub by: Asker,
    /// Arrival number.
    pub seq: u64,
    /// When it is answered in any case.
    pub deadline: Now,
    /// Whom it stands behind.
    pub turn: Turn,
    /// How often it has been looked at: the first time it starts the evictions it is short of.
    pub first: bool,
}

impl Attempt {
    /// One that has just come.
    pub(crate) fn new(by: Asker, seq: u64, deadline: Now) -> Self {
        Attempt { by, seq, deadline, turn: Turn::Last, first: true }
    }
}

impl Core {
    /// Whether a client may have another request wait.
    pub(crate) fn may_wait(&self, client: u32) -> Result<(), Status> {
        let most = self.books.config.max_parked_per_client;
        if self.books.clients[client].parked.len() < most as usize {
            return Ok(());
        }
        Err(Books::no_quota_limit(Resource::ParkedRequests, Scope::Client, most.into()))
    }

    /// Has a request wait; or says why its client may not have another one.
    pub(crate) fn park(
        &mut self,
        Attempt { by, seq, deadline, .. }: Attempt,
        wish: Wish,
        wait: Wait,
        step: &mut Step,
    ) -> Result<(), Status> {
        self.may_wait(by.client.0)?;
        let charged = self.books.charge(by.client.0, items_of(&wish));
        charged.map_err(|blocked| self.books.no_quota(blocked))?;
        self.books.park(seq, Parked::new(by, deadline, wish, wait), step);
        if wait == Wait::Reader && self.books.has_ended_item(seq) {
            // Without an fd the answer needs no reader, and nothing else would bring it.
            self.answer_ended_item(seq, step);
        }
        Ok(())
    }

    /// A cap that somebody before this request waits for, and that it would take from with one of
    /// `resources` charged to `client`.
    pub(crate) fn ahead(
        &mut self,
        turn: Turn,
        client: u32,
        resources: &[Resource],
    ) -> Option<Blocked> {
        if turn == Turn::First || self.books.rooms.is_empty() {
            return None;
        }
        let (mut widest, mut next) = (None, Some(self.books.scope_of(client)));
        while let Some(scope) = next {
            let is_ahead = |resource: &&Resource| {
                self.books.ledger[scope].blocked.has(**resource)
                    && self.is_ahead(turn, Blocked { resource: **resource, scope })
            };
            let found = resources.iter().find(is_ahead);
            widest = found.map(|it| Blocked { resource: *it, scope }).or(widest);
            next = self.books.ledger[scope].parent;
        }
        widest
    }

    /// Whether a request of this turn stands behind those in line for an account. A newcomer stands
    /// behind nobody who waits for the account of a client.
    fn is_ahead(&mut self, turn: Turn, account: Blocked) -> bool {
        match turn {
            Turn::First => false,
            Turn::InLine(seq) => self.books.is_behind(seq, account),
            Turn::Last => {
                self.books.ledger[account.scope].kind != Scope::Client
                    && self.books.rooms.has_line(account)
            }
        }
    }
}
