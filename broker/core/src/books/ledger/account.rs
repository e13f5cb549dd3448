//! A charge, and the counts of one client, job, domain or node. Must never go below zero.

use super::Ledger;
use super::blocked::{Blocked, SHARE_OF_FDS, ScopeId};
use fdbroker_protocol::{Caps, NO_CAP, Resource};

/// One charge: of what, and how many fds, bytes, leases, ... of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge(pub Resource, pub u64);

impl Charge {
    /// Every resource that it is counted in, its own first.
    pub(super) fn resources(self) -> impl Iterator<Item = Resource> + Clone {
        std::iter::once(self.0).chain(self.0.counted_in().iter().copied())
    }

    /// What can be in its way in a scope.
    pub(super) fn blocked_in(self, scope: ScopeId) -> impl Iterator<Item = Blocked> {
        let capped = self.resources().filter(|it| *it != Resource::TablePlaces);
        capped.map(move |resource| Blocked { resource, scope })
    }

    /// Where there is more room once it is taken back.
    pub(super) fn freed(self) -> impl Iterator<Item = Resource> + Clone {
        let share = self.resources().any(|it| it == Resource::Fds).then_some(SHARE_OF_FDS);
        self.resources().chain(share).chain(self.is_in_table().then_some(Resource::TablePlaces))
    }

    /// Whether it takes places of the broker's own fd table.
    pub(super) fn is_in_table(self) -> bool {
        matches!(self.0, Resource::HeldFds | Resource::ReservedPlaces | Resource::TablePlaces)
    }
}

/// Charges that a scope has, made together: they are given back, or stay for a record that gives
/// them back at its end. Not in Drop: a core ends with millions of them.
#[must_use]
#[derive(Debug)]
pub struct Charged<const N: usize> {
    scope: ScopeId,
    charges: [Charge; N],
}

impl<const N: usize> Charged<N> {
    /// These have just been charged to the scope.
    pub fn to(scope: ScopeId, charges: [Charge; N]) -> Self {
        Charged { scope, charges }
    }

    /// Takes them back, for whoever waits for them.
    pub fn release(self, ledger: &mut Ledger) {
        self.charges.into_iter().for_each(|charge| ledger.release(self.scope, charge));
    }

    /// The record is there.
    pub fn stay(self) {}
}

/// Counts of one client, job, domain or node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// In use or reserved. Wide enough for any sum of claimed sizes: 2^64 leases of 2^64 bytes.
    pub(super) counted: [u128; Resource::COUNT],
    /// The most that was in use.
    pub(super) peak: [u128; Resource::COUNT],
    /// What has changed since the caps of the node were asserted, one bit for each resource.
    pub(super) changed: u32,
}

// One bit for each resource.
const _: () = assert!(Resource::COUNT <= 32);

impl Account {
    /// In use now. What is reserved is not: [`Resource::reserved_by`] has it.
    pub fn now(&self, resource: Resource) -> u64 {
        u64::try_from(self.used(resource)).unwrap_or(u64::MAX)
    }

    /// In use or reserved now: what the cap bounds.
    pub fn counted(&self, resource: Resource) -> u64 {
        u64::try_from(self.counted[resource.index()]).unwrap_or(u64::MAX)
    }

    pub(super) fn used(&self, resource: Resource) -> u128 {
        let reserved = resource.reserved_by().iter().map(|by| self.counted[by.index()]);
        self.counted[resource.index()] - reserved.sum::<u128>()
    }

    /// Most ever in use.
    pub fn peak(&self, resource: Resource) -> u64 {
        u64::try_from(self.peak[resource.index()]).unwrap_or(u64::MAX)
    }

    /// Most ever in use, of each resource in a fixed order: for a successor.
    pub fn peaks(&self) -> Vec<u128> {
        self.peak.to_vec()
    }

    /// Takes over what a predecessor has seen in use; it may not have known the last resources of
    /// the table. `false`: these are more than there are resources.
    #[must_use]
    pub(super) fn raise_peaks(&mut self, peaks: &[u128]) -> bool {
        let known = peaks.len() <= self.peak.len();
        for (peak, former) in self.peak.iter_mut().zip(peaks) {
            *peak = (*peak).max(*former);
        }
        known
    }

    /// Whether nothing is charged.
    pub fn is_zero(&self) -> bool {
        self.counted.iter().all(|counted| *counted == 0)
    }

    /// The resource whose cap the charge would pass, if any.
    pub(super) fn refuses(
        &self,
        cap: impl Fn(Resource) -> u64,
        charge: Charge,
    ) -> Option<Resource> {
        let Charge(_, amount) = charge;
        if amount == 0 {
            // Adds nothing, not even to what is above its cap.
            return None;
        }
        let full = |resource: Resource| {
            let (sum, cap) = (self.counted[resource.index()] + u128::from(amount), cap(resource));
            // Bytes that owners claim may come to more than u64 can tell: nobody is refused for
            // that.
            cap != NO_CAP && sum > cap.into()
        };
        charge.resources().find(|resource| full(*resource))
    }

    pub(super) fn add(&mut self, charge: Charge) {
        for resource in charge.resources() {
            let at = resource.index();
            self.counted[at] += u128::from(charge.1);
            self.changed |= 1 << at;
        }
        self.raise_peaks_of(charge);
    }

    fn raise_peaks_of(&mut self, charge: Charge) {
        for resource in charge.resources() {
            let peak = self.peak[resource.index()].max(self.used(resource));
            self.peak[resource.index()] = peak;
        }
    }

    /// What was reserved is in use from now on.
    pub(super) fn settle(&mut self, charge: Charge) {
        self.take_from(charge.0, charge.1);
        self.raise_peaks_of(charge);
    }

    /// Whether more is counted than the cap.
    pub(super) fn is_above(&self, resource: Resource, caps: &Caps) -> bool {
        self.counted(resource) > caps[resource]
    }

    pub(super) fn take(&mut self, charge: Charge) {
        charge.resources().for_each(|resource| self.take_from(resource, charge.1));
    }

    fn take_from(&mut self, resource: Resource, amount: u64) {
        let at = resource.index();
        let (now, amount) = (&mut self.counted[at], u128::from(amount));
        assert!(*now >= amount, "ledger: {resource} {now} is less than {amount} to release");
        *now -= amount;
        self.changed |= 1 << at;
    }
}
