//! What the model knows of caps: which there are, which is in the way of what. Must never look into
//! the core.

use crate::model::{Model, set_caps};
use crate::shares::SHARE_OF_FDS;
use crate::sums::{Blocker, Holder, Ledger};
use fdbroker_core::{Caps, CapsOfScopes, Config};
use fdbroker_protocol::{AllocationId, MAX_BATCH, NO_CAP, Resource};

impl Model {
    /// The cap of an account, the largest number when it has none; a client may have bounded what
    /// is held for it.
    pub fn cap(&self, account: Holder, resource: Resource) -> u128 {
        let cap = self.caps(account)[resource];
        let cap = match account {
            Holder::Client(client) if resource == Resource::HeldFds => {
                let bound = self.clients.get(&client).and_then(|client| client.most_held);
                bound.map_or(cap, |bound| cap.min(bound.into()))
            }
            _ => cap,
        };
        if cap == NO_CAP { u128::MAX } else { cap.into() }
    }

    fn caps(&self, account: Holder) -> &Caps {
        match account {
            Holder::Client(_) => &self.config.client,
            Holder::Job(..) => &self.config.job,
            Holder::Domain(_) => &self.config.domain,
            Holder::Node => &self.config.node,
        }
    }

    /// The most fds of its own that any client could have.
    pub fn most_own_fds(&self) -> u64 {
        let Config { node, domain, job, client, .. } = &self.config;
        [node, domain, job, client].into_iter().map(|caps| caps.fds).min().unwrap_or(0)
    }

    /// Takes new caps; a use that is above them now may stay.
    pub fn set_caps(&mut self, caps: &CapsOfScopes) {
        set_caps(&mut self.config, caps);
        self.note_what_is_above();
    }

    /// Notes the uses that are above their cap now: they may stay.
    pub fn note_what_is_above(&mut self) {
        let ledger = self.ledger();
        self.above.clear();
        for (account, sums) in ledger.accounts() {
            for resource in Resource::capped() {
                let cap = self.cap(account, resource);
                if sums.usage(resource) > cap {
                    self.above.insert((account, resource), sums.usage(resource));
                }
            }
        }
    }

    /// A use that was above its cap and has shrunk must not grow again.
    pub fn drain(&mut self, ledger: &Ledger) {
        for ((account, resource), above) in &mut self.above {
            *above = (*above).min(ledger.of(*account).usage(*resource));
        }
    }

    /// Whether `need` more of a resource would pass the account's cap.
    pub fn is_full(&self, ledger: &Ledger, account: Holder, resource: Resource, need: u64) -> bool {
        let (used, cap) = match resource {
            Resource::TablePlaces => {
                (self.table_fds(&ledger.node).into(), self.config.table_fds.into())
            }
            _ => (ledger.of(account).usage(resource), self.cap(account, resource)),
        };
        let lacking = (used + u128::from(need)).saturating_sub(cap);
        // Idle credits are not in the way, but for a hello with very many fds.
        let idle = match resource {
            Resource::Fds | Resource::HeldFds | Resource::TablePlaces => {
                ledger.of(account).idle_credits.min(MAX_BATCH as u64)
            }
            _ => 0,
        };
        lacking > idle.into()
    }

    /// Every cap that blocks a grant of `id` to `client`; `None` if no room would help: the
    /// allocation has ended, or is not permitted.
    pub fn blockers(&self, ledger: &Ledger, client: u32, id: AllocationId) -> Option<Vec<Blocker>> {
        let allocation = self.live(id).filter(|allocation| !allocation.reserved)?;
        let asking = self.clients.get(&client)?;
        if !self.permitted(client, allocation) {
            return None;
        }
        let mut found = Vec::new();
        let mut look = |accounts: &[Holder], needs: &[(Resource, u64)]| {
            for account in accounts {
                for (resource, need) in needs {
                    if self.is_full(ledger, *account, *resource, *need) {
                        found.push(Blocker { resource: *resource, account: *account });
                    }
                }
            }
        };
        let lease = [(Resource::OpenLeases, 1), (Resource::Fds, 1)];
        look(&self.accounts_of_client(client), &lease);
        if !self.is_held(id) {
            let owner = allocation.owner;
            let same_domain = allocation.domain == asking.domain;
            let size = allocation.deposit.facts.size_bytes;
            let (held, bytes) = ((Resource::HeldFds, 1), (Resource::HeldBytes, size));
            let client_fds = (Resource::Fds, if owner == client { 2 } else { 1 });
            look(&[Holder::Client(owner)], &[held, client_fds, bytes]);
            let owner_job = self.clients.get(&owner).and_then(|owner| owner.job);
            if let Some(job) = owner_job {
                let same_job = same_domain && asking.job == owner_job;
                let job_fds = (Resource::Fds, if same_job { 2 } else { 1 });
                look(&[Holder::Job(allocation.domain, job)], &[held, job_fds, bytes]);
            }
            let domain_fds = (Resource::Fds, if same_domain { 2 } else { 1 });
            look(&[Holder::Domain(allocation.domain)], &[held, domain_fds, bytes]);
            look(&[Holder::Node], &[held, (Resource::Fds, 2), bytes, (Resource::TablePlaces, 1)]);
        }
        if self.is_beyond_share(ledger, asking.domain, SHARE_OF_FDS, 1) {
            let account = Holder::Domain(asking.domain);
            found.push(Blocker { resource: SHARE_OF_FDS, account });
        }
        Some(found)
    }
}
