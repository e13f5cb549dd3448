//! Checks reclaim: which clients are asked for which leases, and that some client is asked when
//! nothing but leases blocks a request. Must look at nothing in the core but the leases that it has
//! marked.

use crate::action::Action;
use crate::judge::ensure;
use crate::model::{Check, Client, Model, Phase};
use crate::sums::{Holder, Ledger};
use crate::tally::Promise;
use crate::waits::Waiting;
use fdbroker_core::{Core, limits};
use fdbroker_protocol::{MAX_BATCH, Resource};
use std::collections::{BTreeMap, BTreeSet};

/// What the check remembers from step to step.
#[derive(Debug, Default)]
pub struct Reclaims {
    /// For each client, the number of its last activity.
    active: BTreeMap<u32, u64>,
    acts: u64,
    /// Fds that the current step may lack.
    need: u64,
    /// Leases that their holders have been asked for.
    marked: BTreeSet<u64>,
    /// The leases before the current step.
    before: BTreeSet<u64>,
    /// When each lease was last asked for, as open or as mapped.
    told: BTreeMap<(u64, bool), u64>,
    /// When a lease of an account was last marked.
    last_mark: BTreeMap<Holder, u64>,
    /// Requests that only an account's cap on open leases blocks, and since when.
    since: BTreeMap<(u32, u64), (Holder, u64)>,
}

impl Reclaims {
    /// Before each step.
    pub fn note(&mut self, action: &Action) {
        // A grant with its recall takes two. Credits and a client's own fds come in larger numbers.
        self.need = match action {
            Action::Hello { own_fds, .. } => u64::from(*own_fds).max(2),
            Action::Register { credits_wanted, .. } => u64::from(*credits_wanted).max(2),
            _ => 2,
        };
        let client = match action {
            Action::Connect { client, .. }
            | Action::Hello { client, .. }
            | Action::Register { client, .. }
            | Action::Unregister { client, .. }
            | Action::Redeposit { client, .. }
            | Action::Declare { client, .. }
            | Action::Acquire { client, .. } => *client,
            _ => return,
        };
        self.acts += 1;
        self.active.insert(client, self.acts);
    }

    /// Nobody is known to be more idle than another.
    pub fn forget_order(&mut self) {
        self.active.clear();
    }

    /// The client took a message that asks for these leases.
    pub fn took(&mut self, model: &Model, client: u32, leases: &[u64]) -> Check {
        for lease in leases {
            model.proofs.count(Promise::Reclaim, 1);
            let known = model.leases.get(lease).filter(|known| known.client == client);
            let known = known.ok_or_else(|| format!("client {client} is asked for {lease:#x}"))?;
            ensure!(model.live(known.id).is_some(), "{lease:#x} is asked for, and has ended");
            // The client may have looked at its events late.
            let slack = 100_000;
            let again = self.told.insert((*lease, known.mapped), model.now);
            let early = |at: u64| model.now < at + limits::RECLAIM_AGAIN_US - slack;
            ensure!(!again.is_some_and(early), "{lease:#x} is asked for again and again");
        }
        self.told.retain(|(lease, _), _| model.leases.contains_key(lease));
        Ok(())
    }

