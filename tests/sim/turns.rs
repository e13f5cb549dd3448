//! Checks that domains take turns: while only the node's cap on leases blocks a request of a
//! domain, no other domain is served twice. Must never look into the core: only at grants and the
//! model.

use crate::action::Action;
use crate::judge::ensure;
use crate::model::{Check, Model};
use crate::step::Step;
use crate::sums::{Blocker, Holder, Ledger};
use crate::tally::Promise;
use crate::waits::{LEASE, Waiting, waits_behind};
use fdbroker_core::DomainKey;
use std::collections::{BTreeMap, BTreeSet};

/// What the check remembers from step to step.
#[derive(Debug, Default)]
pub struct Turns {
    /// Domains that may have the next turn: only the node's cap on leases blocks one of their
    /// requests.
    could_be_served: BTreeSet<DomainKey>,
    /// For two domains, how often the second has been served since the first began to wait in this
    /// way.
    passed: BTreeMap<(DomainKey, DomainKey), u32>,
    /// The waiting requests, and whether each waits for a recall.
    waiting: BTreeSet<(DomainKey, u32, u64, bool)>,
}

impl Turns {
    /// Checks a step; `all` are the waiting requests after it.
    pub fn check(
        &mut self,
        model: &Model,
        step: &Step,
        after: &Ledger,
        all: &[Waiting<'_>],
        action: &Action,
    ) -> Check {
        let could: BTreeSet<DomainKey> = all
            .iter()
            .filter(|one| waits_for_the_node_alone(model, all, one, after))
            .map(|one| one.state.domain)
            .collect();
        let waiting: BTreeSet<_> = all.iter().map(|one| self::key(model, one)).collect();
        // The request was answered or its recall has begun: the domain has had its turn.
        let had_turn: BTreeSet<_> = self.waiting.difference(&waiting).map(|key| key.0).collect();
        self.passed.retain(|(domain, _), _| could.contains(domain) && !had_turn.contains(domain));
        if let Action::Unsent { client, .. } = action {
            // A grant that could not be sent was no turn.
            let of = model.client(*client)?.domain;
            let passes = self.passed.iter_mut().filter(|((_, passing), _)| *passing == of);
            passes.for_each(|(_, count)| *count = count.saturating_sub(1));
        }
        // A request that was promised a supplied fd comes before all others.
        let in_turn = !matches!(action, Action::Supply { .. });
        for grant in step.grants.iter().filter(|grant| in_turn && !grant.was_supplied) {
            let served = model.client(grant.client)?.domain;
            let waited = could.intersection(&self.could_be_served);
            let waited = waited.filter(|domain| **domain != served && !had_turn.contains(domain));
            for domain in waited {
                let count = self.passed.entry((*domain, served)).or_insert(0);
                *count += 1;
                model.proofs.count(Promise::Order, 1);
                ensure!(*count <= 1, "{served:?} is served twice, and {domain:?} waits its turn");
            }
        }
        (self.could_be_served, self.waiting) = (could, waiting);
        Ok(())
    }
}

fn key(model: &Model, one: &Waiting<'_>) -> (DomainKey, u32, u64, bool) {
    let recalled = one.request.wanted().any(|id| model.is_awaited(id));
    (one.state.domain, one.client, one.request.order, recalled)
}

/// A request for one held fd that only the node's cap on leases or fds blocks.
fn waits_for_the_node_alone(
    model: &Model,
    all: &[Waiting<'_>],
    one: &Waiting<'_>,
    ledger: &Ledger,
) -> bool {
    let mut wanted = one.request.wanted();
    let (Some(id), None) = (wanted.next(), wanted.next()) else { return false };
    if one.request.unsent || !model.is_held(id) {
        return false;
    }
    let of_node =
        |blocker: &Blocker| blocker.account == Holder::Node && LEASE.contains(&blocker.resource);
    let blockers = model.blockers(ledger, one.client, id).unwrap_or_default();
    let behind_others = all.iter().any(|other| {
        let narrower: Vec<Blocker> =
            other.stands.iter().filter(|blocker| !of_node(blocker)).copied().collect();
        waits_behind(one, &narrower)
    });
    !blockers.is_empty() && blockers.iter().all(of_node) && !behind_others
}
