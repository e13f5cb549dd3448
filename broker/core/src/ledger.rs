//! The ledger: who is charged for which fd, byte and lease. A charge is made on all its accounts or on
//! none; a release asserts that the charge is there. Must never let a sum pass its cap or go below zero.

use fdbroker_protocol::{Caps, Resource, Scope};
use std::fmt::Debug;

/// One charge: of what, and how many fds, bytes, leases, ... of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge(pub Resource, pub u64);

impl Charge {
    /// Whether the charge counts among the fds of shared memory on the node.
    fn is_fds(self) -> bool {
        matches!(self.0, Resource::HeldFds | Resource::OpenLeases | Resource::OwnFds)
    }
}

/// Counts of one client, job, domain or node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Wide enough for any sum of claimed sizes: 2^64 leases of 2^64 bytes.
    now: [u128; Resource::COUNT],
    peak: [u128; Resource::COUNT],
    /// Above its cap when that was lowered, and what is left of it: it may stay, and never grows. 0 = not above.
    draining: [u128; Resource::COUNT],
    /// What has grown since its caps were asserted, one bit for each resource.
    grown: u32,
}

// One bit for each resource.
const _: () = assert!(Resource::COUNT <= 32);

impl Account {
    /// In use now.
    pub fn now(&self, resource: Resource) -> u64 {
        u64::try_from(self.now[resource.index()]).unwrap_or(u64::MAX)
    }

    /// Most ever in use.
    pub fn peak(&self, resource: Resource) -> u64 {
        u64::try_from(self.peak[resource.index()]).unwrap_or(u64::MAX)
    }

    /// Most ever in use, of each resource in a fixed order: for a successor.
    pub(crate) fn peaks(&self) -> Vec<u128> {
        self.peak.to_vec()
    }

    /// Takes over what a predecessor has seen in use; it may not have known the last resources of the table. `false`:
    /// these are more than there are resources.
    #[must_use]
    pub(crate) fn raise_peaks(&mut self, peaks: &[u128]) -> bool {
        let known = peaks.len() <= self.peak.len();
        for (peak, former) in self.peak.iter_mut().zip(peaks) {
            *peak = (*peak).max(*former);
        }
        known
    }

    /// Whether nothing is charged.
    pub fn is_zero(&self) -> bool {
        self.now.iter().all(|now| *now == 0)
    }

    /// Adds all that another account has in use.
    pub(crate) fn add_all(&mut self, other: &Account) {
        self.now.iter_mut().zip(other.now).for_each(|(to, from)| *to += from);
    }

    /// Whether the same is in use now.
    pub(crate) fn same_now(&self, other: &Account) -> bool {
        self.now == other.now
    }

    /// The resource whose cap the charge would pass, if any.
    fn refuses(&self, caps: &Caps, charge: Charge) -> Option<Resource> {
        let Charge(resource, amount) = charge;
        if amount == 0 {
            // Adds nothing, not even to what is above its cap.
            return None;
        }
        let full = |resource: Resource| {
            // A sum that u64 cannot tell is above every cap, even where there is none.
            let sum = self.now[resource.index()] + u128::from(amount);
            resource != Resource::PinnedBytes && sum > caps[resource].into()
        };
        if full(resource) {
            return Some(resource);
        }
        (charge.is_fds() && full(Resource::Fds)).then_some(Resource::Fds)
    }

    pub(crate) fn add(&mut self, charge: Charge) {
        let Charge(resource, amount) = charge;
        let mut add = |resource: Resource| {
            let at = resource.index();
            self.now[at] += u128::from(amount);
            self.peak[at] = self.peak[at].max(self.now[at]);
            self.grown |= 1 << at;
        };
        add(resource);
        if charge.is_fds() {
            add(Resource::Fds);
        }
    }

    pub(crate) fn take(&mut self, charge: Charge) {
        let Charge(resource, amount) = charge;
        let mut take = |resource: Resource| {
            let at = resource.index();
            let (now, amount) = (&mut self.now[at], u128::from(amount));
            assert!(*now >= amount, "ledger: {resource} {now} is less than {amount} to release");
            *now -= amount;
            self.draining[at] = self.draining[at].min(*now);
        };
        take(resource);
        if charge.is_fds() {
            take(Resource::Fds);
        }
    }

    /// Caps have been lowered, maybe: what is above them now may stay.
    pub(crate) fn drain_to(&mut self, caps: &Caps) {
        for &resource in Resource::ALL {
            let (at, cap) = (resource.index(), caps[resource]);
            let now = self.now[at];
            self.draining[at] = if now > cap.into() { now } else { 0 };
        }
    }

    /// Asserts that no cap is passed, but for what was there when it was lowered.
    pub(crate) fn assert_within(&self, caps: &Caps, whose: &dyn Debug) {
        Resource::ALL.iter().for_each(|resource| self.assert_one(*resource, caps, whose));
    }

    /// The same, of what has grown since this was asserted last: nothing else can have passed its cap.
    pub(crate) fn assert_growth_within(&mut self, caps: &Caps, whose: &dyn Debug) {
        let mut grown = std::mem::take(&mut self.grown);
        while grown != 0 {
            self.assert_one(Resource::ALL[grown.trailing_zeros() as usize], caps, whose);
            grown &= grown - 1;
        }
    }

    fn assert_one(&self, resource: Resource, caps: &Caps, whose: &dyn Debug) {
        let (now, cap) = (self.now(resource), caps[resource]);
        let may_stay = u64::try_from(self.draining[resource.index()]).unwrap_or(u64::MAX);
        let most = cap.max(may_stay);
        assert!(now <= most, "invariant 2: {resource} of {whose:?} is {now}, above its cap {cap}");
    }
}

