//! Checks shares: of what cannot be taken back, a domain gets more only while it holds less than so
//! many times what is still free. Must never look into the core: only at the model's sums.

use crate::action::Action;
use crate::judge::ensure;
use crate::model::{Check, Model};
use crate::step::Step;
use crate::sums::{Holder, Ledger, Sums};
use crate::tally::Promise;
use fdbroker_core::{Arrived, DomainKey, limits};
use fdbroker_protocol::{NO_CAP, Resource};

/// Stands for the share of a domain in the fds.
pub const SHARE_OF_FDS: Resource = Resource::OwnFds;

/// What there is of a resource, and what of it cannot be taken back.
#[derive(Clone, Copy, Debug)]
struct Part {
    held: u128,
    used: u128,
    most: u64,
}

impl Model {
    /// The parts of a domain: fds, connections, places of the broker's own table, and bytes.
    fn parts(&self, ledger: &Ledger, domain: DomainKey) -> [(Resource, Part); 4] {
        let is_same = |other: DomainKey| self.is_same_user(domain, other);
        let of_user = ledger.domains.iter().filter(|(other, _)| is_same(**other));
        let of: Vec<Sums> = of_user.map(|(_, sums)| *sums).collect();
        let evictable = |of_user: bool| {
            let all = self.allocations.iter();
            let of = all.filter(|(_, known)| !of_user || is_same(known.domain));
            of.filter(|(id, known)| self.is_evictable(**id, known)).count() as u128
        };
        // What can be closed counts as free, once.
        let places = |all: &[Sums], evictable: u128| {
            let places = all.iter().map(|sums| {
                let connections = sums.seats * limits::FDS_PER_CONNECTION;
                u128::from(connections + sums.held_fds() - sums.idle_credits + sums.taken_out)
            });
            places.sum::<u128>().saturating_sub(evictable)
        };
        let fds = |all: &[Sums], evictable: u128| {
            let fds =
                all.iter().map(|sums| u128::from(sums.fds() - sums.idle_credits + sums.taken_out));
            fds.sum::<u128>().saturating_sub(evictable)
        };
        let node = &[ledger.node];
        let uninvited = self.tickets.values().filter(|closing| closing.uninvited).count() as u128;
        [
            (
                SHARE_OF_FDS,
                Part {
                    held: fds(&of, evictable(true)),
                    used: fds(node, evictable(false)),
                    most: self.config.node.fds,
                },
            ),
            (
                Resource::Connections,
                Part {
                    held: of.iter().map(|sums| u128::from(sums.connections)).sum(),
                    used: ledger.node.connections.into(),
                    most: self.config.node.connections,
                },
            ),
            (
                Resource::TablePlaces,
                Part {
                    held: places(&of, evictable(true)),
                    used: places(node, evictable(false)) + uninvited,
                    most: self.config.table_fds - limits::TABLE_RESERVE,
                },
            ),
            (
                Resource::HeldBytes,
                Part {
                    held: of.iter().map(|sums| sums.resident_bytes).sum(),
                    used: ledger.node.resident_bytes,
                    most: self.config.node.held_bytes,
                },
            ),
        ]
    }

    /// Whether two domains share as one.
    fn is_same_user(&self, one: DomainKey, other: DomainKey) -> bool {
        let user = |domain: DomainKey| self.config.subordinate_uids.user_of_domain(domain);
        one == other || user(one).is_some() && user(one) == user(other)
    }

    /// Whether `need` more of a resource are beyond the share of a domain.
    pub fn is_beyond_share(
        &self,
        ledger: &Ledger,
        domain: DomainKey,
        resource: Resource,
        need: u64,
    ) -> bool {
        let parts = self.parts(ledger, domain);
        let part = parts.iter().find(|(of, _)| *of == resource);
        part.is_some_and(|(_, part)| need > 0 && !self.may_have(part, u128::from(need) - 1))
    }

    /// Whether the clients of an account may be asked for leases because `need` more fds are beyond
    /// the share of a domain: its own always, all others while it has less than it would get if all
    /// had the same.
    pub fn may_ask_for_share(&self, ledger: &Ledger, account: Holder, need: u64) -> bool {
        let beyond = |domain| self.is_beyond_share(ledger, domain, SHARE_OF_FDS, need);
        let domains = ledger.domains.values().filter(|sums| **sums != Sums::default()).count();
        let even = u128::from(self.config.node.fds) / (domains as u128).max(1);
        let has_little = |domain| {
            let parts = self.parts(ledger, domain);
            parts.iter().any(|(of, part)| *of == SHARE_OF_FDS && part.held < even)
        };
        match account {
            Holder::Domain(domain) => beyond(domain),
            Holder::Node => {
                self.clients.values().any(|it| beyond(it.domain) && has_little(it.domain))
            }
            Holder::Client(_) | Holder::Job(..) => false,
        }
    }

