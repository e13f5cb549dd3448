//! Judges every NO_QUOTA: the cap that it names must have been full, and the process that it names
//! must hold most. Must never look into the core.

use crate::action::show_status;
use crate::judge::{ensure, slot_range};
use crate::model::{Check, Model};
use crate::shares::SHARE_OF_FDS;
use crate::step::{Quota, Step};
use crate::sums::{Holder, Ledger};
use crate::tally::Promise;
use fdbroker_protocol::page::LAST_GENERATION;
use fdbroker_protocol::{NO_CAP, Resource, Scope, Status};

impl Model {
    /// Whether the NO_QUOTA of a request is true for one of its items.
    pub fn check_quotas(&self, step: &Step, quotas: &[Quota], ledgers: &[&Ledger]) -> Check {
        // The largest holder may change within a step that also grants, keeps or evicts.
        let steady = step.evicted.is_empty()
            && step.grants.is_empty()
            && step.new_allocations == 0
            && step.arrived_tickets.is_empty();
        let mut outcome = Ok(());
        for quota in quotas {
            outcome = self.check_quota(quota, ledgers, steady);
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    /// Whether, by one of the sums given, a NO_QUOTA names a cap that was full and the largest
    /// holder.
    fn check_quota(&self, quota: &Quota, ledgers: &[&Ledger], steady: bool) -> Check {
        let shown = show_status(&quota.status);
        self.proofs.count(Promise::NoQuota, 1);
        let resource = Resource::from_number(quota.status.resource);
        let scope = quota.status.scope();
        let (Some(resource), Some(scope)) = (resource, scope) else {
            return Err(format!("{shown} names no cap"));
        };
        let value = quota.status.cap().unwrap_or(NO_CAP);
        if resource == Resource::ParkedRequests {
            ensure!(value == u64::from(self.config.max_parked_per_client), "{shown}: another cap");
            return Ok(());
        }
        if resource == Resource::Allocations && value == u64::from(self.config.max_slots) {
            let in_use = |slot: u32| self.allocations.range(slot_range(slot)).next().is_some();
            let free = (0..self.config.max_slots).filter(|slot| {
                self.slots[*slot as usize].highest < LAST_GENERATION && !in_use(*slot)
            });
            let cap = self.config.node.allocations;
            ensure!(free.count() == 0 || cap == value, "{shown}, and there are free slots");
            return Ok(());
        }
        let own = self.clients.get(&quota.client).map(|client| client.domain);
        let share = match (resource, scope) {
            (Resource::Fds, Scope::Domain) => Some(SHARE_OF_FDS),
            (Resource::TablePlaces | Resource::HeldBytes, Scope::Domain) => Some(resource),
            _ => None,
        };
        if let (Some(share), Some(domain)) = (share, own) {
            let beyond = |it: &&Ledger| self.is_beyond_share(it, domain, share, quota.need);
            if ledgers.iter().any(beyond) {
                return Ok(());
            }
            let has_cap = share != Resource::TablePlaces;
            ensure!(has_cap, "{shown}, and the share is not used up");
        }
        let accounts = self.accounts_of(quota, scope);
        ensure!(!accounts.is_empty(), "{shown} names a job, and there is none");
        let is_its = |account: &Holder| match resource {
            Resource::TablePlaces => self.config.table_fds == value,
            other => self.cap(*account, other) == value.into(),
        };
        ensure!(accounts.iter().any(is_its), "{shown} names another cap");
        if let Some((declared, _)) = quota.status.declared() {
            let own = |account: &Holder| ledgers.iter().any(|it| it.of(*account).own == declared);
            ensure!(accounts.iter().any(own), "{shown} tells of {declared} declared fds");
        }
        // The cap is full for this request; or a request before it waits for it, or did until this
        // step answered it.
        let heard_of = |account: Holder| {
            let mut others = self.heard.iter().filter(|client| **client != quota.client);
            others.any(|client| {
                self.clients.get(client).is_some_and(|state| state.is_of(*client, account))
            })
        };
        let full = accounts.iter().any(|account| {
            heard_of(*account)
                || ledgers.iter().any(|ledger| {
                    self.is_full(ledger, *account, resource, quota.need)
                        || crate::waits::is_waited_for(self, ledger, *account, resource)
                })
        });
        ensure!(
            full || quota.passing || self.is_poll_due && self.has_parked(quota.client, &accounts),
            "{shown}, and there is room: node {:?}",
            ledgers.last().map(|l| l.node)
        );
        let largest = accounts.iter().any(|account| {
            ledgers.iter().any(|ledger| self.is_largest(ledger, *account, resource, quota))
        });
        // A process of another user, or what belongs to no process.
        let is_of_nobody = quota.status.scope != scope as u8;
        let names_nobody =
            quota.status.pid == 0 && (is_of_nobody || !resource.is_capped_in(Scope::Client));
        ensure!(
            largest || names_nobody || !steady,
            "{shown} names a pid that does not hold most of it"
        );
        Ok(())
    }

    /// Whether any other client of these accounts has requests parked.
    fn has_parked(&self, client: u32, accounts: &[Holder]) -> bool {
        let mut others = self.clients.iter().filter(|(number, _)| **number != client);
        others.any(|(number, state)| {
            !state.requests.is_empty()
                && accounts.iter().any(|account| state.is_of(*number, *account))
        })
    }

    fn accounts_of(&self, quota: &Quota, scope: Scope) -> Vec<Holder> {
        let own = self.clients.get(&quota.client).map(|client| client.domain);
        let owner = quota.owner;
        match scope {
            Scope::Client => {
                let owner = owner.map(|(client, _)| client);
                [Some(quota.client), owner].into_iter().flatten().map(Holder::Client).collect()
            }
            Scope::Domain => {
                let owner = owner.map(|(_, domain)| domain);
                [own, owner].into_iter().flatten().map(Holder::Domain).collect()
            }
            Scope::Job => {
                let clients = [Some(quota.client), owner.map(|(client, _)| client)];
                let accounts = clients
                    .into_iter()
                    .flatten()
                    .flat_map(|client| self.accounts_of_client(client));
                accounts.filter(|account| matches!(account, Holder::Job(..))).collect()
            }
            Scope::Node => vec![Holder::Node],
        }
    }

    /// Give or take one, for a promise that was made and taken back within the step.
    fn is_largest(
        &self,
        ledger: &Ledger,
        account: Holder,
        resource: Resource,
        quota: &Quota,
    ) -> bool {
        let members = self.clients.iter().filter(|(number, state)| state.is_of(**number, account));
        let usage = |number: u32| ledger.of(Holder::Client(number)).usage(resource);
        let most = members.clone().map(|(number, _)| usage(*number)).max();
        let pid = quota.status.pid;
        match most {
            None => pid == 0,
            Some(most) => members
                .into_iter()
                .any(|(number, state)| usage(*number) + 1 >= most && state.pid == pid),
        }
    }
}

/// How much of the named resource an item needs.
pub fn need_of(status: &Status, size_bytes: u64, fds: u64) -> u64 {
    match Resource::from_number(status.resource) {
        Some(Resource::HeldBytes) => size_bytes,
        Some(Resource::Fds) => fds,
        _ => 1,
    }
}