    /// Checks the leases that a step has marked.
    pub fn check(
        &mut self,
        model: &Model,
        core: &Core,
        ledgers: [&Ledger; 2],
        all: &[Waiting<'_>],
    ) -> Check {
        let views = core.leases(0..u32::MAX).filter(|view| view.record.asked != 0);
        let marked: BTreeSet<u64> = views.map(|view| view.id.0).collect();
        let new: Vec<u64> = marked.difference(&self.marked).copied().collect();
        for lease in new {
            model.proofs.count(Promise::Reclaim, 1);
            self.check_mark(model, ledgers, &marked, lease)?;
        }
        self.marked = marked;
        self.before = model.leases.keys().copied().collect();
        self.check_somebody_is_asked(model, ledgers[1], all)
    }

    fn check_mark(
        &mut self,
        model: &Model,
        ledgers: [&Ledger; 2],
        marked: &BTreeSet<u64>,
        lease: u64,
    ) -> Check {
        let known = model.leases.get(&lease).ok_or("a lease of nobody is asked for")?;
        ensure!(model.live(known.id).is_some(), "{lease:#x} is asked for, and has ended");
        let (client, mapped) = (known.client, known.mapped);
        let resources: &[Resource] =
            if mapped { &[Resource::MappedLeases] } else { &[Resource::OpenLeases, Resource::Fds] };
        let accounts = model.accounts_of_client(client);
        // Its own request of several may need as many as it has items; only the client itself is
        // asked for these.
        let need_of = |account| match account == Holder::Client(client) {
            true => self.need.max(MAX_BATCH as u64),
            false => self.need,
        };
        let mut full = accounts.iter().filter(|account| {
            // During a drain the broker asks all clients for all leases.
            let drains = model.draining.is_on && **account == Holder::Node;
            let may_ask = |ledger: &&Ledger| model.may_ask_for_share(ledger, **account, self.need);
            let shares = !mapped && ledgers.iter().any(may_ask);
            let full = |resource| {
                (drains || shares)
                    || ledgers.iter().any(|ledger| {
                        model.is_full(ledger, **account, resource, need_of(**account))
                    })
            };
            resources.iter().copied().any(full)
        });
        // A lease that was granted in the same step may have come too late. Of two supplied fds,
        // say, the second is granted after the requests for the first have had clients asked for
        // leases.
        let could_not = |other: u64| marked.contains(&other) || !self.before.contains(&other);
        let fair = full.any(|account| {
            model.clients.iter().all(|(other, state)| {
                *other == client
                    || !state.is_of(*other, *account)
                    || !self.is_more_idle(*other, client)
                    || !has_one(model, state, mapped, could_not)
                    // Clients that keep what they were asked for come last.
                    || state.leases.iter().any(|lease| marked.contains(lease))
            })
        });
        ensure!(fair, "client {client} is asked for {lease:#x}, and another is more idle");
        let state = model.client(client)?;
        let older = state.leases.iter().take_while(|other| **other != lease);
        let mut skipped = older.filter(|other| {
            let other_one = model.leases.get(other);
            let fits = |one: &crate::model::Lease| !one.mapped && model.live(one.id).is_some();
            other_one.is_some_and(fits) && !marked.contains(other)
        });
        ensure!(mapped || skipped.next().is_none(), "{lease:#x} is asked for before older ones");
        for account in accounts {
            self.last_mark.insert(account, model.now);
        }
        Ok(())
    }

    fn is_more_idle(&self, one: u32, than: u32) -> bool {
        let act = |client: u32| self.active.get(&client).copied().unwrap_or(0);
        act(one) < act(than)
    }

    /// If only the cap on open leases of one account blocks a request, clients of this account are
    /// asked.
    fn check_somebody_is_asked(
        &mut self,
        model: &Model,
        ledger: &Ledger,
        all: &[Waiting<'_>],
    ) -> Check {
        let mut since = BTreeMap::new();
        for one in all.iter().filter(|one| !one.request.unsent) {
            let mut wanted = one.request.wanted();
            let (Some(id), None) = (wanted.next(), wanted.next()) else { continue };
            let blockers = model.blockers(ledger, one.client, id).unwrap_or_default();
            let [blocker] = blockers.as_slice() else { continue };
            if blocker.resource != Resource::OpenLeases || !model.is_held(id) {
                continue;
            }
            let (key, account) = ((one.client, one.request.order), blocker.account);
            let before = self.since.get(&key).filter(|(of, _)| *of == account);
            let began = before.map_or(model.now, |(_, at)| *at);
            since.insert(key, (account, began));
            let last = self.last_mark.get(&account).copied().unwrap_or(0).max(began);
            let late = model.now > last + 3 * limits::RECLAIM_PAUSE_US;
            let somebody = model.clients.iter().any(|(number, state)| {
                state.is_of(*number, account)
                    && state.phase != Phase::Gone
                    && has_one(model, state, false, |lease| self.marked.contains(&lease))
            });
            model.proofs.count(Promise::Reclaim, usize::from(somebody));
            ensure!(
                !late || !somebody,
                "client {} waits, and no client is asked for leases",
                one.client
            );
        }
        self.since = since;
        Ok(())
    }
}

/// Whether a client has a lease of that kind that it could be asked for, not counting `left_out`.
fn has_one(model: &Model, state: &Client, mapped: bool, left_out: impl Fn(u64) -> bool) -> bool {
    state.phase != Phase::Gone
        && state.leases.iter().any(|number| {
            let lease = model.leases.get(number);
            !left_out(*number)
                && lease.is_some_and(|one| one.mapped == mapped && model.live(one.id).is_some())
        })
}