/// Which account a charge did not fit into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Blocked {
    /// The resource whose cap is full.
    pub resource: Resource,
    /// Whose account: client, job and domain by number.
    pub account: Holder,
}

impl Blocked {
    /// Whether no recall at all fits, whatever its size and whoever its owner.
    pub fn stops_every_recall(self) -> bool {
        self.account == Holder::Node && self.resource != Resource::HeldBytes
    }
}

/// Resources of which a grant of a held fd takes one.
pub const FOR_LEASE: &[Resource] = &[Resource::Fds, Resource::OpenLeases];
/// Resources of which a deposit credit takes one.
pub const FOR_CREDIT: &[Resource] = &[Resource::Fds, Resource::HeldFds, Resource::TableFds];
/// Resources of which a recalled fd takes some.
pub const FOR_HELD: &[Resource] =
    &[Resource::Fds, Resource::HeldFds, Resource::TableFds, Resource::HeldBytes];

/// An account by its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    /// A client, by its number.
    Client(u32),
    /// A job of a domain, by its number.
    Job(u32),
    /// A domain, by its number.
    Domain(u32),
    /// The node.
    Node,
}

impl Holder {
    /// The scope that a status names.
    pub fn scope(self) -> Scope {
        match self {
            Holder::Client(_) => Scope::Client,
            Holder::Job(_) => Scope::Job,
            Holder::Domain(_) => Scope::Domain,
            Holder::Node => Scope::Node,
        }
    }
}

/// The broker's own fd table: what fills it beside the node's held places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Fds of connections.
    pub connections: u64,
    /// Fds that came without a place and wait for the closers.
    pub refused: u64,
    /// Most of the table ever in use.
    pub peak: u64,
}

/// The accounts one charge is made on, borrowed for the moment. A client that is gone has none.
pub struct Accounts<'a> {
    /// The client's, with its number.
    pub client: Option<(u32, &'a mut Account)>,
    /// Its job's, with its number, if it is of one.
    pub job: Option<(u32, &'a mut Account)>,
    /// The domain's, with its number.
    pub domain: (u32, &'a mut Account),
    /// The node's.
    pub node: &'a mut Account,
    /// Caps: client, job, domain, node.
    pub caps: [&'a Caps; 4],
    /// Room left in the table for held places.
    pub table_room: u64,
}

impl Accounts<'_> {
    /// Makes the charge on every account, or on none and says which cap is in the way.
    pub fn charge(self, charge: Charge) -> Result<(), Blocked> {
        let refused = |(holder, account, caps): (Holder, &Account, &Caps)| {
            account.refuses(caps, charge).map(|resource| Blocked { resource, account: holder })
        };
        if let Some(blocked) = self.levels().into_iter().flatten().find_map(refused) {
            return Err(blocked);
        }
        if let Charge(Resource::HeldFds, amount) = charge
            && amount > self.table_room
        {
            return Err(Blocked { resource: Resource::TableFds, account: Holder::Node });
        }
        self.add(charge);
        Ok(())
    }

    /// The accounts with their caps, the narrowest first.
    pub fn levels(&self) -> [Option<(Holder, &Account, &Caps)>; 4] {
        let [client_caps, job_caps, domain_caps, node_caps] = self.caps;
        let (client, job) = (self.client.as_ref(), self.job.as_ref());
        [
            client.map(|(number, account)| (Holder::Client(*number), &**account, client_caps)),
            job.map(|(number, account)| (Holder::Job(*number), &**account, job_caps)),
            Some((Holder::Domain(self.domain.0), &*self.domain.1, domain_caps)),
            Some((Holder::Node, &*self.node, node_caps)),
        ]
    }

    /// Makes the charge whatever the caps.
    pub fn add(self, charge: Charge) {
        for (_, account) in self.client.into_iter().chain(self.job) {
            account.add(charge);
        }
        self.domain.1.add(charge);
        self.node.add(charge);
    }

    /// Takes the charge back from every account.
    pub fn release(self, charge: Charge) {
        for (_, account) in self.client.into_iter().chain(self.job) {
            account.take(charge);
        }
        self.domain.1.take(charge);
        self.node.take(charge);
    }

    /// Makes a charge that the node counts by itself, whatever the caps.
    pub fn add_to_holder(self, charge: Charge) {
        for (_, account) in self.client.into_iter().chain(self.job) {
            account.add(charge);
        }
        self.domain.1.add(charge);
    }

    /// Takes such a charge back.
    pub fn take_from_holder(self, charge: Charge) {
        for (_, account) in self.client.into_iter().chain(self.job) {
            account.take(charge);
        }
        self.domain.1.take(charge);
    }

    /// Takes the charge back from the client and its job: their domain alone keeps it. Not the job, though
    /// what its clients have left is listed as its own: where a cap of a job is in the way its clients are asked for
    /// room, and these cannot give what they do not own. The domain's caps bound what is left.
    pub fn leave_to_domain(self, charge: Charge) {
        for (_, account) in self.client.into_iter().chain(self.job) {
            account.take(charge);
        }
    }

    /// Charges the client and its job with what their domain is charged for already; or says which cap is in the way.
    pub fn take_over(self, charge: Charge) -> Result<(), Blocked> {
        let refused = |(holder, account, caps): (Holder, &Account, &Caps)| {
            account.refuses(caps, charge).map(|resource| Blocked { resource, account: holder })
        };
        if let Some(blocked) = self.levels().into_iter().take(2).flatten().find_map(refused) {
            return Err(blocked);
        }
        for (_, account) in self.client.into_iter().chain(self.job) {
            account.add(charge);
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "../tests/unit/ledger.rs"]
mod tests;
