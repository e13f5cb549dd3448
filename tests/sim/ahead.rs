//! Fds fetched ahead: draws such messages, and judges what is granted. Must never look into the
//! core: only at inputs, effects and the model's sums.

use crate::action::Action;
use crate::judge::ensure;
use crate::model::{Check, Model, Phase};
use crate::rig::Rig;
use crate::step::Step;
use crate::sums::Ledger;
use crate::tally::Promise;
use crate::waits;
use crate::world::World;
use fdbroker_core::{ClientId, Effect, Effects, Granted};
use fdbroker_protocol::Resource;
use fdbroker_protocol::limits::{AHEAD_BYTES, AHEAD_FDS};

/// Of the free room of each account, this part at most.
const PART: u128 = 4;

impl World {
    /// Most of what it names is alive and of its domain.
    pub fn choose_ahead(&mut self, client: u32) -> Action {
        let count = self.rng.skewed(1, AHEAD_FDS as u64 + 8);
        let wanted = (0..count).map(|_| self.draw_wanted(client)).collect();
        Action::AcquireAhead { client, wanted }
    }
}

impl Model {
    /// Items that are granted ahead.
    pub fn granted_ahead(&mut self, step: &mut Step, client: ClientId, items: &[Granted]) -> Check {
        let Some((of, wanted)) = step.ahead.take() else {
            return Err("fds ahead that nobody has asked for, or twice".into());
        };
        ensure!(of == client.0, "fds ahead for client {}, asked for by {of}", client.0);
        let state = self.client(of)?;
        // One that has been disconnected is served until the daemon reports its end.
        let is_in = matches!(state.phase, Phase::Active | Phase::Dropped);
        ensure!(is_in, "fds ahead for a client that is not let in");
        ensure!(state.sendable, "fds ahead for client {of}, which has no room for a message");
        ensure!(!items.is_empty(), "no fds ahead, and a message");
        ensure!(items.len() <= AHEAD_FDS, "{} fds ahead", items.len());
        let mut rest = wanted.iter();
        for item in items {
            ensure!(item.status.is_ok(), "a refusal ahead");
            ensure!(rest.any(|it| *it == item.wanted), "not asked for, or in another order");
            self.granted_ok(of, item)?;
        }
        let bytes: u128 = items.iter().map(|item| u128::from(item.facts.size_bytes)).sum();
        ensure!(bytes <= AHEAD_BYTES.into(), "{bytes} bytes ahead");
        step.granted_ahead = items.len() as u64;
        Ok(())
    }

    /// What is granted ahead must be room that nobody misses: by the sums `before` the step.
    /// `is_work_due`: the step may have done other work, too.
    pub fn check_ahead(
        &self,
        step: &Step,
        client: u32,
        before: &Ledger,
        (is_work_due, effects): (bool, &Effects),
    ) -> Check {
        let granted = u128::from(step.granted_ahead);
        for account in self.accounts_of_client(client) {
            for resource in [Resource::Fds, Resource::OpenLeases] {
                let cap = self.cap(account, resource);
                let free = cap.saturating_sub(before.of(account).usage(resource));
                self.proofs.count(Promise::Caps, 1);
                ensure!(
                    granted <= free / PART,
                    "{granted} {resource} ahead of {account:?}, which has {free}"
                );
                let is_taken = granted > 0
                    && cap != u128::MAX
                    && waits::is_waited_for(self, before, account, resource);
                ensure!(!is_taken, "{resource} of {account:?} ahead, and somebody waits for it");
            }
        }
        let is_other = |effect: &&Effect| !matches!(effect, Effect::GrantedAhead { .. });
        let other = effects.list.iter().find(is_other);
        ensure!(is_work_due || step.stranger || other.is_none(), "ahead, and so {other:?}");
        Ok(())
    }
}

pub fn ahead_when_fetched_then_evicted_as_if_it_had_not_been(rig: &mut Rig) -> Check {
    rig.begin(|config| {
        config.node.held_fds = 4;
        (config.base_credits, config.max_credits) = (0, 1);
    });
    let (owner, user) = (rig.client()?, rig.client()?);
    let ids = rig.register_new(owner, 3)?;
    rig.world.feed(Action::AcquireAhead { client: user, wanted: vec![Ok(ids[0])] })?;
    let leases = rig.world.model.client(user)?.leases.len();
    // A lease is an fd, but no held one.
    ensure!(leases == 1, "{leases} leases ahead");
    rig.register_new(owner, 2)?;
    rig.settle(&[])?;
    ensure!(!rig.is_held(ids[0]) && rig.is_held(ids[1]), "it counts as used");
    rig.end()
}
