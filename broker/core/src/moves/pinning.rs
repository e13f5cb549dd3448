//! What held fds pin is charged, by files where these are known. Must never charge a domain twice
//! for a file, nor refuse that one grows.

use crate::api::{File, NONE};
use crate::books::files::Pinned;
use crate::books::{Allocation, Books, Charge, ScopeId};
use fdbroker_protocol::{Resource, Scope};

impl Books {
    /// The fd of an allocation is held from now on. `charged`: bytes that its owner was charged
    /// with for it already.
    pub(crate) fn pin(&mut self, slot: u32, file: Option<File>, charged: u64) {
        let allocation = &self.allocations[slot];
        let (owner, domain, size) = (allocation.owner, allocation.domain, allocation.size_bytes);
        let is_resident = !allocation.traits.is_evictable();
        let Some(found) = file else {
            self.allocations.set_file(slot, NONE);
            self.change_resident(domain, [0, if is_resident { size } else { 0 }]);
            return self.charge_difference(owner, domain, charged, size);
        };
        let known = self.files.find(domain, found.id);
        // What its owner is charged with already is of the file from now on, if that is new.
        let new = File { pinned_bytes: charged, size_bytes: 0, ..found };
        let file = known.unwrap_or_else(|| self.files.insert(domain, new));
        self.allocations.set_file(slot, self.files.join(file, owner));
        self.files.slots.insert((file, slot));
        if known.is_some() {
            self.charge_difference(owner, domain, charged, 0);
        }
        self.change_file(file, |pinned| {
            pinned.file = found;
            pinned.ranges += 1;
            pinned.sizes += u128::from(size);
            pinned.resident += u32::from(is_resident);
        });
    }

    pub(crate) fn change_resident(&mut self, domain: u32, [former, now]: [u64; 2]) {
        if former != now {
            self.ledger.change_resident(self.clients.scope_of_domain(domain), former, now);
        }
    }

    /// The fd of an allocation is held no more.
    pub(crate) fn let_go(&mut self, slot: u32) {
        let Allocation { owner, domain, file: stake, size_bytes, traits, .. } =
            self.allocations[slot];
        let is_resident = !traits.is_evictable();
        if stake == NONE {
            self.change_resident(domain, [if is_resident { size_bytes } else { 0 }, 0]);
            return self.release_from(owner, domain, Charge(Resource::HeldBytes, size_bytes));
        }
        let file = self.files.stakes[stake].file;
        self.allocations.set_file(slot, NONE);
        self.files.slots.remove(&(file, slot));
        self.change_file(file, |pinned| {
            pinned.ranges -= 1;
            pinned.sizes -= u128::from(size_bytes);
            pinned.resident -= u32::from(is_resident);
        });
        self.leave_file(stake);
    }

    /// The held allocation in a slot is another owner's from now on ([`NONE`]: its domain's alone).
    pub(crate) fn move_pin(&mut self, slot: u32, owner: u32) {
        let stake = self.allocations[slot].file;
        if stake != NONE {
            let file = self.files.stakes[stake].file;
            self.allocations.set_file(slot, self.files.join(file, owner));
            self.leave_file(stake);
        }
    }

    /// A held allocation is in the order of eviction now, or no more.
    pub(crate) fn set_evictable(&mut self, slot: u32, is_evictable: bool) {
        let stake = self.allocations[slot].file;
        if stake != NONE {
            let file = self.files.stakes[stake].file;
            let evictable = &mut self.files.files[file].evictable;
            *evictable = if is_evictable { *evictable + 1 } else { *evictable - 1 };
        }
    }

    /// An allocation has ended and is leased. The node counts what it pins, each byte of a file
    /// that is known only once.
    pub(crate) fn pin_ended(&mut self, slot: u32, file: Option<File>) {
        let size = self.allocations[slot].size_bytes;
        let bytes = file.map_or(size, |file| self.files.end(slot, size, file));
        self.ledger.add(ScopeId::NODE, Charge(Resource::PinnedBytes, bytes));
    }

    /// Changes what is known of a file, and what is charged for it.
    pub(crate) fn change_file(&mut self, file: u32, change: impl FnOnce(&mut Pinned)) {
        let pinned = &mut self.files.files[file];
        let (domain, former, was_resident) =
            (pinned.domain, pinned.bytes(), pinned.resident_bytes());
        change(pinned);
        let (now, resident) = (pinned.bytes(), [was_resident, pinned.resident_bytes()]);
        let payer = self.files.first_owner(file).expect("a file has stakes");
        self.charge_difference(payer, domain, former, now);
        self.change_resident(domain, resident);
    }

    /// Changes what a client, or a domain alone, is charged with from `former` to `now` bytes,
    /// whatever the caps.
    fn charge_difference(&mut self, owner: u32, domain: u32, former: u64, now: u64) {
        let scope = self.payer(owner, domain);
        if former > now {
            self.ledger.release(scope, Charge(Resource::HeldBytes, former - now));
        } else if now > former {
            let charge = Charge(Resource::HeldBytes, now - former);
            let is_above = self.ledger.grow(scope, None, charge);
            self.drain_soon(is_above);
        }
    }

    fn leave_file(&mut self, stake: u32) {
        let file = self.files.stakes[stake].file;
        let (domain, bytes) = (self.files.files[file].domain, self.files.files[file].bytes());
        let former = self.files.first_owner(file).expect("a file has stakes");
        self.files.leave_stake(stake);
        let charge = Charge(Resource::HeldBytes, bytes);
        match self.files.first_owner(file) {
            None => {
                self.files.remove(file);
                self.release_from(former, domain, charge);
            }
            Some(next) if next != former => {
                let [former, next] = [former, next].map(|owner| self.payer(owner, domain));
                self.ledger.release_below(Scope::Domain, former, charge);
                let is_above = self.ledger.grow(next, Some(Scope::Domain), charge);
                self.drain_soon(is_above);
            }
            Some(_) => {}
        }
    }
}
