//! Checks shares: of what cannot be taken back, a domain gets more only while it holds less than so many times what is
//! still free. Must never look into the core: only at the model's sums.

use crate::judge::{Step, ensure};
use crate::model::{Check, Holder, Ledger, Model, Sums};
use crate::tally::Promise;
use fdbroker_core::{DomainKey, limits};
use fdbroker_protocol::{NO_CAP, Resource};

/// What there is of a resource, and what of it cannot be taken back.
#[derive(Clone, Copy, Debug)]
struct Part {
    held: u128,
    used: u128,
    most: u64,
}

impl Model {
    /// The parts of a domain: fds that clients have, connections, and places of the broker's own table.
    fn parts(&self, ledger: &Ledger, domain: DomainKey) -> [(Resource, Part); 3] {
        let of = ledger.of(Holder::Domain(domain));
        let evictable = |of: Option<DomainKey>| {
            let all = self.allocations.iter();
            let of = all.filter(|(_, known)| of.is_none_or(|of| known.domain == of));
            of.filter(|(id, known)| self.is_evictable(**id, known)).count() as u128
        };
        // What can be closed counts as free, once.
        let places = |sums: &Sums, evictable: u128| {
            let connections = sums.connections * limits::FDS_PER_CONNECTION;
            let held = sums.held_fds() - sums.idle_credits + sums.taken_out;
            u128::from(connections + held).saturating_sub(evictable)
        };
        let node = &ledger.node;
        let uninvited = self.tickets.values().filter(|closing| closing.uninvited).count() as u128;
        [
            (
                Resource::OwnFds,
                Part {
                    held: (of.own + of.open + of.promised_open).into(),
                    used: (node.own + node.open + node.promised_open).into(),
                    most: self.config.node.fds,
                },
            ),
            (
                Resource::Connections,
                Part {
                    held: of.connections.into(),
                    used: node.connections.into(),
                    most: self.config.node.connections,
                },
            ),
            (
                Resource::TablePlaces,
                Part {
                    held: places(&of, evictable(Some(domain))),
                    used: places(node, evictable(None)) + uninvited,
                    most: self.config.table_fds - limits::TABLE_RESERVE,
                },
            ),
        ]
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

    /// Whether a domain that has got `more` may get another one.
    fn may_have(&self, part: &Part, more: u128) -> bool {
        let factor = self.config.share_factor;
        if factor == NO_CAP || part.most == NO_CAP {
            return true;
        }
        let free = u128::from(part.most).saturating_sub(part.used + more);
        part.held + more < u128::from(factor) * free
    }

    /// What a client is let in with, and a new connection, are within the share of the domain.
    pub fn check_shares(&self, step: &Step, before: &Ledger, after: &Ledger) -> Check {
        // Grants and evictions of the step come before or after what is looked at.
        if !step.grants.is_empty() || !step.evicted.is_empty() || step.let_in.len() > 1 {
            return Ok(());
        }
        for (client, own) in &step.let_in {
            let domain = self.client(*client)?.domain;
            let without = after.clone().without_own(*client, domain, *own);
            self.proofs.count(Promise::Shares, 1);
            let beyond = |ledger| self.is_beyond_share(ledger, domain, Resource::OwnFds, *own);
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

    /// Whether the connection of a client, which the sums count, is beyond the share of its domain.
    pub fn connection_is_beyond_share(&self, ledger: &Ledger, client: u32) -> Check<bool> {
        let domain = self.client(client)?.domain;
        let without = ledger.clone().without_connection(client, domain);
        let needs =
            [(Resource::TablePlaces, limits::FDS_PER_CONNECTION), (Resource::Connections, 1)];
        // A domain that has nothing at all always finds some.
        let has_some = without.of(Holder::Domain(domain)) != Sums::default();
        Ok(has_some
            && needs.iter().any(|(it, need)| self.is_beyond_share(&without, domain, *it, *need)))
    }
}
