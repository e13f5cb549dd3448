//! Parked requests enter lines and leave them, and hear of what comes back. Must never wake those
//! behind the first one.

use crate::books::{Blocked, Books, ScopeId, Wait};
use crate::moves::Step;

impl Books {
    /// A parked request waits for what it says from now on.
    pub(crate) fn enter_rooms(&mut self, seq: u64) {
        let wait = self.parked[&seq].wait;
        self.rooms.len += usize::from(wait != Wait::Recall);
        if let Wait::Room(account) = wait {
            let (place, number) = self.place(seq);
            self.ledger.block(account);
            self.rooms.enter(account, place, number);
            if self.is_behind(seq, account) {
                // What the first one waits for may be another account by now, as shares go down,
                // too.
                self.wake(account)
            } else {
                // Those before which it has come found the account full; but it may have made some
                // room itself.
                self.look_soon(seq)
            }
        }
    }

    /// A parked request does not wait for this any more. Whoever was behind it may go on.
    pub(crate) fn leave_rooms(&mut self, seq: u64) {
        let wait = self.parked[&seq].wait;
        self.rooms.len -= usize::from(wait != Wait::Recall);
        if let Wait::Room(account) = wait {
            let (_, number) = self.place(seq);
            self.rooms.leave(account, number, seq);
            self.hear_of(account);
            let scope = self.ledger.unblock(account);
            self.forget_scope_if_unused(scope);
        }
    }

    /// A parked request is looked at in its turn.
    pub(crate) fn look_soon(&mut self, seq: u64) {
        let (place, number) = self.place(seq);
        self.rooms.make_ready(place, number);
    }

    /// A parked request is not looked at; whether it was to be.
    pub(crate) fn look_no_more(&mut self, seq: u64) -> bool {
        let (place, number) = self.place(seq);
        self.rooms.unready(place, number)
    }

    /// Has a parked request looked at when something comes back of the accounts that it waits for
    /// beside the one that it is in line for.
    pub(crate) fn listen(&mut self, seq: u64, step: &mut Step) {
        let mut accounts = std::mem::take(&mut step.also_blocked);
        let wait = self.parked[&seq].wait;
        match wait {
            Wait::Recall | Wait::Reader => accounts.clear(),
            Wait::Room(account) => {
                // There it is looked at when its place in line comes.
                accounts.retain(|other| *other != account);
                // Those behind it follow once it is served.
                if !self.is_behind(seq, account) {
                    accounts.extend(account.beyond_share());
                }
            }
            Wait::Space(account) => {
                accounts.extend([Some(account), account.beyond_share()].into_iter().flatten())
            }
        }
        accounts.sort_unstable();
        accounts.dedup();
        let parked = self.parked.get_mut(&seq).expect("it is parked");
        if parked.listens.iter().map(|(account, _)| account).eq(&accounts) {
            return;
        }
        let now = self.rooms.tick();
        let listens = accounts.iter().map(|account| (*account, now)).collect();
        let former = std::mem::replace(&mut parked.listens, listens);
        for account in accounts {
            self.rooms.listeners.insert((account, now, seq));
            self.ledger.block(account);
        }
        for (account, since) in former {
            self.rooms.listeners.remove(&(account, since, seq));
            let scope = self.ledger.unblock(account);
            self.forget_scope_if_unused(scope);
        }
    }

    /// The first in line for an account is looked at in its turn.
    pub(crate) fn wake(&mut self, account: Blocked) {
        self.rooms.open.remove(&account);
        if let Some((place, number)) = self.rooms.first(&self.clients, account) {
            self.rooms.make_ready(place, number);
            if account.scope == ScopeId::NODE {
                self.rooms.open.insert(account);
            }
        }
    }

    /// Something of an account has come back, or nobody is before the others for it any more.
    pub(crate) fn hear_of(&mut self, account: Blocked) {
        self.wake(account);
        let now = self.rooms.tick();
        self.rooms.heard.insert(account, now);
    }
}
