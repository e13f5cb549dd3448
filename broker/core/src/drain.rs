//! Caps changed at run time. Must never add to an account that is above a lowered cap, nor take from a client by
//! force: what can be had again is evicted, the rest is asked for, and drains as it is given back.

use crate::Core;
use crate::api::{CapsOfScopes, Effects, Now};
use crate::ledger::{Account, Blocked, Holder};
use crate::limits::{DRAIN_PAUSE_US, EVICTIONS_PER_STEP};
use crate::work::visit;
use fdbroker_protocol::Resource;
use fdbroker_protocol::admin::EventKind;

/// What eviction or reclaim brings down; the fds first, because evictions of those help both.
const DRAINED: [Resource; 5] = [
    Resource::HeldBytes,
    Resource::HeldFds,
    Resource::Fds,
    Resource::OpenLeases,
    Resource::MappedLeases,
];

impl Core {
    /// New caps, from now on, as far as [`Config::bound_caps`](crate::Config::bound_caps) lets them go.
    pub(crate) fn set_caps(&mut self, caps: &CapsOfScopes) {
        let CapsOfScopes { node, domain, job, client } = *caps;
        (self.config.node, self.config.domain) = (node, domain);
        (self.config.job, self.config.client) = (job, client);
        self.config.bound_caps();
        self.note_of_node(EventKind::Caps);
        self.caps_changed();
    }

    /// What is above its cap stays until it is given back, and never grows.
    pub(crate) fn caps_changed(&mut self) {
        let config = &self.config;
        self.node.drain_to(&config.node);
        for client in self.clients.iter_mut().flatten() {
            visit(1);
            client.account.drain_to(&config.client);
        }
        let jobs: Vec<u32> = self.jobs.iter_from(0).map(|(number, _)| number).collect();
        for number in jobs {
            self.jobs[number].account.drain_to(&config.job);
        }
        let domains: Vec<u32> = self.domains.iter_from(0).map(|(number, _)| number).collect();
        for number in domains {
            self.domains[number].account.drain_to(&config.domain);
        }
        self.drain_at = Some(Now(0));
        // Those that were raised.
        self.room_appeared |= !self.rooms.is_empty();
    }

    /// Brings accounts above their caps down, as far as is possible now; again after a pause while one is above.
    pub(crate) fn drain(&mut self, fx: &mut Effects) {
        if self.drain_at.is_none_or(|at| at > self.now) {
            return;
        }
        self.drain_at = None;
        let mut evictions = EVICTIONS_PER_STEP;
        for account in self.all_accounts() {
            for resource in DRAINED {
                let excess = self.excess(account, resource);
                if excess > 0 {
                    let blocked = Blocked { resource, account };
                    evictions -= self.drain_one(blocked, excess, evictions, fx);
                    let pause = if evictions == 0 { 0 } else { DRAIN_PAUSE_US };
                    self.drain_at = Some(Now(self.now.0.saturating_add(pause)));
                }
            }
        }
        if evictions == 0 {
            // Cut short: the next poll goes on.
            self.drain_at = Some(Now(0));
        }
    }

    fn all_accounts(&self) -> Vec<Holder> {
        let clients = self.all_clients();
        let mut all: Vec<Holder> = clients.map(|(number, _)| Holder::Client(number)).collect();
        all.extend(self.jobs.iter_from(0).map(|(number, _)| Holder::Job(number)));
        all.extend(self.domains.iter_from(0).map(|(number, _)| Holder::Domain(number)));
        all.push(Holder::Node);
        all
    }

    pub(crate) fn account(&self, account: Holder) -> &Account {
        match account {
            Holder::Client(number) => {
                let client = self.clients[number as usize].as_deref();
                &client.expect("an account in use is of a client").account
            }
            Holder::Job(number) => &self.jobs[number].account,
            Holder::Domain(number) => &self.domains[number].account,
            Holder::Node => &self.node,
        }
    }

    fn excess(&self, account: Holder, resource: Resource) -> u64 {
        let now = self.account(account).now(resource);
        now.saturating_sub(self.caps_of(account)[resource])
    }

    /// Evicts, or asks for leases; how many evictions that took.
    fn drain_one(&mut self, blocked: Blocked, excess: u64, most: usize, fx: &mut Effects) -> usize {
        let mut evicted = 0;
        if blocked.resource == Resource::HeldBytes {
            while evicted < most && self.excess(blocked.account, blocked.resource) > 0 {
                match self.evict_for(blocked, 1, fx) {
                    0 => break,
                    more => evicted += more,
                }
            }
            return evicted;
        }
        let missing = excess.saturating_sub(self.closing_in(blocked.account));
        let missing = usize::try_from(missing).unwrap_or(usize::MAX);
        evicted = self.evict_for(blocked, missing.min(most), fx);
        if evicted < missing {
            self.reclaim(blocked, missing - evicted);
        }
        evicted
    }
}
