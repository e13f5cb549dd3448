//! Judges what clients declare of before a crash: each lease that they had is one, charged to them
//! alone, beyond their caps as far as there can have been so many. Must never look into the core.

use crate::action::show_status;
use crate::judge::ensure;
use crate::model::{Ask, Check, Drain, Lease, Model};
use crate::step::{Quota, Step};
use crate::sums::Holder;
use crate::tally::Promise;
use fdbroker_core::{ClientId, Declared, Granted};
use fdbroker_protocol::{ErrorCode, Resource, Status};

impl Model {
    /// Judges the answer to a declare.
    pub fn declared(
        &mut self,
        step: &mut Step,
        (client, request): (ClientId, u64),
        items: &[Granted],
    ) -> Check {
        let asked = self.answer(client, request)?;
        let Ask::Declare { items: asked } = asked.ask else {
            return Err("a reply to declare in answer to another request".into());
        };
        ensure!(asked.len() == items.len(), "{} of {} declared", items.len(), asked.len());
        for (item, asked) in items.iter().zip(&asked) {
            self.proofs.count(Promise::Lives, 1);
            ensure!(item.wanted == asked.wanted, "the items are in another order");
            self.declared_item(step, client.0, item, asked)?;
        }
        Ok(())
    }

    fn declared_item(
        &mut self,
        step: &mut Step,
        client: u32,
        item: &Granted,
        asked: &Declared,
    ) -> Check {
        let shown = show_status(&item.status);
        let (expected, may_fail) = self.declare_error(client, asked);
        if let Err(code) = item.status.result() {
            if code == ErrorCode::NoQuota && expected.is_empty() {
                ensure!(
                    self.may_refuse_declared(client, &item.status, !asked.open),
                    "{asked:?} is refused, and it had it before: {shown}"
                );
                let (status, owner, need, passing) = (item.status, None, 1, true);
                step.quotas.push(vec![Quota { status, client, owner, need, passing }]);
                return Ok(());
            }
            let is_right = expected.contains(&code) || may_fail == Some(code);
            ensure!(is_right, "declared {asked:?}: {shown}, not {expected:?}");
            return Ok(());
        }
        let dying = expected.is_empty();
        ensure!(dying, "declared {asked:?} is a lease, it should say {expected:?}");
        let id = asked.wanted.map_err(|code| format!("{code:?} is a lease"))?;
        let (number, mapped) = (item.lease.0, !asked.open);
        let highest = self.lease_highest.entry(number as u32).or_insert(0);
        let generation = (number >> 32) as u32;
        ensure!(generation > *highest, "lease {number:#x} was given before");
        *highest = generation;
        self.leases.insert(number, Lease { client, id, mapped, revoked: false, declared: true });
        if let Some(known) = self.allocations.get_mut(&id) {
            known.leases.insert(number);
            known.drain = Drain::No;
        }
        self.client_mut(client)?.leases.push(number);
        self.declared_above(client, mapped)
    }

    /// A declared lease may be above the caps of its accounts, as far as there can have been so
    /// many before the crash.
    fn declared_above(&mut self, client: u32, mapped: bool) -> Check {
        let ledger = self.ledger();
        for account in self.accounts_of_client(client) {
            for resource in resources_of(mapped) {
                let (used, cap) =
                    (ledger.of(account).usage(*resource), self.cap(account, *resource));
                if used > cap {
                    let declared = self.declared_of(account, mapped);
                    ensure!(
                        declared <= cap,
                        "{declared} declared leases of {account:?}, its cap of {resource} is {cap}"
                    );
                    self.above.insert((account, *resource), used);
                }
            }
        }
        Ok(())
    }

    fn declared_of(&self, account: Holder, mapped: bool) -> u128 {
        let of = |lease: &&Lease| {
            let holder = self.clients.get(&lease.client);
            lease.declared
                && lease.mapped == mapped
                && holder.is_some_and(|holder| holder.is_of(lease.client, account))
        };
        self.leases.values().filter(of).count() as u128
    }

    /// A declared lease is refused only where there are as many as there can have been, or beyond
    /// the share of its domain.
    fn may_refuse_declared(&self, client: u32, status: &Status, mapped: bool) -> bool {
        let is_of_share = status.scope != status.scope().map_or(0, |scope| scope as u8);
        let mut accounts = self.accounts_of_client(client).into_iter();
        is_of_share
            || accounts.any(|account| {
                let declared = self.declared_of(account, mapped);
                resources_of(mapped).iter().any(|it| declared >= self.cap(account, *it))
            })
    }

    /// The errors that a declared lease may be answered with; empty if it becomes a lease: it must,
    /// unless there is an error that it may be answered with, too.
    fn declare_error(&self, client: u32, asked: &Declared) -> (Vec<ErrorCode>, Option<ErrorCode>) {
        let id = match asked.wanted {
            Ok(id) => id,
            Err(code) => return (vec![code], None),
        };
        if id.generation >= self.config.first_generation {
            return (vec![ErrorCode::Stale], None);
        }
        let Some(known) = self.allocations.get(&id) else {
            // The owner may be in its teardown, which still knows the allocation.
            return (vec![self.reason(id), ErrorCode::NotPermitted], None);
        };
        let codes = match known.ended {
            Some(code) if !self.lingers(id, known) => vec![code, ErrorCode::NotPermitted],
            Some(code) if !self.permitted(client, known) && self.is_given_up(known) => {
                vec![code, ErrorCode::NotPermitted]
            }
            _ if !self.permitted(client, known) => vec![ErrorCode::NotPermitted],
            Some(code) => return (Vec::new(), Some(code).filter(|_| self.is_given_up(known))),
            None => self.too_late(id).into_iter().collect(),
        };
        (codes, None)
    }
}

/// What a declared lease counts in.
fn resources_of(mapped: bool) -> &'static [Resource] {
    if mapped { &[Resource::MappedLeases] } else { &[Resource::OpenLeases, Resource::Fds] }
}