    /// Whether a domain that has got `more` may get another one.
    fn may_have(&self, part: &Part, more: u128) -> bool {
        let factor = self.config.share_factor;
        if factor == NO_CAP || part.most == NO_CAP {
            return true;
        }
        let free = u128::from(part.most).saturating_sub(part.used + more);
        let is_last = free <= u128::from(part.most / limits::LAST_PART);
        let of_last = u128::from((part.most / limits::SHARE_OF_LAST).max(limits::LEAST_OF_LAST));
        part.held + more < u128::from(factor) * free && !(is_last && part.held + more >= of_last)
    }

    /// What a client is let in with, and a new connection, are within the share of the domain.
    pub fn check_shares(&self, step: &Step, before: &Ledger, after: &Ledger) -> Check {
        // Grants, evictions, new recalls and credits of the step come before or after what is
        // looked at.
        let is_recalling = self.recalling.values().any(|since| *since == self.now);
        let takes = !step.grants.is_empty() || !step.evicted.is_empty();
        let takes = takes || is_recalling || step.credits_given;
        if takes || step.let_in.len() > 1 {
            return Ok(());
        }
        for (client, own) in &step.let_in {
            let domain = self.client(*client)?.domain;
            let without = after.clone().without_hello(*client, domain, *own);
            self.proofs.count(Promise::Shares, 1);
            let beyond = |ledger| {
                self.is_beyond_share(ledger, domain, SHARE_OF_FDS, *own)
                    || self.places_are_beyond_share(ledger, domain)
            };
            let is_right = !beyond(before) || !beyond(&without);
            ensure!(
                is_right,
                "client {client} is let in with {own} fds, beyond its domain's share"
            );
        }
        let new = step.connecting.filter(|client| !step.disconnected.contains(client));
        if let Some(client) = new {
            self.proofs.count(Promise::Shares, 1);
            let beyond = self.connection_is_beyond_share(after, client)?;
            ensure!(!beyond, "client {client} is connected beyond its domain's share");
        }
        Ok(())
    }

    /// A lease that is granted at once is within the share of the domain.
    pub fn check_share_of_leases(
        &self,
        step: &Step,
        action: &Action,
        before: &Ledger,
        after: &Ledger,
    ) -> Check {
        let Action::Acquire { client, .. } = action else { return Ok(()) };
        let is_alone = matches!(&step.grants[..], [grant] if grant.client == *client);
        let domain = self.client(*client)?.domain;
        let without = after.clone().without_lease(*client, domain);
        if !is_alone || !step.evicted.is_empty() || without.node != before.node {
            return Ok(());
        }
        self.proofs.count(Promise::Shares, 1);
        let beyond = self.is_beyond_share(before, domain, SHARE_OF_FDS, 1);
        ensure!(!beyond, "client {client} is granted a lease beyond its domain's share");
        Ok(())
    }

    /// A deposit that is never evicted is within the share of the domain.
    pub fn check_share_of_bytes(&self, action: &Action, before: &Ledger, after: &Ledger) -> Check {
        let Action::Register { client, deposits, .. } = action else { return Ok(()) };
        let [Arrived { judged: Ok(deposit), .. }] = &deposits[..] else { return Ok(()) };
        let more = after.node.resident_bytes.saturating_sub(before.node.resident_bytes);
        if more == 0 || more != deposit.facts.size_bytes.into() {
            return Ok(());
        }
        self.proofs.count(Promise::Shares, 1);
        let domain = self.client(*client)?.domain;
        let need = deposit.facts.size_bytes;
        let beyond = self.is_beyond_share(before, domain, Resource::HeldBytes, need);
        ensure!(!beyond, "{need} resident bytes of client {client} are beyond its domain's share");
        Ok(())
    }

    /// Whether the connection of a client, which the sums count, is beyond the share of its domain.
    pub fn connection_is_beyond_share(&self, ledger: &Ledger, client: u32) -> Check<bool> {
        let domain = self.client(client)?.domain;
        let without = ledger.clone().without_connection(client, domain);
        // A domain that has nothing at all always finds some.
        let mut of_user = without.domains.iter().filter(|(it, _)| self.is_same_user(domain, **it));
        let has_some = of_user.any(|(_, sums)| *sums != Sums::default());
        Ok(has_some && self.is_beyond_share(&without, domain, Resource::Connections, 1))
    }

    /// Whether the places of another connection are beyond the share of a domain. One that has none
    /// always finds some.
    pub fn places_are_beyond_share(&self, ledger: &Ledger, domain: DomainKey) -> bool {
        let (table, need) = (Resource::TablePlaces, limits::FDS_PER_CONNECTION);
        let parts = self.parts(ledger, domain);
        parts.iter().any(|(of, part)| *of == table && part.held > 0)
            && self.is_beyond_share(ledger, domain, table, need)
    }
}
